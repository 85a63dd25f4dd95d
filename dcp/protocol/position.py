"""A consumer's position in a vbucket's history, as a stream request resumes from it.

A position is what a stream request needs (branch, seqno, snapshot bounds) plus ``complete_seqno``,
the newest snapshot end that was reached. Rows up to ``complete_seqno`` may be published; rows
between it and ``seqno`` belong to an unfinished snapshot and must wait.

Bounds are those of the marker in force, with two exceptions: (s, s) at a complete end s, and a
start that lies no higher than ``complete_seqno``. The second one matters. A marker may start at the
seqno of its first item; a request that names a snapshot start equal to its own seqno says "I hold
nothing of this snapshot", and the producer then does not roll it back when the snapshot's end is
gone. What lies between ``complete_seqno`` and the first item may have been de-duplicated away by an
item that is gone too, and would be lost. So the start goes down to where all is known to be held.

The branch is the one that holds the snapshot's end: the newest at or below it in the failover log
that came with the data. It need not hold the seqno. A producer shares a branch with us up to where
the next newer one begins; a snapshot that reaches beyond that, named with the branch of its seqno,
would be taken back to its start each time, though all of it came from the newer history. Official
clients name the log's newest branch always (java-dcp-client ``EventHandlerAdapter``, go-dcp
``couchbase/observer.go``), which the next failover may cut away together with its uuid, and then
all that we hold with it. At a complete end both rules about ends and seqnos are one.
Source: kv_engine ``docs/dcp/documentation/commands/stream-request.md`` and ``rollback.md``.
"""

from dataclasses import dataclass

from dcp.types import U64_MAX, SnapshotRange, require_unsigned


@dataclass(frozen=True, slots=True)
class Position:
    """A point in one vbucket's history.

    ``vb_uuid`` names the branch that holds ``snap_end``; it is 0 only at seqno 0.
    """

    vb_uuid: int
    seqno: int
    snap_start: int
    snap_end: int
    complete_seqno: int

    def __post_init__(self) -> None:
        """Reject positions that no exchange with a producer can lead to."""
        if (
            type(self.vb_uuid) is type(self.seqno) is type(self.snap_start) is int
            and type(self.snap_end) is type(self.complete_seqno) is int
            and 0 < self.vb_uuid <= U64_MAX
            and 0 <= self.snap_start <= self.complete_seqno < self.seqno <= self.snap_end <= U64_MAX
        ):
            return  # inside a snapshot, as behind nearly each run of rows
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
        if self.snap_start > self.complete_seqno:
            raise ValueError(
                f"position: found snapshot start {self.snap_start} beyond complete seqno "
                f"{self.complete_seqno}: the request would claim what is not held"
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
        """True if no row waits for the end of its snapshot."""
        return self.complete_seqno == self.seqno

    @property
    def snapshot(self) -> SnapshotRange:
        """The bounds to name in a stream request."""
        return SnapshotRange(self.snap_start, self.snap_end)

    def inside(self, vb_uuid: int, seqno: int, snapshot: SnapshotRange) -> "Position":
        """Return the position after an item at ``seqno`` that did not end ``snapshot``."""
        start = min(snapshot.start, self.complete_seqno)
        if not self.is_complete:
            start = min(start, self.snap_start)
        return Position(vb_uuid, seqno, start, snapshot.end, self.complete_seqno)
