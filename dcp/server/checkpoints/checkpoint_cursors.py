"""Named cursors: the seqno up to which each reader has everything, and its checkpoint.

A cursor points at no item and at no checkpoint. De-duplication, expelling and removal need not move
it, and it cannot point at what is gone.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from dcp.errors import LocalProtocolError


@dataclass(slots=True)
class Cursor:
    """A reader's progress.

    ``entered``: the id of the checkpoint of its last item, or in whose middle it was registered;
    an item of another one gets the CHECKPOINT flag.
    ``shown_seqno``: the end of the snapshot that was announced to the reader; nothing up to there
    may be de-duplicated until ``advance``.
    """

    seqno: int
    is_droppable: bool
    entered: int | None
    shown_seqno: int = 0

    def advance(self, seqno: int) -> None:
        """Know that the reader had everything up to a seqno."""
        self.seqno = max(self.seqno, seqno)

    def show(self, end_seqno: int, checkpoint: int) -> None:
        """Know that a snapshot of a checkpoint was announced to the reader, and where it ends."""
        self.shown_seqno, self.entered = end_seqno, checkpoint


class Cursors:
    """The cursors of one vbucket by name."""

    def __init__(self, vbucket: int) -> None:
        self._vbucket = vbucket
        self._by_name: dict[str, Cursor] = {}

    def __iter__(self) -> Iterator[tuple[str, Cursor]]:
        """Yield names and cursors."""
        return iter(self._by_name.items())

    def named(self, name: str) -> Cursor:
        """Return a cursor.

        Raises:
            LocalProtocolError: there is none of that name.
        """
        found = self._by_name.get(name)
        if found is None:
            raise LocalProtocolError(
                f"vbucket {self._vbucket}: found no cursor {name}, expected one of "
                f"{sorted(self._by_name)}"
            )
        return found

    def place(self, name: str, cursor: Cursor) -> None:
        """Add a cursor, or replace the one of that name."""
        self._by_name[name] = cursor

    def forget(self, name: str) -> None:
        """Forget a cursor, if it is there."""
        self._by_name.pop(name, None)

    def lowest_seqno(self, high_seqno: int) -> int:
        """Return the lowest seqno of all cursors; the high seqno if there are none."""
        return min((each.seqno for each in self._by_name.values()), default=high_seqno)

    def lowest_kept_seqno(self, high_seqno: int) -> int:
        """Return the lowest seqno of undroppable cursors; the high seqno without any."""
        kept = (each.seqno for each in self._by_name.values() if not each.is_droppable)
        return min(kept, default=high_seqno)

    def droppable_below(self, seqno: int) -> tuple[str, ...]:
        """Return the cursors that may be dropped and are below ``seqno``, farthest behind first."""
        found = [
            (each.seqno, name)
            for name, each in self._by_name.items()
            if each.is_droppable and each.seqno < seqno
        ]
        return tuple(name for _, name in sorted(found))
