"""The checkpoints of a vbucket, oldest first: closed ones that hold items, then the open one.

There is always exactly one open checkpoint, the last, and nothing but it can be added to. What left
memory is a beginning of the list: closed checkpoints are removed from the oldest on, items are
expelled from the oldest alone, so that no reader ever finds a gap.
"""

from bisect import bisect_right
from collections.abc import Iterator
from typing import Generic

from dcp.server.checkpoints.checkpoint import (
    Checkpoint,
    CheckpointHead,
    CheckpointKind,
    OpenCheckpoint,
    Q,
)


class CheckpointList(Generic[Q]):
    """Checkpoints that go on after ``high_seqno``, where the first snapshot starts."""

    def __init__(self, high_seqno: int) -> None:
        head = CheckpointHead(1, CheckpointKind.MEMORY, high_seqno, high_seqno)
        self.open: OpenCheckpoint[Q] = OpenCheckpoint(head)
        self._closed: list[Checkpoint[Q]] = []
        self._closed_bytes = 0

    def __iter__(self) -> Iterator[Checkpoint[Q]]:
        """Yield all checkpoints, oldest first."""
        yield from self._closed
        yield self.open

    @property
    def memory_bytes(self) -> int:
        """The memory of all items, with their overhead."""
        return self._closed_bytes + self.open.memory_bytes

    @property
    def item_count(self) -> int:
        """The number of items."""
        return sum(each.item_count for each in self)

    @property
    def has_closed(self) -> bool:
        """True if some are closed: all of those hold items."""
        return bool(self._closed)

    @property
    def gone_seqno(self) -> int:
        """The newest seqno that left memory, or was never in it."""
        return (self._closed[0] if self._closed else self.open).expelled_seqno

    def next_after(self, seqno: int) -> Checkpoint[Q]:
        """Return the checkpoint where the items above ``seqno`` begin; at the end, the open one."""
        if seqno >= self.open.head.begins_after:
            return self.open
        return self._closed[bisect_right(self._closed, seqno, key=_high_seqno)]

    def begin(
        self,
        kind: CheckpointKind,
        start: int,
        *,
        received_end: int | None,
        closed_end: int,
    ) -> None:
        """Begin an open checkpoint; close the last one at ``closed_end``, or forget it if empty."""
        last = self.open
        if last.item_count:
            self._closed.append(last.close(closed_end))
            self._closed_bytes += last.memory_bytes
        is_received = received_end is not None
        head = CheckpointHead(last.head.id + 1, kind, last.high_seqno, start, is_received)
        self.open = OpenCheckpoint(head, received_end)

    def expel(self, up_to_seqno: int) -> int:
        """Expel items of the oldest checkpoint, if some must stay or it is open; return the bytes.

        All of a closed one is not for this, but for ``remove_closed``.
        """
        if not self._closed:
            return self.open.expel(up_to_seqno)
        oldest = self._closed[0]
        freed = 0 if oldest.high_seqno <= up_to_seqno else oldest.expel(up_to_seqno)
        self._closed_bytes -= freed
        return freed

    def remove_closed(self, up_to_seqno: int) -> int:
        """Remove the closed checkpoints that end at or before a seqno; return the bytes freed."""
        count = bisect_right(self._closed, up_to_seqno, key=_high_seqno)
        freed = sum(each.memory_bytes for each in self._closed[:count])
        del self._closed[:count]
        self._closed_bytes -= freed
        return freed


def _high_seqno(checkpoint: Checkpoint[Q]) -> int:
    return checkpoint.high_seqno
