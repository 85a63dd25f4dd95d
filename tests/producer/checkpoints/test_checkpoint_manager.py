"""The checkpoint manager, case by case, and the worked examples of the DCP concepts document."""

from collections.abc import Callable

import pytest

from dcp.errors import LocalProtocolError
from dcp.producer.checkpoints.checkpoint import CheckpointHead, OpenCheckpoint
from dcp.producer.checkpoints.checkpoint_cursors import Cursors
from dcp.producer.checkpoints.checkpoint_manager import (
    CheckpointKind,
    CheckpointLimits,
    CheckpointManager,
    CursorItems,
)
from dcp.types import SnapshotRange
from tests.producer.queued import (
    COST,
    Item,
    Manager,
    drained,
    drop_cursors,
    new_manager,
    receive,
    shape,
    write,
)

MEMORY, DISK = CheckpointKind.MEMORY, CheckpointKind.DISK


def _item_counts(manager: Manager) -> list[int]:
    return [each.item_count for each in manager.checkpoints]


# The worked examples of the concepts document.


def test_two_clients_get_their_own_point_in_time_snapshots() -> None:
    manager = new_manager()
    write(manager, range(100))
    manager.register("C1", 0)
    assert shape(manager.next_items("C1")) == (1, 100, list(range(1, 101)))
    write(manager, range(100, 120))
    manager.register("C2", 0)
    assert shape(manager.next_items("C2")) == (1, 120, list(range(1, 121)))
    write(manager, range(120, 150))
    assert shape(manager.next_items("C1")) == (101, 150, list(range(101, 151)))
    assert shape(manager.next_items("C2")) == (121, 150, list(range(121, 151)))
    assert shape(manager.next_items("C1")) is None


def test_what_is_below_every_cursor_can_be_removed_from_memory() -> None:
    manager = new_manager()
    write(manager, range(120))
    manager.register("C1", 100)
    manager.register("C2", 120)
    assert manager.expel() == 100 * COST
    assert not manager.register("C3", 0)
    assert shape(manager.next_items("C1")) == (101, 120, list(range(101, 121)))


def test_a_slow_client_loses_its_cursor_and_goes_back_to_disk() -> None:
    manager = new_manager(max_items=10)
    manager.register("persistence", 0, droppable=False)
    manager.register("slow", 0)
    write(manager, range(25))
    assert drained(manager, "persistence") == [[*range(1, 11)], [*range(11, 21)], [*range(21, 26)]]
    assert manager.remove_closed() == 0
    assert drop_cursors(manager) == ("slow",)
    assert manager.remove_closed() == 20 * COST
    assert not manager.register("slow", 0)


def test_seqno_1_is_replaced_by_seqno_3() -> None:
    manager = new_manager()
    manager.register("client", 0)
    write(manager, "ABA")
    items = manager.next_items("client")
    assert items is not None
    assert (items.snapshot_start, items.snapshot_end) == (2, 3)
    assert [(item.seqno, item.dedup_key) for item in items.items] == [(2, "B"), (3, "A")]


def test_a_replica_in_the_middle_of_1_to_500_is_not_consistent_at_300() -> None:
    active, replica = new_manager(), new_manager()
    keys = [f"k{seqno}" for seqno in range(1, 501)]
    keys[99] = keys[399] = "K1"
    write(active, keys)
    active.register("replication", 0, droppable=False)
    sent = active.next_items("replication")
    assert sent is not None
    assert (sent.snapshot_start, sent.snapshot_end, len(sent.items)) == (1, 500, 499)

    replica.register("client", 0)
    replica.begin_snapshot(
        sent.snapshot_start,
        sent.snapshot_end,
        sent.kind,
        begins_checkpoint=sent.begins_checkpoint,
    )
    assert (replica.snapshot, replica.is_snapshot_complete) == (SnapshotRange(0, 0), True)
    for item in sent.items:
        if item.seqno == 301:
            first = replica.next_items("client")
            assert shape(first) == (1, 500, [s for s in range(1, 301) if s != 100])
            assert replica.snapshot == SnapshotRange(1, 500)
            assert not replica.is_snapshot_complete
            assert (replica.high_seqno, replica.consistent_seqno) == (300, 0)
        replica.receive(item)
    second = replica.next_items("client")
    assert shape(second) == (301, 500, list(range(301, 501)))
    assert second is not None
    assert not second.begins_checkpoint
    assert (replica.snapshot, replica.is_snapshot_complete) == (SnapshotRange(1, 500), True)
    assert replica.consistent_seqno == 500


