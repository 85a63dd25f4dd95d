"""The state of one vbucket of a consumer: its phase, its position, and the time of its trouble.

    WAITING       no stream; the next request is due at ``retry_at``
    REQUESTED     a stream request is under way
    STREAMING     the stream is open
    ROLLING_BACK  a rollback was ordered; the server's failover log is being fetched
    CLOSING       we asked to close the stream; only the vbucket's end will be delivered
    STOPPED       reported; nothing more will be delivered

Trouble lasts until there is progress: rows, or a stream that stays open for a while. So a stream
that opens and ends at once, again and again, runs into the deadline, too. The clock of trouble
stops while the application does not ask for deliveries.
"""

from dataclasses import dataclass
from enum import Enum, auto
from math import inf
from typing import Final

from dcp.client.addresses import NodeAddress
from dcp.client.consumer_events import StopReason
from dcp.protocol.events import RollbackOrdered
from dcp.protocol.position import Position
from dcp.types import END_OF_TIME, FailoverLog


@dataclass(frozen=True, slots=True)
class StreamStart:
    """A vbucket to stream: the node (None: by the cluster map), and the start position.

    ``failover_log`` is the log that was accepted with the data up to ``position``, if known;
    ``purge_seqno`` the newest one in a marker of that data.
    """

    vbucket: int
    address: NodeAddress | None
    position: Position
    failover_log: FailoverLog | None = None
    end_seqno: int = END_OF_TIME
    purge_seqno: int | None = None


class Phase(Enum):
    """See the module."""

    WAITING = auto()
    REQUESTED = auto()
    STREAMING = auto()
    ROLLING_BACK = auto()
    CLOSING = auto()
    STOPPED = auto()


_ANSWERS: Final = {
    Phase.REQUESTED: "the answer to the stream request",
    Phase.ROLLING_BACK: "the failover log after a rollback",
    Phase.CLOSING: "the answer to closing the stream",
}
_ON_TRIAL: Final = frozenset({Phase.WAITING, Phase.REQUESTED, Phase.ROLLING_BACK, Phase.CLOSING})


@dataclass(slots=True)
class VbucketTrack:
    """The state of one vbucket. The stream keeper changes its fields."""

    vbucket: int
    address: NodeAddress | None
    position: Position
    failover_log: FailoverLog | None
    end_seqno: int
    trouble_since: float
    phase: Phase = Phase.WAITING
    retry_at: float = 0.0
    failures: int = 0
    reason: StopReason = StopReason.NODE_UNAVAILABLE
    detail: str = "not tried yet"
    opened_at: float = inf
    progressed: bool = False
    rollback: RollbackOrdered | None = None
    purge_seqno: int | None = None

    @classmethod
    def begin(cls, start: StreamStart, now: float) -> "VbucketTrack":
        """Return the state before the first attempt."""
        return cls(
            start.vbucket,
            start.address,
            start.position,
            start.failover_log,
            start.end_seqno,
            trouble_since=now,
            purge_seqno=start.purge_seqno,
        )

    @property
    def start(self) -> StreamStart:
        """The next stream to request."""
        return StreamStart(
            self.vbucket,
            self.address,
            self.position,
            self.failover_log,
            self.end_seqno,
            self.purge_seqno,
        )

    def opened(self, failover_log: FailoverLog, now: float) -> None:
        self.phase = Phase.STREAMING
        self.failover_log = failover_log
        self.opened_at = now

    def advance(self, position: Position) -> None:
        """Note the position after the delivered events."""
        self.progressed = self.progressed or position != self.position
        self.position = position

    def trouble(
        self, now: float, reason: StopReason, detail: str, *, stable_seconds: float
    ) -> None:
        """Note a failure, and wait. An open stream of ``stable_seconds`` ends the trouble before
        it.
        """
        is_stable = self.phase is Phase.STREAMING and (
            self.progressed or now - self.opened_at >= stable_seconds
        )
        if is_stable:
            self.trouble_since, self.failures = now, 0
        self.phase = Phase.WAITING
        self.failures += 1
        self.reason, self.detail = reason, detail
        self.progressed = False
        self.rollback = None

    def deadline(self, node_deadline_seconds: float) -> float:
        """Return when to give up; never while the stream is open or after the report."""
        return self.trouble_since + node_deadline_seconds if self.phase in _ON_TRIAL else inf

    def stop_details(self, now: float, *, connects: bool) -> tuple[StopReason, str]:
        """Return the reason for giving up, and a text with the duration and the last state.

        ``connects``: the connection to its node is being set up.
        """
        reason, detail = self.reason, self.detail
        awaited = _ANSWERS.get(self.phase, "the connection to be set up" if connects else None)
        if awaited is not None and self.failures == 0:
            reason, detail = StopReason.NODE_UNAVAILABLE, f"waiting for {awaited}"
        elif awaited is not None:  # what went wrong before tells more than what is tried now
            detail += f"; now waiting for {awaited}"
        where = f"{self.address}: " if self.address else ""
        seconds = now - self.trouble_since
        return reason, (
            f"{where}no progress for {seconds:.1f} s, {self.failures} failures; last: {detail}"
        )
