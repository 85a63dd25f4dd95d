"""Items for the checkpoint tests, and the few things done with them everywhere."""

from collections.abc import Hashable, Iterable
from dataclasses import dataclass

from dcp.server.checkpoints.checkpoint import ITEM_OVERHEAD_BYTES
from dcp.server.checkpoints.checkpoint_manager import (
    CheckpointLimits,
    CheckpointManager,
    CursorItems,
)


@dataclass(frozen=True, slots=True)
class Item:
    seqno: int
    dedup_key: Hashable | None
    size_bytes: int = 100
    is_deduplicated: bool = True


Manager = CheckpointManager[Item]
COST = 100 + ITEM_OVERHEAD_BYTES
"""What one item takes that has the usual size."""


def new_manager(max_items: int = 1000, high_seqno: int = 0, vbucket: int = 0) -> Manager:
    return CheckpointManager(vbucket, CheckpointLimits(max_items, 2**40), high_seqno)


def write(manager: Manager, keys: Iterable[Hashable]) -> None:
    """Queue one item for each key."""
    for key in keys:
        manager.queue(Item(manager.high_seqno + 1, key))


def receive(manager: Manager, seqnos: Iterable[int]) -> None:
    """Receive an item of a key of its own for each seqno."""
    for seqno in seqnos:
        manager.receive(Item(seqno, seqno))


def shape(items: CursorItems[Item] | None) -> tuple[int, int, list[int]] | None:
    """Return start, end and seqnos of a snapshot."""
    if items is None:
        return None
    return items.snapshot_start, items.snapshot_end, [item.seqno for item in items.items]


def drained(manager: Manager, cursor: str) -> list[list[int]]:
    """Take everything there is; return the seqnos of each snapshot."""
    taken = []
    while (items := manager.next_items(cursor)) is not None:
        taken.append([item.seqno for item in items.items])
    return taken


def drop_cursors(manager: Manager) -> tuple[str, ...]:
    """Drop all cursors that may be dropped, as memory recovery does; return their names."""
    dropped = manager.droppable_cursors()
    for name in dropped:
        manager.remove(name)
    return dropped
