"""One vbucket's flow control: who is waited for by which strategy, and when it has no stream."""

from collections.abc import Hashable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dcp.protocol.flow_spec import parse_flow_spec
from dcp.relay.vbucket_flow_control import VbucketFlowControl

SECOND = 1_000_000_000
WINDOW = 1000


def _flow_control(fc: str, *, received: int = 600, hold_ns: int = 0) -> VbucketFlowControl:
    flow_control = VbucketFlowControl(parse_flow_spec(fc), WINDOW, hold_ns)
    for seqno in range(1, received // 100 + 1):
        flow_control.positions.receive(seqno, 100)
    return flow_control


def _report(
    flow_control: VbucketFlowControl,
    receiver: int,
    position: int | None,
    tag: int | None,
    heard_at_ns: int,
    stream: str = "only",
) -> None:
    """``position`` None: it waits for its stream."""
    streams: dict[Hashable, int] = {} if position is None else {stream: position}
    flow_control.report(receiver, streams, tag, heard_at_ns, heard_at_ns)


@pytest.mark.parametrize(
    ("fc", "consumed"),
    [("max", 500), ("min", 100), ("tagged,g:7", 300), ("tagged,g:8", 500), ("min,g:/3", 100)],
)
def test_who_decides(fc: str, consumed: int) -> None:
    flow_control = _flow_control(fc)
    for receiver, position, tag in ((1, 500, None), (2, 100, None), (3, 300, 7)):
        _report(flow_control, receiver, position, tag, 0)
    assert flow_control.on_idle(0) == consumed
    assert flow_control.on_idle(1) == 0


def test_nobody_is_there() -> None:
    for fc in ("max", "min", "tagged,g:7"):
        assert _flow_control(fc).on_idle(0) == 600


def test_who_was_silent_is_waited_for_no_more() -> None:
    flow_control = _flow_control("min,t:5s")
    _report(flow_control, 1, 100, None, 0)
    _report(flow_control, 2, 400, None, 0)
    assert flow_control.on_idle(0) == 100
    _report(flow_control, 2, 600, None, 5 * SECOND)
    assert flow_control.on_idle(5 * SECOND) == 0
    assert flow_control.slowest_receiver == 1
    assert flow_control.on_idle(5 * SECOND + 1) == 500
    _report(flow_control, 1, 100, None, 6 * SECOND)
    assert flow_control.newcomers_refused == 0  # it is within one window


@pytest.mark.parametrize("fc", ["max,rrwm:4", "min,t:5s", "tagged,g:7,t:5s"])
def test_the_only_one_is_silent(fc: str) -> None:
    flow_control = _flow_control(fc)
    _report(flow_control, 1, 100, 7, 0)
    assert flow_control.on_idle(5 * SECOND) == 100
    assert flow_control.on_idle(5 * SECOND + 1) == 500


def test_a_report_is_as_old_as_the_sign_of_life() -> None:
    """However often, or seldom, the vbucket is looked at."""
    flow_control = _flow_control("min,t:5s")
    _report(flow_control, 1, 100, None, 0)
    _report(flow_control, 2, 600, None, 0)
    for now in (2, 4, 5):
        _report(flow_control, 1, 100, None, SECOND // 2)
        _report(flow_control, 2, 600, None, now * SECOND)
        assert flow_control.on_idle(now * SECOND) == (100 if now == 2 else 0)
    late = 5 * SECOND + SECOND // 2 + 1
    assert flow_control.is_silent(SECOND // 2, late)
    assert flow_control.on_idle(late) == 500


@pytest.mark.parametrize("fc", ["max", "min,t:5s", "tagged,g:7/1,t:5s"])
def test_who_came_early_stands_at_the_end_until_it_is_gone(fc: str) -> None:
    """However much longer than the timeout it takes to ask again: it is there."""
    flow_control = _flow_control(fc)
    flow_control.stream_deferred(1)
    _report(flow_control, 1, None, 7, 0)
    assert flow_control.on_idle(0) == 600
    flow_control.positions.receive(7, 400)
    for now in (4, 8, 60):
        assert flow_control.is_waiting(1)
        _report(flow_control, 1, None, 7, now * SECOND)
        assert flow_control.on_idle(now * SECOND) == (400 if now == 4 else 0)
        assert flow_control.group.receiver_count == (0 if fc == "max" else 1)
    flow_control.leave(1)
    assert (flow_control.members, flow_control.group.receiver_count) == (frozenset(), 0)
    assert not flow_control.is_waiting(1)


def test_who_came_early_keeps_its_place_when_it_has_its_stream() -> None:
    """Also where that begins far behind the end at which it stood."""
    flow_control = _flow_control("min,g:/2,t:5s", received=3000)
    for receiver in (1, 2):
        flow_control.stream_deferred(receiver)
        _report(flow_control, receiver, None, None, 0)
    assert flow_control.on_idle(0) == 3000
    flow_control.positions.receive(31, 400)
    for receiver in (1, 2):
        flow_control.stream_wait_ended(receiver)
        _report(flow_control, receiver, flow_control.positions.position_of(0), None, SECOND)
        assert flow_control.group.receiver_count == 2
    assert (flow_control.on_idle(SECOND), flow_control.lacks_receivers) == (0, False)
    assert flow_control.newcomers_refused == 0


def test_who_leaves_is_waited_for_no_more() -> None:
    flow_control = _flow_control("min")
    _report(flow_control, 1, 100, None, 0)
    _report(flow_control, 2, 400, None, 0)
    flow_control.leave(1)
    assert (flow_control.on_idle(0), flow_control.members) == (400, frozenset({2}))


def test_a_newcomer_far_behind_is_not_waited_for() -> None:
    flow_control = _flow_control("min", received=3000)
    _report(flow_control, 1, 2500, None, 0)
    assert flow_control.on_idle(0) == 2500
    _report(flow_control, 2, flow_control.positions.position_of(3), None, 1)
    _report(flow_control, 2, flow_control.positions.position_of(4), None, 2)
    assert (flow_control.group.receiver_count, flow_control.newcomers_refused) == (1, 1)
    _report(flow_control, 1, 3000, None, 3)
    _report(flow_control, 2, 2000, None, 3)
    assert flow_control.group.receiver_count == 2
    assert flow_control.on_idle(3) == 0


def _lacks_receivers(flow_control: VbucketFlowControl) -> bool:
    return flow_control.lacks_receivers


def test_a_group_that_is_not_complete() -> None:
    flow_control = _flow_control("tagged,g:7/2", hold_ns=3 * SECOND)
    assert _lacks_receivers(flow_control)
    _report(flow_control, 1, 600, 7, 0)
    _report(flow_control, 2, 600, None, 0)
    assert flow_control.on_idle(0) == 0
    assert _lacks_receivers(flow_control)
    _report(flow_control, 3, 500, 7, 1)
    assert flow_control.on_idle(1) == 500
    assert not _lacks_receivers(flow_control)
    flow_control.leave(1)
    _report(flow_control, 3, 600, 7, 2)
    assert flow_control.on_idle(2) == 0
    assert not _lacks_receivers(flow_control)
    assert flow_control.on_idle(3 * SECOND + 1) == 0
    assert not _lacks_receivers(flow_control)
    assert flow_control.on_idle(3 * SECOND + 2) == 0
    assert _lacks_receivers(flow_control)
    assert flow_control.consume_all() == 100


def _level(fc: str = "min", received: int = 3000) -> VbucketFlowControl:
    """Flow control with all bytes consumed, as receivers 1 and 2 are level."""
    flow_control = _flow_control(fc, received=received)
    for receiver in (1, 2):
        _report(flow_control, receiver, received, 7, 0, "first")
    assert flow_control.on_idle(0) == received
    return flow_control


def test_who_is_counted_may_go_back_within_its_stream() -> None:
    """Aeron's edge of the newest message: what is consumed stays so, and nothing more is."""
    flow_control = _level()
    flow_control.positions.receive(31, 400)
    _report(flow_control, 1, 2700, 7, 1, "first")
    assert (flow_control.on_idle(1), flow_control.slowest_receiver) == (0, 1)
    _report(flow_control, 1, 3300, 7, 2, "first")
    _report(flow_control, 2, 3400, 7, 2, "first")
    assert flow_control.on_idle(2) == 300


@pytest.mark.parametrize("between", [False, True])
def test_a_new_stream_passes_admission_again(between: bool) -> None:
    """Closed and asked for from the beginning, looked at in between or not."""
    flow_control = _level()
    flow_control.positions.receive(31, 400)
    if between:
        flow_control.leave(1)
        flow_control.on_idle(1)
    _report(flow_control, 1, flow_control.positions.before_blocks, 7, 2, "second")
    _report(flow_control, 2, 3400, 7, 2, "first")
    assert flow_control.on_idle(2) == 400
    assert (flow_control.group.receiver_count, flow_control.newcomers_refused) == (1, 1)
    _report(flow_control, 1, 3400, 7, 3, "second")
    assert flow_control.group.receiver_count == 2


def test_a_second_stream_far_behind_does_not_hold_the_first() -> None:
    flow_control = _level()
    flow_control.positions.receive(31, 400)
    for now, old, expected in ((1, 0, 0), (2, 3300, 300)):
        first = {1: 3000, 2: 3300}[now]
        flow_control.report(1, {"first": first, "second": old}, 7, now, now)
        _report(flow_control, 2, 3400, 7, now, "first")
        assert flow_control.on_idle(now) == expected
    flow_control.report(1, {"first": 3400, "second": 3350}, 7, 3, 3)
    assert flow_control.on_idle(3) == 50  # both count now


def test_another_tag_leaves_at_once() -> None:
    flow_control = _level("tagged,g:7/1,t:1s")
    flow_control.positions.receive(31, 400)
    _report(flow_control, 1, 3000, 8, 1, "first")
    _report(flow_control, 2, 3400, 7, 1, "first")
    assert (flow_control.group.receiver_count, flow_control.on_idle(1)) == (1, 400)
    assert flow_control.group.timeouts == 0
    _report(flow_control, 1, 3400, 7, 2, "first")
    assert flow_control.group.receiver_count == 2


@pytest.mark.parametrize("order", [(1, 2, 3), (3, 2, 1), (2, 3, 1), (1, 3, 2)])
def test_who_counts_does_not_depend_on_who_came_first(order: tuple[int, ...]) -> None:
    """Two that are far behind what is consumed, and one that is level."""
    flow_control = _flow_control("min", received=0)
    flow_control.positions.begin_again(30)
    standing = {1: 0, 2: 5, 3: 30}
    for now, receiver in enumerate(order):
        at = flow_control.positions.position_of(standing[receiver])
        _report(flow_control, receiver, at, None, now)
    flow_control.positions.receive(31, 400)
    _report(flow_control, 3, 400, None, 4)
    assert flow_control.on_idle(4) == 400
    assert [each.receiver_id for each in flow_control.group.receivers] == [3]
    for receiver in (1, 2):
        _report(flow_control, receiver, 300, None, 5)  # they have caught up
    assert flow_control.group.receiver_count == 3


def test_one_that_is_ejected_leaves_one_of_several_streams() -> None:
    """It counts again by another stream, as any newcomer."""
    flow_control = _level("min,t:5s")
    flow_control.positions.receive(31, 400)
    _report(flow_control, 2, 3400, 7, 6 * SECOND, "first")
    flow_control.report(1, {"first": 3000}, 7, 0, 6 * SECOND)
    assert flow_control.on_idle(6 * SECOND) == 400
    assert flow_control.group.timeouts == 1
    _report(flow_control, 1, 3400, 7, 7 * SECOND, "second")
    assert flow_control.group.receiver_count == 2


_LAGS = st.lists(st.integers(0, 60), min_size=1, max_size=30)


@given(_LAGS, st.lists(st.integers(0, 9), min_size=1, max_size=8))
def test_who_is_ejected_is_silent_and_who_is_silent_is_ejected(
    lags: list[int], steps: list[int]
) -> None:
    """Whatever its signs of life are, and however often the vbucket is looked at."""
    timeout = 20
    flow_control = _flow_control(f"min,t:{timeout}ns")
    now = heard = 0
    for number, lag in enumerate(lags):
        now += steps[number % len(steps)]
        heard = max(heard, now - lag)
        flow_control.report(1, {"only": 100}, None, heard, now)
        flow_control.on_idle(now)
        assert flow_control.group.tracks(1) is (heard + timeout >= now)


@pytest.mark.parametrize("why", ["its place ends", "it makes way"])
def test_nobody_is_ejected_before_all_are_reported(why: str) -> None:
    """A vbucket that nobody looked at for long: who is reported last was heard as well."""
    flow_control = _flow_control("min,t:5s", received=3000)
    last, late = 2, 60 * SECOND
    if why == "its place ends":
        for receiver in (1, last):
            _report(flow_control, receiver, 2800, None, 0)
        _report(flow_control, 1, 2800, None, late, "another")
    else:
        for receiver, position in ((1, 100), (last, 1000), (last, 2800)):
            _report(flow_control, receiver, position, None, 0)
        flow_control.positions.consume_to(3000)
        _report(flow_control, 3, 3000, None, late)
    _report(flow_control, last, 2800, None, late)
    flow_control.on_idle(late)
    assert flow_control.group.timeouts == 0
    assert flow_control.group.receiver_count == 2
