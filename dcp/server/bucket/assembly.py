"""The bucket that all nodes serve, assembled from its parts.

    map, counters, changes            owners of vbuckets; statistics; vbuckets with news for streams
    table                             vbuckets and replicas         (on a data folder, a flusher)
    dcp_connections                   connections to which streams send
    writes                            path from a command to disk, memory and streams
    persistence_waits                 clients that wait for the disk

Each part uses only parts above it. A producer's bucket (``ProducerBucket``) takes writes; a relay's
(``RelayBucket``) is filled by another cluster.
"""

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from random import Random
from threading import RLock

from dcp.errors import ConfigError
from dcp.server.bucket.auth import UserStore
from dcp.server.bucket.bucket_manifest import BucketManifest
from dcp.server.bucket.bucket_storage import BucketStorage
from dcp.server.bucket.client_load import ClientLoad
from dcp.server.bucket.dcp_connection import SharedByConnections
from dcp.server.bucket.dcp_connections import DcpConnections
from dcp.server.bucket.node_figures import ProcessFigures
from dcp.server.bucket.origin import BucketOrigin
from dcp.server.bucket.persistence_waits import PersistenceWaits
from dcp.server.bucket.replicas import Replicas
from dcp.server.bucket.vbucket_table import VbucketTable
from dcp.server.bucket.write_path import WritePath
from dcp.server.checkpoints.checkpoint_account import CheckpointAccount
from dcp.server.model.cluster_map import ServedClusterMap
from dcp.server.model.counters import Counters
from dcp.server.model.manifest import FIRST, Manifest, Step
from dcp.server.model.server_settings import ServerSettings
from dcp.server.streams.stream_quota import StreamQuota
from dcp.server.vbucket.changed_vbuckets import ChangedVbuckets
from dcp.server.vbucket.vbucket_states import Vbucket


class Bucket(ABC):
    """All state that the nodes of a cluster share.

    Callers hold ``lock``: connections run in the server's loop, tests write from their own threads.
    """

    def __init__(self, settings: ServerSettings, origin: BucketOrigin, counters: Counters) -> None:
        """Create a bucket, or open the one in the settings' data folder.

        ``origin`` decides who fills the bucket.

        Raises:
            SecretError: a certificate cannot be used; nothing was written.
            ConfigError: a password cannot be used; nothing was written.
        """
        # First all that can refuse the settings: then there is no half-made data folder.
        self.tls = settings.tls_context()
        try:
            self.users = UserStore(settings.users)
        except ConfigError as error:
            raise ConfigError(f"{settings.named('users')}: {error}") from None
        # Tests fix the seed, so that uuids repeat.
        random = Random(settings.seed)
        self._storage: BucketStorage | None = None
        if settings.data_folder is not None:
            self._storage = BucketStorage(settings, settings.data_folder, random)
            # The same seed must not repeat uuids of branches.
            if settings.seed is not None and self._storage.starts:
                random.seed(f"{settings.seed} start {self._storage.starts}")
        self.settings = settings
        self.lock = RLock()
        self.map = ServedClusterMap(
            settings.bucket,
            _uuid_of(settings, self._storage, random),
            settings.nodes,
            settings.vbuckets,
            settings.replicas,
            settings.bucket_type,
            settings.cluster_uuid,
        )
        self.counters = counters
        self.changes = ChangedVbuckets()
        self.clients = ClientLoad(settings.large_frame_seconds)
        self.collections = BucketManifest(
            FIRST if self._storage is None else self._storage.manifest, self._save
        )
        self.table = VbucketTable(
            settings,
            random,
            self._storage,
            self.map,
            lambda: self.manifest,
            origin,
            self.lock,
        )
        memory = CheckpointAccount(settings.checkpoint_quota_bytes)
        quotas = defaultdict[int, StreamQuota](lambda: StreamQuota(settings.max_streams))
        self.dcp_connections = DcpConnections(
            SharedByConnections(settings, self.counters, origin, memory, quotas),
            self.map,
            self.changes,
        )
        self.writes = WritePath(settings, self.table, memory, self.dcp_connections, self.changes)
        self.persistence_waits = PersistenceWaits(self.table, settings)
        self.save()

    # --- what it is

    @property
    def name(self) -> str:
        return self.settings.bucket

    @property
    def vbuckets(self) -> list[Vbucket]:
        return self.table.vbuckets

    @property
    def replicas(self) -> Replicas:
        return self.table.replicas

    @property
    def manifest(self) -> Manifest:
        return self.collections.current

    @property
    def is_closed(self) -> bool:
        return self._storage is not None and not self._storage.is_open

    @abstractmethod
    def process_figures(self, node: int) -> ProcessFigures:
        """Return the metrics of the process, asked of ``node``."""

    def now(self) -> float:
        return self.settings.clock()

    # --- what is saved at once

    @contextmanager
    def changing_map(self) -> Iterator[None]:
        """Save the map that the caller changes inside; restore the old map if that fails.

        Raises:
            OSError: the data folder cannot be written.
        """
        with self.map.changing():
            yield
            self.save()

    def save(self) -> None:
        """Save the map and the manifest to the data folder, if there is one.

        Raises:
            OSError: the folder cannot be written.
        """
        self._save(self.manifest)

    def _save(self, manifest: Manifest, steps: Sequence[Step] = ()) -> None:
        if self._storage is not None and self._storage.is_open:
            self._storage.save(self.map, manifest, steps, self.table.all())

    def close(self) -> None:
        """Write pending data and release the data folder; a second call does nothing.

        Raises:
            OSError: the folder cannot be written; the next start recovers as after a crash.
        """
        try:
            if self._storage is not None and self._storage.is_open:
                self._storage.close(self.vbuckets, self.table.all())
        finally:
            if self.writes.flusher is not None:
                self.writes.flusher.close()


def _uuid_of(settings: ServerSettings, storage: BucketStorage | None, random: Random) -> str:
    if storage is not None:
        return storage.bucket_uuid
    return settings.bucket_uuid or f"{random.getrandbits(128):032x}"
