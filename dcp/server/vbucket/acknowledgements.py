"""Decides up to which seqno a copy may acknowledge its prepares: whole snapshots, in order.

A prepare of level PERSIST_TO_MAJORITY must be on the copy's disk, and so must it before any that
comes behind it. Of consecutive prepares of one snapshot with the same disk requirement only the
last is kept, which is enough to say how far all are held. Source: kv_engine
``engines/ep/src/durability/passive_durability_monitor.cc`` (updateHighPreparedSeqno).
"""

from collections import deque
from typing import NamedTuple

from dcp.server.vbucket.request_framing import DurabilityLevel


class _Prepare(NamedTuple):
    seqno: int
    needs_disk: bool


class Acknowledgements:
    """The unacknowledged prepares of one copy; ``seqno`` is the last acknowledged one."""

    def __init__(self, seqno: int = 0) -> None:
        """``seqno``: the newest prepare that a restart found on the copy's disk."""
        self.seqno = seqno
        self._waiting: deque[_Prepare] = deque()

    def prepared(self, seqno: int, level: int, whole_seqno: int) -> None:
        """Take a prepare of the snapshot that follows ``whole_seqno``."""
        taken = _Prepare(seqno, level >= DurabilityLevel.PERSIST_TO_MAJORITY)
        last = self._waiting[-1] if self._waiting else None
        if last is not None and last.seqno > whole_seqno and last.needs_disk is taken.needs_disk:
            self._waiting.pop()
        self._waiting.append(taken)

    def reach(self, whole_seqno: int, persisted_seqno: int) -> None:
        """Acknowledge what is due, given the last whole snapshot's end and the persisted seqno."""
        while self._waiting and self._waiting[0].seqno <= whole_seqno:
            if self._waiting[0].needs_disk and self._waiting[0].seqno > persisted_seqno:
                return
            self.seqno = self._waiting.popleft().seqno

    def cut(self, left_seqno: int) -> None:
        """Forget all above a seqno: it was rolled back."""
        self.seqno = min(self.seqno, left_seqno)
        while self._waiting and self._waiting[-1].seqno > left_seqno:
            self._waiting.pop()
