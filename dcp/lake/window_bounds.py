"""What a window policy can come to: of one connection, of all connections of an executor.

A window that shrinks may be full at that moment, so what all hold together is bounded by the
largest window that each had in its life. With policies that share, the j-th of the connections that
are there was never alone with fewer than the j - 1 before it: it never had more than a j-th. So the
sum over connections that come one by one is the bound, whoever came and went before.
"""

from typing import TYPE_CHECKING, Final

from dcp.lake.memory import READ_BUFFER_BYTES
from dcp.protocol.window_policies import Policy, PolicySettings, WindowPolicies

if TYPE_CHECKING:
    from dcp.lake.flow_control_settings import FlowControlSettings

LEAST_WINDOW_BYTES: Final = 4096
"""Below it a window is nothing but waiting; ``ratio`` has no lower bound of its own."""


def policy_settings(flow: "FlowControlSettings") -> PolicySettings:
    """Return the settings of a run in kv_engine's words."""
    return PolicySettings(
        policy=Policy(flow.window_policy),
        size_bytes=flow.window_bytes,
        most_bytes=flow.window_most_bytes,
        percent=flow.window_percent,
        threshold_percent=flow.window_threshold_percent,
        aggressive_percent=flow.window_shared_percent,
        ratio=flow.window_shared_percent / 100,
    )


def floored(flow: "FlowControlSettings", window_bytes: int) -> int:
    """Return a window that the policy granted, as it is used: not below the least."""
    return (
        max(window_bytes, LEAST_WINDOW_BYTES)
        if flow.window_policy == Policy.RATIO
        else window_bytes
    )


def part_of_quota(flow: "FlowControlSettings") -> int:
    """Return what all windows should come to where none is at its lower limit."""
    percent = flow.window_shared_percent
    if flow.window_policy == Policy.DYNAMIC:
        percent = flow.window_threshold_percent
    return int(percent / 100 * flow.window_quota_bytes)


def windows_one_by_one(flow: "FlowControlSettings", connections: int) -> list[int]:
    """Return the first window of each of so many connections that come and stay."""
    policies = WindowPolicies(policy_settings(flow), flow.window_quota_bytes)
    names = [str(number) for number in range(connections)]
    return [floored(flow, policies.connect(name)[name]) for name in names]


def largest_window_bytes(flow: "FlowControlSettings") -> int:
    """Return the largest window that the policy gives a connection, for the memory's formula."""
    return executor_windows_bytes(flow, 1)


def executor_windows_bytes(flow: "FlowControlSettings", connections: int) -> int:
    """Return what so many connections of an executor may have in their windows at once.

    Without flow control: what each holds when we stop reading, and the read that comes to it.
    """
    if flow.window_policy == Policy.NONE:
        return connections * (flow.window_bytes + READ_BUFFER_BYTES)
    return sum(windows_one_by_one(flow, connections))