# De-duplication and cursors.


@pytest.mark.parametrize(
    ("before", "taken", "after", "left"),
    [
        ("AB", [[1, 2]], "A", [[3]]),  # had the old version: gets the new one
        ("AB", None, "A", [[2, 3]]),  # had nothing: the old one no more
        ("A", [[1]], "AAA", [[4]]),
        ("ABC", [[1, 2, 3]], "BDB", [[5, 6]]),
        ("", None, "ABCABC", [[4, 5, 6]]),
    ],
)
def test_every_cursor_gets_what_it_has_not_had(
    before: str, taken: list[list[int]] | None, after: str, left: list[list[int]]
) -> None:
    manager = new_manager()
    manager.register("client", 0)
    write(manager, before)
    if taken is not None:
        assert drained(manager, "client") == taken
    write(manager, after)
    assert drained(manager, "client") == left


def test_a_cursor_behind_a_replaced_item_misses_nothing() -> None:
    manager = new_manager()
    write(manager, "ABC")
    for after_seqno in range(4):
        manager.register(f"after {after_seqno}", after_seqno)
    write(manager, "BA")
    wanted = [[3, 4, 5], [3, 4, 5], [3, 4, 5], [4, 5]]
    assert [drained(manager, f"after {seqno}") for seqno in range(4)] == [[w] for w in wanted]


def test_taken_items_are_of_that_point_in_time() -> None:
    manager = new_manager()
    manager.register("client", 0)
    write(manager, "AB")
    taken = manager.next_items("client")
    write(manager, "AB")
    manager.expel()
    assert shape(taken) == (1, 2, [1, 2])


def test_items_without_a_key_are_never_replaced() -> None:
    manager = new_manager()
    manager.register("client", 0)
    write(manager, [None, "A", None, "A", None])
    assert drained(manager, "client") == [[1, 3, 4, 5]]


def test_nothing_is_replaced_across_checkpoints() -> None:
    manager = new_manager(max_items=2)
    manager.register("client", 0)
    write(manager, "ABABA")
    assert drained(manager, "client") == [[1, 2], [3, 4], [5]]


def test_an_item_whose_old_version_was_expelled_is_new() -> None:
    manager = new_manager()
    manager.register("client", 0)
    write(manager, "AB")
    drained(manager, "client")
    assert manager.expel() == 2 * COST
    write(manager, "BA")
    assert drained(manager, "client") == [[3, 4]]
    assert manager.memory_bytes == 2 * COST


def test_holes_never_outnumber_the_items_by_much() -> None:
    opened: OpenCheckpoint[Item] = OpenCheckpoint(CheckpointHead(1, MEMORY, 0, 0))
    for seqno in range(1, 10_001):
        opened.add(Item(seqno, seqno % 7))
        assert len(opened._items) <= 2 * 7 + 33
    assert [item.seqno for item in opened.after(9_995)] == list(range(9_996, 10_001))
    assert opened.memory_bytes == 7 * COST


# Where checkpoints end.


@pytest.mark.parametrize(
    ("limits", "keys", "counts"),
    [
        (CheckpointLimits(3, 2**40), "ABC", [3]),  # full, and closed by the next item only
        (CheckpointLimits(3, 2**40), "ABCD", [3, 1]),
        (CheckpointLimits(3, 2**40), "ABABABC", [3]),  # what was replaced does not count
        (CheckpointLimits(1000, 2 * COST), "ABCD", [2, 2]),
        (CheckpointLimits(1000, 2 * COST + 1), "ABCD", [3, 1]),
        (CheckpointLimits(1000, 1), "ABC", [1, 1, 1]),  # one item always fits
        (CheckpointLimits(1, 1), "AA", [1, 1]),
    ],
)
def test_the_open_checkpoint_is_closed_when_full(
    limits: CheckpointLimits, keys: str, counts: list[int]
) -> None:
    manager: Manager = CheckpointManager(0, limits)
    write(manager, keys)
    assert _item_counts(manager) == counts
    assert manager.memory_bytes == sum(counts) * COST
    assert sum(each.memory_bytes for each in manager.checkpoints) == manager.memory_bytes


