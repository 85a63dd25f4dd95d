"""Receiver groups: who is the slowest, who was dropped and why, and what holds whatever comes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dcp.protocol.flow_spec import parse_flow_spec
from dcp.protocol.receiver_group import ReceiverGroup, StatusMessage


def group_of(text: str) -> ReceiverGroup:
    return ReceiverGroup(parse_flow_spec(text))


def test_the_receiver_with_the_smallest_edge_is_the_slowest() -> None:
    group, slowest = group_of("min"), []
    for message in (
        StatusMessage(1, 2000, 1000),
        StatusMessage(2, 1500, 1000),
        StatusMessage(3, 1000, 1500),  # as far: of several the first counts
        StatusMessage(2, 3000, 1000),
    ):
        group.on_status_message(message, 0, 0)
        found = group.slowest_receiver
        slowest.append(found and (found.receiver_id, found.edge))
    assert slowest == [(1, 3000), (2, 2500), (2, 2500), (3, 2500)]
    assert group_of("min").slowest_receiver is None


def test_silent_receivers_are_counted_apart_from_those_that_end_and_from_refused_ones() -> None:
    group = group_of("tagged,g:7,t:1s")
    for receiver in range(1, 5):
        group.on_status_message(StatusMessage(receiver, 5000, 1000, 7), 0, 0)
    group.on_status_message(StatusMessage(9, 3999, 1000, 7), 0, 0)
    group.on_status_message(StatusMessage(8, 0, 1000, 6), 0, 0)
    assert (group.receiver_count, group.refusals) == (4, 1)
    group.on_status_message(StatusMessage(1, 5000, 1000, 7, is_eos=True), 0, 1)
    group.on_status_message(StatusMessage(3, 5000, 1000, 7), 0, 10)
    assert group.on_idle(6000, 1_000_000_001) == 6000
    assert group.timeouts == 2
    assert [each.receiver_id for each in group.receivers] == [3]


def test_the_end_is_forgiven_to_a_receiver_that_speaks_again() -> None:
    group = group_of("min")
    group.on_status_message(StatusMessage(1, 0, 1000), 0, 0)
    group.on_status_message(StatusMessage(1, 0, 1000, is_eos=True), 0, 0)
    group.on_status_message(StatusMessage(1, 10, 1000), 0, 1)
    assert group.on_idle(0, 2) == 1010
    assert group.tracks(1)


def test_max_never_tracks() -> None:
    group = group_of("max")
    assert group.on_status_message(StatusMessage(1, 100, 10), 500, 0) == 500
    assert (group.receiver_count, group.has_required, group.slowest_receiver) == (0, True, None)


messages = st.builds(
    StatusMessage,
    st.integers(1, 5),
    st.integers(0, 5000),
    st.integers(0, 2000),
    st.sampled_from([None, 7, 8]),
    st.booleans(),
)
events = st.lists(st.tuples(st.one_of(messages, st.just("idle")), st.integers(0, 400)), max_size=60)
SPECS = ["min,t:500", "min,g:/2,t:500", "tagged,g:7,t:500", "tagged,g:7/3,t:500"]


@pytest.mark.parametrize("text", SPECS)
@given(steps=events)
def test_after_an_idle_pass_no_member_of_a_complete_group_is_overrun(
    text: str, steps: list[tuple[StatusMessage | str, int]]
) -> None:
    """A status message never lowers the limit, and nobody silent stays."""
    group, now_ns, limit = group_of(text), 0, 0
    entered = left = 0
    for event, pause_ns in steps:
        now_ns += pause_ns
        before = {each.receiver_id for each in group.receivers}
        match event:
            case StatusMessage():
                heard = group.on_status_message(event, limit, now_ns)
                assert heard >= limit
                limit = heard
            case "idle":
                limit_before, limit = limit, group.on_idle(limit, now_ns)
                edges = [each.edge for each in group.receivers]
                if edges and group.has_required:
                    assert limit <= min(edges)
                else:
                    assert limit == limit_before
                for each in group.receivers:
                    assert each.heard_at_ns + 500 >= now_ns
                    assert not each.has_ended
        after = {each.receiver_id for each in group.receivers}
        entered, left = entered + len(after - before), left + len(before - after)
        assert group.receiver_count == entered - left
        assert group.timeouts <= left
        assert group.has_required == (len(after) >= group.spec.group_min_size)


@given(steps=st.lists(st.tuples(messages, st.integers(0, 100)), max_size=40))
def test_untagged_receivers_never_move_a_group_that_is_short(
    steps: list[tuple[StatusMessage, int]],
) -> None:
    group, now_ns = group_of("tagged,g:999/1"), 0
    for message, pause_ns in steps:
        now_ns += pause_ns
        assert group.on_status_message(message, 123, now_ns) == 123
        assert group.on_idle(123, now_ns) == 123
    assert group.receiver_count == 0
