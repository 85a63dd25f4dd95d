"""One vbucket's gate: who is waited for by which strategy, and when it is held."""

import pytest

from dcp.protocol.flow_spec import parse_flow_spec
from dcp.relay.gate import Gate

SECOND = 1_000_000_000
WINDOW = 1000


def _gate(fc: str, *, received: int = 600, hold_ns: int = 0) -> Gate:
    gate = Gate(parse_flow_spec(fc), WINDOW, hold_ns)
    for seqno in range(1, received // 100 + 1):
        gate.positions.receive(seqno, 100)
    return gate


@pytest.mark.parametrize(
    ("fc", "freed"),
    [("max", 500), ("min", 100), ("tagged,g:7", 300), ("tagged,g:8", 500), ("min,g:/3", 100)],
)
def test_who_decides(fc: str, freed: int) -> None:
    gate = _gate(fc)
    for receiver, position, tag in ((1, 500, None), (2, 100, None), (3, 300, 7)):
        gate.report(receiver, position, tag, 0)
    assert gate.settle(0) == freed
    assert gate.settle(1) == 0


def test_nobody_is_there() -> None:
    for fc in ("max", "min", "tagged,g:7"):
        assert _gate(fc).settle(0) == 600


def test_who_was_silent_is_waited_for_no_more() -> None:
    gate = _gate("min,t:5s")
    gate.report(1, 100, None, 0)
    gate.report(2, 400, None, 0)
    assert gate.settle(0) == 100
    gate.report(2, 600, None, 5 * SECOND)
    assert gate.settle(5 * SECOND) == 0
    assert gate.gating_receiver == 1
    assert gate.settle(5 * SECOND + 1) == 500
    gate.report(1, 100, None, 6 * SECOND)
    assert gate.newcomers_refused == 0  # it is within one window


@pytest.mark.parametrize("fc", ["max,rrwm:4", "min,t:5s", "tagged,g:7,t:5s"])
def test_the_only_one_is_silent(fc: str) -> None:
    gate = _gate(fc)
    gate.report(1, 100, 7, 0)
    assert gate.settle(5 * SECOND) == 100
    assert gate.settle(5 * SECOND + 1) == 500


def test_a_report_is_as_old_as_the_sign_of_life() -> None:
    """However often, or seldom, the vbucket is looked at."""
    gate = _gate("min,t:5s")
    gate.report(1, 100, None, 0)
    gate.report(2, 600, None, 0)
    for now in (2, 4, 5):
        gate.report(1, 100, None, SECOND // 2)
        gate.report(2, 600, None, now * SECOND)
        assert gate.settle(now * SECOND) == (100 if now == 2 else 0)
    late = 5 * SECOND + SECOND // 2 + 1
    assert gate.is_silent(SECOND // 2, late)
    assert gate.settle(late) == 500


@pytest.mark.parametrize("fc", ["max", "min,t:5s", "tagged,g:7/1,t:5s"])
def test_who_came_early_stands_at_the_end_wherever_it_is(fc: str) -> None:
    gate = _gate(fc)
    gate.came_early(1, 7, 0)
    assert gate.settle(0) == 600
    gate.positions.receive(7, 400)
    assert gate.settle(4 * SECOND) == 400
    assert gate.receivers == frozenset()
    assert gate.group.receiver_count == (0 if fc == "max" else 1)
    gate.settle(5 * SECOND + 1)
    assert gate.group.receiver_count == 0


def test_who_came_early_and_has_its_stream_stands_where_it_is() -> None:
    gate = _gate("min,t:5s")
    gate.came_early(1, None, 0)
    gate.settle(0)
    gate.positions.receive(7, 400)
    gate.report(1, 700, None, SECOND)
    assert gate.settle(SECOND) == 100
    assert gate.receivers == {1}


def test_who_leaves_is_waited_for_no_more() -> None:
    gate = _gate("min")
    gate.report(1, 100, None, 0)
    gate.report(2, 400, None, 0)
    gate.leave(1, None, 0)
    assert (gate.settle(0), gate.receivers) == (400, frozenset({2}))


def test_a_newcomer_far_behind_is_not_waited_for() -> None:
    gate = _gate("min", received=3000)
    gate.report(1, 2500, None, 0)
    assert gate.settle(0) == 2500
    gate.report(2, gate.positions.position_of(3), None, 1)
    gate.report(2, gate.positions.position_of(4), None, 2)
    assert (gate.group.receiver_count, gate.newcomers_refused) == (1, 1)
    gate.report(1, 3000, None, 3)
    gate.report(2, 2000, None, 3)
    assert gate.group.receiver_count == 2
    assert gate.settle(3) == 0


def _is_held(gate: Gate) -> bool:
    return gate.is_held


def test_a_group_that_is_not_complete() -> None:
    gate = _gate("tagged,g:7/2", hold_ns=3 * SECOND)
    assert _is_held(gate)
    gate.report(1, 600, 7, 0)
    gate.report(2, 600, None, 0)
    assert gate.settle(0) == 0
    assert _is_held(gate)
    gate.report(3, 500, 7, 1)
    assert gate.settle(1) == 500
    assert not _is_held(gate)
    gate.leave(1, 7, 2)
    gate.report(3, 600, 7, 2)
    assert gate.settle(2) == 0
    assert not _is_held(gate)
    assert gate.settle(3 * SECOND + 1) == 0
    assert not _is_held(gate)
    assert gate.settle(3 * SECOND + 2) == 0
    assert _is_held(gate)
    assert gate.free_all() == 100
