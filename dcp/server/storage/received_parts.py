"""Ends of batches that lie inside a received snapshot: no rollback may stop there.

A replica writes a snapshot to disk in parts, and each part ends like a batch of writes. The disk
does not record which ends are parts, so a restart keeps only the last complete snapshot's end.
"""


class ReceivedParts:
    def __init__(self) -> None:
        self._ends: set[int] = set()
        self.known_from = 0
        """Ends below this seqno may be parts too, as after a restart."""

    def know_from(self, seqno: int) -> None:
        self.known_from = seqno

    def __contains__(self, end: int) -> bool:
        return end in self._ends

    def __bool__(self) -> bool:
        """Return True if some ends are, or may be, no rollback points."""
        return bool(self._ends) or self.known_from > 0

    def add(self, end: int) -> None:
        self._ends.add(end)

    def cut(self, seqno: int) -> None:
        self._ends = {end for end in self._ends if end <= seqno}
        self.known_from = min(self.known_from, seqno)

    def merge(self, persisted_seqno: int) -> None:
        """Forget the ends up to ``persisted_seqno``: compaction made this one complete snapshot."""
        self._ends = {end for end in self._ends if end > persisted_seqno}
        self.known_from = 0
