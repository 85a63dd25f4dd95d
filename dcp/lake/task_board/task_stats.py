"""A sample of one receiving task: its connections, its stages, and their bottleneck.

What a connection waits for is the first of these that holds:

    reconnecting: <error>           it ended; the next attempt comes by itself
    bootstrap: <step>               it is being set up
    <stage> (buffer full)           the node may send nothing before that stage goes on
    <stage> (buffers of n streams full)
                                    the same for some vbuckets that have buffers of their own
    reading                         data came within the last second
    a stream                        none is open at this node
    the end of a snapshot           a vbucket stands inside one, and nothing comes
    new changes                     the producer has nothing for us

The bottleneck is the last stage that holds bytes, seen from the socket: what is behind it waits
for work, what is before it waits for it.
"""

import os
import re
import socket
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final

from dcp.client.stats import ConnectionStats, StageStats, WindowStats
from dcp.lake.config.flow_control_settings import WindowPlan
from dcp.records import Record, read

FORMAT: Final = 3
READING_SECONDS: Final = 1.0
_LONGEST_TEXT: Final = 300
_OF_ONE_RUN: Final = re.compile(r"[0-9a-f]{8}|r\d+")
"""The changing parts of a task's name: a lake's id and a round's number."""

WAITED_FOR: Final[Mapping[str, str]] = {
    "spark": "Spark",
    "batch": "a batch to fill",
    "handover": "Python",
    "acknowledgement": "an acknowledgement to leave",
}
"""Readable names of the stages that may be the bottleneck, from the last to the first."""


def flow_control_text(full_share: float, bottleneck: str) -> str:
    """Return ``flow control: buffer full 12 % of the time (waiting for Spark)``."""
    stage = f" (waiting for {WAITED_FOR[bottleneck]})" if bottleneck in WAITED_FOR else ""
    return f"flow control: buffer full {full_share * 100:.0f} % of the time{stage}"


@dataclass(frozen=True, slots=True)
class Connection:
    node: str
    name: str
    waits_for: str
    bottleneck: str = ""
    window: WindowStats | None = None
    """None without flow control, or before there is a window."""
    stages: tuple[StageStats, ...] = ()
    received_bytes: int = 0
    """A counter, as the next two."""
    released_bytes: int = 0
    acknowledged_bytes: int = 0
    acks: int = 0
    bytes_per_second: float = 0.0
    stream_window_bytes: int = 0
    stream_windows: int = 0
    """Streams with windows of their own."""
    full_stream_windows: int = 0


@dataclass(frozen=True, slots=True)
class TaskStats(Record):
    """A sample of one task."""

    task: str
    round: int
    host: str = field(default_factory=socket.gethostname)
    pid: int = field(default_factory=os.getpid)
    at: datetime = field(default_factory=lambda: datetime.now(UTC))
    seconds: float = 0.0
    """The time since its start."""
    vbuckets: int = 0
    open_vbuckets: int = 0
    rows: int = 0
    bytes: int = 0
    rows_per_second: float = 0.0
    """Of the last moments, as are the other rates."""
    bytes_per_second: float = 0.0
    connections: tuple[Connection, ...] = ()
    stages: tuple[StageStats, ...] = ()
    bottleneck_seconds: Mapping[str, float] = field(default_factory=dict)
    """By stage: how long, in all, full windows waited for it."""
    windows: WindowPlan = field(kw_only=True)
    """The driver planned these for the executor."""
    resident_bytes: int = 0
    """The process's memory."""
    bound_bytes: int = 0
    """The most memory by the formula of docs/reference/memory.md."""
    undecodable_values: int = 0
    """Values that were kept as sent."""
    format: int = FORMAT

    @property
    def label(self) -> str:
        """A short name that stays the same from round to round: ``t0``, ``verify-t0``."""
        parts = self.task.removeprefix("dcplake-").split(".")[0].split("-")
        return "-".join(part for part in parts if not _OF_ONE_RUN.fullmatch(part)) or self.task

    @property
    def top_bottleneck(self) -> str:
        """The stage that full windows waited for most; empty if none waited."""
        seconds = self.bottleneck_seconds
        return max(seconds, key=lambda stage: seconds[stage], default="")

    @property
    def window_full_share(self) -> float:
        """The part of the time in which a window was full, averaged over all windows."""
        windows = [each.window for each in self.connections if each.window is not None]
        if not windows or self.seconds <= 0:
            return 0.0
        full = sum(each.full_seconds for each in windows)
        return min(1.0, full / (self.seconds * len(windows)))

    @classmethod
    def from_json(cls, found: object) -> "TaskStats":
        """Read a result of ``to_json``.

        Raises:
            ValueError: it is something else.
        """
        if not isinstance(found, dict) or found.get("format") != FORMAT:
            raise ValueError("expected a sample of a task, of this format")
        try:
            return read(cls, found)
        except (AttributeError, TypeError, ValueError) as error:
            raise ValueError(f"expected a sample of a task: {error!r}") from None


