"""The batches of writes of a vbucket that are not on disk yet."""

from bisect import bisect_right
from itertools import chain

from dcp.server.model.versions import Version

WriteBatch = list[Version]
"""The versions of one batch in seqno order; never empty."""


class UnwrittenBatches:
    """A queue; a batch stays in it until it is known to be on disk."""

    def __init__(self) -> None:
        self._batches: list[WriteBatch] = []
        self.size_bytes = 0

    def add(self, batch: WriteBatch) -> None:
        self._batches.append(batch)
        self.size_bytes += _size_of(batch)

    def due(self, up_to_seqno: int) -> list[WriteBatch]:
        """Return the batches that end at or below ``up_to_seqno``, without removing them."""
        return self._batches[: self._count(up_to_seqno)]

    def take_written(self, persisted_seqno: int) -> list[Version]:
        """Remove the batches that end at or below the persisted seqno; return their versions."""
        count = self._count(persisted_seqno)
        written = list(chain.from_iterable(self._batches[:count]))
        del self._batches[:count]
        self.size_bytes -= _size_of(written)
        return written

    def ends_down_from(self, seqno: int) -> list[int]:
        return [batch[-1].seqno for batch in reversed(self.due(seqno))]

    def _count(self, up_to_seqno: int) -> int:
        return bisect_right(self._batches, up_to_seqno, key=_end_of)

    def clear(self) -> None:
        self._batches.clear()
        self.size_bytes = 0


def _end_of(batch: WriteBatch) -> int:
    return batch[-1].seqno


def _size_of(batch: WriteBatch) -> int:
    return sum([version.size_bytes for version in batch])
