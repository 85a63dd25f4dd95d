"""Queues the batches of writes of a vbucket that are not on disk yet."""

from collections import deque
from itertools import takewhile

from dcp.producer.model.versions import Version

WriteBatch = list[Version]
"""What one batch of writes left, in seqno order; never empty."""


class UnwrittenBatches:
    """A queue; batches stay in it until they are known to be written."""

    def __init__(self) -> None:
        self._batches: deque[WriteBatch] = deque()
        self.size_bytes = 0

    def add(self, batch: WriteBatch) -> None:
        """Take what a batch of writes left: it ends above all others."""
        self._batches.append(batch)
        self.size_bytes += _size_of(batch)

    def due(self, up_to_seqno: int) -> list[WriteBatch]:
        """Return the batches that end at or below a seqno; they stay here."""
        return list(takewhile(lambda batch: batch[-1].seqno <= up_to_seqno, self._batches))

    def take_written(self, persisted_seqno: int) -> list[Version]:
        """Remove what ends at or below the persisted seqno, and return all that was in it."""
        written: list[Version] = []
        while self._batches and self._batches[0][-1].seqno <= persisted_seqno:
            written += self._batches.popleft()
        self.size_bytes -= _size_of(written)
        return written

    def ends_down_from(self, seqno: int) -> list[int]:
        """Return the ends of batches at or below a seqno, the highest first."""
        return [batch[-1].seqno for batch in reversed(self.due(seqno))]

    def clear(self) -> None:
        """Lose all of them."""
        self._batches.clear()
        self.size_bytes = 0


def _size_of(batch: WriteBatch) -> int:
    return sum([version.size_bytes for version in batch])
