"""Where a consumer stands in a vbucket's history, and how it asks to go on from there.

A position is what a stream request needs (branch, seqno, snapshot bounds) plus ``complete_seqno``,
the newest snapshot end that was reached. Rows up to ``complete_seqno`` may be published; rows
between it and ``seqno`` belong to an unfinished snapshot and must wait.

Bounds are never invented: they are those of the marker in force, except (s, s) at a complete end s.
Source: kv_engine ``docs/dcp/documentation/commands/stream-request.md`` and ``rollback.md``.
"""

from dataclasses import dataclass

from dcp.types import SnapshotRange, require_unsigned


@dataclass(frozen=True, slots=True)
class Position:
    """A point in one vbucket's history.

    ``vb_uuid`` names the branch that holds ``seqno``; it is 0 only at seqno 0.
    """

    vb_uuid: int
    seqno: int
    snap_start: int
    snap_end: int
    complete_seqno: int

    def __post_init__(self) -> None:
        """Reject positions that no conversation with a producer can lead to."""
        for name in ("vb_uuid", "seqno", "snap_start", "snap_end", "complete_seqno"):
            require_unsigned(name, getattr(self, name))
        if not self.snap_start <= self.seqno <= self.snap_end:
            raise ValueError(
                f"position: found seqno {self.seqno} outside its snapshot "
                f"[{self.snap_start}, {self.snap_end}]"
            )
        if self.complete_seqno > self.seqno:
            raise ValueError(
                f"position: found complete seqno {self.complete_seqno} beyond seqno {self.seqno}"
            )
        if self.is_complete and not self.snap_start == self.snap_end == self.seqno:
            raise ValueError(
                f"position: found bounds [{self.snap_start}, {self.snap_end}] at the complete "
                f"seqno {self.seqno}, expected both to be {self.seqno}"
            )
        if self.seqno == 0 and self.vb_uuid != 0:
            raise ValueError("position: found a vb_uuid at seqno 0, expected 0")
        if self.seqno > 0 and self.vb_uuid == 0:
            raise ValueError(f"position: found vb_uuid 0 at seqno {self.seqno}")

    @classmethod
    def beginning(cls) -> "Position":
        """Return the position of a consumer that holds nothing."""
        return cls(0, 0, 0, 0, 0)

    @classmethod
    def complete_at(cls, vb_uuid: int, seqno: int) -> "Position":
        """Return the position at a complete snapshot end; seqno 0 is the beginning."""
        return cls(vb_uuid if seqno else 0, seqno, seqno, seqno, seqno)

    @property
    def is_complete(self) -> bool:
        """Whether no row waits for the end of its snapshot."""
        return self.complete_seqno == self.seqno

    @property
    def snapshot(self) -> SnapshotRange:
        """The bounds to name in a stream request."""
        return SnapshotRange(self.snap_start, self.snap_end)

    def inside(self, vb_uuid: int, seqno: int, snapshot: SnapshotRange) -> "Position":
        """Return the position after an item at ``seqno`` that did not end ``snapshot``."""
        return Position(vb_uuid, seqno, snapshot.start, snapshot.end, self.complete_seqno)
