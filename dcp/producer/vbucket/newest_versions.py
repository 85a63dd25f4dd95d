"""The newest version of every key of a vbucket, preloaded documents and evicted values included.

``KeyIndex`` knows the keys that were written, ``PreloadedDocuments`` those that the data began with
and nobody lists. It also finds the versions that a version replaces on disk.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from dcp.producer.model.manifest import DEFAULT_ID
from dcp.producer.model.versions import Version
from dcp.producer.storage.disk_store import StoredItem, VbucketStore
from dcp.producer.storage.legacy_end import LegacyEnd
from dcp.producer.storage.stored_items import stored_item, version_of
from dcp.producer.vbucket.key_index import KeyIndex
from dcp.producer.vbucket.preload import PreloadedSegment
from dcp.producer.vbucket.preloaded_documents import PreloadedDocuments
from dcp.producer.vbucket.resident_values import EvictedVersion, ResidentValues


class NewestVersions:
    """The newest version of every key; ``keys`` has those that were not only preloaded."""

    def __init__(self, vbucket: int, store: VbucketStore, values: ResidentValues | None) -> None:
        """``values`` says which values on disk stay in memory too; without it all do."""
        self._vbucket = vbucket
        self._store = store
        self._values = values
        self._preloaded: PreloadedDocuments | None = None
        self.keys = KeyIndex(values)

    # --- what keys hold

    def of_key(self, key: bytes, collection: int = DEFAULT_ID) -> Version | None:
        """Return the newest version of ``key``, which may be a deletion."""
        version = self.keys.newest(key, collection)
        if version is None and collection == DEFAULT_ID and self._preloaded is not None:
            frame = self._store.read(self._preloaded.seqno_of(key, self.keys))
            version = None if frame is None else version_of(frame)
        return version

    def with_value(self, version: Version) -> Version:
        """Return a newest version with its value, which is read from disk where it was evicted.

        Raises:
            OSError: the file cannot be read.
        """
        if not isinstance(version, EvictedVersion):
            self.keys.use(version)
            return version
        frame = self._store.read(version.seqno)
        if frame is None:
            raise AssertionError(f"vbucket {self._vbucket}: seqno {version.seqno} is not on disk")
        whole = version_of(frame)
        self.keys.restore(whole)
        return whole

    def document_counts(self) -> Counter[int]:
        """Return how many documents there are of each collection that has some."""
        counts = Counter(self.keys.live)
        if self._preloaded is not None and DEFAULT_ID not in self.keys.emptied_at:
            counts[DEFAULT_ID] += self._preloaded.count
        return +counts

    # --- what is written, and what goes to disk

    def note(self, version: Version) -> None:
        """Take the newest version of its key, which was written or received."""
        if self._preloaded is not None:
            self._preloaded.note(version, self.keys)
        self.keys.note(version)

    @contextmanager
    def storing(self, versions: Sequence[Version]) -> Iterator[list[StoredItem]]:
        """Yield versions as items for the disk, in this order; an error within undoes it.

        Outside they are known to be on disk, or none of them is.
        """
        items: list[StoredItem] = []
        with self.keys.storing(versions):
            for version in versions:
                items.append(self._stored(version, items))
            yield items

    def _stored(self, version: Version, earlier: Sequence[StoredItem]) -> StoredItem:
        """Return a version as it goes to disk, behind ``earlier`` ones that are not there yet."""
        completes = self.keys.prepare_completed_by(version)
        replaces = self.keys.stored(version)
        if self._preloaded is not None:
            more = self._preloaded.ended_by(version, self.keys, replaces, earlier)
            replaces = [*replaces, *more]
        return stored_item(version, replaces, completes)

    # --- beginning, losing and forgetting

    def preload(self, segment: PreloadedSegment) -> int:
        """Take the preloaded documents; return the seqno of the last one."""
        self._preloaded = PreloadedDocuments(segment, self._store)
        return self._preloaded.end_seqno

    def cut(self, seqno: int) -> None:
        """Forget the preloaded documents above a seqno, as the store did; then ``begin_anew``."""
        if self._preloaded is not None:
            self._preloaded.cut(seqno)

    def begin_anew(self) -> None:
        """Forget all versions but the preloaded ones: the others are read again (``note_read``)."""
        self.keys.close()
        self.keys = KeyIndex(self._values)

    def note_read(self, version: Version) -> None:
        """Take a version that was read from disk, its value left there if values may be."""
        if self._preloaded is not None:
            self._preloaded.note(version, self.keys)
        self.keys.note_stored(version)

    def forget_compacted(self, persisted_seqno: int) -> None:
        """Forget the keys of which compaction left nothing on disk."""
        self.keys.forget_tombstones(self._store.purge_seqno)
        self.keys.forget_prepares(
            persisted_seqno, lambda seqno: self._store.count(seqno - 1, seqno) > 0
        )

    def preloaded_end(self) -> LegacyEnd:
        """Return the end of the preloaded documents that the disk still has."""
        return LegacyEnd(self._newest_preloaded)

    def stored_end(self) -> LegacyEnd:
        """Return the end of the default collection on disk."""
        committed, prepared = self.keys.stored_high_seqnos(DEFAULT_ID)
        return LegacyEnd(max(committed, self._newest_preloaded), prepared)

    @property
    def _newest_preloaded(self) -> int:
        return 0 if self._preloaded is None else self._preloaded.newest_seqno
