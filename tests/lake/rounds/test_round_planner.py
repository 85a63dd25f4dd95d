"""The plan of a round: pure, so tested without Spark or sockets."""

import json
from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dcp.client.addresses import NodeAddress
from dcp.client.cluster_map import ClusterMap
from dcp.client.probe import ProbedCluster
from dcp.errors import ConfigError
from dcp.lake.config.filter_settings import FilterSettings
from dcp.lake.config.flow_control_settings import FlowControlSettings
from dcp.lake.config.settings import RoundSettings
from dcp.lake.rounds.lake_state import LakeState
from dcp.lake.rounds.round_plan import Idle, LeftOut, RoundPlan
from dcp.lake.rounds.round_planner import (
    CLUSTER_TASKS,
    SEQNOS_OF_A_TASK,
    is_behind,
    is_elsewhere,
    plan_round,
)
from dcp.lake.tables.document_filter import EVERYTHING, DocumentFilter
from dcp.lake.tables.vbucket_state import LakeVbucketState, Restart, RestartReason, RollbackOrder
from dcp.protocol.position import Position
from dcp.types import FailoverEntry, FailoverLog

NODES = tuple(NodeAddress("node", port) for port in (11210, 11220, 11230))
SETTINGS = RoundSettings()
FLOW = FlowControlSettings()
UUID = 0xFEED_FACE_CAFE_BEEF
RESYNC = Restart(0, RestartReason.RESYNC)
STARTS_NOW = DocumentFilter.resolve(FilterSettings(since="now"), None)


def cluster(
    high: Mapping[int, int],
    *,
    vbuckets: int = 8,
    nodes: int = 2,
    unreachable: Mapping[NodeAddress, str] | None = None,
    without_active: tuple[int, ...] = (),
) -> ProbedCluster:
    active = tuple(-1 if vb in without_active else vb % nodes for vb in range(vbuckets))
    cluster_map = ClusterMap("b", "uuid", 1, 1, NODES[:nodes], active)
    return ProbedCluster(
        map=cluster_map, high_seqnos=dict(high), unreachable=dict(unreachable or {}), manifest=None
    )


def complete(
    vbucket: int, seqno: int, caught_up: int = 0, last: int | None = None
) -> LakeVbucketState:
    return LakeVbucketState(
        vbucket,
        0,
        Position.complete_at(UUID, seqno),
        caught_up_seqno=caught_up,
        last_data_round=last,
    )


def lake(*states: LakeVbucketState, latest_round: int = 3) -> LakeState:
    return LakeState("lake-1", latest_round, {state.vbucket: state for state in states})


def planned(
    lake_state: LakeState, probed: ProbedCluster, slots: int = 2, settings: RoundSettings = SETTINGS
) -> RoundPlan:
    plan = plan_round(lake_state, probed, settings, FLOW, slots)
    assert isinstance(plan, RoundPlan)
    return plan


def test_a_lake_that_starts_now_streams_from_the_high_seqnos_to_write_them_down() -> None:
    log = FailoverLog((FailoverEntry(UUID, 20), FailoverEntry(UUID + 1, 0)))
    probed = replace(
        cluster({0: 30, 1: 10, 2: 0, 3: 5}, vbuckets=4), failover_logs=dict.fromkeys((0, 1, 2), log)
    )
    now = replace(lake(latest_round=0), document_filter=STARTS_NOW)
    plan = planned(now, probed)
    found = [(each.vbucket, each.state.position, each.state.start_seqno) for each in plan.streams]
    assert found == [
        (0, Position.complete_at(UUID, 30), 30),
        (1, Position.complete_at(UUID + 1, 10), 10),
        (2, Position.beginning(), 0),
    ]
    assert [(left.vbucket, left.reason) for left in plan.left_out] == [(3, "no high seqno")]
    started = lake(*(each.state for each in plan.streams))
    again = plan_round(replace(started, document_filter=STARTS_NOW), probed, SETTINGS, FLOW, 2)
    assert isinstance(again, Idle), "it is known where they start"

    others = DocumentFilter.resolve(FilterSettings(since="now", exclude_keys="x"), None)
    anew = planned(replace(started, document_filter=others), probed)
    again_from = [(each.state.position.seqno, each.state.start_seqno) for each in anew.streams]
    assert again_from == [(0, 30), (0, 10), (0, 0)], "read again, each from its start"
    everything = planned(replace(started, document_filter=EVERYTHING), probed)
    assert {each.state.start_seqno for each in everything.streams} == {None}
    read_from_0 = replace(lake(complete(0, 30)), document_filter=STARTS_NOW)
    with pytest.raises(ConfigError, match="lake-1 has read vbuckets from seqno 0"):
        planned(read_from_0, probed)


