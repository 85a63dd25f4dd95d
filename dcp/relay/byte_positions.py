"""Maps the seqnos of one vbucket's stream to byte positions.

    received   R: all bytes that ever came
    consumed   C: all bytes that no consumer needs; it never decreases

A consumer stands at the byte behind the last seqno that it was sent. Positions are known only at
the ends of blocks, so a consumer inside a block stands at the block's start. Small blocks merge up
to a part of the window. Blocks more than one window behind C are forgotten; a consumer there stands
``before_blocks``.
"""

from bisect import bisect_right
from typing import Final

_BLOCKS_OF_WINDOW: Final = 16
"""A window has about so many blocks."""


class BytePositions:
    """Received and consumed bytes, with the blocks around the consumed position."""

    __slots__ = (
        "_block_bytes",
        "_ends",
        "_seqnos",
        "_window_bytes",
        "consumed_bytes",
        "received_bytes",
    )

    def __init__(self, window_bytes: int) -> None:
        self.received_bytes = 0
        self.consumed_bytes = 0
        self._window_bytes = window_bytes
        self._block_bytes = max(1, window_bytes // _BLOCKS_OF_WINDOW)
        self._seqnos = [0]
        self._ends = [0]

    @property
    def unconsumed_bytes(self) -> int:
        return self.received_bytes - self.consumed_bytes

    @property
    def before_blocks(self) -> int:
        """The position of a consumer before all known blocks: more than one window behind D."""
        return min(self.consumed_bytes - self._window_bytes - 1, self._ends[0])

    def receive(self, last_seqno: int, frame_bytes: int) -> None:
        self.received_bytes += frame_bytes
        is_same = last_seqno == self._seqnos[-1]
        if not is_same and not self._may_grow():
            self._seqnos.append(last_seqno)
            self._ends.append(self.received_bytes)
        else:
            self._seqnos[-1], self._ends[-1] = last_seqno, self.received_bytes

    def _may_grow(self) -> bool:
        if len(self._ends) == 1:
            return False
        begin = self._ends[-2]
        return begin >= self.consumed_bytes and self.received_bytes - begin <= self._block_bytes

    def position_of(self, seqno: int) -> int:
        """Return the position of a consumer that was sent everything up to ``seqno``."""
        index = bisect_right(self._seqnos, seqno) - 1
        return self._ends[index] if index >= 0 else self.before_blocks

    def consume_to(self, position: int) -> int:
        """Count bytes up to a position as consumed; return how many more those are."""
        before = self.consumed_bytes
        self.consumed_bytes = max(before, min(position, self.received_bytes))
        known_from = self.consumed_bytes - self._window_bytes
        gone = bisect_right(self._ends, known_from) - 1
        if gone > 0:
            del self._seqnos[:gone], self._ends[:gone]
        return self.consumed_bytes - before

    def begin_again(self, seqno: int) -> None:
        """Restart after a rollback: all received bytes now end at ``seqno``."""
        self._seqnos, self._ends = [seqno], [self.received_bytes]
