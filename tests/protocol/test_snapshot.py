"""Snapshot assembly: gaps, order, duplicates, pending markers; completeness moves at ends only."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dcp.errors import RemoteProtocolError
from dcp.protocol.position import Position
from dcp.protocol.snapshot import SnapshotAssembly
from dcp.types import U64_MAX, FailoverEntry, FailoverLog, SnapshotRange

U = 42
LOG = FailoverLog((FailoverEntry(U, 0),))


def at(position: Position, *marker: int) -> SnapshotAssembly:
    assembly = SnapshotAssembly(position)
    return assembly.begin(SnapshotRange(*marker), 1) if marker else assembly


def test_gaps_are_normal_and_the_end_completes() -> None:
    assembly = at(Position.beginning(), 0, 10).item(2, 7, LOG)
    assert assembly.position == Position(U, 7, 0, 10, 0)
    assert assembly.item(10, 10, LOG).position == Position.complete_at(U, 10)


def test_seqno_advanced_reaches_the_end_too() -> None:
    assembly = at(Position.complete_at(U, 4), 5, 10).item(5, 7, LOG)
    assert assembly.advanced(9, LOG).position == Position(U, 9, 4, 10, 4)
    assert assembly.advanced(10, LOG).position == Position.complete_at(U, 10)


def test_seqno_advanced_on_its_own_is_a_complete_snapshot() -> None:
    assert at(Position.complete_at(U, 4)).advanced(9, LOG).position == Position.complete_at(U, 9)
    reached = at(Position.complete_at(U, 4), 5, 6).item(5, 6, LOG)
    assert reached.advanced(8, LOG).position == Position.complete_at(U, 8)


def test_a_snapshot_that_was_filtered_entirely() -> None:
    """The producer repeats the requested bounds, then advances to their end."""
    assembly = at(Position.complete_at(U, 4), 4, 4)
    assert assembly.advanced(4, LOG).position == Position.complete_at(U, 4)


def test_a_resume_inside_a_snapshot_without_a_marker_may_be_advanced_to_its_end() -> None:
    assembly = at(Position(U, 7, 0, 10, 0))
    assert assembly.advanced(10, LOG).position == Position.complete_at(U, 10)


def test_a_new_marker_completes_nothing() -> None:
    assembly = at(Position.beginning(), 0, 10).item(1, 7, LOG).begin(SnapshotRange(8, 12), 1)
    assert assembly.position == Position(U, 7, 0, 10, 0), "pending: we still stand in the old one"
    assembly = assembly.item(8, 11, LOG)
    assert assembly.position == Position(U, 11, 0, 12, 0)
    assert assembly.item(12, 12, LOG).position == Position.complete_at(U, 12)


def test_a_marker_with_the_same_bounds_goes_on_with_the_snapshot() -> None:
    """Newest versions below the history, and all versions from there on, are one snapshot."""
    assembly = at(Position.complete_at(U, 4), 4, 20).item(6, 9, LOG).begin(SnapshotRange(4, 20), 54)
    assert (assembly.position, assembly.flags) == (Position(U, 9, 4, 20, 4), 54)
    resumed = SnapshotAssembly(assembly.item(12, 15, LOG).position)
    assert resumed.position == Position(U, 15, 4, 20, 4)
    resumed = resumed.begin(SnapshotRange(4, 20), 54).item(16, 20, LOG)
    for whole in (assembly.item(10, 20, LOG), resumed):
        assert whole.position == Position.complete_at(U, 20)


@pytest.mark.parametrize(
    ("held", "first_marker", "first_items", "marker", "item"),
    [
        (3, (6, 10), None, None, (6, 6)),  # the marker starts at its first item
        (0, (0, 10), (2, 5), (6, 8), (6, 6)),  # a second marker in the middle of the first one
    ],
)
def test_a_resume_never_claims_what_lies_below_the_first_item(
    held: int,
    first_marker: tuple[int, int],
    first_items: tuple[int, int] | None,
    marker: tuple[int, int] | None,
    item: tuple[int, int],
) -> None:
    """A snapshot start equal to the seqno would say that nothing of the snapshot is held.

    The producer then accepts the position although the branch ends inside the snapshot. A key at
    seqno 4, left out because of its change at 9 on the lost part, would never be sent.
    """
    assembly = at(Position.complete_at(U, held), *first_marker)
    if first_items is not None:
        assembly = assembly.item(*first_items, LOG)
    if marker is not None:
        assembly = assembly.begin(SnapshotRange(*marker), 1)
    position = assembly.item(*item, LOG).position
    assert (position.seqno, position.snap_start, position.complete_seqno) == (6, held, held)


def test_rows_wait_for_an_end_at_or_beyond_all_that_they_were_promised() -> None:
    """A change below 8 may have been moved to 9 or 10 by de-duplication."""
    assembly = at(Position(U, 7, 0, 10, 0), 0, 8).item(8, 8, LOG)
    assert assembly.position == Position(U, 8, 0, 10, 0)
    assembly = assembly.begin(SnapshotRange(9, 9), 1).item(9, 9, LOG)
    assert not assembly.position.is_complete
    assembly = assembly.begin(SnapshotRange(10, 15), 1).item(10, 14, LOG)
    assert not assembly.position.is_complete
    assert assembly.item(15, 15, LOG).position == Position.complete_at(U, 15)


def test_a_resume_that_extends_the_snapshot() -> None:
    assembly = at(Position(U, 700, 0, 1000, 0), 0, 1200)
    assert assembly.item(701, 1000, LOG).position == Position(U, 1000, 0, 1200, 0)


def test_a_completed_snapshot_takes_no_more_items() -> None:
    assembly = at(Position.beginning(), 0, 5).item(1, 5, LOG)
    with pytest.raises(RemoteProtocolError, match="item beyond marker: found seqno 6"):
        assembly.item(6, 6, LOG)


@pytest.mark.parametrize(
    ("assembly", "run", "named"),
    [
        (at(Position.beginning()), (1, 1), "item before marker: found seqno 1"),
        (at(Position.beginning(), 0, 5), (4, 6), "item beyond marker: found seqno 6"),
        (at(Position.complete_at(U, 4), 8, 9), (7, 8), "item below marker: found seqno 7"),
        (at(Position.complete_at(U, 4), 4, 9), (4, 5), "seqno repeated or going backwards"),
        (at(Position.complete_at(U, 4), 0, 9), (2, 5), "found 2 after 4"),
    ],
)
def test_items_out_of_place(assembly: SnapshotAssembly, run: tuple[int, int], named: str) -> None:
    with pytest.raises(RemoteProtocolError, match=named):
        assembly.item(*run, LOG)


def test_markers_and_advances_do_not_go_backwards() -> None:
    assembly = at(Position.complete_at(U, 9))
    with pytest.raises(RemoteProtocolError, match="marker going backwards"):
        assembly.begin(SnapshotRange(2, 8), 1)
    with pytest.raises(RemoteProtocolError, match="SEQNO_ADVANCED going backwards"):
        assembly.advanced(8, LOG)
    with pytest.raises(RemoteProtocolError, match="SEQNO_ADVANCED beyond marker: found 21"):
        assembly.begin(SnapshotRange(10, 20), 1).advanced(21, LOG)


def test_seqnos_use_all_64_bits() -> None:
    start = U64_MAX - 10
    assembly = at(Position.complete_at(U, start), start, U64_MAX).item(start + 1, U64_MAX - 1, LOG)
    assert assembly.position.seqno == U64_MAX - 1
    assert assembly.item(U64_MAX, U64_MAX, LOG).position == Position.complete_at(U, U64_MAX)


@given(st.data())
def test_positions_keep_their_invariants(data: st.DataObject) -> None:
    """Any well-formed continuation: completeness grows only, and at the promised ends only."""
    assembly, waited_for = SnapshotAssembly(Position.beginning()), 0
    for _ in range(data.draw(st.integers(1, 8))):
        before = assembly.position
        end = before.seqno + data.draw(st.integers(0 if before.seqno else 1, 30))
        start = data.draw(st.integers(0, min(end, before.seqno + 1)))
        assembly = assembly.begin(SnapshotRange(start, end), 1)
        assert assembly.position == before, "a pending marker promises nothing yet"
        seqnos = data.draw(st.lists(st.integers(before.seqno, end), unique=True, max_size=6))
        for seqno in sorted(one for one in seqnos if one > before.seqno):
            assembly = assembly.item(seqno, seqno, LOG)
            waited_for = max(waited_for, end)
            position = assembly.position
            assert position.seqno == seqno
            assert position.is_complete == (seqno == waited_for)
            assert position.complete_seqno >= before.complete_seqno
            if position.is_complete:
                waited_for = 0