@dataclass(frozen=True, slots=True)
class NodeStreams:
    """A task's open streams at one node."""

    streaming: int = 0
    in_snapshot: int = 0
    """The streams that stand inside a snapshot."""


def connection_of(
    stats: ConnectionStats, behind: Iterable[StageStats], streams: NodeStreams, batch_bytes: int = 0
) -> Connection:
    """All connections of the task share ``behind``. ``batch_bytes`` 0: no known limit."""
    own = (
        StageStats("frame", stats.longest_bytes, stats.unfinished_bytes),
        StageStats(
            "handover", stats.unreleased_limit_bytes, stats.received_bytes - stats.taken_bytes
        ),
        StageStats("batch", batch_bytes, stats.taken_bytes - stats.given_bytes),
        StageStats("spark", batch_bytes, stats.given_bytes - stats.released_bytes),
    )
    stages = (*own, *behind)
    bottleneck = ""
    if stats.full_stream_windows or (stats.window is not None and stats.window.is_full):
        bottleneck = bottleneck_of(stages)
    return Connection(
        node=str(stats.node),
        name=stats.name,
        waits_for=_waits_for(stats, bottleneck, streams)[:_LONGEST_TEXT],
        bottleneck=bottleneck,
        window=stats.window,
        stages=own if stats.name else (),
        received_bytes=stats.received_bytes,
        released_bytes=stats.released_bytes,
        acknowledged_bytes=stats.acknowledged_bytes,
        acks=stats.acks,
        stream_window_bytes=stats.stream_window_bytes,
        stream_windows=streams.streaming if stats.stream_window_bytes else 0,
        full_stream_windows=stats.full_stream_windows,
    )


def bottleneck_of(stages: Iterable[StageStats]) -> str:
    """Return the last stage that holds anything: the others wait for it."""
    used = {stage.name for stage in stages if stage.in_use}
    if "batches" in used:  # perhaps one of another connection, or without bytes
        return "spark"
    return next((stage for stage in WAITED_FOR if stage in used), "acknowledgement")


def _waits_for(stats: ConnectionStats, bottleneck: str, streams: NodeStreams) -> str:
    if not stats.name:
        return f"reconnecting: {stats.error or 'not tried yet'}"
    if not stats.is_ready:
        after = f" (before: {stats.error})" if stats.error else ""
        return f"bootstrap: {stats.waits_for}{after}"
    if bottleneck and (stats.window is None or not stats.window.is_full):
        return f"{WAITED_FOR[bottleneck]} (buffers of {stats.full_stream_windows} streams full)"
    if bottleneck:
        return f"{WAITED_FOR[bottleneck]} (buffer full)"
    if stats.quiet_seconds is not None and stats.quiet_seconds < READING_SECONDS:
        return "reading"
    if not streams.streaming:
        return "a stream"
    return "the end of a snapshot" if streams.in_snapshot else "new changes"
