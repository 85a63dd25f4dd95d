"""Finds the lowest edge of many receivers in logarithmic time per move."""

from heapq import heapify, heappop, heappush
from typing import Final

_SPARE_ENTRIES: Final = 16


class LowestEdge:
    """The edges of receivers, by id; of equal edges the older receiver's counts."""

    __slots__ = ("_admitted", "_edges", "_heap")

    def __init__(self) -> None:
        self._edges: dict[int, tuple[int, int, int]] = {}
        """By receiver: the entry that the heap holds for it: edge, order of admission, id."""
        self._heap: list[tuple[int, int, int]] = []
        self._admitted = 0

    def set(self, receiver_id: int, edge: int) -> None:
        known = self._edges.get(receiver_id)
        if known is None:
            self._admitted += 1
        elif known[0] == edge:
            return
        entry = edge, self._admitted if known is None else known[1], receiver_id
        self._edges[receiver_id] = entry
        heappush(self._heap, entry)
        # The heap keeps outdated entries, which ``_tidy`` skips; rebuilding bounds their number.
        if len(self._heap) > 2 * len(self._edges) + _SPARE_ENTRIES:
            self._heap = list(self._edges.values())
            heapify(self._heap)

    def forget(self, receiver_id: int) -> None:
        """Remove a known receiver; if it returns it counts as the newest."""
        del self._edges[receiver_id]

    @property
    def edge(self) -> int | None:
        return self._heap[0][0] if self._tidy() else None

    @property
    def receiver_id(self) -> int | None:
        return self._heap[0][2] if self._tidy() else None

    def _tidy(self) -> bool:
        """Remove outdated entries from the top of the heap; return whether an entry is left."""
        while self._heap and self._edges.get(self._heap[0][2]) != self._heap[0]:
            heappop(self._heap)
        return bool(self._heap)
