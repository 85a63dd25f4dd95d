"""Vbucket states: exact as rows over all 64 bits, and their transition rules."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dcp.errors import LakeError
from dcp.lake.tables.round_record import states_from_rows, states_to_batch
from dcp.lake.tables.schema import CHANGES
from dcp.lake.tables.vbucket_state import LakeVbucketState
from dcp.protocol.position import Position
from dcp.types import FailoverEntry, FailoverLog

U64 = st.integers(0, 2**64 - 1)
ROUND = st.none() | st.integers(1, 2**40)


@st.composite
def positions(draw: st.DrawFn) -> Position:
    complete, seqno, end = sorted(draw(st.tuples(U64, U64, U64)))
    uuid = draw(st.integers(1, 2**64 - 1))
    if complete == seqno:
        return Position.complete_at(uuid, seqno)
    return Position(uuid, seqno, draw(st.integers(0, complete)), end, complete)


@st.composite
def states(draw: st.DrawFn) -> LakeVbucketState:
    logs = st.lists(st.tuples(U64, U64), min_size=1, max_size=3).map(
        lambda entries: FailoverLog(
            tuple(FailoverEntry(u, s) for u, s in sorted(entries, key=lambda e: -e[1]))
        )
    )
    return LakeVbucketState(
        draw(st.integers(0, 1023)),
        draw(st.integers(0, 5)),
        draw(positions()),
        draw(U64),
        *draw(st.tuples(ROUND, ROUND, ROUND, ROUND)),
        draw(st.none() | logs),
        draw(st.none() | st.text(max_size=5)),
        draw(U64),
        draw(st.none() | U64),
    )


@given(st.lists(states(), max_size=4, unique_by=lambda state: state.vbucket))
def test_rows_are_exact(given_states: list[LakeVbucketState]) -> None:
    batch = states_to_batch(given_states, 7)
    assert batch.schema == CHANGES
    assert set(batch.column("round").to_pylist()) <= {7}
    found = states_from_rows(batch.to_pylist())
    assert found == {state.vbucket: state for state in given_states}


def test_two_rows_of_a_vbucket_are_refused() -> None:
    rows = states_to_batch([LakeVbucketState.beginning(3)] * 2, 1).to_pylist()
    with pytest.raises(LakeError, match="two position rows of vbucket 3"):
        states_from_rows(rows)


def test_the_first_incomplete_round_stays_until_its_snapshot_ends() -> None:
    state = LakeVbucketState.beginning(0)
    state = state.advanced(4, Position(9, 3, 0, 10, 0), brought_rows=True)
    assert (state.first_incomplete_round, state.last_complete_round) == (4, None)
    state = state.advanced(5, Position(9, 8, 0, 10, 0), brought_rows=True)
    assert (state.first_incomplete_round, state.last_data_round) == (4, 5)
    state = state.advanced(6, Position(9, 12, 10, 20, 10), brought_rows=True)
    assert (state.first_incomplete_round, state.last_complete_round) == (6, 6)
    state = state.advanced(7, Position.complete_at(9, 20), brought_rows=False)
    assert (state.first_incomplete_round, state.last_data_round) == (None, 6)


def test_a_position_that_goes_back_is_refused() -> None:
    state = LakeVbucketState.beginning(5).advanced(
        1, Position.complete_at(9, 20), brought_rows=True
    )
    with pytest.raises(ValueError, match=r"vbucket 5: .* expected one that does not go back"):
        state.advanced(2, Position.complete_at(9, 19), brought_rows=True)
