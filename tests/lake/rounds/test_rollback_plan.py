"""The state in which a vbucket resumes after a rollback order: decided without anything else."""

from dataclasses import replace

import pytest

from dcp.client.addresses import NodeAddress
from dcp.lake.config.settings import RollbackPolicy
from dcp.lake.rounds.rollback_plan import (
    common_history,
    plan_rollback,
    rollback_target,
    start_seqno_on,
)
from dcp.lake.rounds.round_plan import LeftOut, StreamPlan
from dcp.lake.tables.vbucket_state import LakeVbucketState, Restart, RestartReason, RollbackOrder
from dcp.protocol.position import Position
from dcp.types import FailoverEntry, FailoverLog

A, B, C, D = 0xA, 0xB, 0xC, 0xD


def log(*entries: tuple[int, int]) -> FailoverLog:
    return FailoverLog(tuple(FailoverEntry(*entry) for entry in entries))


def ordered(
    seqno: int, to: int, ours: FailoverLog, theirs: FailoverLog | None, *, epoch: int = 0
) -> LakeVbucketState:
    """A vbucket complete at ``seqno``, whose request there was answered with ROLLBACK ``to``."""
    uuid = ours.uuid_at(seqno)
    state = LakeVbucketState(5, epoch, Position.complete_at(uuid, seqno), failover_log=ours)
    return state.ordered(RollbackOrder(seqno, to, uuid if seqno else 0, theirs))


def planned(
    state: LakeVbucketState, complete: list[int], policy: RollbackPolicy = RollbackPolicy.REWRITE
) -> Restart | LeftOut:
    most_seqno, _ = rollback_target(state, policy)
    newest = max((each for each in complete if each <= most_seqno), default=0)
    return plan_rollback(state, newest, policy)


def followed(
    state: LakeVbucketState, complete: list[int], policy: RollbackPolicy = RollbackPolicy.REWRITE
) -> LakeVbucketState:
    restart = planned(state, complete, policy)
    assert isinstance(restart, Restart) and restart.reason is RestartReason.ROLLBACK
    return state.restarted(restart)


@pytest.mark.parametrize(
    ("state", "complete", "expected"),
    [
        pytest.param(
            ordered(100, 80, log((A, 0)), log((B, 80), (A, 0))), [30, 60, 100], (60, A),
            id="the newest complete seqno at or below",
        ),
        pytest.param(
            ordered(100, 80, log((A, 0)), log((B, 80), (A, 0))), [30, 80], (80, A),
            id="the branch is the one that was read, not the server's new one",
        ),
        pytest.param(
            ordered(100, 90, log((B, 50), (A, 0)), log((C, 90), (B, 50), (A, 0))),
            [50, 70], (70, B),
            id="the newest entry at or below",
        ),
        pytest.param(
            ordered(100, 60, log((B, 50), (A, 0)), log((C, 60), (B, 50), (A, 0))),
            [40, 90], (40, A),
            id="an older branch where that holds it",
        ),
        pytest.param(
            ordered(100, 80, log((A, 0)), log((B, 80), (A, 0))), [90], (0, 0),
            id="nothing complete as low as that",
        ),
        pytest.param(
            ordered(130, 0, log((B, 100), (A, 0)), log((C, 80), (A, 0))), [60, 100], (60, A),
            id="an unknown branch: the newest common ancestor",
        ),
        pytest.param(
            ordered(130, 0, log((B, 100), (A, 0)), log((C, 100), (A, 0))), [100], (100, A),
            id="an unknown branch that began at the very seqno: its own ancestor",
        ),
        pytest.param(
            ordered(130, 0, log((B, 100), (A, 0)), log((D, 100), (C, 0))), [60, 100], (0, 0),
            id="no common ancestor",
        ),
        pytest.param(
            ordered(130, 0, log((B, 100), (A, 0)), log((B, 100), (A, 0))), [60, 100], (0, 0),
            id="a known branch and 0: purged tombstones, nothing less helps",
        ),
        pytest.param(
            ordered(130, 0, log((B, 100), (A, 0)), None), [60, 100], (0, 0),
            id="the server did not tell its log",
        ),
        pytest.param(
            ordered(2**64 - 1, 2**64 - 5, log((A, 0)), log((B, 2**64 - 5), (A, 0))),
            [2**63, 2**64 - 6], (2**64 - 6, A),
            id="beyond the signed range",
        ),
    ],
)  # fmt: skip
def test_restart(state: LakeVbucketState, complete: list[int], expected: tuple[int, int]) -> None:
    begun = followed(state, complete)
    position = begun.position
    assert (position.seqno, position.vb_uuid) == expected
    assert position == Position.complete_at(expected[1], expected[0])
    assert (begun.epoch, begun.order, begun.caught_up_seqno) == (1, None, expected[0])
    assert begun.first_incomplete_round is None
    assert begun.failover_log == state.failover_log


