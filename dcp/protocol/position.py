"""A consumer's position in a vbucket's history, from which a stream request resumes.

Source: kv_engine ``docs/dcp/documentation/commands/stream-request.md`` and ``rollback.md``.
"""

from dataclasses import dataclass

from dcp.types import U64_MAX, SnapshotRange, require_unsigned


@dataclass(frozen=True, slots=True)
class Position:
    """A point in one vbucket's history: everything up to ``seqno`` has arrived."""

    # The branch of the snapshot's end, not of the seqno. A newer branch may begin between the two;
    # a request with the older uuid would then roll back to the snapshot's start each time, although
    # all items came from the newer history. The newest branch of the failover log would be wrong
    # too, although official clients send it (java-dcp-client ``EventHandlerAdapter``, go-dcp
    # ``couchbase/observer.go``). The next failover may remove that branch and its uuid, and the
    # producer would then roll back everything.
    vb_uuid: int
    """The branch that holds ``snap_end``; 0 only at seqno 0."""
    seqno: int
    snap_start: int
    snap_end: int
    complete_seqno: int
    """The newest snapshot end that was reached. Later rows must not be published yet."""

    def __post_init__(self) -> None:
        if (
            type(self.vb_uuid) is type(self.seqno) is type(self.snap_start) is int
            and type(self.snap_end) is type(self.complete_seqno) is int
            and 0 < self.vb_uuid <= U64_MAX
            and 0 <= self.snap_start <= self.complete_seqno < self.seqno <= self.snap_end <= U64_MAX
        ):
            return  # the fast way, inside a snapshot: nearly each run of rows makes a position
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
                f"{self.complete_seqno}: a request would claim items that have not arrived"
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
        return cls(0, 0, 0, 0, 0)

    @classmethod
    def complete_at(cls, vb_uuid: int, seqno: int) -> "Position":
        """Return the position at the end of a complete snapshot; seqno 0 is the beginning."""
        return cls(vb_uuid if seqno else 0, seqno, seqno, seqno, seqno)

    @property
    def is_complete(self) -> bool:
        """True if no row waits for the end of its snapshot."""
        return self.complete_seqno == self.seqno

    @property
    def snapshot(self) -> SnapshotRange:
        return SnapshotRange(self.snap_start, self.snap_end)

    def inside(self, vb_uuid: int, seqno: int, snapshot: SnapshotRange) -> "Position":
        """Return the position after an item at ``seqno`` that did not end ``snapshot``."""
        # A marker [5, 8] may start with item 5. A request for the items after 5 that also names 5
        # as the snapshot's start claims that we hold a complete state at 5. But item 8 may have
        # replaced item 4, so the producer did not send 4. If a failover then loses 8, the producer
        # must roll us back, or we miss 4. So the start goes down to the last complete seqno.
        start = min(snapshot.start, self.complete_seqno)
        if not self.is_complete:
            start = min(start, self.snap_start)
        return Position(vb_uuid, seqno, start, snapshot.end, self.complete_seqno)
