"""Memory recovery: when it begins and ends, in which order, and that it never takes too much."""

from collections.abc import Sequence
from itertools import chain

import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from dcp.producer.cluster_settings import ClusterSettings
from dcp.server.checkpoints.checkpoint import CheckpointKind
from dcp.server.checkpoints.checkpoint_manager import CheckpointManager
from dcp.server.checkpoints.checkpoint_memory import (
    LOWER_MARK_PERCENT,
    UPPER_MARK_PERCENT,
    Recovery,
    recover,
)
from tests.producer.queued import (
    COST,
    drained,
    new_manager,
    receive,
    write,
)

NOTHING = Recovery(0, 0, 0, {})


def _filled(items: int, checkpoint_items: int, vbucket: int = 0) -> CheckpointManager:
    """Return a manager with that many items, all of which the flusher had."""
    manager = new_manager(checkpoint_items, vbucket=vbucket)
    write(manager, range(items))
    manager.register("persistence", items, droppable=False)
    return manager


def _used_bytes(managers: Sequence[CheckpointManager]) -> int:
    return sum(manager.memory_bytes for manager in managers)


def _freed_bytes(recovery: Recovery) -> int:
    return recovery.removed_bytes + recovery.expelled_bytes


def test_the_marks_are_those_of_kv_engine() -> None:
    assert (UPPER_MARK_PERCENT, LOWER_MARK_PERCENT) == (90, 60)


@pytest.mark.parametrize(("items", "left"), [(0, 0), (60, 60), (89, 89), (90, 60), (150, 60)])
def test_it_begins_at_the_upper_mark_and_ends_at_the_lower(items: int, left: int) -> None:
    """Vbuckets of one item each: recovery could take them all."""
    managers = [_filled(1, 1, vbucket) for vbucket in range(items)]
    recovery = recover(managers, 100 * COST)
    assert _used_bytes(managers) == left * COST
    assert (_freed_bytes(recovery), recovery.dropped) == ((items - left) * COST, {})


@pytest.mark.parametrize(
    ("quota_items", "recovery"),
    [
        (128, NOTHING),
        (125, Recovery(0, 40 * COST, 0, {})),
        (100, Recovery(1, 70 * COST, 0, {})),
        (50, Recovery(1, 70 * COST, 20 * COST, {})),
        (30, Recovery(1, 70 * COST, 30 * COST, {})),
        (20, Recovery(1, 80 * COST, 30 * COST, {3: ("slow",)})),
        (1, Recovery(1, 80 * COST, 30 * COST, {3: ("slow",)})),  # and there is no more to get
    ],
)
def test_the_slow_stream_pays_last(quota_items: int, recovery: Recovery) -> None:
    unneeded = _filled(50, 40, 0)  # 40 in a closed checkpoint, 10 in the open one
    full = _filled(30, 30, 1)
    read = _filled(20, 40, 2)
    held = _filled(15, 10, 3)
    held.register("slow", 0)
    managers = [read, held, full, unneeded]
    assert recover(managers, quota_items * COST) == recovery
    assert _used_bytes(managers) == 115 * COST - _freed_bytes(recovery)


def test_cursors_are_dropped_one_by_one_until_enough_is_free() -> None:
    manager = _filled(100, 10)
    for seqno in (95, 0, 35, 15):
        manager.register(f"at {seqno}", seqno)
    recovery = recover([manager], 100 * COST)
    assert recovery == Recovery(1, 90 * COST, 0, {0: ("at 0", "at 15", "at 35")})
    assert drained(manager, "at 95") == [[96, 97, 98, 99, 100]]


