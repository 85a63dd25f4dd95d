"""Accounts for the memory of a bucket's checkpoints, kept up to date write by write.

Recovery begins at the upper mark (``checkpoint_memory.py``). What it may not take, because a copy
on another node or the disk still needs it, can grow up to the quota: then no more may be written,
as in kv_engine (``engines/ep/src/kv_bucket.cc``, ``CheckpointMemoryState::Full``).
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from dcp.server.checkpoints.checkpoint_manager import CheckpointManager
from dcp.server.checkpoints.checkpoint_memory import UPPER_MARK_PERCENT, recover

_STEP_PERCENT: Final = 1
"""After a recovery that freed too little usage must grow by so much of the quota for the next."""
_REFUSALS_PER_LOOK: Final = 64
"""While the quota is full recovery is tried before every so many-th write."""


class CheckpointAccount:
    """The memory of each vbucket's checkpoints when they were last counted."""

    def __init__(self, quota_bytes: int) -> None:
        self._quota_bytes = quota_bytes
        self._bytes_of: dict[int, int] = {}
        self.memory_bytes = 0
        self._upper_mark_bytes = quota_bytes * UPPER_MARK_PERCENT // 100
        self._due_at_bytes = self._upper_mark_bytes
        self._refusals = 0

    def note(self, manager: CheckpointManager[Any]) -> None:
        """Count the checkpoints of a vbucket that was written."""
        now = manager.memory_bytes
        self.memory_bytes += now - self._bytes_of.get(manager.vbucket, 0)
        self._bytes_of[manager.vbucket] = now
        if self.memory_bytes < self._upper_mark_bytes:
            self._due_at_bytes = self._upper_mark_bytes
        if not self.is_full:
            self._refusals = 0

    def forget(self, vbucket: int) -> None:
        """Count a vbucket's checkpoints no more: they are gone, or another's to count."""
        self.memory_bytes -= self._bytes_of.pop(vbucket, 0)
        if not self.is_full:
            self._refusals = 0

    @property
    def is_short(self) -> bool:
        """True if recovery must begin.

        It looks at every vbucket: where it found too little to free, not again with each write.
        """
        return self.memory_bytes >= self._due_at_bytes

    @property
    def is_full(self) -> bool:
        """True if the quota is used up, and writes must be refused."""
        return self.memory_bytes >= self._quota_bytes

    def relieve(self) -> None:
        """Note that memory may be free: a cursor or the disk advanced.

        So the next refused write tries recovery at once.
        """
        self._refusals = 0

    def looks_again(self) -> bool:
        """Count a write that comes while it is full; return whether to try recovery before it.

        It looks at every vbucket: not with each write that is refused.
        """
        is_due = self._refusals % _REFUSALS_PER_LOOK == 0
        self._refusals += 1
        return is_due

    def recover(self, managers: Iterable[CheckpointManager[Any]]) -> Mapping[int, tuple[str, ...]]:
        """Free memory; return the cursors that it took, by vbucket: their owners must be told."""
        all_managers = list(managers)
        recovery = recover(all_managers, self._quota_bytes)
        for manager in all_managers:
            self.note(manager)
        if self.memory_bytes >= self._upper_mark_bytes:
            self._due_at_bytes = self.memory_bytes + self._quota_bytes * _STEP_PERCENT // 100
        return recovery.dropped
