"""Queues documents by expiry: one entry for each document with an expiry, not for each write."""

import heapq
from typing import Final

_SLACK_ENTRIES: Final = 64


class ExpiryQueue:
    """Keys of collections by the second, since 1970, at which they expire.

    Each key has one place in a dictionary; the heap may have old ones too, but never more of those
    than of the others (and a few).
    """

    def __init__(self) -> None:
        self._expiry_of: dict[tuple[int, bytes], int] = {}
        self._heap: list[tuple[int, int, bytes]] = []

    def __len__(self) -> int:
        """Return how many entries are held, old ones included."""
        return len(self._heap)

    def note(self, collection: int, key: bytes, expiry: int) -> None:
        """Take the expiry of a key's newest version; 0 for none."""
        if not expiry:
            if self._expiry_of.pop((collection, key), None) is None:
                return
        elif self._expiry_of.get((collection, key)) != expiry:
            self._expiry_of[collection, key] = expiry
            heapq.heappush(self._heap, (expiry, collection, key))
        if len(self._heap) > 2 * len(self._expiry_of) + _SLACK_ENTRIES:
            self._heap = [(at, *which) for which, at in self._expiry_of.items()]
            heapq.heapify(self._heap)

    def pop_due(self, now: float) -> tuple[int, bytes, int] | None:
        """Remove and return collection, key and expiry of a document that is due; None without any.

        A caller that cannot expire it now must ``note`` it again.
        """
        while self._heap and self._heap[0][0] <= now:
            expiry, collection, key = heapq.heappop(self._heap)
            if self._expiry_of.get((collection, key)) == expiry:
                del self._expiry_of[collection, key]
                return collection, key, expiry
        return None
