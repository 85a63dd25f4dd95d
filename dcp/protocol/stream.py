"""The life of one stream: a table of transitions, and a frozen state that follows it.

    REQUESTED --ACCEPT--> OPEN --MARKER--> IN_SNAPSHOT --END--> ENDED
        |                  |  ^
        +-REFUSE-> ENDED   +--+ OSO_BEGIN .. OSO_FINISH (out-of-order snapshot)

Our CLOSE leads to CLOSING. Its answer leads to DRAINING if the producer has promised a STREAM_END,
otherwise to ENDED. Source: kv_engine ``docs/dcp/documentation/protocol-flow.md``.
"""

from dataclasses import dataclass, replace
from enum import Enum
from typing import Final

from dcp.errors import LocalProtocolError, RemoteProtocolError
from dcp.protocol.position import Position
from dcp.protocol.snapshot import SnapshotAssembly
from dcp.types import END_OF_TIME, FailoverLog, SnapshotRange


class StreamPhase(Enum):
    REQUESTED = "requested"
    OPEN = "open"
    IN_SNAPSHOT = "in a snapshot"
    IN_OSO = "in an out-of-order snapshot"
    CLOSING = "closing"
    DRAINING = "draining"
    ENDED = "ended"


class StreamInput(Enum):
    """The inputs of a stream's state machine. All but CLOSE come from the producer."""

    ACCEPT = "acceptance"
    REFUSE = "refusal"
    MARKER = "snapshot marker"
    ITEM = "item"
    ADVANCED = "SEQNO_ADVANCED"
    OSO_BEGIN = "start of an out-of-order snapshot"
    OSO_FINISH = "end of an out-of-order snapshot"
    END = "STREAM_END"
    CLOSE = "close"
    CLOSED_END_FOLLOWS = "answer to close, STREAM_END follows"
    CLOSED = "answer to close"


_P, _I = StreamPhase, StreamInput

# A missing pair is a protocol error: ours for CLOSE, the peer's for all other inputs.
TRANSITIONS: Final[dict[tuple[StreamPhase, StreamInput], StreamPhase]] = {
    (_P.REQUESTED, _I.ACCEPT): _P.OPEN,
    (_P.REQUESTED, _I.REFUSE): _P.ENDED,
    (_P.REQUESTED, _I.CLOSE): _P.CLOSING,
    (_P.OPEN, _I.MARKER): _P.IN_SNAPSHOT,
    (_P.OPEN, _I.ADVANCED): _P.OPEN,
    (_P.OPEN, _I.OSO_BEGIN): _P.IN_OSO,
    (_P.OPEN, _I.END): _P.ENDED,
    (_P.OPEN, _I.CLOSE): _P.CLOSING,
    (_P.IN_SNAPSHOT, _I.MARKER): _P.IN_SNAPSHOT,
    (_P.IN_SNAPSHOT, _I.ITEM): _P.IN_SNAPSHOT,
    (_P.IN_SNAPSHOT, _I.ADVANCED): _P.IN_SNAPSHOT,
    (_P.IN_SNAPSHOT, _I.END): _P.ENDED,
    (_P.IN_SNAPSHOT, _I.CLOSE): _P.CLOSING,
    (_P.IN_OSO, _I.ITEM): _P.IN_OSO,
    (_P.IN_OSO, _I.ADVANCED): _P.IN_OSO,
    (_P.IN_OSO, _I.OSO_FINISH): _P.OPEN,
    (_P.IN_OSO, _I.END): _P.ENDED,
    (_P.IN_OSO, _I.CLOSE): _P.CLOSING,
    # The producer sent these messages before it read our CLOSE: they are charged and dropped.
    (_P.CLOSING, _I.ACCEPT): _P.CLOSING,
    (_P.CLOSING, _I.REFUSE): _P.CLOSING,
    (_P.CLOSING, _I.MARKER): _P.CLOSING,
    (_P.CLOSING, _I.ITEM): _P.CLOSING,
    (_P.CLOSING, _I.ADVANCED): _P.CLOSING,
    (_P.CLOSING, _I.OSO_BEGIN): _P.CLOSING,
    (_P.CLOSING, _I.OSO_FINISH): _P.CLOSING,
    (_P.CLOSING, _I.END): _P.CLOSING,
    (_P.CLOSING, _I.CLOSED_END_FOLLOWS): _P.DRAINING,
    (_P.CLOSING, _I.CLOSED): _P.ENDED,
    (_P.DRAINING, _I.MARKER): _P.DRAINING,
    (_P.DRAINING, _I.ITEM): _P.DRAINING,
    (_P.DRAINING, _I.ADVANCED): _P.DRAINING,
    (_P.DRAINING, _I.OSO_BEGIN): _P.DRAINING,
    (_P.DRAINING, _I.OSO_FINISH): _P.DRAINING,
    (_P.DRAINING, _I.END): _P.ENDED,
}

STREAMING_PHASES: Final = frozenset({_P.OPEN, _P.IN_SNAPSHOT, _P.IN_OSO})
"""In these phases the producer's messages are for the application."""


