"""The part of a vbucket's history in memory: its checkpoints, and its own two cursors.

``batches`` takes what a batch of writes left, at its end: that will be one disk snapshot, whatever
is written to the same keys later. ``persistence`` follows when it is on disk: memory keeps what
comes after it, so that no stream has to wait for the disk (kv_engine
``engines/ep/src/checkpoint_manager.cc``).
"""

from typing import Final

from dcp.server.checkpoints.checkpoint_manager import (
    CheckpointKind,
    CheckpointLimits,
    CheckpointManager,
)
from dcp.server.model.versions import Version

_PERSISTENCE: Final = "persistence"
"""The cursor of what must go to disk; it is never dropped."""
_BATCHES: Final = "batches"
"""The cursor that takes what a batch of writes left, at its end."""
_OWN_CURSORS: Final = (_BATCHES, _PERSISTENCE)


class MemoryHistory:
    """Owns the ``checkpoints`` of one vbucket; ``begin_at`` replaces them."""

    def __init__(self, vbucket: int, limits: CheckpointLimits, high_seqno: int) -> None:
        self._vbucket = vbucket
        self._limits = limits
        self.checkpoints = self._new_checkpoints(high_seqno)

    def _new_checkpoints(self, high_seqno: int) -> CheckpointManager[Version]:
        fresh: CheckpointManager[Version] = CheckpointManager(
            self._vbucket, self._limits, high_seqno
        )
        for cursor in _OWN_CURSORS:
            fresh.register(cursor, high_seqno, droppable=False)
        return fresh

    def begin_at(self, high_seqno: int) -> None:
        """Drop all items and cursors of streams; all up to a seqno is on disk, or never was."""
        self.checkpoints = self._new_checkpoints(high_seqno)

    def take_batch(self) -> list[Version]:
        """Return the versions written since the last call, in seqno order."""
        return self.checkpoints.take_all(_BATCHES)

    def note_persisted(self, seqno: int) -> None:
        """Note that all up to a seqno is on disk: memory need not keep it for the disk's sake."""
        self.checkpoints.register(_PERSISTENCE, seqno, droppable=False)

    def free_written(self) -> None:
        """Free what no cursor needs: closed checkpoints, and items from an active's disk.

        That is one checkpoint, as large as the active's disk may be.
        """
        self.checkpoints.remove_closed()
        if self.checkpoints.open_head.kind is CheckpointKind.DISK:
            self.checkpoints.expel()

    def drop_stream_cursors(self) -> tuple[str, ...]:
        """Drop the cursors of all streams, and return them: their streams must be told."""
        lost = tuple(name for name in self.checkpoints.cursors if name not in _OWN_CURSORS)
        for name in lost:
            self.checkpoints.remove(name)
        return lost