def test_a_start_is_forgotten_with_its_filter_also_where_nothing_was_read_since() -> None:
    log = FailoverLog((FailoverEntry(UUID, 0),))
    resynced = LakeVbucketState.beginning(0).starting_at(log, 30).restarted(RESYNC)
    probed = cluster({0: 50}, vbuckets=1)
    kept = replace(resynced, filter_fingerprint=STARTS_NOW.fingerprint)
    plan = planned(replace(lake(kept), document_filter=STARTS_NOW), probed)
    assert [each.state.start_seqno for each in plan.streams] == [30]
    plan = planned(replace(lake(kept), document_filter=EVERYTHING), probed)
    assert [each.state.start_seqno for each in plan.streams] == [None]


def test_nothing_written_yet_is_idle() -> None:
    plan = plan_round(lake(latest_round=0), cluster(dict.fromkeys(range(8), 0)), SETTINGS, FLOW, 2)
    assert plan == Idle("lake-1", 0, ())
    assert str(plan) == "no round: after round 0 no vbucket is behind"


def test_only_what_is_behind_is_streamed_and_all_positions_are_written() -> None:
    high = dict.fromkeys(range(8), 10)
    states = [complete(vbucket, 10) for vbucket in range(8)]
    states[3] = complete(3, 7)
    plan = planned(lake(*states), cluster(high))
    assert [(s.vbucket, s.node, s.target_seqno) for s in plan.streams] == [(3, NODES[1], 10)]
    assert plan.round == 4
    assert sorted(state.vbucket for task in plan.tasks for state in task.unstreamed) == [
        vbucket for vbucket in range(8) if vbucket != 3
    ]


@pytest.mark.parametrize(
    ("state", "high", "behind"),
    [
        (complete(0, 10), 10, False),
        (complete(0, 10), 11, True),
        (complete(0, 10, caught_up=12), 12, False),  # proven to hold nothing for us
        (complete(0, 10, caught_up=12), 13, True),
        (complete(0, 10), 9, False),
        (LakeVbucketState(0, 0, Position(UUID, 10, 7, 20, 7)), 20, True),  # inside a snapshot
        (LakeVbucketState(0, 0, Position(UUID, 10, 7, 20, 7)), 10, True),  # its end is not here yet
        (LakeVbucketState(0, 0, Position(UUID, 2**64 - 2, 7, 2**64 - 1, 7)), 2**64 - 1, True),
        (LakeVbucketState.beginning(0), 0, False),
        (LakeVbucketState.beginning(0), 1, True),
    ],
)
def test_behind(state: LakeVbucketState, high: int, behind: bool) -> None:
    assert is_behind(state, high) is behind


def test_what_may_wait_makes_no_round_and_comes_with_one() -> None:
    lake_state = replace(lake(complete(0, 20), complete(1, 10)), delayed=frozenset({0}))
    alone = plan_round(lake_state, cluster({0: 21, 1: 10}, vbuckets=2), SETTINGS, FLOW, 2)
    assert isinstance(alone, Idle)
    assert alone.delayed == {0}
    told = "no vbucket needs one yet\n  delayed: vbuckets 0: their last rounds brought no rows"
    assert str(alone).endswith(told)
    without_one = cluster({0: 21}, vbuckets=2, unreachable={NODES[1]: "down"})
    left = str(plan_round(lake_state, without_one, SETTINGS, FLOW, 2))
    assert f"{told}\n  left out: vbuckets 1: node unreachable" in left
    assert "nothing can be streamed" not in left, "vbucket 0 can"
    both = planned(lake_state, cluster({0: 21, 1: 11}, vbuckets=2))
    assert [stream.vbucket for stream in both.streams] == [0, 1]


