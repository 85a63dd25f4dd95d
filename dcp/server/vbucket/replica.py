"""A replica: one node's copy of a vbucket that another node has active.

A passive stream fills it. It is a vbucket with checkpoints, disk and failover log of its own. After
a complete snapshot it equals a state of the active; inside a snapshot it does not, so it can roll
back to the end of the last complete snapshot (``complete_seqno``). Sources: kv_engine
``engines/ep/src/dcp/passive_stream.cc``, ``engines/ep/src/kv_bucket.cc`` (rollback).
"""

from collections.abc import Callable

from dcp.errors import LocalProtocolError
from dcp.server.checkpoints.checkpoint import CheckpointKind
from dcp.server.model.manifest import Manifest
from dcp.server.model.state_changes import StateEvent
from dcp.server.model.versions import Version
from dcp.server.vbucket.acknowledgements import Acknowledgements
from dcp.server.vbucket.vbucket_states import Vbucket
from dcp.types import FailoverLog, SnapshotRange
from dcp.wire.vocabulary import Opcode, SnapshotFlag


class Replica:
    """A replica of one vbucket; call it with the bucket's lock held."""

    def __init__(self, vbucket: Vbucket, known_manifest: Callable[[], Manifest]) -> None:
        """``vbucket`` is an empty REPLICA, or one restored from disk.

        ``known_manifest`` returns the bucket's newest manifest.
        """
        self.has_failover_log = bool(vbucket.data.disk.saved_state)
        """False until the replica has a failover log of an active."""
        self.vbucket = vbucket
        self.passive_stream: object | None = None
        """The passive stream that fills the replica. Events of all others are ignored."""
        self.is_taking_over = False
        """True while a takeover stream fills the replica, which then becomes the active."""
        self._undo_promotion: Callable[[], None] | None = None
        """Undoes ``prepare`` while a promotion is under way."""
        self._known_manifest = known_manifest
        self._first_disk_end: int | None = None
        """Where the first snapshot ends, until all of it is here; None if it comes from memory."""
        self._has_unstored = False
        self.lost_cursors: tuple[str, ...] = ()
        """Names of client streams that must return to the disk."""
        found = vbucket.data.newest.versions
        prepares = (each.seqno for each in found if each.opcode == Opcode.DCP_PREPARE)
        self._acknowledgements = Acknowledgements(max(prepares, default=0))

    # --- promotion to active

    def take_over(self, *, is_taking_over: bool) -> None:
        self.is_taking_over = is_taking_over

    @property
    def is_prepared(self) -> bool:
        return self._undo_promotion is not None

    def prepare(self, event: StateEvent) -> None:
        """Enter the state after ``event`` in memory; the caller saves it before the promotion.

        Raises LocalProtocolError if the event is impossible in the present state.
        """
        self._undo_promotion = self.vbucket.begin_change(event, is_first=not self.has_failover_log)

    def undo_preparation(self) -> None:
        """Return to the state before ``prepare``; the disk may still have the new state."""
        if self._undo_promotion is not None:
            self._undo_promotion()
            self._undo_promotion = None

    # --- its passive stream

    def fill_from(self, passive_stream: object | None) -> None:
        self.passive_stream = passive_stream

    def take_lost_cursors(self) -> tuple[str, ...]:
        lost, self.lost_cursors = self.lost_cursors, ()
        return lost

    # --- state

    @property
    def high_seqno(self) -> int:
        return self.vbucket.data.high_seqno

    @property
    def complete_seqno(self) -> int:
        return self.vbucket.data.checkpoints.complete_seqno

    @property
    def is_complete(self) -> bool:
        """True between snapshots: the replica equals a state that the active had."""
        return self.vbucket.data.checkpoints.is_snapshot_complete

    @property
    def snapshot(self) -> SnapshotRange:
        """The snapshot being received; between snapshots it starts and ends at the high seqno."""
        checkpoints = self.vbucket.data.checkpoints
        if self.is_complete:
            return SnapshotRange(self.high_seqno, self.high_seqno)
        return checkpoints.snapshot

    @property
    def acknowledged_seqno(self) -> int:
        """The newest prepare that is acknowledged to the active (``acknowledgements.py``)."""
        self._acknowledgements.reach(self.complete_seqno, self.vbucket.data.disk.persisted_seqno)
        return self._acknowledgements.seqno

    @property
    def awaits_first_disk_snapshot(self) -> bool:
        """True while the first snapshot is incomplete and comes from disk: streams must wait."""
        return self._first_disk_end is not None

    # --- events of the passive stream

    def take_failover_log(self, failover_log: FailoverLog) -> None:
        self.vbucket.take_failover_log(failover_log)
        self.has_failover_log = True

    def begin_snapshot(self, bounds: SnapshotRange, flags: int, purge_seqno: int | None) -> None:
        """Take a snapshot marker; the snapshot's items follow.

        A new snapshot begins a checkpoint, so streams from this replica get the active's snapshot
        ends. A marker inside an unfinished snapshot continues it, as after a lost connection.

        Raises LocalProtocolError if the snapshot does not end above the high seqno.
        """
        is_disk = bool(flags & SnapshotFlag.DISK)
        kind = CheckpointKind.DISK if is_disk else CheckpointKind.MEMORY
        data = self.vbucket.data
        checkpoints = data.checkpoints
        goes_on, broken = not self.is_complete, checkpoints.open_head.id
        checkpoints.begin_snapshot(bounds.start, bounds.end, kind, begins_checkpoint=not goes_on)
        # The unfinished snapshot goes on in another checkpoint. Client streams that have sent half
        # of it cannot follow.
        if goes_on and checkpoints.open_head.id != broken:
            self.lost_cursors += data.memory.drop_stream_cursors()
        if purge_seqno:
            data.disk.learn_purge_seqno(purge_seqno)
        # A disk snapshot has each key once, so half of it is no state at all. After a lost
        # connection the first snapshot may continue from memory, and end elsewhere: on a branch
        # that lost writes, earlier.
        is_first = self.complete_seqno == data.base_seqno
        if is_first and (is_disk or self.awaits_first_disk_snapshot):
            self._first_disk_end = bounds.end

    def receive(self, version: Version) -> None:
        """Add an item of the snapshot.

        Raises LocalProtocolError if its seqno is not above the high seqno or outside the snapshot.
        """
        self.vbucket.data.receive(version)
        self.vbucket.learn(version, self._known_manifest())
        if version.opcode == Opcode.DCP_PREPARE and version.sync is not None:
            self._acknowledgements.prepared(version.seqno, version.sync.level, self.complete_seqno)
        self._received(version.seqno)

    def advance_to(self, seqno: int) -> None:
        """Raise the high seqno: the active has no item up to ``seqno``, the snapshot's end.

        Raises LocalProtocolError if ``seqno`` is not above the high seqno.
        """
        if seqno <= self.high_seqno:
            raise LocalProtocolError(
                f"vbucket {self.vbucket.id}, seqno advanced: found {seqno}, "
                f"expected more than {self.high_seqno}"
            )
        self.lost_cursors += self.vbucket.data.advance_to(seqno)
        self._received(seqno)

    def _received(self, seqno: int) -> None:
        self._has_unstored = True
        if self._first_disk_end is not None and seqno >= self._first_disk_end:
            self._first_disk_end = None

    def store_received(self) -> bool:
        """Write the items received since the last call; return True if there were any."""
        has_news = self._has_unstored or bool(self.lost_cursors)
        self._has_unstored = False
        if has_news:
            self.vbucket.data.store_received()
        return has_news

    def roll_back(self, seqno: int) -> int:
        """Roll back to the end of a complete snapshot, at most ``seqno``; return the new high
        seqno.
        """
        data = self.vbucket.data
        before = data.high_seqno
        data.store_received()
        left = data.cut(data.disk.batch_end_at(min(seqno, self.complete_seqno)))
        # The active asked for a rollback. A replica that stays where it is would ask for the same
        # stream again.
        if left == before:
            left = data.cut(data.base_seqno)
        self._first_disk_end = None
        self._has_unstored = False
        self._acknowledgements.cut(left)
        self.vbucket.documents.rewind()
        return left

    def drop_part(self) -> None:
        if not self.is_complete:
            self.roll_back(self.complete_seqno)