def test_a_checkpoint_closed_by_order() -> None:
    manager = new_manager()
    manager.close_open()
    write(manager, "AB")
    manager.close_open()
    manager.close_open()  # an empty one is never left behind
    write(manager, "B")
    closed, opened = manager.checkpoints
    assert (closed.snapshot_start, closed.snapshot_end) == (1, 2)
    assert opened.item_count == manager.open_item_count == 1
    assert (opened.snapshot_start, opened.snapshot_end, opened.high_seqno) == (3, 3, 3)
    assert not manager.close_full()


@pytest.mark.parametrize(
    ("base", "keys", "markers"),
    [
        (0, "AA", [(2, 2, True)]),  # the first one starts where the disk ends: at its first item
        (7, "AA", [(9, 9, True)]),
        (0, "AB|AA", [(1, 2, True), (3, 4, True)]),  # a new one starts where the active began it
        (0, "A.B", [(1, 1, True), (2, 2, False)]),
        (0, "A.AB|CC.D", [(1, 1, True), (2, 3, False), (4, 5, True), (6, 6, False)]),
        (0, "A.|B", [(1, 1, True), (2, 2, True)]),
    ],
)
def test_markers_as_kv_engine_sends_them(
    base: int, keys: str, markers: list[tuple[int, int, bool]]
) -> None:
    """In ``keys``, ``.`` takes what there is and ``|`` closes the checkpoint."""
    manager = new_manager(high_seqno=base)
    manager.register("client", base)
    taken: list[tuple[int, int, bool]] = []

    def take() -> None:
        while (items := manager.next_items("client")) is not None:
            taken.append((items.snapshot_start, items.snapshot_end, items.begins_checkpoint))

    for step in keys:
        if step == ".":
            take()
        elif step == "|":
            manager.close_open()
        else:
            write(manager, step)
    take()
    assert taken == markers


# Cursors.


def _three_checkpoints() -> Manager:
    """Seqnos 11 to 13, 14 to 16, and 17 to 18 in the open one; 12 and 17 were replaced."""
    manager = new_manager(high_seqno=10)
    write(manager, "AB")
    write(manager, "B")
    manager.close_open()
    write(manager, "ABC")
    manager.close_open()
    write(manager, "AA")
    return manager


@pytest.mark.parametrize(
    ("after_seqno", "has_all", "begins", "items"),
    [
        (0, False, True, [11, 13]),
        (9, False, True, [11, 13]),
        (10, True, True, [11, 13]),
        (11, True, False, [13]),
        (12, True, False, [13]),
        (13, True, True, [14, 15, 16]),
        (16, True, True, [18]),
        (17, True, False, [18]),
        (18, True, None, []),
    ],
)
def test_where_a_cursor_begins(
    after_seqno: int, has_all: bool, begins: bool | None, items: list[int]
) -> None:
    manager = _three_checkpoints()
    assert manager.register("client", after_seqno) is has_all
    taken = manager.next_items("client")
    if taken is None:
        assert not items
    else:
        assert ([item.seqno for item in taken.items], taken.begins_checkpoint) == (items, begins)


def test_a_cursor_in_a_checkpoint_whose_beginning_was_expelled() -> None:
    manager = _three_checkpoints()
    manager.register("first", 11)
    assert manager.expel() == COST
    assert not manager.register("late", 3)
    assert manager.register("exact", 11)
    for cursor, begins in (("first", False), ("late", True), ("exact", True)):
        items = manager.next_items(cursor)
        assert items is not None
        assert (shape(items), items.begins_checkpoint) == ((13, 13, [13]), begins)