@pytest.mark.parametrize(
    ("state", "high"),
    [
        pytest.param(complete(0, 20), 19, id="the node has less"),
        pytest.param(
            LakeVbucketState(0, 0, Position(UUID, 15, 10, 20, 10)), 20, id="inside a snapshot"
        ),
    ],
)
def test_what_may_wait_does_not_where_more_than_its_high_seqno_asks(
    state: LakeVbucketState, high: int
) -> None:
    log = FailoverLog((FailoverEntry(UUID, 0),))
    lake_state = replace(lake(replace(state, failover_log=log)), delayed=frozenset({0}))
    assert planned(lake_state, cluster({0: high}, vbuckets=1)).streams


def test_vbuckets_that_cannot_be_streamed_are_reported_and_keep_their_states() -> None:
    high = dict.fromkeys(range(0, 8, 2), 5)
    probed = cluster(high, unreachable={NODES[1]: "connection refused"}, without_active=(2,))
    plan = planned(lake(complete(1, 4)), probed)
    assert {stream.vbucket for stream in plan.streams} == {0, 4, 6}
    assert {left.vbucket: left.reason for left in plan.left_out} == {
        2: "no active node",
        **dict.fromkeys((1, 3, 5, 7), "node unreachable"),
    }
    assert {left.detail for left in plan.left_out if left.vbucket == 1} == {
        "node:11220: connection refused"
    }
    unstreamed = {state.vbucket: state for task in plan.tasks for state in task.unstreamed}
    assert unstreamed[1] == complete(1, 4)
    assert set(unstreamed) == {1, 2, 3, 5, 7}


def test_what_no_node_can_serve_is_left_out_and_keeps_its_state() -> None:
    log = FailoverLog((FailoverEntry(7, 0),))
    waiting = {vb: replace(complete(vb, 4), failover_log=log) for vb in (1, 2, 3, 5)}
    probed = replace(
        cluster({0: 5, 4: 5, 6: 5}, unreachable={NODES[1]: "refused"}, without_active=(2, 7)),
        failover_logs={0: log},
    )
    lake_state = replace(
        lake(*waiting.values()),
        rollbacks=(Restart(3, RestartReason.ROLLBACK, 2, 7), LeftOut(5, "rollback", "p")),
    )
    skip, targets = {7: LeftOut(7, "stopped", "hung")}, {0: 5, 1: 9, 3: 9, 6: 5}
    plan = plan_round(
        lake_state, probed, RoundSettings(tasks=2), FLOW, 2, targets=targets, skip=skip
    )
    assert isinstance(plan, RoundPlan)
    assert [stream.vbucket for stream in plan.streams] == [0, 6]
    reasons = {left.vbucket: left.reason for task in plan.tasks for left in task.left_out}
    assert reasons == {
        1: "node unreachable",
        2: "no active node",
        3: "node unreachable",
        4: "no high seqno",
        5: "rollback",
        7: "stopped",
    }
    unstreamed = {state.vbucket: state for task in plan.tasks for state in task.unstreamed}
    assert unstreamed == {vb: lake_state.state(vb) for vb in reasons}
    assert len(plan.to_json()["left_out"]) == 6
    assert "node:11220" not in str(plan).split("left out", 1)[0]


def test_a_node_that_the_network_does_not_have_is_told_from_no_node() -> None:
    probed = cluster(dict.fromkeys(range(0, 8, 2), 5))
    elsewhere = replace(probed.map, nodes=(NODES[0], None), network="external")
    details = {each.detail for each in planned(lake(), replace(probed, map=elsewhere)).left_out}
    assert len(details) == 1
    assert "no port of its active node's data service in network 'external'" in details.pop()


def test_nothing_can_be_streamed_is_idle_with_reasons() -> None:
    probed = cluster({}, unreachable=dict.fromkeys(NODES[:2], "down"))
    plan = plan_round(lake(), probed, SETTINGS, FLOW, 2)
    assert isinstance(plan, Idle)
    assert [left.vbucket for left in plan.left_out] == list(range(8))
    assert "nothing can be streamed" in str(plan)
    assert "left out: vbuckets 0, 2, 4, 6: node unreachable (node:11210: down)" in str(plan)
    told = json.loads(json.dumps(plan.to_json()))
    assert (told["round"], told["left_out"][1]["reason"]) == (None, "node unreachable")


def test_targets_bound_a_run_and_skipped_vbuckets_are_reported() -> None:
    probed = cluster(dict.fromkeys(range(8), 10))
    skipped = LeftOut(2, "stopped", "its node hung")
    plan = plan_round(
        lake(complete(0, 6)),
        probed,
        SETTINGS,
        FLOW,
        4,
        targets={0: 6, 1: 4, 2: 10},
        skip={2: skipped},
    )
    assert isinstance(plan, RoundPlan)
    assert [(stream.vbucket, stream.target_seqno) for stream in plan.streams] == [(1, 4)]
    assert skipped in plan.left_out


