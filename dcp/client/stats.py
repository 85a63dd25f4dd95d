"""Statistics of a consumer's connections and stages at one moment, for monitoring.

Any thread may take them: that changes nothing and never waits. The numbers of one sample may be
some microseconds apart.
"""

from dataclasses import dataclass

from dcp.client.addresses import NodeAddress
from dcp.protocol.window import Window


@dataclass(frozen=True, slots=True)
class StageStats:
    """Fill level of one stage: its capacity (0: no limit) and content, in units of ``kind``."""

    name: str
    size: int
    in_use: int

    @property
    def kind(self) -> str:
        """The unit: bytes, or batches or buffers if the name says so."""
        return self.name if self.name in ("batches", "buffers") else "bytes"


@dataclass(frozen=True, slots=True)
class WindowStats:
    """Fill level of a flow-control window, and the total time for which it was full.

    ``overshoot_bytes`` is the most by which one message exceeded it.
    """

    size: int
    in_use: int
    full_seconds: float
    overshoot_bytes: int

    @property
    def is_full(self) -> bool:
        """True if the producer must wait for an acknowledgement."""
        return self.in_use >= self.size

    @classmethod
    def of(cls, window: Window, now: float) -> "WindowStats":
        """Read the counters of a window that is switched on."""
        return cls(
            window.size_bytes,
            window.unacked_bytes,
            window.full_seconds(now),
            window.overshoot_bytes,
        )


@dataclass(frozen=True, slots=True)
class ConnectionStats:
    """One connection, or the wait for the next one (then ``error`` gives the reason, and it has no
    name).

    ``window`` bounds what the node may send without our acknowledgement; None: no flow control. The
    counters are the window's (``dcp/protocol/window.py``). ``unfinished_bytes`` belong to a message
    that is being received, which may have ``longest_bytes``. With more unreleased bytes than
    ``unreleased_limit_bytes`` the socket is not read. ``quiet_seconds`` is the time since the node
    last sent data, even part of a message; None: it never did.
    """

    node: NodeAddress
    name: str = ""
    is_ready: bool = False
    waits_for: str = ""
    error: str = ""
    window: WindowStats | None = None
    unfinished_bytes: int = 0
    longest_bytes: int = 0
    unreleased_limit_bytes: int = 0
    received_bytes: int = 0
    taken_bytes: int = 0
    given_bytes: int = 0
    released_bytes: int = 0
    acknowledged_bytes: int = 0
    acks: int = 0
    stream_window_bytes: int = 0
    full_stream_windows: int = 0
    quiet_seconds: float | None = None