@dataclass(frozen=True, slots=True)
class Stream:
    """One stream. Methods return its next state and leave this one unchanged.

    They raise RemoteProtocolError for an input that the phase does not allow.
    """

    vbucket: int
    requested: Position
    assembly: SnapshotAssembly
    phase: StreamPhase = StreamPhase.REQUESTED
    stream_id: int | None = None
    flags: int = 0
    end_seqno: int = END_OF_TIME
    failover_log: FailoverLog | None = None
    oso_highest: int = 0
    """The highest seqno of the out-of-order snapshot under way."""

    @classmethod
    def request(
        cls,
        vbucket: int,
        position: Position,
        *,
        flags: int = 0,
        end_seqno: int = END_OF_TIME,
        stream_id: int | None = None,
    ) -> "Stream":
        return cls(
            vbucket,
            position,
            SnapshotAssembly(position),
            flags=flags,
            end_seqno=end_seqno,
            stream_id=stream_id,
        )

    @property
    def position(self) -> Position:
        return self.assembly.position

    @property
    def is_streaming(self) -> bool:
        """True if the stream's messages are for the application."""
        return self.phase in STREAMING_PHASES

    @property
    def is_closing(self) -> bool:
        return self.phase in (_P.CLOSING, _P.DRAINING)

    @property
    def expects_order(self) -> bool:
        return self.phase is not _P.IN_OSO

    def accept(self, failover_log: FailoverLog) -> "Stream":
        return replace(self._step(_I.ACCEPT), failover_log=failover_log)

    def refuse(self) -> "Stream":
        return self._step(_I.REFUSE)

    def begin_snapshot(self, marker: SnapshotRange, flags: int) -> "Stream":
        moved = self._step(_I.MARKER)
        if not self.is_streaming:
            return moved
        return replace(moved, assembly=self.assembly.begin(marker, flags))

    def items(self, first_seqno: int, last_seqno: int) -> "Stream":
        """Take a run of ascending items; in an out-of-order snapshot its lowest and highest
        seqno.
        """
        moved = self._step(_I.ITEM)
        if not self.is_streaming:
            return moved
        if self.phase is StreamPhase.IN_OSO:
            return self._take_oso(moved, first_seqno, last_seqno)
        return moved._standing_at(self.assembly.item(first_seqno, last_seqno, self._failover_log))

    def advance(self, seqno: int) -> "Stream":
        moved = self._step(_I.ADVANCED)
        if not self.is_streaming:
            return moved
        if self.phase is StreamPhase.IN_OSO:
            return self._take_oso(moved, seqno, seqno)
        return replace(moved, assembly=self.assembly.advanced(seqno, self._failover_log))

    def begin_oso(self) -> "Stream":
        """Begin an out-of-order snapshot; the position stays until its end."""
        return replace(self._step(_I.OSO_BEGIN), oso_highest=self.position.seqno)

    def finish_oso(self) -> "Stream":
        """End an out-of-order snapshot: all items up to its highest seqno have arrived."""
        moved = self._step(_I.OSO_FINISH)
        if not self.is_streaming or self.oso_highest == self.position.seqno:
            return moved
        seqno = self.oso_highest
        position = Position.complete_at(self._failover_log.uuid_at(seqno), seqno)
        return replace(moved, assembly=SnapshotAssembly(position))

    def end(self) -> "Stream":
        return self._step(_I.END)

    def close(self) -> "Stream":
        """Call before sending CLOSE_STREAM.

        Raises LocalProtocolError if the stream is closing already.
        """
        return self._step(_I.CLOSE)

    def closed(self, *, end_follows: bool) -> "Stream":
        """Take the answer to CLOSE_STREAM; ``end_follows`` if a STREAM_END is still to come."""
        return self._step(_I.CLOSED_END_FOLLOWS if end_follows else _I.CLOSED)

    def _step(self, cause: StreamInput) -> "Stream":
        target = TRANSITIONS.get((self.phase, cause))
        if target is None:
            fault = LocalProtocolError if cause is _I.CLOSE else RemoteProtocolError
            hint = "item before marker: " if self._lacks_marker(cause) else ""
            raise fault(
                f"{hint}found {cause.value} on a stream that is {self.phase.value}, "
                f"expected {_expected(self.phase)}"
            )
        return self if target is self.phase else replace(self, phase=target)

    def _standing_at(self, assembly: SnapshotAssembly) -> "Stream":
        # Each run of rows comes here, and ``replace`` is slow.
        return Stream(
            self.vbucket,
            self.requested,
            assembly,
            self.phase,
            self.stream_id,
            self.flags,
            self.end_seqno,
            self.failover_log,
            self.oso_highest,
        )

    def _lacks_marker(self, cause: StreamInput) -> bool:
        return cause is _I.ITEM and self.phase is StreamPhase.OPEN

    def _take_oso(self, moved: "Stream", lowest: int, highest: int) -> "Stream":
        if lowest <= self.position.seqno:
            raise RemoteProtocolError(
                f"out-of-order snapshot: found seqno {lowest}, expected more than "
                f"{self.position.seqno}, where the stream stood"
            )
        return replace(moved, oso_highest=max(self.oso_highest, highest))

    @property
    def _failover_log(self) -> FailoverLog:
        if self.failover_log is None:
            raise LocalProtocolError("stream: found no failover log, expected an accepted stream")
        return self.failover_log


def _expected(phase: StreamPhase) -> str:
    causes = [cause.value for (found, cause) in TRANSITIONS if found is phase]
    return ", ".join(causes) or "nothing more"
