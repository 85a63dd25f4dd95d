"""What a backfill reads next: a table of vbuckets, replicas and the active node's branch."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from dcp.client.addresses import NodeAddress
from dcp.client.cluster_map import ClusterMap
from dcp.client.probe import ProbedCluster, VbucketHolder
from dcp.lake.change_log.changes import append_states
from dcp.lake.change_log.round_queries import states_at
from dcp.lake.config.flow_control_settings import FlowControlSettings
from dcp.lake.config.settings import RoundSettings
from dcp.lake.rounds.backfill_plan import (
    BACKFILL_ROUND_SECONDS,
    SEQNOS_OF_A_ROUND,
    Backfill,
    BackfillPlan,
    BackfillProgress,
    plan_backfill,
)
from dcp.lake.rounds.lake_state import LakeState
from dcp.lake.rounds.round_plan import BackfillNodes, RoundPlan
from dcp.lake.rounds.round_planner import plan_round
from dcp.lake.run.driver_backfills import progress_of
from dcp.lake.tables.vbucket_state import LakeVbucketState, Restart, RestartReason, RollbackOrder
from dcp.protocol.position import Position
from dcp.types import FailoverEntry, FailoverLog
from tests.lake.memory_store import lake_in_memory

ACTIVE, FIRST, SECOND = (NodeAddress("node", port) for port in (11210, 11220, 11230))
OLD, NEW = 0xAAAA, 0xBBBB
NODES = BackfillNodes(reads_replicas=True)


def log(*uuids: int) -> FailoverLog:
    return FailoverLog(tuple(FailoverEntry(uuid, 0) for uuid in uuids))


def probed(vbuckets: int = 1, high: int = 100, branch: FailoverLog | None = None) -> ProbedCluster:
    cluster_map = ClusterMap("b", "uuid", 1, 1, (ACTIVE, FIRST, SECOND), (0,) * vbuckets)
    logs = {} if branch is None else dict.fromkeys(range(vbuckets), branch)
    return ProbedCluster(cluster_map, dict.fromkeys(range(vbuckets), high), {}, None, logs)


def published(vbucket: int, seqno: int, epoch: int = 0) -> LakeVbucketState:
    position = Position.complete_at(OLD, seqno)
    return LakeVbucketState(vbucket, epoch, position, caught_up_seqno=seqno, last_complete_round=1)


def copy(node: NodeAddress, high: int, branch: FailoverLog | None = None) -> VbucketHolder:
    return VbucketHolder(node, high, branch)


def planned(
    asked: Backfill,
    progress: BackfillProgress,
    states: Mapping[int, LakeVbucketState],
    cluster: ProbedCluster,
    copies: Mapping[int, Sequence[VbucketHolder]],
) -> BackfillPlan:
    return plan_backfill(asked, progress, states, cluster, copies)


def request(*vbuckets: int, new: Sequence[int] = ()) -> Backfill:
    return Backfill("a", frozenset(vbuckets), NODES, 3, frozenset(new))


@pytest.mark.parametrize(
    ("copies", "branch", "node", "reason"),
    [
        ([copy(FIRST, 90, log(OLD))], log(OLD), FIRST, ""),
        ([copy(FIRST, 80, log(OLD)), copy(SECOND, 95, log(OLD))], log(OLD), SECOND, ""),
        ([copy(FIRST, 79, log(OLD))], log(OLD), None, "replica vbucket behind"),
        ([copy(FIRST, 200, log(OLD))], log(NEW, OLD), None, "replica vbucket on another branch"),
        ([copy(FIRST, 200, log(OLD)), copy(SECOND, 90, log(NEW, OLD))], log(NEW, OLD), SECOND, ""),
        ([copy(FIRST, 90, log(OLD))], None, FIRST, ""),  # the active node does not tell its branch
        ([copy(FIRST, 90)], log(OLD), FIRST, ""),  # nor does the replica
        ([], log(OLD), None, "no replica vbucket"),
    ],
)
def test_a_published_vbucket_begins_where_nothing_of_it_would_go_back(
    copies: list[VbucketHolder],
    branch: FailoverLog | None,
    node: NodeAddress | None,
    reason: str,
) -> None:
    states = {0: published(0, 80)}
    asked = request(0)
    progress = BackfillProgress.of(asked, states, begun=())
    plan = planned(asked, progress, states, probed(branch=branch), {0: copies})
    assert not plan.left_out
    if node is None:
        assert not plan.copies
        assert plan.waiting_for[0].reason == reason
    else:
        best = max((each for each in copies if each.node == node), key=lambda each: each.high_seqno)
        assert (plan.copies, plan.beginning) == ({0: best}, frozenset({0}))


def test_what_has_begun_is_read_on_from_the_fullest_copy_or_left_out() -> None:
    inside = replace(published(0, 0, epoch=1), position=Position(OLD, 10, 0, 60, 0))
    inside = replace(inside, last_complete_round=None, caught_up_seqno=0)
    states = {0: inside, 1: published(1, 80)}
    asked = request(0, 1)
    progress = BackfillProgress.of(asked, states, begun={0})
    assert progress == BackfillProgress(frozenset({1}), frozenset({0}), frozenset())
    copies = {0: [copy(FIRST, 60, log(OLD)), copy(SECOND, 70, log(NEW))]}
    plan = planned(asked, progress, states, probed(2, branch=log(OLD)), copies)
    assert (plan.copies, plan.beginning) == ({0: copies[0][1]}, frozenset())
    assert plan.waiting_for[1].reason == "no replica vbucket"
    plan = planned(asked, progress, states, probed(2), {1: [copy(FIRST, 80)]})
    assert plan.left_out[0].reason == "no replica vbucket"
    assert (plan.copies, plan.beginning) == ({1: copy(FIRST, 80)}, frozenset({1}))


def test_a_new_lake_is_read_at_once_and_no_active_node_is_asked_for_what_has_no_replica() -> None:
    asked = request(0, 1, new=[0, 1])
    progress = BackfillProgress.of(asked, {}, begun=())
    large = SEQNOS_OF_A_ROUND * 3
    plan = planned(asked, progress, {}, probed(2, large), {0: [copy(FIRST, large)]})
    assert (plan.copies, plan.beginning) == ({0: copy(FIRST, large)}, frozenset())
    assert plan.left_out[1].reason == "no replica vbucket"
    whole = plan_round(
        LakeState("lake-1", 0, backfill=plan),
        probed(2, large),
        RoundSettings(),
        FlowControlSettings(),
        2,
    )
    assert isinstance(whole, RoundPlan)
    assert [(each.vbucket, each.node) for each in whole.streams] == [(0, FIRST)]
    assert whole.left_out == (plan.left_out[1],)


def test_a_round_begins_as_many_as_its_seqnos_allow_and_one_at_least() -> None:
    third = SEQNOS_OF_A_ROUND // 3
    highs = [third, SEQNOS_OF_A_ROUND * 2, third, third, third]
    states = {vb: published(vb, 5) for vb in range(len(highs))}
    asked = request(*states)
    progress = BackfillProgress.of(asked, states, begun=())
    copies = {vb: [copy(FIRST, high)] for vb, high in enumerate(highs)}
    plan = planned(asked, progress, states, probed(5), copies)
    assert list(plan.copies) == [0, 2, 3]
    only = request(1)
    plan = planned(only, BackfillProgress.of(only, states, ()), states, probed(5), copies)
    assert list(plan.copies) == [1]


def test_an_ordered_rollback_is_followed_before_a_vbucket_begins() -> None:
    state = published(0, 80).ordered(RollbackOrder(80, 60, OLD))
    asked = request(0)
    progress = BackfillProgress.of(asked, {0: state}, begun=())
    plan = planned(asked, progress, {0: state}, probed(), {0: [copy(FIRST, 100)]})
    assert plan.waiting_for[0].reason == "rollback"
    assert not plan.copies


@pytest.mark.parametrize("slots", [0, 1, 2, 8])
def test_a_backfill_has_tasks_of_its_own_short_rounds_and_its_part_of_the_rate(slots: int) -> None:
    states = {vb: published(vb, 80) for vb in range(8)}
    asked = replace(request(0, 1, 2, 3), nodes=replace(NODES, bytes_per_second=1e6))
    copies = {vb: [copy(FIRST, 90)] for vb in range(4)}
    progress = BackfillProgress.of(asked, states, begun=())
    cluster = probed(12, 100)
    active = (*cluster.map.active[:8], *[-1] * 4)
    cluster = replace(cluster, map=replace(cluster.map, active=active))
    backfill = planned(asked, progress, states, cluster, copies)
    lake_state = LakeState("lake-1", 3, states, backfill=backfill)
    plan = plan_round(lake_state, cluster, RoundSettings(), FlowControlSettings(), slots)
    assert isinstance(plan, RoundPlan)
    assert plan.budget.target_seconds == BACKFILL_ROUND_SECONDS
    usual = [task for task in plan.tasks if task.backfill is None]
    reading = [task for task in plan.tasks if task.backfill is not None]
    assert {each.vbucket for task in usual for each in task.streams} == {4, 5, 6, 7}
    assert {each.vbucket for task in reading for each in task.streams} == {0, 1, 2, 3}
    assert len(plan.tasks) <= max(2, slots)
    assert sum(task.backfill.bytes_per_second or 0 for task in reading if task.backfill) == 1e6
    for each in plan.streams:
        if each.is_backfill:
            assert (each.node, each.target_seqno) == (FIRST, 90)
            assert each.restart == Restart(each.vbucket, RestartReason.BACKFILL)
            assert (each.state.epoch, each.state.position.seqno) == (1, 0)
    assert (
        f"backfill from replica vbuckets, at most {1 / len(reading):.3g} MB/s; node:11220"
        in str(plan)
    )
    assert not [each for task in reading for each in task.unstreamed]
    only = {vb: states[vb] for vb in range(4)}
    shorter = replace(cluster.map, active=(*cluster.map.active[:4], -1))
    alone = plan_round(
        replace(lake_state, states=only),
        replace(cluster, map=shorter),
        RoundSettings(),
        FlowControlSettings(),
        slots,
    )
    assert isinstance(alone, RoundPlan)
    assert [each.vbucket for each in alone.left_out] == [4]


@pytest.mark.parametrize(
    ("state", "is_done"),
    [
        (replace(published(0, 80, epoch=1), caught_up_seqno=0), False),  # a first snapshot's end
        (published(0, 80, epoch=1), True),
        (replace(published(0, 0, epoch=1), last_complete_round=4), True),  # it is empty
        (replace(published(0, 0, epoch=1), last_complete_round=None), False),
    ],
)
def test_a_vbucket_is_done_where_all_that_a_node_held_was_read(
    state: LakeVbucketState, is_done: bool
) -> None:
    progress = BackfillProgress.of(request(0), {0: state}, begun={0})
    assert (0 in progress.done) is is_done
    assert (0 in progress.reading) is not is_done


@pytest.mark.parametrize("reason", RestartReason)
def test_only_what_the_backfill_itself_began_is_read_on_from_a_replica(
    reason: RestartReason,
) -> None:
    lake, states = lake_in_memory(2), [published(0, 80), published(1, 80)]
    for number in (1, 2, 3):
        append_states(lake, states, number, "writer")
    restart = Restart(0, reason)
    states[0] = states[0].restarted(restart)
    append_states(lake, states, 4, "writer", restarts=[restart])
    progress = progress_of(lake, request(0, 1), states_at(lake, 4), 4)
    assert progress.waiting == {1}
    assert progress.reading == ({0} if reason is RestartReason.BACKFILL else set())
