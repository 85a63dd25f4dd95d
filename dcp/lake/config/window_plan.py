"""The flow-control windows of a round's connections: sizes that the driver plans, by a policy.

The tasks of an executor share its memory. The driver knows how many run at once and to how many
nodes each connects, so it computes one window for all of these connections, as the policy sizes
them when so many are there (``dcp/protocol/window_policies.py``). Nothing is resized in a round.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from dcp.lake.config.memory import READ_BUFFER_BYTES
from dcp.protocol.window_policies import Policy, PolicySettings, window_of_each

if TYPE_CHECKING:
    from dcp.lake.config.flow_control_settings import FlowControlSettings

LEAST_WINDOW_BYTES: Final = 4096
"""Below it a window is nothing but waiting; ``ratio`` has no lower bound of its own."""


@dataclass(frozen=True, slots=True)
class WindowPlan:
    """One window for each of ``connections``; 0 bytes: no flow control.

    ``held_bytes`` is what a connection holds at most, but for one message: its window; without flow
    control what it has when we stop reading it, and the read that comes to it.
    """

    policy: str
    quota_bytes: int
    connections: int
    window_bytes: int
    held_bytes: int

    @classmethod
    def of(cls, flow: "FlowControlSettings", connections: int) -> "WindowPlan":
        """Return the windows of so many connections of an executor."""
        connections = max(1, connections)
        window_bytes = planned_window_bytes(flow, connections)
        held_bytes = window_bytes or flow.window_bytes + READ_BUFFER_BYTES
        quota_bytes = flow.window_quota_bytes
        return cls(flow.window_policy, quota_bytes, connections, window_bytes, held_bytes)

    @property
    def windows_bytes(self) -> int:
        """All windows together."""
        return self.connections * self.window_bytes

    def __str__(self) -> str:
        if not self.window_bytes:
            return "no flow control"
        return (
            f"windows of {self.window_bytes:,} bytes for at most {self.connections} connections "
            f"({self.policy})"
        )


def planned_window_bytes(flow: "FlowControlSettings", connections: int) -> int:
    """Return the window of each of so many connections that are there at once.

    Where the policy gives more to those that come first (``dynamic``), it is what the last gets.
    """
    window_bytes = window_of_each(policy_settings(flow), flow.window_quota_bytes, connections)
    if flow.window_policy == Policy.RATIO:
        return max(window_bytes, LEAST_WINDOW_BYTES)
    return window_bytes


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
