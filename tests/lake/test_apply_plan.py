"""What an apply publishes, decided without Spark."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dcp.errors import LakeError
from dcp.lake.apply_plan import (
    ApplyPlan,
    Fork,
    PublishedRange,
    Stretch,
    Winner,
    live_up_to,
    oldest_pending_round,
    published_ranges,
)
from dcp.lake.vbucket_state import VbucketState
from dcp.protocol.position import Position


def state_at(
    seqno: int, *, vbucket: int = 0, epoch: int = 0, pending: int | None = None, data: int = 1
) -> VbucketState:
    return VbucketState(
        vbucket,
        epoch,
        Position.complete_at(7, seqno),
        first_pending_round=pending,
        last_data_round=data,
    )


def test_only_vbuckets_that_moved_and_can_have_rows_are_touched() -> None:
    before = {v: state_at(10, vbucket=v) for v in range(4)}
    after = {
        0: state_at(10, vbucket=0, data=9),  # did not move
        1: state_at(20, vbucket=1, data=9),
        2: state_at(20, vbucket=2, data=1),  # moved past nothing for us
        3: state_at(20, vbucket=3, data=1),  # the rows of an old round became complete
    }
    before[3] = replace(before[3], first_pending_round=2)
    ranges = published_ranges(before, after, [], from_round=5)
    assert ranges == (PublishedRange(1, 0, 10, 20), PublishedRange(3, 0, 10, 20))


def test_from_nothing() -> None:
    ranges = published_ranges({}, {0: state_at(2**64 - 1, data=1)}, [], 0)
    assert ranges == (PublishedRange(0, 0, 0, 2**64 - 1),)


def test_rows_that_wait_are_in_the_log_from_the_oldest_round_of_any_of_them() -> None:
    waiting = [state_at(10, pending=round_number) for round_number in (None, 4, 2, None)]
    assert oldest_pending_round(waiting, 9) == 2
    assert oldest_pending_round(waiting[:1], 9) == 9
    assert oldest_pending_round(waiting, 1) == 1
    assert oldest_pending_round([], 6) == 6


def test_a_fork_above_the_published_seqno_cuts_the_dead_branch() -> None:
    before = {0: state_at(10)}
    after = {0: state_at(30, epoch=2, data=9)}
    forks = [Fork(0, 1, 15), Fork(0, 2, 12), Fork(0, 3, 1)]
    assert published_ranges(before, after, forks, 5) == (
        PublishedRange(0, 0, 10, 12),
        PublishedRange(0, 1, 10, 12),
        PublishedRange(0, 2, 10, 30),
    )


@given(st.integers(0, 3), st.lists(st.integers(0, 50), min_size=3, max_size=3), st.integers(0, 60))
def test_live_is_what_the_definition_says(epoch: int, seqnos: list[int], seqno: int) -> None:
    forks = [Fork(0, number + 1, fork) for number, fork in enumerate(seqnos)]
    live = all(seqno <= fork.seqno for fork in forks if fork.epoch > epoch)
    assert (seqno <= live_up_to(epoch, 3, forks)) == live


@pytest.mark.parametrize(
    ("after", "forks", "message"),
    [
        (state_at(30, epoch=1), [Fork(0, 1, 9)], r"to seqno 9 .* below the published seqno 10"),
        (state_at(30, epoch=1), [], r"no fork of the epochs \[1\] is recorded"),
        (state_at(9), [], r"went back from complete seqno 10 to 9"),
    ],
)
def test_what_cannot_be_applied_is_refused(
    after: VbucketState, forks: list[Fork], message: str
) -> None:
    with pytest.raises(LakeError, match=message):
        published_ranges({0: state_at(10)}, {0: after}, forks, 5)


def test_a_plan_prints_what_it_does_and_not_its_keys() -> None:
    stretch = Stretch((PublishedRange(4, 0, 1, 2),), 2, 9, 9)
    plan = ApplyPlan("docs", 0, 3, stretch, (Winner("secret", 9, 4, 0, 2),), 7, 5)
    assert str(plan) == (
        "apply docs: round 3 -> 9, 1 changed keys in 1 vbuckets, by key literals, "
        "reading changes from round 2"
    )
    assert "secret" not in repr(plan) + str(plan.to_json())
    assert replace(plan, winners=None).to_json()["method"] == "hash join"
