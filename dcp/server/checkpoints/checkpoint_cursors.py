"""Named cursors of a vbucket's readers.

A cursor is a seqno, not a position. De-duplication, expelling and removal need not move it.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from dcp.errors import LocalProtocolError


@dataclass(slots=True)
class Cursor:
    """A reader's progress: it has every item up to ``seqno``."""

    seqno: int
    is_droppable: bool
    entered: int | None
    """Id of the checkpoint of the reader's last item, or in which it was registered midway. The
    first item of another checkpoint gets the marker flag CHECKPOINT."""
    announced_seqno: int = 0
    """End of the last snapshot announced to the reader."""

    def advance(self, seqno: int) -> None:
        self.seqno = max(self.seqno, seqno)

    def announce(self, end_seqno: int, checkpoint: int) -> None:
        self.announced_seqno, self.entered = end_seqno, checkpoint


class Cursors:
    """The cursors of one vbucket by name."""

    def __init__(self, vbucket: int) -> None:
        self._vbucket = vbucket
        self._by_name: dict[str, Cursor] = {}

    def __iter__(self) -> Iterator[tuple[str, Cursor]]:
        return iter(self._by_name.items())

    def named(self, name: str) -> Cursor:
        found = self._by_name.get(name)
        if found is None:
            raise LocalProtocolError(
                f"vbucket {self._vbucket}: found no cursor {name}, expected one of "
                f"{sorted(self._by_name)}"
            )
        return found

    def put(self, name: str, cursor: Cursor) -> None:
        self._by_name[name] = cursor

    def forget(self, name: str) -> None:
        self._by_name.pop(name, None)

    def lowest_seqno(self, high_seqno: int) -> int:
        return min((each.seqno for each in self._by_name.values()), default=high_seqno)

    def lowest_kept_seqno(self, high_seqno: int) -> int:
        """Return the lowest seqno of undroppable cursors; ``high_seqno`` without any."""
        kept = (each.seqno for each in self._by_name.values() if not each.is_droppable)
        return min(kept, default=high_seqno)

    def droppable_below(self, seqno: int) -> tuple[str, ...]:
        """Return the droppable cursors below ``seqno``, the slowest first."""
        found = [
            (each.seqno, name)
            for name, each in self._by_name.items()
            if each.is_droppable and each.seqno < seqno
        ]
        return tuple(name for _, name in sorted(found))
