from dataclasses import dataclass

from dcp.server.checkpoints.checkpoint import CheckpointKind
from dcp.server.model.versions import Version


@dataclass(frozen=True, slots=True)
class CursorItems:
    """Items given to a cursor: a whole snapshot of one checkpoint, or part of a received one."""

    items: tuple[Version, ...]
    snapshot_start: int
    snapshot_end: int
    kind: CheckpointKind
    begins_checkpoint: bool
    """True if the cursor had nothing of this checkpoint yet."""
    may_repeat: bool = False
    """See `Checkpoint.may_repeat`."""

    def __post_init__(self) -> None:
        seqnos = [item.seqno for item in self.items[:1] + self.items[-1:]]
        if not seqnos or not self.snapshot_start <= seqnos[0] <= seqnos[-1] <= self.snapshot_end:
            raise ValueError(
                f"items: found first and last seqno {seqnos}, expected them in "
                f"[{self.snapshot_start}, {self.snapshot_end}]"
            )


@dataclass(frozen=True, slots=True)
class CheckpointFacts:
    """A checkpoint at one moment."""

    id: int
    kind: CheckpointKind
    snapshot_start: int
    snapshot_end: int
    high_seqno: int
    item_count: int
    memory_bytes: int
    cursors: int
    """Number of cursors that stand in it."""


@dataclass(frozen=True, slots=True)
class CursorFacts:
    """Place of a cursor, which has every item up to ``seqno``."""

    seqno: int
    checkpoint_id: int
    is_droppable: bool
