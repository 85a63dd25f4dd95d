"""The bucket that all nodes of a cluster serve, assembled from its parts.

    map, counters, changes            owners of vbuckets; statistics; vbuckets with news for streams
    table                             vbuckets and copies           (on a data folder, a flusher)
    dcp_connections                   connections to which streams send
    replicas                          progress of the copies
    writes                            path from a command to disk, memory and streams
    sync_writes, persistence_waits    clients that wait for copies, or for the disk

Each part uses only parts above it. Changes of state are in ``bucket_states.py``, ``promotion.py``
and ``failover.py``.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from random import Random
from threading import RLock

from dcp.server.bucket.auth import UserStore
from dcp.server.bucket.bucket_manifest import BucketManifest
from dcp.server.bucket.bucket_origin import BucketOrigin, ClientOrigin
from dcp.server.bucket.bucket_storage import BucketStorage
from dcp.server.bucket.client_load import ClientLoad
from dcp.server.bucket.copy_table import Copies
from dcp.server.bucket.dcp_connection import SendHook, SharedByConnections
from dcp.server.bucket.dcp_connections import DcpConnections
from dcp.server.bucket.flusher import Flusher
from dcp.server.bucket.node_figures import ProcessFigures
from dcp.server.bucket.persistence_waits import PersistenceWaits
from dcp.server.bucket.replicas import Replicas
from dcp.server.bucket.sync_write_board import SyncWriteBoard
from dcp.server.bucket.vbucket_maker import VbucketMaker
from dcp.server.bucket.vbucket_table import VbucketTable
from dcp.server.bucket.write_path import WritePath
from dcp.server.checkpoints.checkpoint_account import CheckpointAccount
from dcp.server.model.cluster_map import ServedClusterMap
from dcp.server.model.cluster_settings import ClusterSettings
from dcp.server.model.counters import Counters
from dcp.server.model.manifest import FIRST, Manifest, Step
from dcp.server.model.manifest_changes import ManifestChange
from dcp.server.model.versions import Version
from dcp.server.streams.stream_quota import StreamQuota
from dcp.server.vbucket.changed_vbuckets import ChangedVbuckets
from dcp.server.vbucket.documents import DocumentError, DocumentStore
from dcp.server.vbucket.vbucket import Vbucket
from dcp.wire.vocabulary import Status, VbucketState


class Bucket:
    """All state that the nodes of a cluster share.

    Callers hold ``lock``: connections run in the server's loop, tests write from their own threads.
    """

    def __init__(
        self,
        settings: ClusterSettings,
        origin: BucketOrigin | None = None,
        send_hook: SendHook | None = None,
    ) -> None:
        """Create a bucket, or open the one in the settings' data folder.

        ``origin`` decides who fills the bucket; the default is its clients. ``send_hook`` may
        change what clients are sent.
        """
        origin = origin or ClientOrigin()
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
        self.users = UserStore(settings.users)
        self.map = ServedClusterMap(
            settings.bucket,
            _uuid_of(settings, self._storage, random),
            settings.nodes,
            settings.vbuckets,
            settings.replicas,
            settings.bucket_type,
            settings.cluster_uuid,
        )
        self.counters = Counters(record_seqnos=settings.record_seqnos)
        self.changes = ChangedVbuckets()
        self.clients = ClientLoad(settings.large_frame_seconds)
        self.collections = BucketManifest(
            FIRST if self._storage is None else self._storage.manifest, self._save
        )
        flusher = None if self._storage is None else _flusher_of(settings, self.lock)
        self.table = VbucketTable(
            VbucketMaker(settings, random, self._storage),
            flusher,
            self.map,
            lambda: self.manifest,
            origin,
            self.lock,
        )
        memory = CheckpointAccount(settings.checkpoint_quota_bytes)
        quotas = defaultdict[int, StreamQuota](lambda: StreamQuota(settings.max_streams))
        self.dcp_connections = DcpConnections(
            SharedByConnections(settings, self.counters, origin, memory, quotas, send_hook),
            self.map,
            self.changes,
        )
        self.replicas = Replicas(self.map, self.table, self.dcp_connections)
        self.writes = WritePath(
            settings, self.table, flusher, memory, self.dcp_connections, self.changes
        )
        self.sync_writes = SyncWriteBoard(self.table, self.replicas, self.writes, settings.clock)
        self.persistence_waits = PersistenceWaits(self.table, settings)
        self.save()
        if self._storage is not None:
            for vbucket in self.vbuckets:
                self.follow_manifest(vbucket)

    # --- what it is

    @property
    def name(self) -> str:
        return self.settings.bucket

    @property
    def vbuckets(self) -> list[Vbucket]:
        return self.table.vbuckets

    @property
    def copies(self) -> Copies:
        return self.table.copies

    @property
    def manifest(self) -> Manifest:
        return self.collections.current

    @property
    def is_closed(self) -> bool:
        return self._storage is not None and not self._storage.is_open

    def process_figures(self) -> ProcessFigures | None:
        """Return the process's own metrics; None unless a subclass has some."""
        return None

    def now(self) -> float:
        return self.settings.clock()

    # --- what is saved at once

    @contextmanager
    def promoting_copies(self, heirs: Mapping[int, int]) -> Iterator[None]:
        """Save promoted copies together with the map that the caller changes inside.

        ``heirs`` gives the promoted node by vbucket. If the save fails, or the block raises,
        neither the map nor the copies change.

        Raises:
            OSError: the data folder cannot be written.
        """
        copies = ((node, v, self.copies.at(node, v)) for v, node in heirs.items())
        places = [(node, v) for node, v, copy in copies if copy is not None and copy.is_prepared]
        storage = nullcontext() if self._storage is None else self._storage.installing(places)
        with storage, self.changing_map():
            yield

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
                self._storage.close(self.vbuckets, self.copies.all_vbuckets())
        finally:
            if self.writes.flusher is not None:
                self.writes.flusher.close()

    # --- what clients and administrators do

    def write(self, key: bytes, command: Callable[[DocumentStore], Version]) -> Version:
        """Run a KV command on the vbucket that holds ``key``, and wake its streams.

        Raises:
            DocumentError: the command is refused; NOT_MY_VBUCKET if the vbucket is not active.
        """
        vbucket = self.table.of_key(key)
        if vbucket.state is not VbucketState.ACTIVE:
            raise DocumentError(
                Status.NOT_MY_VBUCKET, f"{key!r}: vbucket {vbucket.id} is {vbucket.state.name}"
            )
        return self.writes.write_to(vbucket, command)

    def change_manifest(self, *changes: ManifestChange) -> None:
        """Change scopes and collections under one new uid; active vbuckets emit system events.

        Raises:
            ManifestError: a change is invalid; none is made.
            OSError: the data folder cannot be written; no change is made.
        """
        self.collections.change(changes, self.vbuckets)
        for vbucket in self.vbuckets:
            self.follow_manifest(vbucket)

    def follow_manifest(self, vbucket: Vbucket) -> None:
        """Let an active vbucket emit the system events that it lacks for the bucket's manifest.

        Raises:
            OSError: the data folder cannot be written; the next call emits the events.
        """
        if self.collections.follow(vbucket):
            self.writes.wrote(vbucket.id)

    def expire_due(self, now: float) -> int:
        """Run the expiry pager over all active vbuckets; return the number of expired documents.

        Raises:
            Exception: the first failure of a vbucket; the pager still visits all others.
        """
        total = 0
        failures: list[Exception] = []
        for vbucket in self.vbuckets:
            if vbucket.state is not VbucketState.ACTIVE:
                continue
            # Documents that expired ahead of a failure are written and must reach the streams.
            before = vbucket.data.high_seqno
            try:
                try:
                    total += vbucket.documents.expire_due(now)
                finally:
                    if vbucket.data.high_seqno != before:
                        self.writes.wrote(vbucket.id)
            except Exception as error:  # one broken vbucket must not stop the pager for the others
                failures.append(error)
        if failures:
            raise failures[0]
        return total


def _uuid_of(settings: ClusterSettings, storage: BucketStorage | None, random: Random) -> str:
    if storage is not None:
        return storage.bucket_uuid
    return settings.bucket_uuid or f"{random.getrandbits(128):032x}"


def _flusher_of(settings: ClusterSettings, lock: RLock) -> Flusher:
    quota_bytes = settings.checkpoint_quota_bytes
    return Flusher(lock, settings.flush_seconds, quota_bytes, settings.clock)
