"""The data folder of a bucket: opens it, saves its record, and closes it.

The record of what vbuckets share is written at once, under the bucket's lock, whenever it changes:
that is as rare as changes of the cluster and its collections. So what a vbucket saves never names a
manifest that is not saved.
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
from dcp.server.model.cluster_settings import ClusterSettings
from dcp.server.model.failover_log import fresh_uuid
from dcp.server.model.manifest import Manifest, Step
from dcp.server.model.manifest_table import ManifestTable
from dcp.server.storage.bucket_record import BucketRecord
from dcp.server.storage.data_folder import DataFolder
from dcp.server.storage.disk_file import OsFile
from dcp.server.storage.log_names import LogNames, first_names
from dcp.server.storage.saved_vbucket import VbucketHome
from dcp.server.vbucket.vbucket import Vbucket

_LOG = logging.getLogger(__name__)


class BucketStorage:
    """The data folder of a bucket, locked until ``close``; used under the bucket's lock."""

    def __init__(self, settings: ClusterSettings, folder: Path, random: Random) -> None:
        """Lock the folder and read the bucket's record, or begin one.

        Raises:
            SourceError: another process serves from the folder.
            ConfigError: the folder cannot be used, or is not for this bucket.
        """
        self._folder = DataFolder(folder)
        try:
            found = self._folder.load(settings.bucket, settings.vbuckets, settings.nodes)
        except BaseException:
            self._folder.close()
            raise
        self._is_new = found is None
        self._record = _first_record(settings, random) if found is None else found
        self._manifests = ManifestTable(self._record.manifests)
        self._names = LogNames(self._record.logs, self._record.copy_logs, self._folder.logs())
        self._saved: BucketRecord | None = None
        self._saved_numbers = _numbers_of(self._record)
        # Removing files takes a disk as long as writing them: a failover does not wait for it.
        self._removals = ThreadPoolExecutor(1, "dcp-producer-removals")
        self.is_open = True

    @property
    def bucket_uuid(self) -> str:
        """The uuid that the bucket has for good."""
        return self._record.uuid

    @property
    def starts(self) -> int:
        """The number of processes that served the bucket before this one."""
        return self._record.starts

    @property
    def manifest(self) -> Manifest:
        """The bucket's manifest when it was last saved."""
        return self._manifests[self._record.manifest]

    def home(self, vbucket: int) -> VbucketHome:
        """Return where a vbucket's data lives."""
        return self._home(vbucket, self._names.of(vbucket))

    def copy_home(self, node: int, vbucket: int) -> VbucketHome:
        """Return where a node's copy of a vbucket lives."""
        return self._home(vbucket, self._names.of_copy(node, vbucket))

    def _home(self, vbucket: int, name: str) -> VbucketHome:
        file = self._folder.file(name)
        remove = partial(self._remove, file)
        first_uuid = self._record.first_uuids[vbucket]
        return VbucketHome(file, first_uuid, self._manifests, self._number_of, remove)

    def _remove(self, file: OsFile) -> None:
        """Remove a log that is nobody's any more, soon; not when the folder may be another's."""
        if self.is_open:
            self._removals.submit(_remove, file)

    def drop_copy(self, node: int, vbucket: int) -> None:
        """Forget a copy; its log goes with it."""
        self._names.drop_copy(node, vbucket)

    @contextmanager
    def installing(self, copies: Iterable[tuple[int, int]]) -> Iterator[None]:
        """Let copies be the vbuckets, if what is done inside, which saves that, does not fail."""
        before = self._names.copy()
        for node, vbucket in copies:
            self._names.install(node, vbucket)
        try:
            yield
        except BaseException:
            self._names = before
            raise

    def keep_copies(self, named: Iterable[tuple[int, int]]) -> None:
        """Know no other copies than these, and remove all logs that are nobody's."""
        self._names.keep_copies(named)
        for name in sorted(self._folder.logs() - self._names.known):
            self._folder.file(name).remove()

    def _number_of(self, manifest: Manifest) -> int:
        """Return a manifest's number, which is on disk.

        A copy may have stood at one that no active vbucket did.

        Raises:
            OSError: the record cannot be written; the next one to ask tries again.
        """
        self._manifests.add(manifest)
        number = self._manifests.number(manifest)
        if number not in self._saved_numbers:
            self._save(replace(self._saved or self._record, manifests=self._manifests.rows))
        return number

    def _save(self, record: BucketRecord) -> None:
        self._folder.save(record)
        self._record = self._saved = record
        self._saved_numbers = _numbers_of(record)

    def begin(self, map_: ServedClusterMap, vbuckets: list[Vbucket]) -> None:
        """Go on with vbuckets as they were read; after a crash active ones begin a branch.

        A vbucket that does not end where it was left counts as crashed, too.

        Raises:
            OSError: the folder cannot be written.
        """
        if not self._is_new:
            ended_at = self._record.ended_at
            for vbucket in vbuckets:
                if ended_at is None or ended_at[vbucket.id] != vbucket.data.high_seqno:
                    vbucket.recover()
            found = self._record
            map_.reopen(found.owners, found.members, found.copies, found.map_rev + 1)
        self._record = replace(self._record, starts=self._record.starts + 1, ended_at=None)
        self.save(map_, self.manifest)

    def save(
        self,
        map_: ServedClusterMap,
        manifest: Manifest,
        steps: Sequence[Step] = (),
        held: Iterable[Vbucket] | None = None,
    ) -> None:
        """Save what changed of the map or the manifest, and the steps that lead to that one.

        ``held`` are all vbuckets and copies of the bucket: a manifest that none of them names is
        forgotten. None: they are not open yet, and nothing is.

        Raises:
            OSError: the folder cannot be written; what was saved before is there.
        """
        wanted = [*(then for _, then in steps), manifest]
        for each in wanted:
            self._manifests.add(each)
        if held is not None:
            self._forget_manifests({self._manifests.number(each) for each in wanted}, list(held))
        record = replace(
            self._record,
            nodes=map_.node_count,
            map_rev=map_.rev,
            owners=map_.owners,
            members=map_.members,
            copies=map_.rows,
            logs=self._names.names,
            copy_logs=self._names.copies,
            manifest=self._manifests.number(manifest),
            manifests=self._manifests.rows,
        )
        if record != self._saved:
            self._save(record)

    def _forget_manifests(self, wanted: set[int], held: Sequence[Vbucket]) -> None:
        """Keep the manifests of some numbers, and all that a vbucket or copy stands or stood at."""
        steps = {id(m): m for v in held for _, m in v.documents.collections.steps}
        given = {self._manifests.number_given(manifest) for manifest in steps.values()}
        named = wanted.union(*(vbucket.named_manifests for vbucket in held))
        self._manifests.keep(named | {number for number in given if number is not None})

    def close(self, vbuckets: list[Vbucket], copies: list[Vbucket]) -> None:
        """Write all that is pending, say that this was a stop in good order, and unlock.

        Raises:
            OSError: the folder cannot be written; the next start is then as after a crash.
        """
        self.is_open = False
        failures = []
        try:
            for vbucket in (*vbuckets, *copies):
                try:
                    vbucket.data.persistence.flush(vbucket.data.high_seqno)
                    if vbucket.data.disk.saved_state:
                        vbucket.save()
                    vbucket.data.close()
                except OSError as error:  # the others are to be whole
                    failures.append(error)
            if failures:
                raise failures[0]
            ended_at = [vbucket.data.high_seqno for vbucket in vbuckets]
            self._forget_manifests({self._record.manifest}, (*vbuckets, *copies))
            rows = self._manifests.rows
            self._folder.save(replace(self._record, manifests=rows, ended_at=ended_at))
        finally:
            self._unlock()

    def abandon(self) -> None:
        """Unlock the folder and leave it as it is."""
        self.is_open = False
        self._unlock()

    def _unlock(self) -> None:
        self._removals.shutdown()  # before another process gives their names to others
        self._folder.close()


def _remove(file: OsFile) -> None:
    try:
        file.remove()
    except OSError as error:
        _LOG.warning("a log that is not used any more: %s", error)


def _numbers_of(record: BucketRecord) -> frozenset[int]:
    return frozenset([0, *(row["number"] for row in record.manifests)])


def _first_record(settings: ClusterSettings, random: Random) -> BucketRecord:
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
        copies=fresh.rows,
        logs=first_names(settings.vbuckets),
        copy_logs=[[] for _ in range(settings.vbuckets)],
        manifest=0,
        manifests=[],
    )
