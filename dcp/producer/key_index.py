"""The newest version of every key of one vbucket, and which version of it the disk has.

The event of a collection that was dropped, flushed or begun anew makes an end of all its documents;
their frames stay on disk until compaction, so whoever reads those asks ``is_gone``.
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable

from dcp.producer.manifest import DEFAULT_ID
from dcp.producer.versions import COMMITTED, Version, VersionKey


class KeyIndex:
    """Keys of one vbucket; ``emptied_at`` has the seqnos of events that emptied a collection.

    ``live`` counts the documents of each collection.
    """

    def __init__(self) -> None:
        self.emptied_at: dict[int, list[int]] = {}
        self.holds_documents_only = True
        self.holds_sync_writes = False
        self.live: Counter[int] = Counter()
        self._newest: dict[VersionKey, Version] = {}
        self._stored_seqnos: dict[VersionKey, int] = {}
        self._collections = {DEFAULT_ID}  # those that ever had an item

    def note(self, version: Version) -> None:
        """Take the newest version of its key."""
        if version.emptied_collection in self._collections:
            self._empty(version.collection, version.seqno)
        if not version.is_document or version.collection != DEFAULT_ID:
            self.holds_documents_only = False
        if not version.is_document and version.event is None:
            self.holds_sync_writes = True
        self._collections.add(version.collection)
        if version.is_document:
            older = self._newest.get(version.stored_key)
            was_live = older is not None and older.is_live
            self.live[version.collection] += version.is_live - was_live
        self._newest[version.stored_key] = version

    def _empty(self, collection: int, seqno: int) -> None:
        self.emptied_at.setdefault(collection, []).append(seqno)
        for key in [k for k, v in self._newest.items() if _is_of(v, collection)]:
            del self._newest[key]
        self.live.pop(collection, None)

    def newest(self, key: bytes, collection: int) -> Version | None:
        """Return the newest version of ``key``, which may be a deletion."""
        return self._newest.get((COMMITTED, collection, key))

    @property
    def versions(self) -> Iterable[Version]:
        """The newest version of everything, events included."""
        return self._newest.values()

    def is_gone(self, version: Version, end_seqno: int) -> bool:
        """Whether an event up to ``end_seqno`` made an end of the collection of an older item."""
        emptied = self.emptied_at.get(version.collection)
        if emptied is None or version.event is not None:
            return False
        later = bisect_right(emptied, version.seqno)
        return later < len(emptied) and emptied[later] <= end_seqno

    def stored(self, version: Version) -> int:
        """Note that a version goes to disk; return the seqno that it replaces there, or 0."""
        replaces = self._stored_seqnos.get(version.stored_key, 0)
        self._stored_seqnos[version.stored_key] = version.seqno
        return replaces


def _is_of(version: Version, collection: int) -> bool:
    return version.collection == collection and version.event is None