def test_a_cursor_that_had_a_whole_checkpoint_stands_in_the_next() -> None:
    manager = _three_checkpoints()
    ids = [each.id for each in manager.checkpoints]
    manager.register("client", 10, droppable=False)
    stood = []
    while (facts := manager.cursors["client"]).seqno < manager.high_seqno:
        stood.append((facts.seqno, facts.checkpoint_id, facts.is_droppable))
        manager.next_items("client")
    assert stood == [(10, ids[0], False), (13, ids[1], False), (16, ids[2], False)]
    manager.close_open()
    assert manager.cursors["client"].checkpoint_id == manager.checkpoints[-1].id
    assert manager.checkpoints[-1].cursors == 1


def test_a_cursor_of_the_same_name_is_replaced() -> None:
    manager = _three_checkpoints()
    manager.register("client", 13, droppable=False)
    manager.register("client", 16)
    assert list(manager.cursors) == ["client"]
    assert manager.cursors["client"].is_droppable
    assert drained(manager, "client") == [[18]]


def test_removing_a_cursor_twice_is_no_error() -> None:
    manager = new_manager()
    manager.register("client", 0)
    manager.remove("client")
    manager.remove("client")
    assert not manager.cursors


# What memory gives back.


def test_expelling_spares_what_a_cursor_has_not_had() -> None:
    manager = new_manager(max_items=3)
    manager.register("slow", 0)
    manager.register("fast", 0)
    write(manager, "ABCDE")
    assert drained(manager, "fast") == [[1, 2, 3], [4, 5]]
    assert manager.expel() == 0
    manager.register("slow", 2)
    assert manager.expel() == 2 * COST
    assert manager.expel() == 0
    assert drained(manager, "slow") == [[3], [4, 5]]
    assert manager.expel() == 0  # a closed checkpoint that all had is removed, not expelled
    assert manager.remove_closed() == COST
    assert manager.expel() == 2 * COST
    assert manager.memory_bytes == 0
    write(manager, "D")
    assert drained(manager, "fast") == [[6]]


def test_without_cursors_everything_closed_and_consumed_goes() -> None:
    manager = _three_checkpoints()
    assert manager.remove_closed() == 5 * COST
    assert _item_counts(manager) == [1]
    assert manager.expel() == COST
    assert manager.register("client", 18)
    assert not manager.register("client", 17)


def test_checkpoints_are_removed_from_the_oldest_on() -> None:
    manager = _three_checkpoints()
    manager.register("last", 16)
    manager.register("middle", 14)
    assert manager.remove_closed() == 2 * COST
    manager.remove("middle")
    assert manager.remove_closed() == 3 * COST
    assert drained(manager, "last") == [[18]]


@pytest.mark.parametrize(
    ("kept", "dropped"),
    [
        ([], ("a10", "a12", "b13", "b15")),  # ephemeral: whatever stands in a closed checkpoint
        ([18], ("a10", "a12", "b13", "b15")),
        ([16], ("a10", "a12", "b13", "b15")),
        ([15], ("a10", "a12")),  # strictly older checkpoints only
        ([13], ("a10", "a12")),
        ([12], ()),
        ([18, 14], ("a10", "a12")),  # the oldest one that stays decides
    ],
)
def test_which_cursors_are_dropped(kept: list[int], dropped: tuple[str, ...]) -> None:
    manager = _three_checkpoints()
    for name in ("c17", "b15", "a12", "b13", "c18", "a10", "c16"):
        manager.register(name, int(name[1:]))
    for seqno in kept:
        manager.register(f"kept at {seqno}", seqno, droppable=False)
    left = set(manager.cursors) - set(dropped)
    assert manager.droppable_cursors() == dropped
    assert drop_cursors(manager) == dropped
    assert set(manager.cursors) == left
    assert drop_cursors(manager) == ()


# Replicas.


