"""How much memory the checkpoints of a bucket take, kept up to date write by write."""

from collections.abc import Iterable, Mapping
from typing import Any

from dcp.producer.checkpoint_manager import CheckpointManager
from dcp.producer.checkpoint_memory import UPPER_MARK_PERCENT, recover


class CheckpointAccount:
    """What the checkpoints of each vbucket took when they were last looked at."""

    def __init__(self, quota_bytes: int) -> None:
        self._quota_bytes = quota_bytes
        self._bytes_of: dict[int, int] = {}
        self.memory_bytes = 0

    def note(self, manager: CheckpointManager[Any]) -> None:
        """Look at the checkpoints of a vbucket that was written."""
        now = manager.memory_bytes
        self.memory_bytes += now - self._bytes_of.get(manager.vbucket, 0)
        self._bytes_of[manager.vbucket] = now

    def forget(self, vbucket: int) -> None:
        """Count a vbucket's checkpoints no more: they are gone, or another's to count."""
        self.memory_bytes -= self._bytes_of.pop(vbucket, 0)

    @property
    def is_short(self) -> bool:
        """Whether recovery must begin."""
        return self.memory_bytes * 100 >= self._quota_bytes * UPPER_MARK_PERCENT

    def recover(self, managers: Iterable[CheckpointManager[Any]]) -> Mapping[int, tuple[str, ...]]:
        """Free memory; return the cursors that it took, by vbucket: their owners must be told."""
        all_managers = list(managers)
        recovery = recover(all_managers, self._quota_bytes)
        for manager in all_managers:
            self.note(manager)
        return recovery.dropped
