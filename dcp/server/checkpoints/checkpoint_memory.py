"""Frees memory when the checkpoints of a bucket come near their quota.

    recovery starts   at 90 % of the checkpoint quota
    recovery stops    at 60 %

Four steps follow each other until enough is free:

1. remove closed checkpoints that no cursor needs;
2. close full open checkpoints, and remove those, too;
3. expel items that all cursors have read;
4. drop cursors that hold back closed checkpoints: their streams read from disk again.

Each step visits all vbuckets, the largest first. Sources: kv_engine
``engines/ep/src/checkpoint_remover.cc`` (``CheckpointMemRecoveryTask::runInner``), ``kv_bucket.cc``
(``getCheckpointMemoryState``, ``autoConfigCheckpointMaxSize``), ``configuration.json``.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

from dcp.server.checkpoints.checkpoint_manager import CheckpointManager

UPPER_MARK_PERCENT: Final = 90
LOWER_MARK_PERCENT: Final = 60


@dataclass(slots=True)
class Recovery:
    """Progress and result of a recovery."""

    closed: int = 0
    """Number of checkpoints."""
    removed_bytes: int = 0
    expelled_bytes: int = 0
    dropped: dict[int, tuple[str, ...]] = field(default_factory=dict)
    """Names of cursors by vbucket."""
    to_free_bytes: int = field(default=0, compare=False)

    @property
    def is_freed(self) -> bool:
        return self.removed_bytes + self.expelled_bytes >= self.to_free_bytes


def recover(managers: Iterable[CheckpointManager], quota_bytes: int) -> Recovery:
    """Free checkpoint memory down to the lower mark, if it has reached the upper one.

    The caller must inform the streams of ``dropped`` cursors. A recovery can free less than wanted:
    open checkpoints stay, and so do items that are not on disk.

    Raises:
        ValueError: the quota is below 1.
    """
    if quota_bytes < 1:
        raise ValueError(f"checkpoint quota: found {quota_bytes} bytes, expected 1 or more")
    all_managers = list(managers)
    used = sum(manager.memory_bytes for manager in all_managers)
    recovery = Recovery(to_free_bytes=used - quota_bytes * LOWER_MARK_PERCENT // 100)
    if used * 100 >= quota_bytes * UPPER_MARK_PERCENT:
        _free(all_managers, recovery)
    return recovery


def _free(managers: list[CheckpointManager], recovery: Recovery) -> None:
    for step in _STEPS:
        # The largest vbuckets may free enough, and the others keep their items in memory.
        for manager in sorted(managers, key=_memory_bytes, reverse=True):
            step(manager, recovery)
            if recovery.is_freed:
                return


def _remove(manager: CheckpointManager, recovery: Recovery) -> None:
    recovery.removed_bytes += manager.remove_closed()


def _close(manager: CheckpointManager, recovery: Recovery) -> None:
    if manager.close_full():
        recovery.closed += 1
        recovery.removed_bytes += manager.remove_closed()


def _expel(manager: CheckpointManager, recovery: Recovery) -> None:
    recovery.expelled_bytes += manager.expel()


def _drop(manager: CheckpointManager, recovery: Recovery) -> None:
    # One at a time: the first may free enough, and the next cursor is spared.
    for name in manager.droppable_cursors():
        manager.remove(name)
        recovery.dropped[manager.vbucket] = (*recovery.dropped.get(manager.vbucket, ()), name)
        recovery.removed_bytes += manager.remove_closed()
        if recovery.is_freed:
            return


_STEPS: Final[tuple[Callable[[CheckpointManager, Recovery], None], ...]] = (
    _remove,
    _close,
    _expel,
    _drop,
)


def _memory_bytes(manager: CheckpointManager) -> int:
    return manager.memory_bytes