@pytest.mark.parametrize(
    ("marker", "snapshots"),
    [
        # After [1, 10], received whole:
        ((11, 20, MEMORY, False), [(1, 20)]),
        ((5, 20, MEMORY, False), [(1, 20)]),
        ((12, 20, MEMORY, False), [(1, 10), (12, 20)]),  # behind a gap
        ((11, 20, MEMORY, True), [(1, 10), (11, 20)]),  # the marker's CHECKPOINT flag
        ((11, 20, DISK, False), [(1, 10), (11, 20)]),
    ],
)
def test_which_markers_extend_the_open_checkpoint(
    marker: tuple[int, int, CheckpointKind, bool], snapshots: list[tuple[int, int]]
) -> None:
    manager = new_manager()
    manager.begin_snapshot(1, 10, MEMORY)
    receive(manager, range(1, 11))
    start, end, kind, begins = marker
    manager.begin_snapshot(start, end, kind, begins_checkpoint=begins)
    receive(manager, [15])
    found = [(each.snapshot_start, each.snapshot_end) for each in manager.checkpoints]
    assert found == snapshots
    assert manager.snapshot == SnapshotRange(*snapshots[-1])
    assert not manager.is_snapshot_complete
    assert manager.consistent_seqno == 10
    assert manager.checkpoints[-1].kind is kind


@pytest.mark.parametrize("start", [1, 4, 301])
def test_a_marker_inside_an_incomplete_snapshot_goes_on_with_it(start: int) -> None:
    manager = new_manager()
    manager.register("client", 0)
    manager.begin_snapshot(1, 500, MEMORY)
    receive(manager, range(1, 301))
    manager.begin_snapshot(start, 400, MEMORY)
    assert manager.snapshot == SnapshotRange(1, 500)
    manager.begin_snapshot(start, 600, MEMORY)
    assert manager.snapshot == SnapshotRange(1, 600)
    assert shape(manager.next_items("client")) == (1, 600, list(range(1, 301)))


@pytest.mark.parametrize("first", [(1, 10, DISK), (1, 10, MEMORY)])
def test_a_memory_snapshot_does_not_extend_what_is_none(
    first: tuple[int, int, CheckpointKind],
) -> None:
    """Neither a received disk snapshot nor a checkpoint from the time when it was active."""
    manager = new_manager()
    if first[2] is DISK:
        manager.begin_snapshot(*first)
        receive(manager, range(1, 11))
    else:
        write(manager, range(10))
    manager.begin_snapshot(11, 20, MEMORY)
    receive(manager, [20])
    manager.register("client", 0)
    taken = [manager.next_items("client"), manager.next_items("client")]
    assert [shape(items) for items in taken] == [(1, 10, list(range(1, 11))), (11, 20, [20])]


def test_a_marker_without_items_changes_nothing_yet() -> None:
    manager = new_manager()
    manager.begin_snapshot(1, 10, MEMORY)
    receive(manager, [3, 10])
    for begins in (False, True, True):
        manager.begin_snapshot(11, 20, MEMORY, begins_checkpoint=begins)
        assert manager.snapshot.end == 10
        assert manager.is_snapshot_complete
    manager.register("client", 0)
    assert shape(manager.next_items("client")) == (1, 10, [3, 10])
    assert manager.next_items("client") is None
    assert len(manager.checkpoints) == 2


def test_a_received_memory_snapshot_is_deduplicated_and_a_disk_snapshot_is_not() -> None:
    for kind, wanted in ((MEMORY, [2, 3]), (DISK, [1, 2, 3])):
        manager = new_manager()
        manager.register("client", 0)
        manager.begin_snapshot(0, 3, kind)
        for seqno, key in ((1, "A"), (2, "B"), (3, "A")):
            manager.receive(Item(seqno, key))
        items = manager.next_items("client")
        assert shape(items) == (wanted[0], 3, wanted)
        assert items is not None
        assert items.kind is kind


def test_a_replica_that_becomes_active_ends_the_snapshot_where_it_is() -> None:
    manager = new_manager(max_items=2)
    manager.register("persistence", 0, droppable=False)
    manager.begin_snapshot(1, 500, MEMORY)
    receive(manager, range(1, 301))
    assert not manager.close_full()  # only an active decides where a checkpoint ends
    assert manager.consistent_seqno == 0
    write(manager, ["A"])
    assert (manager.consistent_seqno, manager.snapshot) == (301, SnapshotRange(301, 301))
    assert shape(manager.next_items("persistence")) == (1, 300, list(range(1, 301)))
    assert shape(manager.next_items("persistence")) == (301, 301, [301])


