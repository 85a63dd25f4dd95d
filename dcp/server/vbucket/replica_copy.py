"""One node's copy of a vbucket that is active on another node, filled by a passive stream.

A copy is a vbucket of its own, with checkpoints, disk and failover log; all it holds came over the
wire. Between snapshots it is a state that the active had. Inside one it is none, so the end of the
last whole snapshot (``consistent_seqno``) is where it can go back to and go on from. Sources:
kv_engine ``engines/ep/src/dcp/passive_stream.cc``, ``engines/ep/src/kv_bucket.cc`` (rollback).
"""

from collections.abc import Callable

from dcp.errors import LocalProtocolError
from dcp.server.checkpoints.checkpoint_manager import CheckpointKind
from dcp.server.model.manifest import Manifest
from dcp.server.model.state_changes import StateEvent
from dcp.server.model.versions import Version
from dcp.server.vbucket.acknowledgements import Acknowledgements
from dcp.server.vbucket.vbucket import PreviousState, Vbucket
from dcp.types import FailoverLog, SnapshotRange
from dcp.wire.vocabulary import Opcode, SnapshotFlag


class ReplicaCopy:
    """A copy; used under the bucket's lock. ``feeder`` is the passive stream that may fill it."""

    def __init__(self, vbucket: Vbucket, known_manifest: Callable[[], Manifest]) -> None:
        """Take an empty REPLICA, or what a restart found of a copy.

        ``known_manifest`` returns the newest manifest of the bucket.
        """
        self.has_history = bool(vbucket.data.disk.saved_state)
        self.vbucket = vbucket
        self.feeder: object | None = None
        self.is_taking_over = False
        """True if a takeover stream fills it, and no feed: it is to be the vbucket."""
        self._begun: PreviousState | None = None
        """Set while it is on disk as the vbucket that it is to be."""
        self._known_manifest = known_manifest
        self._first_disk_end: int | None = None
        self._has_unstored = False
        self.lost_cursors: tuple[str, ...] = ()
        found = vbucket.data.newest.keys.versions
        prepares = (each.seqno for each in found if each.opcode == Opcode.DCP_PREPARE)
        self._acknowledgements = Acknowledgements(max(prepares, default=0))

    # --- it is to be the vbucket

    def take_over(self, *, is_taking_over: bool) -> None:
        """Be filled by a takeover stream, and no feed; or be a copy as before, as that is over."""
        self.is_taking_over = is_taking_over

    @property
    def is_prepared(self) -> bool:
        """True if it is on disk as the vbucket that it is to become."""
        return self._begun is not None

    def prepare(self, event: StateEvent) -> None:
        """Be in the state after an event, in memory only; it must be on disk before it is promoted.

        Raises:
            LocalProtocolError: that does not happen to a copy in its state.
        """
        self._begun = self.vbucket.begin_change(event, is_first=not self.has_history)

    def undo_preparation(self) -> None:
        """Be in the state before ``prepare``, if that was called; the disk may say otherwise."""
        if self._begun is not None:
            self.vbucket.undo_change(self._begun)
            self._begun = None

    def complete_promotion(self) -> None:
        """Follow the state that it was prepared for: it is the vbucket now."""
        if self._begun is None:
            raise AssertionError("prepared before")
        self.vbucket.complete_change(self._begun)

    # --- what fills it

    def fill_from(self, feeder: object | None) -> None:
        """Let nobody but ``feeder`` fill it from now on; None: nobody at all."""
        self.feeder = feeder

    def take_lost_cursors(self) -> tuple[str, ...]:
        """Return the cursors that were lost since the last time."""
        lost, self.lost_cursors = self.lost_cursors, ()
        return lost

    # --- where it stands

    @property
    def high_seqno(self) -> int:
        """The newest seqno that was received."""
        return self.vbucket.data.high_seqno

    @property
    def consistent_seqno(self) -> int:
        """The end of the last snapshot that was received whole."""
        return self.vbucket.data.checkpoints.consistent_seqno

    @property
    def is_consistent(self) -> bool:
        """True if it holds a state that the active had."""
        return self.vbucket.data.checkpoints.is_snapshot_complete

    @property
    def snapshot(self) -> SnapshotRange:
        """The snapshot that is being received; of the high seqno alone between snapshots."""
        checkpoints = self.vbucket.data.checkpoints
        if self.is_consistent:
            return SnapshotRange(self.high_seqno, self.high_seqno)
        return checkpoints.snapshot

    @property
    def acknowledged_seqno(self) -> int:
        """The newest prepare that it holds whole, on disk where it must be, with all before it."""
        self._acknowledgements.reach(self.consistent_seqno, self.vbucket.data.disk.persisted_seqno)
        return self._acknowledgements.seqno

    @property
    def awaits_first_disk_snapshot(self) -> bool:
        """True if it holds part of its first snapshot, from disk: nothing to stream yet."""
        return self._first_disk_end is not None

    # --- what a passive stream hands in

    def take_failover_log(self, log: FailoverLog) -> None:
        """Take the active's failover log, from its answer to the stream request."""
        self.vbucket.take_failover_log(log)
        self.has_history = True

    def begin_snapshot(self, bounds: SnapshotRange, flags: int, purge_seqno: int | None) -> None:
        """Take a marker; its items follow.

        Each begins a checkpoint of its own, so that streams from this copy have the snapshot ends
        of the active. A marker inside an unfinished snapshot (the connection was lost) continues
        it. Where that cannot be in the same checkpoint (``begin_snapshot`` of the queue) client
        streams in the old one lose their cursors and return to the disk.

        Raises:
            LocalProtocolError: it does not end above the high seqno.
        """
        is_disk = bool(flags & SnapshotFlag.DISK)
        kind = CheckpointKind.DISK if is_disk else CheckpointKind.MEMORY
        data = self.vbucket.data
        checkpoints = data.checkpoints
        goes_on, broken = not self.is_consistent, checkpoints.open_head.id
        checkpoints.begin_snapshot(bounds.start, bounds.end, kind, begins_checkpoint=not goes_on)
        if goes_on and checkpoints.open_head.id != broken:
            self.lost_cursors += data.memory.drop_stream_cursors()
        if purge_seqno:
            data.disk.learn_purge_seqno(purge_seqno)
        if is_disk and self.consistent_seqno == data.base_seqno:
            self._first_disk_end = bounds.end

    def receive(self, version: Version) -> None:
        """Take an item of the snapshot.

        Raises:
            LocalProtocolError: its seqno is not above the high seqno or outside the snapshot.
        """
        self.vbucket.data.receive(version)
        self.vbucket.learn(version, self._known_manifest())
        if version.opcode == Opcode.DCP_PREPARE and version.sync is not None:
            self._acknowledgements.prepared(
                version.seqno, version.sync.level, self.consistent_seqno
            )
        self._received(version.seqno)

    def advance_to(self, seqno: int) -> None:
        """Note that there is no item up to ``seqno``, where the snapshot ends.

        Raises:
            LocalProtocolError: it does not lie above the high seqno.
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
        """Write the items received since the last time; return whether there were any."""
        has_news = self._has_unstored or bool(self.lost_cursors)
        self._has_unstored = False
        if has_news:
            self.vbucket.data.store_received()
        return has_news

    def roll_back(self, seqno: int) -> int:
        """Go back to the last whole snapshot at or below a seqno, or further; return where it is.

        Where that changes nothing all is given up: it was asked to go back and must.
        """
        data = self.vbucket.data
        before = data.high_seqno
        data.store_received()
        left = data.cut(data.disk.batch_end_at(min(seqno, self.consistent_seqno)))
        if left == before:
            left = data.cut(data.base_seqno)
        self._first_disk_end = None
        self._has_unstored = False
        self._acknowledgements.cut(left)
        self.vbucket.documents.rewind()
        return left

    def drop_part(self) -> None:
        """Drop the part of an unfinished snapshot, so that the copy is consistent."""
        if not self.is_consistent:
            self.roll_back(self.consistent_seqno)
