"""The newest version of every key of a vbucket, and its seqno on disk.

A system event that drops, flushes or restarts a collection ends all its documents. On disk it
replaces them, and compaction removes their frames.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain

from dcp.server.model.durability import DurabilityHistory
from dcp.server.model.manifest import DEFAULT_ID
from dcp.server.model.versions import COMMITTED, PREPARED, Version, VersionKey
from dcp.server.storage.disk_store import StoredItem, VbucketStore
from dcp.server.storage.legacy_end import LegacyEnd
from dcp.server.storage.stored_items import stored_item, version_of
from dcp.server.vbucket.stored_version import StoredVersion
from dcp.wire.vocabulary import Opcode


class NewestVersions:
    """The newest version of each key, and the seqnos of those that the disk still lacks.

    It reads values back that are only on disk.
    """

    def __init__(self, vbucket: int, store: VbucketStore, *, keeps_values: bool) -> None:
        """``keeps_values``: keep values in memory after they are on disk."""
        self._vbucket = vbucket
        self._store = store
        self._keeps_values = keeps_values
        self.begin_anew()

    def begin_anew(self) -> None:
        """Forget all versions; the caller reads them from disk again (``note_read``)."""
        self.forgotten_rev = 0
        """The highest revision of a purged tombstone: a key that is not here continues above it.
        Source: kv_engine ``engines/ep/src/vbucket.cc`` (updateRevSeqNoOfNewStoredValue).
        """
        self.durability = DurabilityHistory()
        self.holds_sync_writes = False
        """Stays False in a vbucket without sync writes, which then pays nothing for them."""
        self._documents: Counter[int] = Counter()
        """Number of documents by collection, without tombstones."""
        self._newest: dict[VersionKey, Version] = {}
        # By key with an unwritten change (a newer version, or an event that ended it): the seqno of
        # its item on disk; 0 without one. For all other keys the disk has the newest version.
        self._stored_seqnos: dict[VersionKey, int] = {}
        # The keys that each unwritten system event ended.
        self._ended: dict[int, set[VersionKey]] = {}
        # Collections that ever had an item. Only their events need a scan of all keys.
        self._collections = {DEFAULT_ID}

    # --- versions by key

    def __len__(self) -> int:
        return len(self._newest)

    def of_key(self, key: bytes, collection: int = DEFAULT_ID) -> Version | None:
        return self._newest.get((COMMITTED, collection, key))

    def with_value(self, version: Version) -> Version:
        """Return the version with its value, which may have to be read from disk.

        Raises OSError if the file cannot be read.
        """
        if not isinstance(version, StoredVersion):
            return version
        frame = self._store.read(version.seqno)
        if frame is None:
            raise AssertionError(f"vbucket {self._vbucket}: seqno {version.seqno} is not on disk")
        return version_of(frame)

    def document_counts(self) -> Counter[int]:
        """Return the number of documents by collection; collections without any are left out."""
        return +self._documents

    def pending_prepare(self, key: bytes, collection: int) -> Version | None:
        """Return the prepare of the sync write under way on ``key``, or None.

        A pending write locks its key, so a newer committed version is the prepare's commit.
        """
        if not self.holds_sync_writes:
            return None
        found = self._newest.get((PREPARED, collection, key))
        if found is None or found.opcode != Opcode.DCP_PREPARE:
            return None
        committed = self._newest.get((COMMITTED, collection, key))
        return found if committed is None or committed.seqno < found.seqno else None

    def pending_prepares(self) -> list[Version]:
        """Return the prepares of all sync writes under way, in seqno order."""
        if not self.holds_sync_writes:
            return []
        found = [
            version
            for (namespace, collection, key), version in self._newest.items()
            if namespace == PREPARED and self.pending_prepare(key, collection) is version
        ]
        return sorted(found, key=lambda version: version.seqno)

    @property
    def versions(self) -> Iterable[Version]:
        return self._newest.values()

    # --- writes

    def note(self, version: Version) -> None:
        is_document = version.is_document
        if version.event is None:
            self.holds_sync_writes |= not is_document
        elif version.emptied_collection in self._collections:
            self._empty(version.collection, version.seqno)
        self._collections.add(version.collection)
        self.durability.note(version, self._completed_by(version))
        key = version.stored_key
        older = self._newest.get(key)
        if is_document:
            was_mutation = older is not None and older.is_mutation
            self._documents[version.collection] += version.is_mutation - was_mutation
        # Only the first unwritten version of a key replaces the one on disk.
        self._stored_seqnos.setdefault(key, 0 if older is None else older.seqno)
        self._newest[key] = version

    def _empty(self, collection: int, seqno: int) -> None:
        ended = {key for key, version in self._newest.items() if _is_of(version, collection)}
        self._ended[seqno] = ended
        for key in ended:
            version = self._newest.pop(key)
            self._stored_seqnos.setdefault(key, version.seqno)
        self._documents.pop(collection, None)

    def _completed_by(self, version: Version) -> int:
        if version.opcode == Opcode.DCP_ABORT:
            return version.sync.prepared_seqno if version.sync else 0
        if not self.holds_sync_writes or not version.is_document:
            return 0
        prepare = self.pending_prepare(version.key, version.collection)
        return 0 if prepare is None else prepare.seqno

    # --- flushes

    @contextmanager
    def storing(self, versions: Sequence[Version]) -> Iterator[list[StoredItem]]:
        """Yield the disk items of ``versions``, which ascend; if the block fails, none counts as
        written.
        """
        ended = {
            each.seqno: self._ended[each.seqno] for each in versions if each.seqno in self._ended
        }
        keys = chain((version.stored_key for version in versions), *ended.values())
        before = {key: self._stored_seqnos[key] for key in keys}
        try:
            yield [self._stored_item(version) for version in versions]
        except BaseException:
            self._stored_seqnos.update(before)
            self._ended.update(ended)
            raise

    def _stored_item(self, version: Version) -> StoredItem:
        completes = self._prepare_completed_by(version)
        return stored_item(version, self._mark_written(version), completes)

    def _mark_written(self, version: Version) -> Sequence[int]:
        """Mark a version as written, in seqno order; return the seqnos that it replaces on disk."""
        key = version.stored_key
        older = self._stored_seqnos[key]
        if self._newest.get(key) is version:
            del self._stored_seqnos[key]
        else:
            self._stored_seqnos[key] = version.seqno
        replaces = [older] if older else []
        if version.seqno not in self._ended:
            return replaces
        for ended in self._ended.pop(version.seqno):
            if seqno := self._stored_seqnos[ended]:
                replaces.append(seqno)
            if ended in self._newest or any(ended in keys for keys in self._ended.values()):
                # A later version of the key waits in memory, and the disk now has none.
                self._stored_seqnos[ended] = 0
            else:
                del self._stored_seqnos[ended]
        return sorted(replaces)

    def _prepare_completed_by(self, version: Version) -> int:
        """Return the seqno of the prepare on disk that ``version`` commits; 0 if there is none.

        Call it before ``_mark_written`` of the same version.
        """
        if not self.holds_sync_writes or not version.is_document:
            return 0
        prepared = PREPARED, version.collection, version.key
        newest = self._newest.get(prepared)
        seqno = self._stored_seqnos.get(prepared, 0 if newest is None else newest.seqno)
        # An older prepare was completed by the document that is on disk already.
        return seqno if seqno > self._stored_seqnos[version.stored_key] else 0

    def note_read(self, version: Version) -> None:
        """Add a version that was read from disk, in seqno order."""
        if version.is_mutation and not self._keeps_values:
            version = StoredVersion.of(version)
        self.note(version)
        self._mark_written(version)

    def leave_values(self, versions: Iterable[Version]) -> None:
        """Free the values of documents that are on disk now, unless values stay in memory."""
        if self._keeps_values:
            return
        for version in versions:
            if version.is_mutation and self._newest.get(version.stored_key) is version:
                self._newest[version.stored_key] = StoredVersion.of(version)

    # --- compaction

    def forget_compacted(self, persisted_seqno: int) -> None:
        """Forget the tombstones and completed prepares that compaction has removed."""
        tombstones = [(key, v) for key, v in self._newest.items() if v.is_deleted]
        for key, version in tombstones:
            if version.seqno <= self._store.purge_seqno:
                self.forgotten_rev = max(self.forgotten_rev, version.rev)
                del self._newest[key]
        if self.holds_sync_writes:
            self._forget_prepares(persisted_seqno)

    def _forget_prepares(self, persisted_seqno: int) -> None:
        prepares = [(key, v.seqno) for key, v in self._newest.items() if key[0] == PREPARED]
        for key, seqno in prepares:
            if seqno <= persisted_seqno and not self._is_on_disk(seqno):
                del self._newest[key]
        for key, seqno in self._stored_seqnos.items():
            if key[0] == PREPARED and seqno and not self._is_on_disk(seqno):
                self._stored_seqnos[key] = 0

    def _is_on_disk(self, seqno: int) -> bool:
        return self._store.count(seqno - 1, seqno) > 0

    def stored_end(self) -> LegacyEnd:
        """Return the end of the default collection on disk; only keys' newest versions count."""
        found = {COMMITTED: 0, PREPARED: 0}
        newest = ((key, version.seqno) for key, version in self._newest.items())
        for key, seqno in chain(
            (each for each in newest if each[0] not in self._stored_seqnos),
            self._stored_seqnos.items(),
        ):
            if key[1] == DEFAULT_ID and key[0] in found:
                found[key[0]] = max(found[key[0]], seqno)
        return LegacyEnd(found[COMMITTED], found[PREPARED])


def _is_of(version: Version, collection: int) -> bool:
    return version.collection == collection and version.event is None
