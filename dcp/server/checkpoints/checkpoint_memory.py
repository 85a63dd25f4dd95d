"""Frees memory when the checkpoints of a bucket come near their quota.

    recovery starts   at 90 % of the checkpoint quota
    recovery stops    at 60 %
    in this order     remove closed checkpoints that no cursor needs; close full open ones and
                      remove them where that is enough; expel what all cursors had; drop cursors
                      that hold closed checkpoints

Each step goes over the vbuckets, the largest first, before the next one begins, and all ends as
soon as enough is free. The slow stream pays last: it goes back to a disk backfill. Below the mark
nothing is touched. Sources: kv_engine ``engines/ep/src/checkpoint_remover.cc``
(``CheckpointMemRecoveryTask::runInner``), ``kv_bucket.cc`` (``getCheckpointMemoryState``,
``autoConfigCheckpointMaxSize``), ``configuration.json``.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from dcp.server.checkpoints.checkpoint_manager import CheckpointLimits, CheckpointManager

UPPER_MARK_PERCENT: Final = 90
LOWER_MARK_PERCENT: Final = 60
CHECKPOINTS_PER_VBUCKET: Final = 10
"""How many full checkpoints of each vbucket fit the quota (kv_engine ``max_checkpoints``)."""


@dataclass(frozen=True, slots=True)
class Recovery:
    """The result of a recovery: checkpoints closed, bytes freed, and cursors dropped by vbucket."""

    closed: int
    removed_bytes: int
    expelled_bytes: int
    dropped: Mapping[int, tuple[str, ...]]


@dataclass(slots=True)
class _Account:
    """The bytes to free, and the progress so far."""

    to_free_bytes: int
    closed: int = 0
    removed_bytes: int = 0
    expelled_bytes: int = 0
    dropped: dict[int, tuple[str, ...]] = field(default_factory=dict)

    @property
    def is_freed(self) -> bool:
        return self.removed_bytes + self.expelled_bytes >= self.to_free_bytes


def recover(managers: Iterable[CheckpointManager[Any]], quota_bytes: int) -> Recovery:
    """Free checkpoint memory of a bucket down to the lower mark, if it has reached the upper one.

    The owners of the cursors that ``dropped`` names must be told. It may free less than wanted:
    open checkpoints stay, and so does what the persistence cursor has not read.

    Raises:
        ValueError: the quota is below 1.
    """
    _require_quota(quota_bytes)
    all_managers = list(managers)
    used = sum(manager.memory_bytes for manager in all_managers)
    account = _Account(used - quota_bytes * LOWER_MARK_PERCENT // 100)
    if used * 100 >= quota_bytes * UPPER_MARK_PERCENT:
        _free(all_managers, account)
    return Recovery(
        account.closed, account.removed_bytes, account.expelled_bytes, dict(account.dropped)
    )


def limits_for(quota_bytes: int, vbuckets: int) -> CheckpointLimits:
    """Return the size limits of a checkpoint that give each vbucket its share of the quota.

    Larger ones would keep recovery from freeing anything: an open checkpoint is never given up.

    Raises:
        ValueError: the quota or the number of vbuckets is below 1.
    """
    _require_quota(quota_bytes)
    if vbuckets < 1:
        raise ValueError(f"checkpoint limits: found {vbuckets} vbuckets, expected 1 or more")
    return CheckpointLimits(max_bytes=max(1, quota_bytes // vbuckets // CHECKPOINTS_PER_VBUCKET))


def _free(managers: list[CheckpointManager[Any]], account: _Account) -> None:
    for step in _STEPS:
        for manager in sorted(managers, key=_memory_bytes, reverse=True):
            step(manager, account)
            if account.is_freed:
                return


def _remove(manager: CheckpointManager[Any], account: _Account) -> None:
    account.removed_bytes += manager.remove_closed()


def _close(manager: CheckpointManager[Any], account: _Account) -> None:
    if manager.close_full():
        account.closed += 1
        account.removed_bytes += manager.remove_closed()


def _expel(manager: CheckpointManager[Any], account: _Account) -> None:
    account.expelled_bytes += manager.expel()


def _drop(manager: CheckpointManager[Any], account: _Account) -> None:
    """Drop one cursor after the other: the next one may be spared."""
    for name in manager.droppable_cursors():
        manager.remove(name)
        account.dropped[manager.vbucket] = (*account.dropped.get(manager.vbucket, ()), name)
        account.removed_bytes += manager.remove_closed()
        if account.is_freed:
            return


_STEPS: Final[tuple[Callable[[CheckpointManager[Any], _Account], None], ...]] = (
    _remove,
    _close,
    _expel,
    _drop,
)


def _memory_bytes(manager: CheckpointManager[Any]) -> int:
    return manager.memory_bytes


def _require_quota(quota_bytes: int) -> None:
    if quota_bytes < 1:
        raise ValueError(f"checkpoint quota: found {quota_bytes} bytes, expected 1 or more")
