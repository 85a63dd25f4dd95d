"""Tracks the progress of a vbucket's sync writes by seqno, for snapshot markers to replicas.

Counted along as items are appended or read, by the seqno at which each number came to be: a marker
may be of a snapshot that ended before the newest item. A prepare is completed by an abort that
names it, or by the next document of its key: while one is under way nothing else is written to its
key (kv_engine ``engines/ep/src/durability/durability_monitor.h``).
"""

from array import array
from bisect import bisect_right
from typing import Final, NamedTuple

from dcp.server.model.versions import Version
from dcp.wire.vocabulary import Opcode

_LEAST_TRIMMED: Final = 64
"""So many steps at least are forgotten at once: each time moves all others."""


class Durability(NamedTuple):
    """Seqnos of a snapshot: its last item that plain clients see, and how far prepares got.

    ``high_completed_seqno`` is that of the newest prepare that was committed or aborted.
    """

    max_visible_seqno: int
    high_completed_seqno: int
    high_prepared_seqno: int


class _Steps:
    """A number that grows with seqnos: ``values[i]`` holds from ``seqnos[i]`` on."""

    def __init__(self) -> None:
        self.seqnos, self.values = array("Q"), array("Q")

    def grow(self, seqno: int, value: int) -> None:
        if not self.values or value > self.values[-1]:
            self.seqnos.append(seqno)
            self.values.append(value)

    def at(self, seqno: int) -> int:
        place = bisect_right(self.seqnos, seqno)
        return self.values[place - 1] if place else 0

    def forget(self, below_seqno: int) -> None:
        place = bisect_right(self.seqnos, below_seqno) - 1
        if place >= _LEAST_TRIMMED:
            del self.seqnos[:place], self.values[:place]


class DurabilityHistory:
    """The durability seqnos at each seqno, from the last one passed to ``forget``."""

    def __init__(self) -> None:
        self._visible = _Steps()  # of runs: from the first item of one on it is the last one
        self._completed, self._prepared = _Steps(), _Steps()
        self._was_visible = False

    def note(self, version: Version, completed_seqno: int) -> None:
        """Take the next item; ``completed_seqno``: the prepare that it completes, 0 for none."""
        seqno, is_visible = version.seqno, version.is_visible
        if is_visible and self._was_visible:
            self._visible.values[-1] = seqno
        elif is_visible:
            self._visible.grow(seqno, seqno)
        self._was_visible = is_visible
        if completed_seqno:
            self._completed.grow(seqno, completed_seqno)
            self._prepared.grow(seqno, completed_seqno)
        if version.opcode == Opcode.DCP_PREPARE:
            self._prepared.grow(seqno, seqno)

    def at(self, end_seqno: int, floor: int) -> Durability:
        """Return the durability seqnos at a seqno; plain clients see all items up to ``floor``."""
        visible = max(min(floor, end_seqno), min(self._visible.at(end_seqno), end_seqno))
        return Durability(visible, self._completed.at(end_seqno), self._prepared.at(end_seqno))

    def forget(self, below_seqno: int) -> None:
        """Discard the history below a seqno: nobody asks for it any more."""
        for steps in (self._visible, self._completed, self._prepared):
            steps.forget(below_seqno)
