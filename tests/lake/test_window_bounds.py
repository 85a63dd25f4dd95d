"""What a policy can come to at most, against executors whose tasks come and go at random."""

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dcp.lake.flow_control_settings import FlowControlSettings
from dcp.lake.memory import MEBIBYTE, READ_BUFFER_BYTES, memory_bound, worker_bytes
from dcp.lake.window_bounds import (
    executor_windows_bytes,
    floored,
    largest_window_bytes,
    policy_settings,
)
from dcp.protocol.window_policies import WindowPolicies

DOCS = Path(__file__).parents[2] / "docs" / "memory.md"
MIB = MEBIBYTE


def flow_of(policy: str, **changes: float) -> FlowControlSettings:
    return FlowControlSettings(
        window_policy=policy,
        allow_no_flow_control=True,
        **changes,  # type: ignore[arg-type]
    )


@pytest.mark.parametrize(
    ("policy", "largest", "four"),
    [
        ("static", 10 * MIB, 40 * MIB),
        ("dynamic", 10_737_418, 4 * 10_737_418),
        ("aggressive", 50 * MIB, 50 * MIB + 26_843_545 + 17_895_697 + 13_421_772),
        ("ratio", 53_687_092, 53_687_092 + 26_843_546 + 17_895_697 + 13_421_773),
        ("none", 10 * MIB + READ_BUFFER_BYTES, 4 * (10 * MIB + READ_BUFFER_BYTES)),
    ],
)
def test_the_defaults(policy: str, largest: int, four: int) -> None:
    flow = flow_of(policy)
    assert largest_window_bytes(flow) == largest
    assert executor_windows_bytes(flow, 4) == four


@given(
    st.sampled_from(["static", "dynamic", "aggressive", "ratio"]),
    st.integers(2**27, 2**33),
    st.floats(0.1, 20),
    st.lists(st.integers(-6, 6), max_size=60),
)
def test_no_coming_and_going_has_more_in_its_windows(
    policy: str, quota: int, percent: float, steps: list[int]
) -> None:
    """Each connection may hold as much as its largest window, however small it is now."""
    flow = flow_of(
        policy,
        window_quota_bytes=quota,
        window_percent=percent,
        window_shared_percent=max(percent, 5.0),
        window_bytes=8192,
        batch_bytes=2048,
    )
    policies = WindowPolicies(policy_settings(flow), quota)
    most_of: dict[str, int] = {}
    for number, step in enumerate(steps):
        if step >= 0:
            policies.connect(str(number))
        elif most_of:
            gone = list(most_of)[step % len(most_of)]
            policies.disconnect(gone)
            del most_of[gone]
        for name, window_bytes in policies.sizes.items():
            most_of[name] = max(most_of.get(name, 0), floored(flow, window_bytes))
        assert sum(most_of.values()) <= executor_windows_bytes(flow, len(most_of))
        assert max(most_of.values(), default=0) <= largest_window_bytes(flow)


def test_the_formula_takes_what_all_windows_come_to() -> None:
    flow = flow_of("aggressive")
    sizes = {"tasks": 4, "connections": 2, "batch_bytes": flow.batch_bytes, "heap_bytes": 0}
    largest, windows = largest_window_bytes(flow), executor_windows_bytes(flow, 8)
    shared = memory_bound(**sizes, window_bytes=largest, windows_bytes=windows)
    apart = memory_bound(**sizes, window_bytes=largest)
    assert shared.worker_bytes == apart.worker_bytes == worker_bytes(2, largest, flow.batch_bytes)
    assert apart.workers_bytes == 4 * apart.worker_bytes
    assert apart.total_bytes - shared.total_bytes == 8 * largest - windows > 0


def test_the_table_of_the_docs_is_the_formula() -> None:
    found = re.findall(r"^\| `(\w+)` \|.*\| (\d+) MiB \|$", DOCS.read_text("utf-8"), re.MULTILINE)
    assert found == [
        (policy, str(executor_windows_bytes(flow_of(policy), 4) // MIB))
        for policy in ("static", "dynamic", "aggressive", "ratio", "none")
    ]
