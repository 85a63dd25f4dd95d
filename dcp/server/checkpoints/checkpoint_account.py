"""The account of a bucket's checkpoint memory, updated with each write.

Recovery begins at the upper mark (``checkpoint_memory.py``). Memory that a replica or the disk
still needs can grow up to the quota. Writes are refused then, as in kv_engine
(``engines/ep/src/kv_bucket.cc``, ``CheckpointMemoryState::Full``).
"""

from collections.abc import Iterable, Mapping
from typing import Final

from dcp.server.checkpoints.checkpoint_manager import CheckpointManager
from dcp.server.checkpoints.checkpoint_memory import UPPER_MARK_PERCENT, recover

_STEP_PERCENT: Final = 1
"""After a recovery freed too little, usage must grow by this share of the quota before the next."""
_REFUSALS_PER_LOOK: Final = 64
"""While the quota is full, one in so many writes tries recovery."""


class CheckpointAccount:
    """Memory of each vbucket's checkpoints as last counted."""

    def __init__(self, quota_bytes: int) -> None:
        self._quota_bytes = quota_bytes
        self._bytes_of: dict[int, int] = {}
        self.memory_bytes = 0
        self._upper_mark_bytes = quota_bytes * UPPER_MARK_PERCENT // 100
        self._due_at_bytes = self._upper_mark_bytes
        self._refusals = 0

    def note(self, manager: CheckpointManager) -> None:
        now = manager.memory_bytes
        self.memory_bytes += now - self._bytes_of.get(manager.vbucket, 0)
        self._bytes_of[manager.vbucket] = now
        if self.memory_bytes < self._upper_mark_bytes:
            self._due_at_bytes = self._upper_mark_bytes
        if not self.is_full:
            self._refusals = 0

    def forget(self, vbucket: int) -> None:
        """Remove a vbucket from the account: its checkpoints are gone, or count elsewhere."""
        self.memory_bytes -= self._bytes_of.pop(vbucket, 0)
        if not self.is_full:
            self._refusals = 0

    @property
    def is_short(self) -> bool:
        # Recovery looks at every vbucket. After one that freed too little, it must not run with
        # each write.
        return self.memory_bytes >= self._due_at_bytes

    @property
    def is_full(self) -> bool:
        return self.memory_bytes >= self._quota_bytes

    def relieve(self) -> None:
        """Let the next refused write try recovery: a cursor or the disk advanced."""
        self._refusals = 0

    def looks_again(self) -> bool:
        """Count a write while the quota is full; return True if it should try recovery first."""
        is_due = self._refusals % _REFUSALS_PER_LOOK == 0
        self._refusals += 1
        return is_due

    def recover(self, managers: Iterable[CheckpointManager]) -> Mapping[int, tuple[str, ...]]:
        """Free memory; return dropped cursors by vbucket; the caller must inform their streams."""
        all_managers = list(managers)
        recovery = recover(all_managers, self._quota_bytes)
        for manager in all_managers:
            self.note(manager)
        if self.memory_bytes >= self._upper_mark_bytes:
            self._due_at_bytes = self.memory_bytes + self._quota_bytes * _STEP_PERCENT // 100
        return recovery.dropped
