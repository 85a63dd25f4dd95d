"""The writing side of a checkpoint manager: queues items, and decides where checkpoints end.

An ACTIVE vbucket queues items, seqno after seqno, and decides where a checkpoint ends: when it is
full, on ``close_open``, and where a received one comes before. A REPLICA takes over the boundaries
it is told: ``begin_snapshot`` for a received marker, ``receive`` for its items, with gaps. Nothing
here knows of readers. Sources: kv_engine ``engines/ep/src/checkpoint_manager.cc`` (``queueDirty``,
``getSnapshotInfo``), ``engines/ep/src/dcp/passive_stream.cc`` (``processMarker``).
"""

from typing import Generic

from dcp.errors import LocalProtocolError
from dcp.server.checkpoints.checkpoint import CheckpointHead, CheckpointKind, Q
from dcp.server.checkpoints.checkpoint_list import CheckpointList
from dcp.server.checkpoints.checkpoint_values import CheckpointLimits
from dcp.types import SnapshotRange, require_unsigned


class CheckpointQueue(Generic[Q]):
    """The checkpoints of a vbucket. ``high_seqno`` is the newest seqno.

    All up to the ``high_seqno`` that they begin with was there before them, on disk.
    ``consistent_seqno``: the newest seqno at which a whole snapshot was here; on an active vbucket
    always the high seqno. A branch begins there when a replica becomes active (kv_engine
    ``CheckpointManager::getFailoverSeqno``).
    """

    def __init__(self, vbucket: int, limits: CheckpointLimits, high_seqno: int = 0) -> None:
        require_unsigned("high_seqno", high_seqno)
        self.vbucket = vbucket
        self.limits = limits
        self.high_seqno = self.consistent_seqno = high_seqno
        self._skipped_seqno = high_seqno
        self._checkpoints: CheckpointList[Q] = CheckpointList(high_seqno)

    @property
    def memory_bytes(self) -> int:
        """The memory of all items, with ``ITEM_OVERHEAD_BYTES`` for each."""
        return self._checkpoints.memory_bytes

    @property
    def snapshot(self) -> SnapshotRange:
        """The snapshot in force: of the open checkpoint, up to the high seqno once complete.

        A received marker counts from its first item on.
        """
        start = self._checkpoints.open.head.snapshot_start
        return SnapshotRange(min(start, self.high_seqno), self._end_in_force)

    @property
    def open_head(self) -> CheckpointHead:
        """The head of the open checkpoint."""
        return self._checkpoints.open.head

    @property
    def is_snapshot_complete(self) -> bool:
        """True if the end of the snapshot in force was received; always on an active vbucket."""
        return self.consistent_seqno == self.high_seqno

    def queue(self, item: Q) -> None:
        """Add the newest item of an ACTIVE vbucket; an older one of its key goes, unless kept.

        Where that may not be, a checkpoint begins with it (kv_engine ``Checkpoint::canDedup``).
        An item without a de-duplication key of whose key the open checkpoint may hold another
        wants ``close_open`` first, so that no snapshot has the key twice.

        Raises:
            LocalProtocolError: its seqno is not the one after the high seqno, or after what
                ``skip_to`` named.
        """
        seqno = item.seqno
        expected = max(self.high_seqno, self._skipped_seqno) + 1
        if seqno != expected:
            raise LocalProtocolError(
                f"vbucket {self.vbucket}, queue: found seqno {seqno}, expected {expected}"
            )
        if self._checkpoints.open.head.is_received or self._is_full:
            self.close_open()
        if not self._checkpoints.open.add(item, replaces=not self.limits.keeps_versions):
            self.close_open()
            self._checkpoints.open.add(item)
        self.high_seqno = self.consistent_seqno = seqno

    def skip_to(self, seqno: int) -> None:
        """Let the next item come after a seqno, up to which there is nothing more."""
        self._skipped_seqno = max(self._skipped_seqno, seqno)

    def begin_snapshot(
        self,
        start: int,
        end: int,
        kind: CheckpointKind,
        *,
        begins_checkpoint: bool = False,
    ) -> None:
        """Take the marker that a REPLICA received; its items follow.

        A MEMORY snapshot after another one, not behind a gap and without the marker's CHECKPOINT
        flag (``begins_checkpoint``), extends the open checkpoint; all others begin one.

        Raises:
            LocalProtocolError: no item can follow, the end is not above the high seqno.
            ValueError: the start lies beyond the end, or one of them is not unsigned 64-bit.
        """
        bounds = SnapshotRange(start, end)
        if end <= self.high_seqno:
            raise LocalProtocolError(
                f"vbucket {self.vbucket}, snapshot [{start}, {end}]: "
                f"found its end not above the high seqno {self.high_seqno}"
            )
        extends = kind is CheckpointKind.MEMORY and not begins_checkpoint
        if not (extends and self._checkpoints.open.extend(bounds)):
            self._checkpoints.begin(
                kind,
                start,
                received_end=end,
                closed_end=self._end_in_force,
            )

    def receive(self, item: Q) -> None:
        """Add an item of the snapshot that a REPLICA is receiving.

        Raises:
            LocalProtocolError: its seqno is not above the high seqno or outside the snapshot.
        """
        last = self._checkpoints.open
        first, end = max(last.head.snapshot_start, self.high_seqno + 1), last.snapshot_end
        if not last.head.is_received or not first <= item.seqno <= end:
            expected = f"{first} to {end}" if last.head.is_received else "a snapshot marker first"
            raise LocalProtocolError(
                f"vbucket {self.vbucket}, receive: found seqno {item.seqno}, expected {expected}"
            )
        # Where it ends is for the active to say.
        last.add(item, replaces=not self.limits.keeps_versions, keeps_both=True)
        self.high_seqno = item.seqno
        if item.seqno == end:
            self.consistent_seqno = end

    def close_open(self) -> None:
        """Let the next item begin a checkpoint; only on an ACTIVE vbucket.

        A received snapshot of which items are missing ends here with what there is: the vbucket
        is active now, and what it holds is the state that there was.
        """
        self.consistent_seqno = high = self.high_seqno
        self._checkpoints.begin(
            CheckpointKind.MEMORY,
            high + 1,
            received_end=None,
            closed_end=high,
        )

    def close_full(self) -> bool:
        """Do ``close_open`` if the open checkpoint is an active's and full; return if it was."""
        closes = self._is_full and not self._checkpoints.open.head.is_received
        if closes:
            self.close_open()
        return closes

    @property
    def _is_full(self) -> bool:
        return self._checkpoints.open.is_full(self.limits.max_items, self.limits.max_bytes)

    @property
    def _end_in_force(self) -> int:
        """The end of the open checkpoint's snapshot: the announced one, unless nothing is due."""
        complete = self.is_snapshot_complete
        return self.high_seqno if complete else self._checkpoints.open.snapshot_end

    def _require_seqno(self, what: str, seqno: int) -> None:
        if not 0 <= seqno <= self.high_seqno:
            raise LocalProtocolError(
                f"vbucket {self.vbucket}, {what}: found seqno {seqno}, "
                f"expected 0 to {self.high_seqno}"
            )
