"""The checkpoint manager against a naive model, by random actions: a list of all ever written.

The model keeps every version, remembers where checkpoints began, and computes from scratch whatever
is asked: what is still in memory, what a cursor must get, what may be freed. Beside it stands a
client for each cursor that only replays what it gets: it must hold what a bucket held.
"""

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from random import Random

import pytest

from dcp.errors import LocalProtocolError
from dcp.server.checkpoints.checkpoint import ITEM_OVERHEAD_BYTES, CheckpointKind
from dcp.server.checkpoints.checkpoint_manager import CheckpointManager
from dcp.server.model.versions import Version
from tests.producer.queued import (
    Item,
    drop_cursors,
    next_items,
    settings_of,
)
from tests.seeds import seeds

MEMORY, DISK = CheckpointKind.MEMORY, CheckpointKind.DISK
NAMES = ("a", "b", "c", "d")
LIMITS = [
    (1, 2**40),
    (7, 2**40),
    (60, 2**40),
    (1000, 2**40),
    (1000, 5 * (50 + ITEM_OVERHEAD_BYTES)),
]
"""Items and bytes of a checkpoint."""
Key = Hashable | None


@dataclass
class ModelCheckpoint:
    """``end``: of the received marker, later where it was closed; None while an active writes."""

    begins_after: int
    start: int
    kind: CheckpointKind = MEMORY
    end: int | None = None
    is_received: bool = False
    items: list[Item] = field(default_factory=list)
    """All that were ever written to it."""

    @property
    def high(self) -> int:
        return max((item.seqno for item in self.items), default=self.begins_after)

    def newest(self) -> list[Item]:
        """What de-duplication leaves."""
        if self.kind is DISK:
            return self.items
        left: list[Item] = []
        newest: dict[Hashable, Item] = {}
        for item in self.items:
            held = newest.get(item.dedup_key)
            if held is not None and held.is_deduplicated and item.is_deduplicated:
                left.remove(held)
            left.append(item)
            if item.dedup_key is not None:
                newest[item.dedup_key] = item
        return left


@dataclass
class ModelCursor:
    """A reader and all that it knows: where it began, what it had, what it holds now."""

    began_at: int
    had: int
    droppable: bool
    inside: ModelCheckpoint | None
    holds: dict[Hashable, int] = field(default_factory=dict)


