"""The checkpoint manager: markers as recorded, what is refused, and what nothing needs to look at.

All else that it does is held against a model (``test_checkpoint_model.py``); the worked examples of
the DCP concepts document are played over sockets (``test_memory_and_disk.py``,
``test_replica_streams.py``).
"""

from collections.abc import Callable

import pytest

from dcp.errors import LocalProtocolError
from dcp.server.checkpoints.checkpoint import CheckpointHead, CheckpointKind, OpenCheckpoint
from dcp.server.checkpoints.checkpoint_cursors import Cursors
from dcp.server.checkpoints.checkpoint_manager import CheckpointManager
from dcp.server.checkpoints.checkpoint_values import CursorItems
from tests.producer.queued import (
    COST,
    Item,
    drained,
    new_manager,
    next_items,
    receive,
    shape,
    write,
)

MEMORY, DISK = CheckpointKind.MEMORY, CheckpointKind.DISK


def test_taken_items_are_of_that_point_in_time() -> None:
    manager = new_manager()
    manager.register("client", 0)
    write(manager, "AB")
    taken = next_items(manager, "client")
    write(manager, "AB")
    manager.expel()
    assert shape(taken) == (1, 2, [1, 2])


def test_holes_never_outnumber_the_items_by_much() -> None:
    opened = OpenCheckpoint(CheckpointHead(1, MEMORY, 0, 0))
    for seqno in range(1, 10_001):
        opened.add(Item(seqno, seqno % 7))
        assert len(opened._items) <= 2 * 7 + 33
    assert [item.seqno for item in opened.after(9_995)] == list(range(9_996, 10_001))
    assert opened.memory_bytes == 7 * COST


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
        while (items := next_items(manager, "client")) is not None:
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


def test_a_received_memory_snapshot_is_deduplicated_and_a_disk_snapshot_is_not() -> None:
    for kind, wanted in ((MEMORY, [2, 3]), (DISK, [1, 2, 3])):
        manager = new_manager()
        manager.register("client", 0)
        manager.begin_snapshot(0, 3, kind)
        for seqno, key in ((1, "A"), (2, "B"), (3, "A")):
            manager.receive(Item(seqno, key))
        items = next_items(manager, "client")
        assert shape(items) == (wanted[0], 3, wanted)
        assert items is not None
        assert items.kind is kind


def test_what_a_disk_that_lags_behind_ends_inside_of_ends_where_it_was_announced() -> None:
    """It may hold any part of what memory has whole by now: no state of the active."""
    manager = new_manager(high_seqno=7)
    manager.register("client", 7)
    manager.begin_snapshot(7, 22, DISK)
    receive(manager, [9])
    assert manager.received_end_at(9) == 22
    manager.begin_snapshot(7, 22, DISK)  # the connection was lost, and it goes on
    receive(manager, [12, 22])
    manager.begin_snapshot(23, 26, MEMORY, begins_checkpoint=True)
    receive(manager, [24])
    found = [manager.received_end_at(seqno) for seqno in (9, 12, 22, 24)]
    assert found == [22, 22, None, 26]
    manager.close_open()  # it is promoted: what it had is the state that there was
    assert manager.received_end_at(24) is None
    write(manager, "AB")
    assert manager.received_end_at(25) is None, "an active's snapshots end where its disk does"


# What is refused.


def _received(*seqnos: int) -> Callable[[CheckpointManager], object]:
    def steps(manager: CheckpointManager) -> None:
        manager.begin_snapshot(15, 20, MEMORY)
        receive(manager, seqnos)

    return steps


def _skipped(to: int, seqno: int) -> Callable[[CheckpointManager], object]:
    def steps(manager: CheckpointManager) -> None:
        manager.skip_to(to)
        manager.queue(Item(seqno, "A"))

    return steps


REFUSED: list[tuple[Callable[[CheckpointManager], object], str]] = [
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
    (lambda m: next_items(m, "client"), "found no cursor client"),
]


@pytest.mark.parametrize(("misuse", "message"), REFUSED)
def test_misuse_is_refused_and_leaves_everything_as_it_was(
    misuse: Callable[[CheckpointManager], object], message: str
) -> None:
    manager = new_manager(high_seqno=9, vbucket=3)
    write(manager, "A")
    with pytest.raises(LocalProtocolError, match=f"vbucket 3.*{message}"):
        misuse(manager)
    manager.register("client", 9)
    assert manager.checkpoints[0].item_count == 1
    items = next_items(manager, "client")
    assert items is not None
    assert items.items[0].seqno == 10


@pytest.mark.parametrize(
    ("make", "message"),
    [
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
