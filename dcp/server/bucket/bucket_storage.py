"""The data folder of a bucket: opens it, saves the bucket's record, and closes it.

The record holds the map, the manifests and the names of disk logs. It is saved at each change,
under the bucket's lock: such changes are rare.
"""

import logging
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random

from dcp.server.model.cluster_map import ServedClusterMap
from dcp.server.model.failover_log import fresh_uuid
from dcp.server.model.manifest import Manifest, Step
from dcp.server.model.manifest_table import ManifestTable
from dcp.server.model.server_settings import ServerSettings
from dcp.server.storage.bucket_record import BucketRecord
from dcp.server.storage.data_folder import DataFolder
from dcp.server.storage.disk_file import OsFile
from dcp.server.storage.disk_log_names import DiskLogNames, first_names
from dcp.server.storage.saved_vbucket import VbucketHome
from dcp.server.vbucket.vbucket_states import Vbucket

_LOGGER = logging.getLogger(__name__)


class BucketStorage:
    """The data folder of a bucket, locked against other processes until ``close``.

    Callers hold the bucket's lock.
    """

    def __init__(self, settings: ServerSettings, folder: Path, random: Random) -> None:
        """Lock the folder, and read the bucket's record or create one.

        Raises:
            SourceError: another process serves from the folder.
            ConfigError: the folder cannot be used, or belongs to another bucket.
        """
        self._folder = DataFolder(folder, settings.named("data_folder"), settings.subject.strip())
        try:
            found = self._folder.load(settings.bucket, settings.vbuckets, settings.nodes)
        except BaseException:
            self._folder.close()
            raise
        self._is_new = found is None
        self._record = _first_record(settings, random) if found is None else found
        self._manifests = ManifestTable(self._record.manifests)
        self._names = DiskLogNames(
            self._record.logs, self._record.replica_logs, self._folder.disk_logs()
        )
        self._saved_numbers = _numbers_of(self._record)
        # Removing a large file can take as long as writing it; a failover must not wait for that.
        self._removals = ThreadPoolExecutor(1, "dcp-server-removals")
        self.is_open = True

    @property
    def bucket_uuid(self) -> str:
        return self._record.uuid

    @property
    def starts(self) -> int:
        """Number of earlier processes that served this bucket."""
        return self._record.starts

    @property
    def manifest(self) -> Manifest:
        return self._manifests[self._record.manifest]

    def home(self, vbucket: int) -> VbucketHome:
        return self._home(vbucket, self._names.of(vbucket))

    def replica_home(self, node: int, vbucket: int) -> VbucketHome:
        return self._home(vbucket, self._names.of_replica(node, vbucket))

    def _home(self, vbucket: int, name: str) -> VbucketHome:
        file = self._folder.file(name)
        remove = partial(self._remove, file)
        first_uuid = self._record.first_uuids[vbucket]
        return VbucketHome(file, first_uuid, self._manifests, self._number_of, remove)

    def _remove(self, file: OsFile) -> None:
        # After the folder is closed another process may use the same file name.
        if self.is_open:
            self._removals.submit(_remove, file)

    def drop_replica(self, node: int, vbucket: int) -> None:
        """Forget a replica; its disk log is removed later."""
        self._names.drop_replica(node, vbucket)

    @contextmanager
    def installing(self, replicas: Iterable[tuple[int, int]]) -> Iterator[None]:
        """Make replicas the vbuckets of the next record, and undo that if the block raises.

        ``replicas`` are pairs of node and vbucket. The block saves the record.
        """
        before = self._names.copy()
        for node, vbucket in replicas:
            self._names.install(node, vbucket)
        try:
            yield
        except BaseException:
            self._names = before
            raise

    def keep_replicas(self, kept: Iterable[tuple[int, int]]) -> None:
        """Forget all replicas but these (node, vbucket) pairs; remove the disk logs of others."""
        self._names.keep_replicas(kept)
        for name in sorted(self._folder.disk_logs() - self._names.known):
            self._folder.file(name).remove()

    def _number_of(self, manifest: Manifest) -> int:
        """Return a manifest's number; save the manifest first if the record lacks it.

        Raises:
            OSError: the record cannot be written; the next call tries again.
        """
        self._manifests.add(manifest)
        number = self._manifests.number(manifest)
        # A replica can stand at a manifest that no active vbucket had, so the record may lack it.
        if number not in self._saved_numbers:
            self._save(replace(self._record, manifests=self._manifests.rows))
        return number

    def _save(self, record: BucketRecord) -> None:
        self._folder.save(record)
        self._record = record
        self._saved_numbers = _numbers_of(record)

    def begin(self, map_: ServedClusterMap, vbuckets: list[Vbucket]) -> None:
        """Start from the vbuckets as read; after a crash, each one begins a branch.

        Raises:
            OSError: the folder cannot be written.
        """
        if not self._is_new:
            ended_at = self._record.ended_at
            for vbucket in vbuckets:
                # No clean stop, or a disk log that ends elsewhere than the stop recorded: writes
                # may be lost.
                if ended_at is None or ended_at[vbucket.id] != vbucket.data.high_seqno:
                    vbucket.recover()
            found = self._record
            # A new revision, so that clients with the old map take this one.
            map_.reopen(found.owners, found.members, found.replicas, found.map_rev + 1)
        starts, record = self._record.starts + 1, self._record_of(map_, self._record.manifest)
        self._save(replace(record, starts=starts, ended_at=None))

    def save(
        self,
        map_: ServedClusterMap,
        manifest: Manifest,
        steps: Sequence[Step],
        vbuckets: Sequence[Vbucket],
    ) -> None:
        """Save the map, the manifest and the steps to the manifest, if anything changed.

        ``vbuckets`` are all vbuckets and replicas; manifests that none of them names are forgotten.

        Raises:
            OSError: the folder cannot be written; the previous record stays.
        """
        wanted = [*(then for _, then in steps), manifest]
        for each in wanted:
            self._manifests.add(each)
        self._forget_manifests({self._manifests.number(each) for each in wanted}, vbuckets)
        record = self._record_of(map_, self._manifests.number(manifest))
        if record != self._record:
            self._save(record)

    def _record_of(self, map_: ServedClusterMap, manifest_number: int) -> BucketRecord:
        return replace(
            self._record,
            nodes=map_.node_count,
            map_rev=map_.rev,
            owners=map_.owners,
            members=map_.members,
            replicas=map_.rows,
            logs=self._names.names,
            replica_logs=self._names.replicas,
            manifest=manifest_number,
            manifests=self._manifests.rows,
        )

    def _forget_manifests(self, wanted: set[int], vbuckets: Sequence[Vbucket]) -> None:
        """Forget all manifests but these numbers and those in a vbucket's or replica's history."""
        steps = {id(m): m for v in vbuckets for _, m in v.documents.collections.steps}
        given = {self._manifests.number_given(manifest) for manifest in steps.values()}
        named = wanted.union(*(vbucket.named_manifests for vbucket in vbuckets))
        self._manifests.keep(named | {number for number in given if number is not None})

    def close(self, vbuckets: list[Vbucket], with_replicas: list[Vbucket]) -> None:
        """Write all pending data, record a clean stop, and unlock the folder.

        ``with_replicas`` has the vbuckets, and all replicas with disk logs of their own.

        Raises:
            OSError: the folder cannot be written; the next start recovers as after a crash.
        """
        self.is_open = False
        failures = []
        try:
            for vbucket in with_replicas:
                try:
                    vbucket.data.persistence.flush(vbucket.data.high_seqno)
                    if vbucket.data.disk.saved_state:
                        vbucket.save()
                    vbucket.data.close()
                except OSError as error:  # the other vbuckets must still get to disk
                    failures.append(error)
            if failures:
                raise failures[0]
            ended_at = [vbucket.data.high_seqno for vbucket in vbuckets]
            self._forget_manifests({self._record.manifest}, with_replicas)
            rows = self._manifests.rows
            self._folder.save(replace(self._record, manifests=rows, ended_at=ended_at))
        finally:
            self._unlock()

    def abandon(self) -> None:
        self.is_open = False
        self._unlock()

    def _unlock(self) -> None:
        # Another process may reuse the names of files that are still to be removed.
        self._removals.shutdown()
        self._folder.close()


def _remove(file: OsFile) -> None:
    try:
        file.remove()
    except OSError as error:
        _LOGGER.warning("cannot remove an unused disk log: %s", error)


def _numbers_of(record: BucketRecord) -> frozenset[int]:
    return frozenset([0, *(row["number"] for row in record.manifests)])


def _first_record(settings: ServerSettings, random: Random) -> BucketRecord:
    fresh = ServedClusterMap(
        settings.bucket, "", settings.nodes, settings.vbuckets, settings.replicas
    )
    return BucketRecord(
        settings.bucket,
        settings.vbuckets,
        settings.nodes,
        uuid=settings.bucket_uuid or f"{random.getrandbits(128):032x}",
        first_uuids=[fresh_uuid(random.randint) for _ in range(settings.vbuckets)],
        map_rev=fresh.rev,
        owners=fresh.owners,
        members=fresh.members,
        replicas=fresh.rows,
        logs=first_names(settings.vbuckets),
        replica_logs=[[] for _ in range(settings.vbuckets)],
        manifest=0,
        manifests=[],
    )
