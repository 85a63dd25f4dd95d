"""Progress of a vbucket's sync writes by seqno, for snapshot markers to replicas."""

from array import array
from bisect import bisect_right
from typing import Final, NamedTuple

from dcp.server.model.versions import Version
from dcp.wire.vocabulary import Opcode

_LEAST_TRIMMED: Final = 64
"""Fewest steps that are forgotten at once: each time moves all that stay."""


class Durability(NamedTuple):
    """Facts about sync writes at the end of a snapshot."""

    max_visible_seqno: int
    """Last item that clients without sync writes see."""
    high_completed_seqno: int
    """Newest prepare that was committed or aborted."""
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
        index = bisect_right(self.seqnos, seqno)
        return self.values[index - 1] if index else 0

    def forget(self, below_seqno: int) -> None:
        index = bisect_right(self.seqnos, below_seqno) - 1
        if index >= _LEAST_TRIMMED:
            del self.seqnos[:index], self.values[:index]


class DurabilityHistory:
    """Durability at each seqno: a marker can end below the newest item."""

    def __init__(self) -> None:
        self._visible = _Steps()  # a run of visible items: its first seqno, and its last as value
        self._completed, self._prepared = _Steps(), _Steps()
        self._was_visible = False

    def note(self, version: Version, completed_seqno: int) -> None:
        """Add the next item; ``completed_seqno`` is the prepare that it completes, or 0.

        An abort completes the prepare that it names. A document completes the prepare of its key:
        nothing else is written to a key with a prepare (kv_engine
        ``engines/ep/src/durability/durability_monitor.h``).
        """
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
        """Return the durability at a seqno; all items up to ``floor`` count as visible."""
        visible = max(min(floor, end_seqno), min(self._visible.at(end_seqno), end_seqno))
        return Durability(visible, self._completed.at(end_seqno), self._prepared.at(end_seqno))

    def forget(self, below_seqno: int) -> None:
        """Discard the history below a seqno that no marker will need."""
        for steps in (self._visible, self._completed, self._prepared):
            steps.forget(below_seqno)