# What is refused.


def _received(*seqnos: int) -> Callable[[Manager], object]:
    def steps(manager: Manager) -> None:
        manager.begin_snapshot(15, 20, MEMORY)
        receive(manager, seqnos)

    return steps


def _skipped(to: int, seqno: int) -> Callable[[Manager], object]:
    def steps(manager: Manager) -> None:
        manager.skip_to(to)
        manager.queue(Item(seqno, "A"))

    return steps


REFUSED: list[tuple[Callable[[Manager], object], str]] = [
    (lambda m: m.queue(Item(10, "A")), "found seqno 10, expected 11"),
    (lambda m: m.queue(Item(12, "A")), "found seqno 12, expected 11"),
    (_skipped(20, 20), "found seqno 20, expected 21"),
    (_skipped(3, 4), "found seqno 4, expected 11"),
    (lambda m: m.receive(Item(11, "A")), "found seqno 11, expected a snapshot marker first"),
    (_received(14), "found seqno 14, expected 15 to 20"),
    (_received(21), "found seqno 21, expected 15 to 20"),
    (_received(16, 16), "found seqno 16, expected 17 to 20"),
    (lambda m: m.begin_snapshot(5, 10, MEMORY), r"snapshot \[5, 10\]: found its end not above"),
    (lambda m: m.register("client", 11), "cursor client: found seqno 11, expected 0 to 10"),
    (lambda m: m.register("client", -1), "cursor client: found seqno -1, expected 0 to 10"),
    (lambda m: m.next_items("client"), "found no cursor client"),
]


@pytest.mark.parametrize(("misuse", "message"), REFUSED)
def test_misuse_is_refused_and_leaves_everything_as_it_was(
    misuse: Callable[[Manager], object], message: str
) -> None:
    manager = new_manager(high_seqno=9, vbucket=3)
    write(manager, "A")
    with pytest.raises(LocalProtocolError, match=f"vbucket 3.*{message}"):
        misuse(manager)
    manager.register("client", 9)
    assert manager.checkpoints[0].item_count == 1
    items = manager.next_items("client")
    assert items is not None
    assert items.items[0] == Item(10, "A")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: CheckpointLimits(max_items=0), "max_items: found 0, expected 1 or more"),
        (lambda: CheckpointLimits(max_bytes=0), "max_bytes: found 0, expected 1 or more"),
        (lambda: new_manager(high_seqno=-1), "high_seqno: found -1"),
        (lambda: new_manager().begin_snapshot(5, 4, MEMORY), "found start 5 beyond its end 4"),
        (
            lambda: CursorItems((), 1, 2, MEMORY, begins_checkpoint=True),
            r"found first and last seqno \[\]",
        ),
        (
            lambda: CursorItems((Item(3, "A"),), 1, 2, MEMORY, begins_checkpoint=True),
            r"first and last seqno \[3, 3\]",
        ),
    ],
)
def test_illegal_values_are_refused(make: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_nothing_to_free_needs_no_look_at_the_cursors(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = 0
    real = Cursors.lowest_seqno

    def counted(cursors: Cursors, high_seqno: int) -> int:
        nonlocal looks
        looks += 1
        return real(cursors, high_seqno)

    monkeypatch.setattr(Cursors, "lowest_seqno", counted)
    manager = new_manager()
    manager.register("reader", 0)
    assert (manager.remove_closed(), manager.expel(), looks) == (0, 0, 0)
    write(manager, ["a"])
    assert (manager.remove_closed(), looks) == (0, 0)
    drained(manager, "reader")
    assert (manager.expel(), looks) == (COST, 1)
    assert (manager.expel(), looks) == (0, 1)
    write(manager, ["b"])
    manager.close_open()
    drained(manager, "reader")
    assert (manager.remove_closed(), looks) == (COST, 2)