@pytest.mark.parametrize(
    ("to_seqno", "theirs", "expected", "start_seqno"),
    [
        pytest.param(110, log((B, 110), (A, 0)), (100, A), 100, id="above its start: its start"),
        pytest.param(80, log((B, 80), (A, 0)), (80, A), 80, id="below: there is nothing to undo"),
        pytest.param(0, log((A, 0)), (0, 0), 100, id="purged tombstones: the history is the same"),
        pytest.param(0, log((C, 0)), (0, 0), 0, id="no common history: all of it is later"),
    ],
)
def test_a_vbucket_that_started_at_a_seqno(
    to_seqno: int, theirs: FailoverLog, expected: tuple[int, int], start_seqno: int
) -> None:
    state = replace(ordered(130, to_seqno, log((A, 0)), theirs), start_seqno=100)
    begun = followed(state, [0, 120])
    assert (begun.position.seqno, begun.position.vb_uuid) == expected
    assert start_seqno_on(begun, theirs) == start_seqno


def test_a_position_inside_a_snapshot_goes_back_to_what_is_complete() -> None:
    state = replace(
        ordered(100, 80, log((A, 0)), log((B, 85), (A, 0))),
        position=Position(A, 100, 80, 120, 80),
        first_incomplete_round=4,
    )
    begun = followed(state, [50, 80])
    assert begun.position == Position.complete_at(A, 80)


def test_a_rollback_without_progress_is_tried_once_more_then_reported() -> None:
    state = ordered(80, 80, log((A, 0)), log((A, 0)))
    again = followed(state, [80])
    assert (again.position.seqno, again.fruitless_rollbacks) == (80, 1)
    assert state.order is not None
    reported = planned(again.ordered(state.order), [80])
    assert isinstance(reported, LeftOut)
    assert reported.reason == "rollback without progress"
    assert "dcplake resync --vbuckets 5" in reported.detail


@pytest.mark.parametrize(("caught_up_seqno", "least"), [(0, 90), (40, 0)])
def test_what_was_never_caught_up_with_is_read_as_a_whole_after_a_rollback_to_0(
    caught_up_seqno: int, least: int
) -> None:
    """A node that has purged tombstones orders it back from wherever a round ends below them."""
    state = replace(ordered(60, 0, log((A, 0)), log((A, 0))), caught_up_seqno=caught_up_seqno)
    begun = followed(state, [0, 20, 50])
    assert begun.position.seqno == 0
    node = NodeAddress("node", 11210)
    assert StreamPlan(begun, node, 90).least_complete_seqno == least


def test_progress_forgets_what_was_fruitless() -> None:
    state = replace(ordered(80, 60, log((A, 0)), log((A, 0))), fruitless_rollbacks=1)
    begun = followed(state, [60])
    assert begun.fruitless_rollbacks == 0


def test_an_accepted_stream_forgets_what_was_fruitless() -> None:
    state = replace(ordered(80, 80, log((A, 0)), None), fruitless_rollbacks=1, order=None)
    streamed = state.advanced(3, state.position, brought_rows=False, failover_log=log((A, 0)))
    assert streamed.fruitless_rollbacks == 0
    refused = state.advanced(3, state.position, brought_rows=False)
    assert refused.fruitless_rollbacks == 1


def test_a_server_that_orders_rollbacks_for_ever_is_reported_in_the_end() -> None:
    """Whatever it answers, each restart lies further back, or it is reported."""
    state = ordered(100, 100, log((C, 90), (B, 50), (A, 0)), log((D, 0)))
    requests = 0
    complete = [20, 50, 70, 95, 100]
    while isinstance(found := planned(state, complete), Restart):
        requests += 1
        assert requests <= 6
        order = RollbackOrder(found.seqno, found.seqno, found.vb_uuid, log((D, 0)))
        state = state.restarted(found).ordered(order)
    assert found.reason == "rollback without progress"


def test_resync_goes_to_the_beginning_and_fail_goes_nowhere() -> None:
    state = ordered(100, 80, log((A, 0)), log((B, 80), (A, 0)))
    begun = followed(state, [80], RollbackPolicy.RESYNC)
    assert begun.position == Position.beginning()
    assert not begun.is_whole
    stays = planned(state, [80], RollbackPolicy.FAIL)
    assert isinstance(stays, LeftOut)
    assert "from seqno 100" in stays.detail
    assert "policy.rollback" in stays.detail


@pytest.mark.parametrize(
    ("ours", "theirs", "our_seqno", "expected"),
    [
        (log((A, 0)), log((A, 0)), 70, 70),
        (log((A, 0)), log((B, 50), (A, 0)), 70, 50),
        (log((A, 0)), log((B, 90), (A, 0)), 70, 70),
        (log((C, 40), (A, 0)), log((B, 50), (A, 0)), 70, 40),
        (log((C, 60), (A, 0)), log((B, 50), (A, 0)), 70, 50),
        (log((C, 60), (B, 30), (A, 0)), log((D, 80), (B, 30), (A, 0)), 70, 60),
        (log((A, 0)), log((B, 0)), 70, 0),
    ],
)
def test_common_history(
    ours: FailoverLog, theirs: FailoverLog, our_seqno: int, expected: int
) -> None:
    assert common_history(ours, theirs, our_seqno)[0] == expected


def test_target_needs_an_accepted_log() -> None:
    state = replace(ordered(100, 80, log((A, 0)), log((B, 80), (A, 0))), failover_log=None)
    assert rollback_target(state, RollbackPolicy.REWRITE) == (0, None)


def test_an_order_that_leads_forward_cannot_be_made() -> None:
    with pytest.raises(ValueError, match="found seqno 120, expected at most the requested 100"):
        RollbackOrder(100, 120, A)