def test_a_task_serves_first_what_waited_longest() -> None:
    probed = cluster(dict.fromkeys(range(4), 10), vbuckets=4)
    states = [complete(vb, 5, last=last) for vb, last in enumerate((3, None, 2, 3))]
    plan = planned(lake(*states), probed, slots=1)
    assert [stream.vbucket for stream in plan.tasks[0].streams] == [1, 2, 0, 3]


def test_the_setting_bounds_the_tasks() -> None:
    probed = cluster(dict.fromkeys(range(8), 10))
    assert len(planned(lake(), probed, slots=8, settings=RoundSettings(tasks=3)).tasks) == 3
    assert len(planned(lake(), probed, slots=2, settings=RoundSettings(tasks=3)).tasks) == 2


def test_a_plan_prints_well() -> None:
    plan = planned(lake(), cluster({**dict.fromkeys(range(6), 1000), 6: 2**64 - 1, 7: 0}))
    text = str(plan)
    assert text.splitlines()[0] == (
        "round 4: 7 vbuckets, 18,446,744,073,709,557,615 seqnos behind, "
        "2 tasks of at most 1,073,741,824 bytes and 60 s each"
    )
    assert "task 0: 18,446,744,073,709,551,615 seqnos; node:11210: vbuckets 6" in text
    told = json.loads(json.dumps(plan.to_json()))
    [task, _] = told["tasks"]
    assert (task["nodes"], task["unstreamed"], task["backfill"]) == (["node:11210"], 1, None)
    [stream] = task["streams"]
    assert (stream["node"], stream["vbucket"], stream["epoch"]) == ("node:11210", 6, 0)
    assert (stream["seqno"], stream["target_seqno"], stream["restart"]) == (0, 2**64 - 1, None)