def test_the_largest_vbucket_is_asked_first() -> None:
    managers = [_filled(items, 1000, vbucket) for vbucket, items in enumerate((30, 40, 30))]
    assert recover(managers, 100 * COST) == Recovery(0, 0, 40 * COST, {})
    assert [manager.memory_bytes // COST for manager in managers] == [30, 0, 30]


def test_a_cursor_that_may_not_be_dropped_keeps_its_memory() -> None:
    manager = _filled(100, 10)
    manager.register("replication", 5, droppable=False)
    manager.register("slow", 7)
    assert recover([manager], COST) == Recovery(1, 0, 5 * COST, {})


def test_an_ephemeral_bucket_has_no_persistence_cursor() -> None:
    manager = new_manager(10)
    write(manager, range(95))
    manager.register("slow", 5)
    manager.register("quick", 91)
    assert recover([manager], 100 * COST) == Recovery(0, 85 * COST, 5 * COST, {0: ("slow",)})
    assert drained(manager, "quick") == [[92, 93, 94, 95]]


def test_only_an_active_vbucket_closes_its_checkpoint() -> None:
    manager = new_manager(max_items=10)
    manager.register("slow", 0)
    manager.begin_snapshot(1, 100, CheckpointKind.MEMORY)
    receive(manager, range(1, 101))
    assert recover([manager], COST) == NOTHING


Shape = tuple[int, int, list[tuple[int, bool]]]
buckets = st.lists(
    st.tuples(
        st.integers(0, 30),  # items
        st.integers(1, 12),  # items of a checkpoint
        st.lists(st.tuples(st.integers(0, 30), st.booleans()), max_size=4),  # cursors
    ),
    max_size=5,
)


def _build(shapes: list[Shape], *, may_drop: bool = True) -> list[CheckpointManager]:
    managers = []
    for vbucket, (items, checkpoint_items, cursors) in enumerate(shapes):
        manager = new_manager(checkpoint_items, vbucket=vbucket)
        write(manager, range(items))
        for number, (seqno, droppable) in enumerate(cursors):
            manager.register(f"c{number}", min(seqno, items), droppable=droppable and may_drop)
        managers.append(manager)
    return managers


def _had_a_whole_checkpoint_to_give(manager: CheckpointManager, name: str) -> bool:
    """Whether a checkpoint that is or may be closed ends behind it, before all that stay."""
    cursors = manager.cursors
    kept = min((c.seqno for c in cursors.values() if not c.is_droppable), default=2**64)
    *closed, opened = manager.checkpoints
    ends = [each.high_seqno for each in closed]
    if opened.item_count >= manager.max_items:
        ends.append(opened.high_seqno)
    return cursors[name].is_droppable and any(cursors[name].seqno < end <= kept for end in ends)


@given(buckets, st.integers(1, 100))
def test_recovery_takes_what_it_must_and_no_more(shapes: list[Shape], quota_items: int) -> None:
    managers, untouched = _build(shapes), _build(shapes)
    quota, used = quota_items * COST, _used_bytes(managers)
    recovery = recover(managers, quota)
    left = _used_bytes(managers)
    assert _freed_bytes(recovery) == used - left
    if used * 10 < quota * 9:
        assert recovery == NOTHING
        return
    for vbucket, names in recovery.dropped.items():
        assert names
        assert all(_had_a_whole_checkpoint_to_give(untouched[vbucket], name) for name in names)
    if recovery.dropped:
        spared = _build(shapes, may_drop=False)
        recover(spared, quota)
        assert _used_bytes(spared) * 10 > quota * 6
    if left * 10 > quota * 6:
        event("it is not enough")
        assert not any(manager.droppable_cursors() for manager in managers)
        assert not any(manager.remove_closed() for manager in managers)
    for manager, before in zip(managers, untouched, strict=True):
        dropped = recovery.dropped.get(manager.vbucket, ())
        assert set(manager.cursors) == set(before.cursors) - set(dropped)
        for name in manager.cursors:
            assert list(chain(*drained(manager, name))) == list(chain(*drained(before, name)))


@pytest.mark.parametrize(
    ("quota_bytes", "vbuckets", "max_bytes"),
    [(200 * 1024 * 1024, 1024, 20_480), (1000, 1, 100), (1000, 1024, 1)],
)
def test_each_vbucket_has_ten_checkpoints_of_the_quota(
    quota_bytes: int, vbuckets: int, max_bytes: int
) -> None:
    settings = ClusterSettings(vbuckets=vbuckets, checkpoint_quota_bytes=quota_bytes)
    assert settings.checkpoint_bytes == max_bytes


def test_an_impossible_quota_is_refused() -> None:
    with pytest.raises(ValueError, match="checkpoint quota: found 0 bytes, expected 1 or more"):
        recover([], 0)
