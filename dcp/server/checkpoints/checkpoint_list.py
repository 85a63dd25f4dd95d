from bisect import bisect_right
from collections.abc import Iterator

from dcp.server.checkpoints.checkpoint import (
    Checkpoint,
    CheckpointHead,
    CheckpointKind,
    OpenCheckpoint,
)


class CheckpointList:
    """The checkpoints of a vbucket, oldest first: closed ones that hold items, then one open one.

    Memory is freed from the oldest on, so no reader ever finds a gap.
    """

    def __init__(self, high_seqno: int) -> None:
        head = CheckpointHead(1, CheckpointKind.MEMORY, high_seqno, high_seqno)
        self.open = OpenCheckpoint(head)
        self._closed: list[Checkpoint] = []
        self._closed_bytes = 0

    def __iter__(self) -> Iterator[Checkpoint]:
        yield from self._closed
        yield self.open

    @property
    def memory_bytes(self) -> int:
        return self._closed_bytes + self.open.memory_bytes

    @property
    def item_count(self) -> int:
        return sum(each.item_count for each in self)

    @property
    def has_closed(self) -> bool:
        return bool(self._closed)

    @property
    def gone_seqno(self) -> int:
        """Newest seqno that left memory, or never was in it."""
        return (self._closed[0] if self._closed else self.open).expelled_seqno

    def next_after(self, seqno: int) -> Checkpoint:
        """Return the checkpoint with the next item above ``seqno``, or the open one."""
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
        may_repeat: bool = False,
    ) -> None:
        """Begin an open checkpoint; close the last one at ``closed_end``, or forget it if empty."""
        last = self.open
        if last.item_count:
            self._closed.append(last.close(closed_end))
            self._closed_bytes += last.memory_bytes
        is_received = received_end is not None
        head = CheckpointHead(last.head.id + 1, kind, last.high_seqno, start, is_received)
        self.open = OpenCheckpoint(head, received_end, may_repeat=may_repeat)

    def expel(self, up_to_seqno: int) -> int:
        """Expel items up to a seqno from the oldest checkpoint; return the number of bytes freed.

        A closed checkpoint that could go as a whole stays: ``remove_closed`` takes it.
        """
        if not self._closed:
            return self.open.expel(up_to_seqno)
        oldest = self._closed[0]
        freed = 0 if oldest.high_seqno <= up_to_seqno else oldest.expel(up_to_seqno)
        self._closed_bytes -= freed
        return freed

    def remove_closed(self, up_to_seqno: int) -> int:
        count = bisect_right(self._closed, up_to_seqno, key=_high_seqno)
        freed = sum(each.memory_bytes for each in self._closed[:count])
        del self._closed[:count]
        self._closed_bytes -= freed
        return freed


def _high_seqno(checkpoint: Checkpoint) -> int:
    return checkpoint.high_seqno
