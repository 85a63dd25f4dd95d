"""How the connections and stages of a consumer stand at one moment, for whoever watches.

Looking changes nothing and waits for nothing: any thread may look, beside those that work. The
numbers of one look may be some microseconds apart.
"""

from dataclasses import dataclass

from dcp.client.addresses import NodeAddress
from dcp.protocol.credits import Credits


@dataclass(frozen=True, slots=True)
class StageLook:
    """The credits of one stage: how many it may use, and does; how long it was full, in all.

    Sizes are of its ``kind``.
    """

    name: str
    size: int
    in_use: int
    peak: int
    full_seconds: float
    is_full: bool
    second_releases: int = 0

    @property
    def kind(self) -> str:
        """What is counted: bytes, or batches or buffers, where the name says so."""
        return self.name if self.name in ("batches", "buffers") else "bytes"

    @classmethod
    def of(cls, account: Credits, now: float) -> "StageLook":
        """Look at an account."""
        return cls(
            account.name,
            account.high,
            account.in_use,
            account.peak,
            account.closed_seconds(now),
            not account.is_open,
            account.second_releases,
        )


@dataclass(frozen=True, slots=True)
class ConnectionLook:
    """One connection, or the wait for the next one (then ``error`` says why, and it has no name).

    ``window`` is what the node may send without our acknowledgement, ``unacked_bytes`` what it
    counts as sent so, ``released_bytes`` what of that waits for the next acknowledgement;
    ``held_bytes`` is what the application holds, ``window_overflow_bytes`` the most by which one
    message went beyond the window that the node had then. ``quiet_seconds`` is the time since the
    node last sent data, even part of a message; None: it never did.
    """

    node: NodeAddress
    name: str = ""
    is_ready: bool = False
    waits_for: str = ""
    error: str = ""
    window: StageLook | None = None
    stages: tuple[StageLook, ...] = ()
    received_bytes: int = 0
    held_bytes: int = 0
    unacked_bytes: int = 0
    released_bytes: int = 0
    acked_bytes: int = 0
    acks: int = 0
    window_overflow_bytes: int = 0
    unaccounted_bytes: int = 0
    stream_window_bytes: int = 0
    full_stream_windows: int = 0
    quiet_seconds: float | None = None
