"""Looks up the branch of each row: epochs and failover logs of the streamed vbuckets, as arrays.

A row's ``vb_uuid`` is the uuid of the newest failover entry at or below its seqno, in the log that
was accepted with the stream (never in one that was fetched later).
"""

import numpy as np
from numpy.typing import NDArray

from dcp.types import U16_MAX, FailoverLog


class BranchLookup:
    """Epoch and accepted failover log by vbucket, for whole columns at once."""

    def __init__(self) -> None:
        self._logs: dict[int, FailoverLog] = {}
        self._epoch = np.zeros(U16_MAX + 1, np.int32)
        self._newest_uuid = np.zeros(U16_MAX + 1, np.uint64)
        self._newest_seqno = np.zeros(U16_MAX + 1, np.uint64)

    def set_epoch(self, vbucket: int, epoch: int) -> None:
        self._epoch[vbucket] = epoch

    def set_log(self, vbucket: int, log: FailoverLog) -> None:
        self._logs[vbucket] = log
        self._newest_uuid[vbucket] = log.entries[0].vb_uuid
        self._newest_seqno[vbucket] = log.entries[0].seqno

    def epoch(self, vbucket: int) -> int:
        return int(self._epoch[vbucket])

    def epochs(self, vbuckets: NDArray[np.uint16]) -> NDArray[np.int32]:
        return self._epoch[vbuckets]

    def uuid(self, vbucket: int, seqno: int) -> int:
        return self._logs[vbucket].uuid_at(seqno)

    def uuids(self, vbuckets: NDArray[np.uint16], seqnos: NDArray[np.uint64]) -> NDArray[np.uint64]:
        """Return the branch of each row; nearly all rows are on their vbucket's newest one."""
        uuids = self._newest_uuid[vbuckets]
        for row in np.flatnonzero(seqnos < self._newest_seqno[vbuckets]).tolist():
            uuids[row] = self._logs[int(vbuckets[row])].uuid_at(int(seqnos[row]))
        return uuids
