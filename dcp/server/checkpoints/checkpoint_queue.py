"""The writing side of a checkpoint manager: it queues items and decides where checkpoints end.

Sources: kv_engine ``engines/ep/src/checkpoint_manager.cc`` (``queueDirty``, ``getSnapshotInfo``),
``engines/ep/src/dcp/passive_stream.cc`` (``processMarker``).
"""

from dcp.errors import LocalProtocolError
from dcp.server.checkpoints.checkpoint import CheckpointHead, CheckpointKind
from dcp.server.checkpoints.checkpoint_list import CheckpointList
from dcp.server.model.server_settings import ServerSettings
from dcp.server.model.versions import Version
from dcp.types import SnapshotRange, require_unsigned


class CheckpointQueue:
    """The checkpoints of a vbucket, as their writer sees them.

    An ACTIVE vbucket calls ``queue`` with consecutive seqnos. A REPLICA calls ``begin_snapshot``
    for each received marker, and ``receive`` for its items.
    """

    def __init__(self, vbucket: int, settings: ServerSettings, high_seqno: int = 0) -> None:
        """All items up to ``high_seqno`` are on disk already."""
        require_unsigned("high_seqno", high_seqno)
        self.vbucket = vbucket
        self.max_items = max(1, settings.checkpoint_items)
        self._max_bytes = settings.checkpoint_bytes
        self._keeps_versions = settings.history_retention_bytes > 0
        self.high_seqno = self.complete_seqno = high_seqno
        self._skipped_seqno = high_seqno
        self._checkpoints = CheckpointList(high_seqno)

    @property
    def memory_bytes(self) -> int:
        return self._checkpoints.memory_bytes

    @property
    def snapshot(self) -> SnapshotRange:
        """The open checkpoint's snapshot; it ends at the high seqno once all its items are here.

        A received marker counts from its first item on.
        """
        start = self._checkpoints.open.head.snapshot_start
        return SnapshotRange(min(start, self.high_seqno), self._end_in_force)

    @property
    def open_head(self) -> CheckpointHead:
        return self._checkpoints.open.head

    @property
    def is_snapshot_complete(self) -> bool:
        """True if the last item of the current snapshot is here; always on an active vbucket."""
        return self.complete_seqno == self.high_seqno

    def queue(self, item: Version) -> None:
        """Add the newest item of an ACTIVE vbucket; it replaces the older item of its key.

        An item without a de-duplication key needs ``close_open`` first if the open checkpoint may
        hold its key: no snapshot may have a key twice.

        Raises:
            LocalProtocolError: the seqno is not the next one.
        """
        seqno = item.seqno
        expected = max(self.high_seqno, self._skipped_seqno) + 1
        if seqno != expected:
            raise LocalProtocolError(
                f"vbucket {self.vbucket}, queue: found seqno {seqno}, expected {expected}"
            )
        if self._checkpoints.open.head.is_received or self._is_full:
            self.close_open()
        # If the older item must stay, the new one begins a checkpoint (kv_engine
        # ``Checkpoint::canDedup``).
        if not self._checkpoints.open.add(item, replaces=not self._keeps_versions):
            self.close_open()
            self._checkpoints.open.add(item)
        self.high_seqno = self.complete_seqno = seqno

    def skip_to(self, seqno: int) -> None:
        """Let the next item follow ``seqno``: no items exist up to there."""
        self._skipped_seqno = max(self._skipped_seqno, seqno)

    def begin_snapshot(
        self,
        start: int,
        end: int,
        kind: CheckpointKind,
        *,
        begins_checkpoint: bool = False,
    ) -> None:
        """Begin the snapshot of a marker that a REPLICA received.

        ``begins_checkpoint`` is the marker's CHECKPOINT flag. Without it, a MEMORY snapshot that
        continues the open one extends the open checkpoint; all others begin a checkpoint.

        Raises:
            LocalProtocolError: the end is not above the high seqno, so no item can follow.
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
            continues_another = not self.is_snapshot_complete and end != self._end_in_force
            self._checkpoints.begin(
                kind,
                start,
                received_end=end,
                closed_end=self._end_in_force,
                may_repeat=continues_another,
            )

    def receive(self, item: Version) -> None:
        """Add an item of the snapshot that a REPLICA receives.

        Raises:
            LocalProtocolError: the seqno is not above the high seqno, or outside the snapshot.
        """
        last = self._checkpoints.open
        first, end = max(last.head.snapshot_start, self.high_seqno + 1), last.snapshot_end
        if not last.head.is_received or not first <= item.seqno <= end:
            expected = f"{first} to {end}" if last.head.is_received else "a snapshot marker first"
            raise LocalProtocolError(
                f"vbucket {self.vbucket}, receive: found seqno {item.seqno}, expected {expected}"
            )
        # Both versions of a key stay: only the active decides where a checkpoint ends.
        last.add(item, replaces=not self._keeps_versions, keeps_both=True)
        self.high_seqno = item.seqno
        if item.seqno == end:
            self.complete_seqno = end

    def close_open(self) -> None:
        """End the open checkpoint of an ACTIVE vbucket; the next item begins another."""
        # A received snapshot without its last items ends here, too: the vbucket is active now, and
        # its items are the state that everybody follows.
        self.complete_seqno = high = self.high_seqno
        self._checkpoints.begin(
            CheckpointKind.MEMORY,
            high + 1,
            received_end=None,
            closed_end=high,
        )

    def close_full(self) -> bool:
        closes = self._is_full and not self._checkpoints.open.head.is_received
        if closes:
            self.close_open()
        return closes

    @property
    def _is_full(self) -> bool:
        return self._checkpoints.open.is_full(self.max_items, self._max_bytes)

    @property
    def _end_in_force(self) -> int:
        """The announced end of the open snapshot; the high seqno once the snapshot is complete."""
        complete = self.is_snapshot_complete
        return self.high_seqno if complete else self._checkpoints.open.snapshot_end

    def _require_seqno(self, what: str, seqno: int) -> None:
        if not 0 <= seqno <= self.high_seqno:
            raise LocalProtocolError(
                f"vbucket {self.vbucket}, {what}: found seqno {seqno}, "
                f"expected 0 to {self.high_seqno}"
            )
