"""Maps the seqnos of one vbucket's stream to byte positions.

    received   R: all that ever came
    freed      D: so much of it the relay is done with; it never goes back

A consumer's position is the byte behind the last seqno that it was sent. Bytes are known in blocks,
each of which ends with a seqno: a consumer inside a block stands at its beginning. Small blocks
become one up to a part of the window; blocks more than one window behind the freed position are
forgotten; a consumer there is *far behind*.
"""

from bisect import bisect_right
from typing import Final

_BLOCKS_OF_WINDOW: Final = 16


class BytePositions:
    """Received and freed bytes, and the blocks around the freed position; plain arithmetic."""

    __slots__ = (
        "_block_bytes",
        "_ends",
        "_seqnos",
        "_window_bytes",
        "freed_bytes",
        "received_bytes",
    )

    def __init__(self, window_bytes: int) -> None:
        self.received_bytes = 0
        self.freed_bytes = 0
        self._window_bytes = window_bytes
        self._block_bytes = max(1, window_bytes // _BLOCKS_OF_WINDOW)
        self._seqnos = [0]
        self._ends = [0]

    @property
    def held_bytes(self) -> int:
        """Bytes received and not freed."""
        return self.received_bytes - self.freed_bytes

    @property
    def far_behind(self) -> int:
        """The position given to a consumer whose seqno is older than every remembered block.

        Just over one window behind what is freed.
        """
        return min(self.freed_bytes - self._window_bytes - 1, self._ends[0])

    def receive(self, last_seqno: int, frame_bytes: int) -> None:
        """Take bytes behind which a stream stands at ``last_seqno``."""
        self.received_bytes += frame_bytes
        is_same = last_seqno == self._seqnos[-1]
        if not is_same and not self._may_grow():
            self._seqnos.append(last_seqno)
            self._ends.append(self.received_bytes)
        else:
            self._seqnos[-1], self._ends[-1] = last_seqno, self.received_bytes

    def _may_grow(self) -> bool:
        """Return whether the last block is a small one of which nothing is freed."""
        if len(self._ends) == 1:
            return False
        begin = self._ends[-2]
        return begin >= self.freed_bytes and self.received_bytes - begin <= self._block_bytes

    def position_of(self, seqno: int) -> int:
        """Return the position of a consumer that was sent everything up to a seqno."""
        index = bisect_right(self._seqnos, seqno) - 1
        return self._ends[index] if index >= 0 else self.far_behind

    def free_to(self, position: int) -> int:
        """Free received bytes up to a position; return how many bytes that frees."""
        before = self.freed_bytes
        self.freed_bytes = max(before, min(position, self.received_bytes))
        known_from = self.freed_bytes - self._window_bytes
        gone = bisect_right(self._ends, known_from) - 1
        if gone > 0:
            del self._seqnos[:gone], self._ends[:gone]
        return self.freed_bytes - before

    def begin_again(self, seqno: int) -> None:
        """Restart after a rollback: all received bytes end at this seqno."""
        self._seqnos, self._ends = [seqno], [self.received_bytes]
