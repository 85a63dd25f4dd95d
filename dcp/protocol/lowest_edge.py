"""Finds the lowest edge of many receivers without a scan each time one moves.

A heap holds every edge that was said. One that is not its receiver's any more is passed over when
it comes to the top, so a move costs the logarithm of how many there are, however they move. Of
equal edges the one counts whose receiver came first.
"""

from heapq import heapify, heappop, heappush
from typing import Final

_SPARE_ENTRIES: Final = 16


class LowestEdge:
    """The edges of receivers, by id."""

    __slots__ = ("_came", "_edges", "_heap")

    def __init__(self) -> None:
        self._edges: dict[int, tuple[int, int, int]] = {}
        """By receiver: its edge, the number of its coming, its id; as the heap has them."""
        self._heap: list[tuple[int, int, int]] = []
        self._came = 0

    def set(self, receiver_id: int, edge: int) -> None:
        """Take the edge of a receiver, new or known."""
        known = self._edges.get(receiver_id)
        if known is None:
            self._came += 1
        elif known[0] == edge:
            return
        entry = edge, self._came if known is None else known[1], receiver_id
        self._edges[receiver_id] = entry
        heappush(self._heap, entry)
        if len(self._heap) > 2 * len(self._edges) + _SPARE_ENTRIES:
            self._heap = list(self._edges.values())
            heapify(self._heap)

    def forget(self, receiver_id: int) -> None:
        """Remove a known receiver; if it comes back it counts as the newest."""
        del self._edges[receiver_id]

    @property
    def edge(self) -> int | None:
        """The lowest edge; None where there is no receiver."""
        return self._heap[0][0] if self._tidy() else None

    @property
    def receiver_id(self) -> int | None:
        """The receiver of the lowest edge; None where there is no receiver."""
        return self._heap[0][2] if self._tidy() else None

    def _tidy(self) -> bool:
        """Bring a current edge to the top of the heap; return whether there is any."""
        while self._heap and self._edges.get(self._heap[0][2]) != self._heap[0]:
            heappop(self._heap)
        return bool(self._heap)
