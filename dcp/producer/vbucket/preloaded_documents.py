"""Tracks which preloaded documents of a vbucket are still current, without a list of their keys.

They are on disk from the beginning, at the seqnos of their segment. One is what its key holds until
a version of that key, or an event of the default collection, takes its place.
"""

from collections.abc import Sequence

from dcp.producer.model.manifest import DEFAULT_ID
from dcp.producer.model.versions import Version
from dcp.producer.storage.disk_store import StoredItem, VbucketStore
from dcp.producer.vbucket.key_index import KeyIndex
from dcp.producer.vbucket.preload import PreloadedSegment
from dcp.types import U64_MAX


class PreloadedDocuments:
    """The documents of ``segment`` up to ``end_seqno``; ``count`` of them are current.

    The ``keys`` that methods take are those that were written beside them.
    """

    def __init__(self, segment: PreloadedSegment, store: VbucketStore) -> None:
        self._segment = segment
        self._store = store
        self.end_seqno = segment.seqno_of(len(segment) - 1)
        self.count = len(segment)

    def seqno_of(self, key: bytes, keys: KeyIndex, before_seqno: int = U64_MAX) -> int:
        """Return the seqno at which ``key`` was preloaded; 0 if it was not, or was gone before.

        What replaced it may be gone, too: a tombstone that was purged. Then the log has neither.
        """
        row = self._segment.row_of(key)
        if row is None or keys.emptied_at.get(DEFAULT_ID, U64_MAX) < before_seqno:
            return 0
        seqno = self._segment.seqno_of(row)
        is_here = seqno <= self.end_seqno and self._store.count(seqno - 1, seqno)
        return seqno if is_here else 0

    @property
    def newest_seqno(self) -> int:
        """The seqno of the last one that the disk has, and nothing replaced there; 0: none."""
        left = self._store.live_seqnos(self._segment.first_seqno - 1, self.end_seqno)
        return left[-1] if left else 0

    def note(self, version: Version, keys: KeyIndex) -> None:
        """Decrease the count if a version, which ``keys`` do not know yet, replaces one."""
        if not version.is_document or version.collection != DEFAULT_ID:
            return
        if keys.newest(version.key, DEFAULT_ID) is None and self.seqno_of(version.key, keys):
            self.count -= 1

    def ended_by(
        self,
        version: Version,
        keys: KeyIndex,
        replaces: Sequence[int],
        earlier: Sequence[StoredItem],
    ) -> Sequence[int]:
        """Return the seqnos of those that a version replaces on disk, besides ``replaces``.

        ``earlier`` items go to disk with it, before it.
        """
        if version.collection != DEFAULT_ID:
            return []
        if version.is_document and not replaces:
            seqno = self.seqno_of(version.key, keys, version.seqno)
            return [seqno] if seqno else []
        if version.emptied_collection is None:
            return []
        ended = {seqno for item in earlier for seqno in item.replaces}
        left = self._store.live_seqnos(self._segment.first_seqno - 1, self.end_seqno)
        return [seqno for seqno in left if seqno not in ended]

    def cut(self, seqno: int) -> None:
        """Lose what is above ``seqno``, as the store did; all later versions are noted anew."""
        self.end_seqno = min(self.end_seqno, seqno)
        self.count = self._store.count(self._segment.first_seqno - 1, self.end_seqno)