class Run:
    """A manager and its model, driven by the same steps."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        max_items, max_bytes = self.random.choice(LIMITS)
        self.limits = max_items, max_bytes
        self.deduplicated = self.random.choice([1, 1, 0.9, 0])
        base = self.random.choice([0, 9, 2**63])
        self.names = NAMES[: self.random.randint(1, len(NAMES))]
        self.manager: CheckpointManager = CheckpointManager(5, settings_of(*self.limits), base)
        self.cursors: dict[str, ModelCursor] = {}
        self._forget_all(base)

    def _forget_all(self, seqno: int) -> None:
        self.base = self.high = self.consistent = self.gone = seqno
        self.ever: list[Item] = []
        self.checkpoints = [ModelCheckpoint(seqno, seqno)]

    # What the model knows.

    @property
    def open(self) -> ModelCheckpoint:
        return self.checkpoints[-1]

    def in_memory(self, checkpoint: ModelCheckpoint) -> list[Item]:
        return [item for item in checkpoint.newest() if item.seqno > self.gone]

    def memory_of(self, checkpoint: ModelCheckpoint) -> int:
        items = self.in_memory(checkpoint)
        return sum(item.size_bytes + ITEM_OVERHEAD_BYTES for item in items)

    def end_of(self, checkpoint: ModelCheckpoint) -> int:
        if checkpoint is self.open and self.consistent == self.high:
            return self.high
        assert checkpoint.end is not None
        return checkpoint.end

    @property
    def is_full(self) -> bool:
        count, size = len(self.in_memory(self.open)), self.memory_of(self.open)
        max_items, max_bytes = self.limits
        return count >= max_items or size >= max_bytes

    @property
    def lowest(self) -> int:
        return min((cursor.had for cursor in self.cursors.values()), default=self.high)

    def holding(self, seqno: int) -> ModelCheckpoint:
        """Where a reader stands that had everything up to ``seqno``."""
        return next((each for each in self.checkpoints if each.high > seqno), self.open)

    def start_new(self, checkpoint: ModelCheckpoint) -> None:
        if self.in_memory(self.open):
            self.open.end = self.end_of(self.open)
        else:
            self.checkpoints.pop()
        self.checkpoints.append(checkpoint)

    def add(self, item: Item) -> None:
        self.open.items.append(item)
        self.ever.append(item)
        self.high = item.seqno

    # Writing.

    def write(self) -> None:
        few: list[Key] = self.random.choices([*"ABCDE", None], k=self.random.randint(1, 12))
        distinct = self.random.randint(2, 5)
        many: list[Key] = [number % distinct for number in range(90)]
        size = self.random.choice([0, 50, 51])
        for key in self.random.choices([few, many], [9, 1])[0]:
            item = Item(self.high + 1, key, size, self.random.random() < self.deduplicated)
            if self.open.is_received or self.is_full or self.must_stay_beside(item):
                self.close_open()
            self.add(item)
            self.consistent = self.high
            self.manager.queue(item)

    def must_stay_beside(self, item: Item) -> bool:
        held = [i for i in self.in_memory(self.open) if i.dedup_key == item.dedup_key is not None]
        return any(not (each.is_deduplicated and item.is_deduplicated) for each in held)

    def close(self) -> None:
        self.close_open()
        self.manager.close_open()

    def close_open(self) -> None:
        self.consistent = self.high
        self.start_new(ModelCheckpoint(self.high, self.high + 1))

    def close_full(self) -> None:
        closes = self.is_full and not self.open.is_received
        if closes:
            self.close_open()
        assert self.manager.close_full() == closes

    def marker(self) -> None:
        start = max(0, self.high + 1 - self.random.randint(-3, 12))
        end = max(start, self.high) + self.random.randint(1, 15)
        kind, flag = self.random.choice([MEMORY, MEMORY, DISK]), self.random.random() < 0.4
        self.manager.begin_snapshot(start, end, kind, begins_checkpoint=flag)
        last = self.open
        both_memory = kind is MEMORY and last.kind is MEMORY and last.is_received
        if both_memory and not flag and last.end is not None and start <= last.end + 1:
            last.end = max(last.end, end)
        else:
            self.start_new(ModelCheckpoint(self.high, start, kind, end, is_received=True))

    def receive(self) -> None:
        for _ in range(self.random.randint(1, 12)):
            seqno = max(self.open.start, self.high + 1) + self.random.choice([0, 0, 0, 1, 3])
            # A disk holds each key once.
            key: Key = seqno if self.open.kind is DISK else self.random.choice("ABCDE")
            item = Item(seqno, key, is_deduplicated=self.random.random() < self.deduplicated)
            if not self.open.is_received or self.open.end is None or seqno > self.open.end:
                with pytest.raises(LocalProtocolError):
                    self.manager.receive(item)
                return
            self.manager.receive(item)
            self.add(item)
            if seqno == self.open.end:
                self.consistent = seqno

    # Reading.

    def register(self) -> None:
        name, droppable = self.random.choice(self.names), self.random.random() < 0.7
        after = max(0, self.high - self.random.choice([0, 1, 5, 30]))
        had = max(after, self.gone)
        checkpoint = self.holding(had)
        left = max(self.gone, checkpoint.begins_after)
        self.cursors[name] = ModelCursor(had, had, droppable, checkpoint if after > left else None)
        found = self.manager.register(name, after, droppable=droppable)
        assert found is (after >= self.gone)

    def remove(self) -> None:
        name = self.random.choice(self.names)
        self.cursors.pop(name, None)
        self.manager.remove(name)

    def take(self) -> None:
        for name, cursor in self.cursors.items():
            for _ in range(self.random.choice([0, 0, 1, 1, 4])):
                self._take_one(name, cursor)

    def _take_one(self, name: str, cursor: ModelCursor) -> None:
        checkpoint = self.holding(cursor.had)
        wanted = [item for item in self.in_memory(checkpoint) if item.seqno > cursor.had]
        taken = next_items(self.manager, name)
        if taken is None:
            assert not wanted
            assert not any(item.seqno > cursor.had for item in self.ever)
            return
        begins = cursor.inside is not checkpoint
        start = checkpoint.start if checkpoint.start > cursor.had else wanted[0].seqno
        assert list(taken.items) == wanted
        assert taken.begins_checkpoint == begins
        assert taken.snapshot_start == start
        assert taken.snapshot_end == self.end_of(checkpoint)
        assert taken.kind is checkpoint.kind
        cursor.had, cursor.inside = wanted[-1].seqno, checkpoint
        cursor.holds |= {self._slot(item): item.seqno for item in taken.items}
        assert cursor.holds == self._held(cursor.began_at, cursor.had)

    def _slot(self, item: Version) -> Hashable:
        return ("nothing replaces", item.seqno) if item.dedup_key is None else item.dedup_key

    def _held(self, after: int, up_to: int) -> dict[Hashable, int]:
        """What a client holds that was told of everything written in between."""
        told = [item for item in self.ever if after < item.seqno <= up_to]
        return {self._slot(item): item.seqno for item in told}

    # Memory.

    def expel(self) -> None:
        oldest, lowest = self.checkpoints[0], self.lowest
        before = self.memory_of(oldest)
        if oldest is self.open or oldest.high > lowest:
            self.gone = max(
                [self.gone, *(i.seqno for i in self.in_memory(oldest) if i.seqno <= lowest)]
            )
        assert self.manager.expel() == before - self.memory_of(oldest)

    def remove_closed(self) -> None:
        removed = [each for each in self.checkpoints[:-1] if each.high <= self.lowest]
        assert self.manager.remove_closed() == sum(self.memory_of(each) for each in removed)
        del self.checkpoints[: len(removed)]
        self.gone = max([self.gone, *(each.high for each in removed)])

    def drop(self) -> None:
        order = {id(each): number for number, each in enumerate(self.checkpoints)}

        def stands(cursor: ModelCursor) -> int:
            return order[id(self.holding(cursor.had))]

        kept = [stands(cursor) for cursor in self.cursors.values() if not cursor.droppable]
        bound = min([*kept, order[id(self.open)]])
        found = [
            (cursor.had, name)
            for name, cursor in self.cursors.items()
            if cursor.droppable and stands(cursor) < bound
        ]
        dropped = tuple(name for _, name in sorted(found))
        assert drop_cursors(self.manager) == dropped
        for name in dropped:
            del self.cursors[name]

    def begin_anew(self) -> None:
        """As after a cut of the vbucket: memory goes on behind what is on disk."""
        seqno = max(self.base, self.high - self.random.randint(0, 10))
        self.manager = CheckpointManager(5, settings_of(*self.limits), seqno)
        self.cursors.clear()
        self._forget_all(seqno)

    # What is always true.

    def check_facts(self) -> None:
        manager = self.manager
        assert manager.high_seqno == self.high
        assert manager.complete_seqno == self.consistent
        assert manager.is_snapshot_complete == (self.consistent == self.high)
        snapshot = manager.snapshot
        assert snapshot.start == min(self.open.start, self.high)
        assert snapshot.end == self.end_of(self.open)
        assert manager.memory_bytes == sum(self.memory_of(each) for each in self.checkpoints)
        found = [(c.kind, c.snapshot_start, c.snapshot_end, c.item_count, c.memory_bytes)
                 for c in manager.checkpoints]  # fmt: skip
        assert found == [
            (each.kind, each.start, self.end_of(each), len(self.in_memory(each)),
             self.memory_of(each)) for each in self.checkpoints
        ]  # fmt: skip

    def check_cursors(self) -> None:
        checkpoints = self.manager.checkpoints
        ids = [each.id for each in checkpoints]
        assert ids == sorted(set(ids))
        places = {name: ids.index(f.checkpoint_id) for name, f in self.manager.cursors.items()}
        wanted = {
            name: [id(each) for each in self.checkpoints].index(id(self.holding(cursor.had)))
            for name, cursor in self.cursors.items()
        }
        assert places == wanted
        assert [each.cursors for each in checkpoints] == [
            list(places.values()).count(number) for number in range(len(ids))
        ]
        for name, cursor in self.cursors.items():
            assert self.manager.cursors[name].seqno == cursor.had


# How often each step is taken; each run leaves some out and favours others, to come far from where
# all of them lead.
STEPS: list[tuple[Callable[[Run], None], int]] = [
    (Run.write, 12),
    (Run.close, 2),
    (Run.close_full, 2),
    (Run.marker, 5),
    (Run.receive, 10),
    (Run.register, 8),
    (Run.remove, 1),
    (Run.take, 10),
    (Run.expel, 4),
    (Run.remove_closed, 3),
    (Run.drop, 2),
    (Run.begin_anew, 1),
]


@pytest.mark.parametrize("seed", seeds(60))
def test_random_steps(seed: int) -> None:
    run = Run(seed)
    weights = [weight * run.random.choice([0, 1, 1, 4]) for _, weight in STEPS]
    for step, _ in run.random.choices(STEPS, [weight + 0.01 for weight in weights], k=120):
        print(step.__name__)
        step(run)
        run.check_facts()
        run.check_cursors()
