"""A queue of documents by expiry: one entry per document, however often it is written."""

import heapq
from typing import Final

_SLACK_ENTRIES: Final = 64


class ExpiryQueue:
    """(collection, key) pairs, ordered by expiry in seconds since 1970."""

    def __init__(self) -> None:
        self._expiry_of: dict[tuple[int, bytes], int] = {}
        self._heap: list[tuple[int, int, bytes]] = []
        """May have stale entries, which ``_expiry_of`` reveals; ``note`` limits their number."""

    def __len__(self) -> int:
        return len(self._heap)

    def note(self, collection: int, key: bytes, expiry: int) -> None:
        """Set the expiry of a key's newest version; 0 means none."""
        if not expiry:
            if self._expiry_of.pop((collection, key), None) is None:
                return
        elif self._expiry_of.get((collection, key)) != expiry:
            self._expiry_of[collection, key] = expiry
            heapq.heappush(self._heap, (expiry, collection, key))
        if len(self._heap) > 2 * len(self._expiry_of) + _SLACK_ENTRIES:
            # Most entries are stale, so build the heap again.
            self._heap = [(at, *which) for which, at in self._expiry_of.items()]
            heapq.heapify(self._heap)

    def pop_due(self, now: float) -> tuple[int, bytes, int] | None:
        """Remove and return (collection, key, expiry) of one due document; None if none is due.

        A caller that cannot expire the document now must ``note`` it again.
        """
        while self._heap and self._heap[0][0] <= now:
            expiry, collection, key = heapq.heappop(self._heap)
            if self._expiry_of.get((collection, key)) == expiry:
                del self._expiry_of[collection, key]
                return collection, key, expiry
        return None
