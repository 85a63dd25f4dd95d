"""The flow-control windows of a round's connections: sizes that the driver plans, by a policy.

The tasks of an executor share its memory. The driver knows how many run at once and to how many
nodes each connects, so it computes one window for all of these connections, as the policy sizes
them when so many are there (``dcp/protocol/window_policies.py``). Nothing is resized in a round.
"""

from dataclasses import dataclass

from dcp.lake.config.flow_control_settings import FlowControlSettings
from dcp.lake.config.memory import READ_BUFFER_BYTES


@dataclass(frozen=True, slots=True)
class WindowPlan:
    policy: str
    quota_bytes: int
    connections: int
    window_bytes: int
    """0: no flow control."""
    held_bytes: int
    """The most that a connection holds, but for one message: its window. Without flow control: the
    bytes it has when we stop reading, and the next read.
    """

    @classmethod
    def of(cls, flow: FlowControlSettings, connections: int) -> "WindowPlan":
        connections = max(1, connections)
        window_bytes = flow.planned_window_bytes(connections)
        held_bytes = window_bytes or flow.window_bytes + READ_BUFFER_BYTES
        quota_bytes = flow.window_quota_bytes
        return cls(flow.window_policy, quota_bytes, connections, window_bytes, held_bytes)

    @property
    def windows_bytes(self) -> int:
        return self.connections * self.window_bytes

    def __str__(self) -> str:
        if not self.window_bytes:
            return "no flow control"
        return (
            f"windows of {self.window_bytes:,} bytes for at most {self.connections} connections "
            f"({self.policy})"
        )
