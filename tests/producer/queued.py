"""Items for the checkpoint tests, and the few things done with them everywhere."""

from collections.abc import Hashable, Iterable

from dcp.producer.cluster_settings import ClusterSettings
from dcp.server.checkpoints.checkpoint import ITEM_OVERHEAD_BYTES
from dcp.server.checkpoints.checkpoint_manager import CheckpointManager
from dcp.server.checkpoints.checkpoint_values import CursorItems
from dcp.server.model.versions import Content, Version, VersionKey


class Item(Version):
    """A version whose key and size a test chooses; with the key None nothing replaces it."""

    def __init__(
        self,
        seqno: int,
        key: Hashable | None,
        size_bytes: int = 100,
        is_deduplicated: bool = True,
    ) -> None:
        super().__init__(0, b"", Content(), seqno=seqno, rev=1, cas=0)
        self._dedup_key = None if key is None else (0, 0, repr(key).encode())
        self._size_bytes, self._is_deduplicated = size_bytes, is_deduplicated

    @property
    def dedup_key(self) -> VersionKey | None:
        return self._dedup_key

    @property
    def size_bytes(self) -> int:
        return self._size_bytes

    @property
    def is_deduplicated(self) -> bool:
        return self._is_deduplicated


COST = 100 + ITEM_OVERHEAD_BYTES
"""What one item takes that has the usual size."""


def settings_of(max_items: int, max_bytes: int) -> ClusterSettings:
    """Return settings with these limits of a checkpoint."""
    return ClusterSettings(
        vbuckets=1, checkpoint_items=max_items, checkpoint_quota_bytes=10 * max_bytes
    )


def new_manager(max_items: int = 1000, high_seqno: int = 0, vbucket: int = 0) -> CheckpointManager:
    return CheckpointManager(vbucket, settings_of(max_items, 2**40), high_seqno)


def write(manager: CheckpointManager, keys: Iterable[Hashable]) -> None:
    """Queue one item for each key."""
    for key in keys:
        manager.queue(Item(manager.high_seqno + 1, key))


def receive(manager: CheckpointManager, seqnos: Iterable[int]) -> None:
    """Receive an item of a key of its own for each seqno."""
    for seqno in seqnos:
        manager.receive(Item(seqno, seqno))


def shape(items: CursorItems | None) -> tuple[int, int, list[int]] | None:
    """Return start, end and seqnos of a snapshot."""
    if items is None:
        return None
    return items.snapshot_start, items.snapshot_end, [item.seqno for item in items.items]


def next_items(manager: CheckpointManager, cursor: str) -> CursorItems | None:
    """Take the next snapshot, as a reader that reads it at once."""
    items = manager.next_items(cursor)
    if items is not None:
        manager.advance(cursor, items.items[-1].seqno)
    return items


def drained(manager: CheckpointManager, cursor: str) -> list[list[int]]:
    """Take everything there is; return the seqnos of each snapshot."""
    taken = []
    while (items := next_items(manager, cursor)) is not None:
        taken.append([item.seqno for item in items.items])
    return taken


def drop_cursors(manager: CheckpointManager) -> tuple[str, ...]:
    """Drop all cursors that may be dropped, as memory recovery does; return their names."""
    dropped = manager.droppable_cursors()
    for name in dropped:
        manager.remove(name)
    return dropped
