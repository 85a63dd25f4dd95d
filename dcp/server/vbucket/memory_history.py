"""The checkpoints of one vbucket, with two cursors of its own.

The cursor ``batches`` takes the versions of each batch of writes at the batch's end: one batch is
one disk snapshot, even if later writes replace its keys. The cursor ``persistence`` stands at the
persisted seqno. Memory keeps all later items, so streams never wait for the disk (kv_engine
``engines/ep/src/checkpoint_manager.cc``).
"""

from typing import Final

from dcp.server.checkpoints.checkpoint import CheckpointKind
from dcp.server.checkpoints.checkpoint_manager import CheckpointManager
from dcp.server.model.server_settings import ServerSettings
from dcp.server.model.versions import Version

_PERSISTENCE: Final = "persistence"
_BATCHES: Final = "batches"
_OWN_CURSORS: Final = (_BATCHES, _PERSISTENCE)


class MemoryHistory:
    def __init__(self, vbucket: int, settings: ServerSettings, high_seqno: int) -> None:
        self._vbucket = vbucket
        self._settings = settings
        self.checkpoints = self._new_checkpoints(high_seqno)
        """``begin_at`` replaces this object: do not keep a reference to it."""

    def _new_checkpoints(self, high_seqno: int) -> CheckpointManager:
        fresh = CheckpointManager(self._vbucket, self._settings, high_seqno)
        # Without these cursors an unwritten item could be freed, so low memory must never drop
        # them.
        for cursor in _OWN_CURSORS:
            fresh.register(cursor, high_seqno, droppable=False)
        return fresh

    def begin_at(self, high_seqno: int) -> None:
        """Start with empty checkpoints: drop all items, and the cursors of all streams."""
        self.checkpoints = self._new_checkpoints(high_seqno)

    def take_batch(self) -> list[Version]:
        return self.checkpoints.take_all(_BATCHES)

    def note_persisted(self, seqno: int) -> None:
        self.checkpoints.register(_PERSISTENCE, seqno, droppable=False)

    def free_written(self) -> None:
        """Free closed checkpoints, and disk items of the active, if no cursor needs them."""
        self.checkpoints.remove_closed()
        # A replica gets the active's whole disk as one checkpoint, which stays open until the end.
        # Without this, memory would hold all of it.
        if self.checkpoints.open_head.kind is CheckpointKind.DISK:
            self.checkpoints.expel()

    def drop_stream_cursors(self) -> tuple[str, ...]:
        """Drop the cursors of all streams; the caller must send these streams back to the disk."""
        lost = tuple(name for name in self.checkpoints.cursors if name not in _OWN_CURSORS)
        for name in lost:
            self.checkpoints.remove(name)
        return lost
