"""The section ``flow_control``: windows, their policy, acknowledgements, and batches.

The section checks batch, unacknowledged bytes and the smallest window of the policy against each
other. So no node ever waits for a batch that waits for the node.
"""

from dataclasses import dataclass
from typing import Final

from dcp.client.settings import READ_BUFFER_BYTES, no_flow_control
from dcp.errors import ConfigError
from dcp.lake.config.memory import ARROW_BATCH_BYTES, MEBIBYTE
from dcp.protocol.window_policies import (
    FlowSettings,
    WindowPolicy,
    WindowPolicySettings,
    window_of_each,
)
from dcp.setting_keys import Section, key, key_of

LEAST_WINDOW_BYTES: Final = 4096
"""A smaller window would only wait; ``ratio`` has no lower bound of its own."""
_LEAST_PERCENT: Final = 0.01


@dataclass(frozen=True, slots=True)
class FlowControlSettings(FlowSettings):
    """Limits of the data between a node and the tables: they bound Python's memory."""

    window_policy: WindowPolicy = key(
        WindowPolicy.STATIC,
        "Who sizes the windows of an executor's connections (docs/explain/flow-control.md). static:"
        " each has `window_bytes`. dynamic: each has `window_percent` of the quota. aggressive: all"
        " that a round plans share `window_shared_percent` of it; both within `window_bytes` and"
        " `window_most_bytes`. ratio: as aggressive, without these limits. none: no flow control, "
        "see `allow_no_flow_control`.",
    )
    window_bytes: int = key_of(
        FlowSettings,
        "window_bytes",
        text="What a node may send on one connection before we acknowledge (the DCP buffer size). "
        "dynamic, aggressive: the least of it; ratio: that of connections outside executors; none: "
        "what a connection holds when we stop reading it.",
        least=LEAST_WINDOW_BYTES,
    )
    window_most_bytes: int = key_of(WindowPolicySettings, "most_bytes", least=LEAST_WINDOW_BYTES)
    window_quota_bytes: int = key(
        1024 * MEBIBYTE,
        "dynamic, aggressive, ratio: the memory of one executor that the percentages are of.",
        unit="bytes",
        least=MEBIBYTE,
        most=2**50,
    )
    window_percent: float = key_of(WindowPolicySettings, "percent", least=_LEAST_PERCENT)
    window_threshold_percent: float = key_of(
        WindowPolicySettings, "threshold_percent", least=_LEAST_PERCENT
    )
    window_shared_percent: float = key_of(
        WindowPolicySettings,
        "aggressive_percent",
        text="aggressive, ratio: the part of the quota that all connections share.",
        least=_LEAST_PERCENT,
    )
    batch_rows: int = key(
        10_000, "Most rows in one Arrow batch handed to Spark.", unit="rows", least=1, most=10**6
    )
    batch_bytes: int = key(
        ARROW_BATCH_BYTES,
        "Most bytes in one Arrow batch, unless a single document is larger. The bytes occupy the "
        "window until Spark has taken all rows that the task had gathered.",
        unit="bytes",
        least=1024,
        most=2**30,
    )
    batch_seconds: float = key(
        2.0, "How long rows may wait for their batch to fill.", unit="seconds", least=0.01, most=60
    )

    stats_folder: str = key(
        "",
        "Folder of the tasks' samples for `dcplake top` and `dcplake status`. On a cluster, "
        "executors and operators must share it. Empty: each machine's folder for temporary files, "
        "readable by its user only.",
        is_path=True,
    )

    def __post_init__(self) -> None:
        """Check that a batch and the unacknowledged bytes fit the window together.

        A window may be smaller than the checked one, or a stream's. Then a batch is handed over
        earlier (``flush_bytes``).
        """
        Section.__post_init__(self)
        self._check_policy()
        window_bytes, what = self.window_bytes, "window_bytes"
        if self.window_policy is WindowPolicy.RATIO:
            window_bytes = self.planned_window_bytes(1)
            what = "the window of one connection, window_shared_percent of window_quota_bytes"
        most = int(window_bytes * (1 - self.ack_fraction))
        if self.batch_bytes > most:
            raise ConfigError(
                f"batch_bytes: found {self.batch_bytes}, expected at most {most}; a batch "
                f"and ack_fraction ({self.ack_fraction}) must fit {what} "
                f"({window_bytes}) together, or the node stops before a batch is full"
            )
        least = LEAST_WINDOW_BYTES
        if self.stream_window_bytes and not least <= self.stream_window_bytes <= window_bytes:
            raise ConfigError(
                f"stream_window_bytes: found {self.stream_window_bytes}, expected 0, or from "
                f"{least} to {what} ({window_bytes})"
            )

    def _check_policy(self) -> None:
        if self.window_policy is WindowPolicy.NONE and not self.allow_no_flow_control:
            raise no_flow_control("window_policy: found 'none'")
        limited = self.window_policy in (WindowPolicy.DYNAMIC, WindowPolicy.AGGRESSIVE)
        if limited and self.window_most_bytes < self.window_bytes:
            raise ConfigError(
                f"window_most_bytes: found {self.window_most_bytes}, expected at least "
                f"window_bytes ({self.window_bytes}) with window_policy '{self.window_policy}'"
            )

    @property
    def fixed_window_bytes(self) -> int:
        """The window of connections that no policy sizes; 0: no flow control."""
        return 0 if self.window_policy is WindowPolicy.NONE else self.window_bytes

    def planned_window_bytes(self, connections: int) -> int:
        """Return the window of each of this many simultaneous connections.

        The policy ``dynamic`` gives more to the first ones; this is the last one's window.
        """
        window_bytes = window_of_each(self.policy_settings, self.window_quota_bytes, connections)
        if self.window_policy is WindowPolicy.RATIO:
            return max(window_bytes, LEAST_WINDOW_BYTES)
        return window_bytes

    @property
    def policy_settings(self) -> WindowPolicySettings:
        """The policy and its numbers in kv_engine's words."""
        return WindowPolicySettings(
            policy=self.window_policy,
            size_bytes=self.window_bytes,
            most_bytes=self.window_most_bytes,
            percent=self.window_percent,
            threshold_percent=self.window_threshold_percent,
            aggressive_percent=self.window_shared_percent,
            ratio=self.window_shared_percent / 100,
        )

    def flush_bytes(self, window_bytes: int) -> int:
        """Return the collected bytes of one window at which a batch must be flushed.

        ``window_bytes`` is its present size, 0 if it is off. Batch and unacknowledged bytes then
        leave room in it, so no node waits for a batch that waits for the node.
        """
        window_bytes = window_bytes or self.window_bytes
        released_bytes = int(window_bytes * self.ack_fraction)
        return max(1, min(self.batch_bytes, window_bytes // 2, window_bytes - released_bytes))


@dataclass(frozen=True, slots=True)
class WindowPlan:
    """The windows of a round's connections, which share the memory of one executor.

    The driver knows how many tasks run at once, and the number of nodes for each. Nothing is
    resized within a round.
    """

    policy: str
    quota_bytes: int
    connections: int
    window_bytes: int
    """0: no flow control."""
    unreleased_limit_bytes: int
    """The most that a connection holds, but for one message: its window. Without flow control: the
    bytes it has when we stop reading, and the next read.
    """

    @classmethod
    def of(cls, flow: FlowControlSettings, connections: int) -> "WindowPlan":
        """Return the windows of this many simultaneous connections, by the policy."""
        connections = max(1, connections)
        window_bytes = flow.planned_window_bytes(connections)
        unreleased_limit_bytes = window_bytes or flow.window_bytes + READ_BUFFER_BYTES
        quota_bytes = flow.window_quota_bytes
        return cls(
            flow.window_policy, quota_bytes, connections, window_bytes, unreleased_limit_bytes
        )

    @property
    def windows_bytes(self) -> int:
        """The windows of all connections."""
        return self.connections * self.window_bytes

    def __str__(self) -> str:
        if not self.window_bytes:
            return "no flow control"
        return (
            f"windows of {self.window_bytes:,} bytes for at most {self.connections} connections "
            f"({self.policy})"
        )
