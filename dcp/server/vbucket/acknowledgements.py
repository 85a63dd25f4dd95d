"""Decides up to which seqno a replica may acknowledge prepares to the active.

A replica acknowledges in order and only complete snapshots. It must have persisted a
PERSIST_TO_MAJORITY prepare before it acknowledges that prepare or a later one. Source: kv_engine
``engines/ep/src/durability/passive_durability_monitor.cc`` (updateHighPreparedSeqno).
"""

from collections import deque
from typing import NamedTuple

from dcp.server.vbucket.request_framing import DurabilityLevel


class _Prepare(NamedTuple):
    seqno: int
    needs_disk: bool


class Acknowledgements:
    """The prepares of one replica that await their acknowledgement."""

    def __init__(self, seqno: int = 0) -> None:
        self.seqno = seqno
        """The last acknowledged prepare. After a restart: the newest prepare found on disk."""
        self._waiting: deque[_Prepare] = deque()

    def prepared(self, seqno: int, level: int, complete_seqno: int) -> None:
        """Add a prepare of the snapshot that begins after ``complete_seqno``."""
        taken = _Prepare(seqno, level >= DurabilityLevel.PERSIST_TO_MAJORITY)
        last = self._waiting[-1] if self._waiting else None
        # A snapshot is acknowledged as a whole, so the last of several equal prepares stands for
        # all.
        if last is not None and last.seqno > complete_seqno and last.needs_disk is taken.needs_disk:
            self._waiting.pop()
        self._waiting.append(taken)

    def reach(self, complete_seqno: int, persisted_seqno: int) -> None:
        while self._waiting and self._waiting[0].seqno <= complete_seqno:
            # Prepares behind this one must wait, too.
            if self._waiting[0].needs_disk and self._waiting[0].seqno > persisted_seqno:
                return
            self.seqno = self._waiting.popleft().seqno

    def cut(self, left_seqno: int) -> None:
        self.seqno = min(self.seqno, left_seqno)
        while self._waiting and self._waiting[-1].seqno > left_seqno:
            self._waiting.pop()
