"""The windows that the driver plans, against the policies, the memory's formula and its docs."""

import json
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dcp.client.settings import READ_BUFFER_BYTES
from dcp.lake.config.flow_control_settings import (
    LEAST_WINDOW_BYTES,
    FlowControlSettings,
    WindowPlan,
)
from dcp.lake.config.memory import MEBIBYTE, worker_bytes
from dcp.lake.config.settings import RoundSettings
from dcp.lake.rounds.round_plan import RoundPlan
from dcp.lake.rounds.round_planner import plan_round
from dcp.protocol.window_policies import WindowPolicy
from tests.lake.memory_bound import memory_bound
from tests.lake.rounds.test_round_planner import cluster, lake
from tests.protocol.named_windows import NamedWindows

DOCS = Path(__file__).parents[3] / "docs" / "reference" / "memory.md"
MIB = MEBIBYTE
POLICIES = ("static", "dynamic", "aggressive", "ratio", "none")


def flow_of(policy: str, **changes: float) -> FlowControlSettings:
    return FlowControlSettings(
        window_policy=WindowPolicy(policy),
        allow_no_flow_control=True,
        **changes,  # type: ignore[arg-type]
    )


@pytest.mark.parametrize(
    ("policy", "windows"),
    [
        ("static", {0: 10 * MIB, 1: 10 * MIB, 2: 10 * MIB, 4: 10 * MIB, 100: 10 * MIB}),
        ("dynamic", {1: 10_737_418, 2: 10_737_418, 4: 10_737_418, 100: 10 * MIB}),
        ("aggressive", {0: 50 * MIB, 1: 50 * MIB, 2: 26_843_545, 4: 13_421_772, 100: 10 * MIB}),
        ("ratio", {1: 53_687_092, 2: 26_843_546, 4: 13_421_773, 100: 536_870}),
        ("none", {1: 0, 4: 0}),
    ],
)
def test_the_defaults(policy: str, windows: dict[int, int]) -> None:
    """A policy gives each of so many connections the same window: that of the last to come."""
    flow = flow_of(policy)
    assert {each: flow.planned_window_bytes(max(1, each)) for each in windows} == windows
    for connections, window_bytes in windows.items():
        plan = WindowPlan.of(flow, connections)
        assert plan.window_bytes == window_bytes
        assert plan.windows_bytes == max(1, connections) * window_bytes


def test_without_flow_control_the_limit_of_what_is_unread_counts() -> None:
    flow = flow_of("none")
    assert WindowPlan.of(flow, 4).unreleased_limit_bytes == 10 * MIB + READ_BUFFER_BYTES
    assert str(WindowPlan.of(flow, 4)) == "no flow control"


def test_ratio_never_gives_less_than_the_least_window() -> None:
    numbers = {"window_quota_bytes": MIB, "window_shared_percent": 1.0, "window_bytes": 8192}
    flow = flow_of("ratio", batch_bytes=4096, **numbers)
    assert [flow.planned_window_bytes(each) for each in (1, 2, 3)] == [10_485, 5_242, 4096]


@given(
    st.sampled_from(POLICIES[:-1]),
    st.integers(2**20, 2**33),
    st.floats(0.1, 20),
    st.integers(1, 4),
    st.integers(1, 8),
)
def test_no_plan_has_more_in_its_windows_than_policy_and_formula_say(
    policy: str, quota: int, percent: float, tasks: int, nodes: int
) -> None:
    flow = flow_of(
        policy,
        window_quota_bytes=quota,
        window_percent=percent,
        window_shared_percent=max(percent, 5.0),
        window_bytes=8192,
        batch_bytes=2048,
    )
    plan = WindowPlan.of(flow, tasks * nodes)
    policies = NamedWindows(flow.policy_settings, quota)
    for number in range(tasks * nodes):
        policies.connect(str(number))
    assert plan.window_bytes <= max(LEAST_WINDOW_BYTES, *policies.sizes.values())
    assert plan.windows_bytes <= max(tasks * nodes * LEAST_WINDOW_BYTES, policies.total_bytes)
    bound = memory_bound(
        tasks=tasks,
        connections=nodes,
        window_bytes=plan.window_bytes,
        batch_bytes=flow.batch_bytes,
        heap_bytes=0,
    )
    assert bound.worker_bytes == worker_bytes(nodes, plan.window_bytes, flow.batch_bytes)
    without = tasks * worker_bytes(nodes, 0, flow.batch_bytes)
    assert bound.workers_bytes == without + plan.windows_bytes
    assert plan.unreleased_limit_bytes == plan.window_bytes


@pytest.mark.parametrize(("tasks", "connections"), [(1, 3), (2, 6), (4, 12)])
def test_a_round_counts_the_connections_of_all_its_tasks(tasks: int, connections: int) -> None:
    flow, view = flow_of("aggressive"), cluster(dict.fromkeys(range(24), 9), vbuckets=24, nodes=3)
    plan = plan_round(lake(), view, RoundSettings(tasks=tasks), flow, tasks)
    assert isinstance(plan, RoundPlan)
    assert sum(len(task.nodes) for task in plan.tasks) == connections
    windows = WindowPlan.of(flow, connections)
    assert {task.windows for task in plan.tasks} == {windows}
    told = f"windows of {windows.window_bytes:,} bytes for at most {connections} connections"
    assert f"  {told} (aggressive)" in str(plan).splitlines()
    for task in json.loads(json.dumps(plan.to_json()))["tasks"]:
        assert task["windows"]["window_bytes"] == windows.window_bytes


def test_the_table_of_the_docs_is_the_formula() -> None:
    found = re.findall(r"^\| `(\w+)` \|.*\| (\d+) MiB \|$", DOCS.read_text("utf-8"), re.MULTILINE)
    assert found == [
        (policy, str(4 * WindowPlan.of(flow_of(policy), 4).unreleased_limit_bytes // MIB))
        for policy in POLICIES
    ]