@given(
    nodes=st.integers(1, 3),
    slots=st.integers(1, 9),
    seqnos=st.lists(st.tuples(st.integers(0, 50), st.integers(0, 2**64 - 1)), min_size=1),
)
def test_every_vbucket_is_somewhere_once(
    nodes: int, slots: int, seqnos: list[tuple[int, int]]
) -> None:
    states = [complete(vb, have) for vb, (have, _) in enumerate(seqnos)]
    high = {vb: high for vb, (_, high) in enumerate(seqnos)}
    plan = plan_round(
        lake(*states), cluster(high, vbuckets=len(seqnos), nodes=nodes), SETTINGS, FLOW, slots
    )
    behind = {vb for vb, (have, high) in enumerate(seqnos) if high > have}
    if isinstance(plan, Idle):
        assert not behind
        assert not plan.left_out
        return
    streamed = [stream.vbucket for stream in plan.streams]
    unstreamed = [state.vbucket for task in plan.tasks for state in task.unstreamed]
    assert sorted(streamed) == sorted(behind)
    assert sorted(streamed + unstreamed) == list(range(len(seqnos)))
    backlog = sum(stream.backlog for stream in plan.streams)
    assert len(plan.tasks) == min(slots, len(streamed), 1 + backlog // SEQNOS_OF_A_TASK)
    assert [task.index for task in plan.tasks] == list(range(len(plan.tasks)))
    assert all(task.streams for task in plan.tasks)
    loads = sorted(task.backlog for task in plan.tasks)
    largest = max(stream.backlog for stream in plan.streams)
    assert loads[-1] - loads[0] <= largest  # greedy: no task is a whole vbucket ahead


@given(slots=st.integers(1, 4), nodes=st.integers(1, 3), vbuckets=st.integers(1, 64))
def test_equal_backlogs_spread_each_node_over_the_tasks(
    slots: int, nodes: int, vbuckets: int
) -> None:
    probed = cluster(dict.fromkeys(range(vbuckets), 100), vbuckets=vbuckets, nodes=nodes)
    plan = planned(lake(), probed, slots)
    sizes = [len(task.streams) for task in plan.tasks]
    assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize(
    ("backlog", "slots", "wanted", "tasks"),
    [
        (100, 8, 0, 1),
        (SEQNOS_OF_A_TASK - 4, 8, 0, 1),
        (SEQNOS_OF_A_TASK, 8, 0, 2),
        (100 * SEQNOS_OF_A_TASK, 8, 0, 4),  # no more than vbuckets
        (100 * SEQNOS_OF_A_TASK, 3, 0, 3),
        (100, 8, 3, 3),  # whoever says how many gets them
        (100, 2, 3, 2),
        (100 * SEQNOS_OF_A_TASK, 0, 0, CLUSTER_TASKS),  # the cluster decides how many run at once
        (100, 0, 3, 3),
    ],
)
def test_a_round_has_as_many_tasks_as_it_is_worth(
    backlog: int, slots: int, wanted: int, tasks: int
) -> None:
    probed = cluster(dict.fromkeys(range(4), backlog // 4), vbuckets=4)
    plan = plan_round(lake(), probed, RoundSettings(tasks=wanted), FLOW, slots)
    assert isinstance(plan, RoundPlan)
    assert len(plan.tasks) == tasks


def read(seqno: int, *entries: tuple[int, int]) -> LakeVbucketState:
    """A vbucket complete at a seqno, with the failover log accepted with its data."""
    log = FailoverLog(tuple(FailoverEntry(*entry) for entry in entries))
    position = Position.complete_at(log.uuid_at(seqno), seqno)
    return LakeVbucketState(0, 0, position, caught_up_seqno=seqno, failover_log=log)


@pytest.mark.parametrize(
    ("state", "high", "log", "elsewhere"),
    [
        (read(10, (7, 0)), 10, ((7, 0),), False),
        (read(10, (7, 0)), 9, ((7, 0),), True),  # less than we hold
        (read(10, (7, 0)), 10, ((8, 5), (7, 0)), True),  # the same seqno on another branch
        (read(10, (8, 5), (7, 0)), 10, ((8, 5), (7, 0)), False),
        (read(10, (7, 0)), 10, None, False),  # the node does not tell
        (read(10, (7, 0)), None, ((7, 0),), False),
        (LakeVbucketState.beginning(0), 0, ((8, 5), (7, 0)), False),
    ],
)
def test_a_node_on_another_history_is_asked(
    state: LakeVbucketState,
    high: int | None,
    log: tuple[tuple[int, int], ...] | None,
    elsewhere: bool,
) -> None:
    probed = cluster({} if high is None else {0: high}, vbuckets=1, nodes=1)
    if log is not None:
        told = FailoverLog(tuple(FailoverEntry(*entry) for entry in log))
        probed = replace(probed, failover_logs={0: told})
    assert is_elsewhere(state, probed) is elsewhere
    if high is not None:
        plan = plan_round(lake(state), probed, SETTINGS, FLOW, 1)
        assert isinstance(plan, RoundPlan) is elsewhere


def test_an_epoch_begins_where_a_restart_says_and_waits_with_its_order_if_it_cannot() -> None:
    order = RollbackOrder(10, 4, 7)
    state = read(10, (7, 0)).ordered(order)
    lake_state = replace(lake(state), rollbacks=[Restart(0, RestartReason.ROLLBACK, 3, 7)])
    plan = planned(lake_state, cluster({0: 12}, vbuckets=1, nodes=1))
    [stream] = plan.streams
    assert (stream.state.epoch, stream.target_seqno) == (1, 12)
    assert "epoch 1 begins at seqno 3 (branch 0000000000000007): rollback" in str(plan)
    probed = cluster({}, vbuckets=1, nodes=1, unreachable={NODES[0]: "gone"})
    idle = plan_round(lake_state, probed, SETTINGS, FLOW, 1)
    assert isinstance(idle, Idle)
    assert [left.reason for left in idle.left_out] == ["node unreachable"]
    stuck = replace(lake(state), rollbacks=[LeftOut(0, "rollback", "policy")])
    idle = plan_round(stuck, cluster({0: 12}, vbuckets=1, nodes=1), SETTINGS, FLOW, 1)
    assert idle.left_out == (LeftOut(0, "rollback", "policy"),)


def test_what_began_anew_must_prove_that_it_is_empty() -> None:
    anew = read(10, (7, 0)).restarted(RESYNC)
    assert is_behind(anew, 0)
    proven = anew.advanced(9, anew.position, brought_rows=False, caught_up_seqno=0)
    assert proven.is_whole
    assert not is_behind(proven, 0)
