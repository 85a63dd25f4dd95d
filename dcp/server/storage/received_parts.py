"""Ends of batches inside a received snapshot: no consistent states, so no rollback points.

What is received goes to disk in parts, each of which ends as a batch of writes does. One cannot go
back to the end of a part. After a restart nobody knows which ends before the last whole snapshot
were such.
"""


class ReceivedParts:
    """The ends that are not whole, by seqno; of ends below ``known_from`` it is not known."""

    def __init__(self) -> None:
        self._ends: set[int] = set()
        self.known_from = 0

    def know_from(self, seqno: int) -> None:
        """Forget the ends below a seqno."""
        self.known_from = seqno

    def __contains__(self, end: int) -> bool:
        """Return whether only a part of a snapshot ended there."""
        return end in self._ends

    def __bool__(self) -> bool:
        """Return whether there are ends that are no rollback points, or may be none."""
        return bool(self._ends) or self.known_from > 0

    def add(self, end: int) -> None:
        """Note that what was received ends inside a snapshot."""
        self._ends.add(end)

    def cut(self, seqno: int) -> None:
        """Forget what ended above a seqno, as it is lost."""
        self._ends = {end for end in self._ends if end <= seqno}
        self.known_from = min(self.known_from, seqno)

    def merge(self, persisted_seqno: int) -> None:
        """Forget what ended up to a seqno, as that is one whole snapshot now: it was compacted."""
        self._ends = {end for end in self._ends if end > persisted_seqno}
        self.known_from = 0
