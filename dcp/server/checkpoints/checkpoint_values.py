"""Values of a checkpoint manager: its limits, snapshots of items, and facts for statistics."""

from dataclasses import dataclass
from typing import Generic

from dcp.server.checkpoints.checkpoint import CheckpointKind, Q


@dataclass(frozen=True, slots=True)
class CheckpointLimits:
    """The size at which the open checkpoint of an active vbucket is full; one item always fits.

    ``keeps_versions``: nothing replaces an older version of its key, whose next one begins a
    checkpoint: so it is in buckets that retain history.

    The number of items is the default of kv_engine's ``chk_max_items`` (``configuration.json``
    before 7.6). The bytes are ours: there ``checkpoint_max_size`` is the checkpoint quota by the
    number of vbuckets and ``max_checkpoints``, 10 (``kv_bucket.cc``, autoConfigCheckpointMaxSize).
    """

    max_items: int = 10_000
    max_bytes: int = 1024 * 1024
    keeps_versions: bool = False

    def __post_init__(self) -> None:
        """Reject limits below 1."""
        for name, value in (("max_items", self.max_items), ("max_bytes", self.max_bytes)):
            if value < 1:
                raise ValueError(f"checkpoint {name}: found {value}, expected 1 or more")


@dataclass(frozen=True, slots=True)
class CursorItems(Generic[Q]):
    """The items given to a cursor: a whole snapshot of one checkpoint, or part of a received one.

    ``begins_checkpoint``: the cursor had nothing of that checkpoint before.
    """

    items: tuple[Q, ...]
    snapshot_start: int
    snapshot_end: int
    kind: CheckpointKind
    begins_checkpoint: bool

    def __post_init__(self) -> None:
        """Reject an empty snapshot, and items outside it."""
        seqnos = [item.seqno for item in self.items[:1] + self.items[-1:]]
        if not seqnos or not self.snapshot_start <= seqnos[0] <= seqnos[-1] <= self.snapshot_end:
            raise ValueError(
                f"items: found first and last seqno {seqnos}, expected them in "
                f"[{self.snapshot_start}, {self.snapshot_end}]"
            )


@dataclass(frozen=True, slots=True)
class CheckpointFacts:
    """A checkpoint at one moment. ``cursors``: the number of cursors in it."""

    id: int
    kind: CheckpointKind
    snapshot_start: int
    snapshot_end: int
    high_seqno: int
    item_count: int
    memory_bytes: int
    cursors: int


@dataclass(frozen=True, slots=True)
class CursorFacts:
    """The place of a cursor, which has everything up to ``seqno``."""

    seqno: int
    checkpoint_id: int
    is_droppable: bool
