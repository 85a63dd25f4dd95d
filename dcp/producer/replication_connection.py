"""A node's DCP connection to another one, sans-I/O: bytes and time go in, bytes come out.

    follow(copies)    have a passive stream into each of these copies, and no other
    feed(block, now)  frames of the peer
    release(now)      what was received has its place: the peer may send more
    acknowledge(s)    what its copy holds, when that is settled
    tick(now)         what is due by time; ``deadline`` says when to call it, busy or not
    output()          what to write next

It signs in as the cluster's own user by SCRAM, opens DCP with flow control and NOOPs, and asks for
items as a disk keeps them, prepares and aborts too. One connection carries all streams of two
nodes. A stream that was refused or has ended is asked for again, soon at first and then with longer
waits; what no stream fits ends the connection (``MessageRefusedError``), after it was answered. So
does a peer that is not ready in time, or is silent for too long (``protocol/liveness.py``).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from dcp.errors import NodeUnavailableError, SourceError
from dcp.producer.passive_stream import MessageRefusedError, PassivePhase, PassiveStream
from dcp.producer.replica_copy import ReplicaCopy
from dcp.protocol.bootstrap import Bootstrap, BootstrapSettings, Control, Progress, steps_for
from dcp.protocol.credentials import Credentials
from dcp.protocol.liveness import Liveness, LivenessSettings
from dcp.protocol.outgoing import Outgoing
from dcp.protocol.refusals import describe_status
from dcp.protocol.window import FlowControl, FlowSettings
from dcp.wire import messages as m
from dcp.wire.codec import decode
from dcp.wire.frame import Frame
from dcp.wire.framing import FrameBlock
from dcp.wire.vocabulary import HelloFeature, Magic, Opcode, OpenFlag

_FEATURES: Final = (
    HelloFeature.XATTR,
    HelloFeature.XERROR,
    HelloFeature.SELECT_BUCKET,
    HelloFeature.JSON,
    HelloFeature.SNAPPY,
    HelloFeature.COLLECTIONS,
)
_OPEN_FLAGS: Final = (
    OpenFlag.PRODUCER
    | OpenFlag.INCLUDE_XATTRS
    | OpenFlag.INCLUDE_DELETE_TIMES
    | OpenFlag.INCLUDE_DELETED_USER_XATTRS
)
_CONTROLS: Final = (
    Control("enable_expiry_opcode", "true", optional=False),
    Control("enable_sync_writes", "true", optional=False),
    Control("max_marker_version", "2.2", optional=False),
    Control("send_stream_end_on_client_close_stream", "true", optional=False),
)
_WINDOW_BYTES: Final = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class ReplicationTimes:
    """How long a connection waits for what.

    ``setup_seconds``: for the peer to be connected to and, counted anew, to be ready for streams.
    A stream is asked for again after ``first_retry_seconds``, then after twice as long each time,
    up to ``longest_retry_seconds``; one that is accepted begins that anew.
    """

    liveness: LivenessSettings = field(default_factory=LivenessSettings)
    setup_seconds: float = 20.0
    first_retry_seconds: float = 0.02
    longest_retry_seconds: float = 1.0


REPLICATION_TIMES: Final = ReplicationTimes()


class ReplicationConnection:
    """One connection; used under the bucket's lock. ``streams`` are by opaque."""

    def __init__(
        self,
        bucket: str,
        name: str,
        credentials: Credentials,
        nonce: str,
        now: float,
        times: ReplicationTimes = REPLICATION_TIMES,
    ) -> None:
        """``nonce`` is SCRAM's: fresh for each connection."""
        flow, liveness = FlowSettings(_WINDOW_BYTES), times.liveness
        settings = BootstrapSettings(
            bucket,
            name,
            agent="dcplake-replication",
            features=_FEATURES,
            open_flags=int(_OPEN_FLAGS),
            controls=(Control("consumer_name", name, optional=False), *_CONTROLS),
        )
        progress = Progress(settings, credentials, nonce)
        self._bootstrap = Bootstrap(steps_for(settings, flow, liveness), progress).settled()
        self._flow = FlowControl(flow, now)
        self._outgoing = Outgoing()
        self._copies: dict[int, ReplicaCopy] = {}
        self._takes_over: frozenset[int] = frozenset()
        self.streams: dict[int, PassiveStream] = {}
        self._name = name
        self._times = times
        self._begun_at = now
        self._liveness = Liveness(liveness, now)
        self._retry_at: float | None = None
        self._retry_seconds = times.first_retry_seconds
        self._last_opaque = 0
        self._ask()

    @property
    def is_ready(self) -> bool:
        """Whether streams may be asked for."""
        return self._bootstrap.is_done

    @property
    def wants_retry(self) -> bool:
        """Whether streams are to be asked for again that were refused or have ended."""
        return self._retry_at is not None

    def _ask(self) -> None:
        if not self._bootstrap.is_done:
            step = self._bootstrap.step
            self._outgoing.request(step.request(self._bootstrap.progress), step.opcode)

    # --- streams

    def follow(self, copies: Mapping[int, ReplicaCopy], takes_over: Iterable[int] = ()) -> None:
        """Fill exactly these copies, by vbucket; those of ``takes_over`` by takeover streams."""
        self._copies = dict(copies)
        self._takes_over = frozenset(takes_over)
        for stream in list(self.streams.values()):
            if self._copies.get(stream.vbucket) is not stream.copy:
                self._close(stream)
        self.retry()

    def _close(self, stream: PassiveStream) -> None:
        """Want no more of a stream; what is on its way belongs to none."""
        stream.end()
        del self.streams[stream.opaque]
        self._outgoing.request(m.Empty(), Opcode.DCP_CLOSE_STREAM, vbucket=stream.vbucket)

    def retry(self) -> None:
        """Ask for all streams that are wanted and not there."""
        if not self.is_ready:
            return
        self._retry_at = None
        streaming = {stream.vbucket for stream in self.streams.values()}
        for vbucket, copy in self._copies.items():
            if vbucket not in streaming:
                self._last_opaque += 1
                takes_over = vbucket in self._takes_over
                stream = PassiveStream(copy, self._last_opaque, takes_over=takes_over)
                stream.take_charge()
                self.streams[stream.opaque] = stream
                self._request(stream)

    def _retry_later(self, now: float) -> None:
        """Ask again in a while; a wait that has begun is not put off."""
        if self._retry_at is None:
            self._retry_at = now + self._retry_seconds
            self._retry_seconds = min(2 * self._retry_seconds, self._times.longest_retry_seconds)

    def _request(self, stream: PassiveStream) -> None:
        self._outgoing.request(
            stream.request(), Opcode.DCP_STREAM_REQ, vbucket=stream.vbucket, opaque=stream.opaque
        )

    def close(self) -> None:
        """Let all streams be over, as the connection is."""
        for stream in self.streams.values():
            stream.end()
        self.streams.clear()

    # --- input

    def feed(self, block: FrameBlock, now: float) -> list[PassiveStream]:
        """Act on frames; return the streams whose copies were touched, each once.

        Raises:
            MessageRefusedError: a message that fits no stream; ``output`` answers it.
            SourceError: the peer refuses us.
        """
        self._liveness = self._liveness.heard(now)
        touched: dict[int, PassiveStream] = {}
        charged_bytes = 0
        view = memoryview(block.buffer)
        for index in range(len(block)):
            raw = view[int(block.offsets[index]) : int(block.offsets[index + 1])]
            magic, opcode = raw[0], raw[1]
            if magic == Magic.RESPONSE:
                self._answer(block.frame(index), touched, now)
            elif magic != Magic.REQUEST:
                continue  # a push that we did not ask for
            elif opcode == Opcode.DCP_NOOP:
                self._outgoing.answer(Opcode.DCP_NOOP, int.from_bytes(raw[12:16]))
            else:
                charged_bytes += len(raw)
                self._message(raw, touched, now)
        self._flow.receive(charged_bytes, now)
        return list(touched.values())

    @property
    def held_bytes(self) -> int:
        """What was received and not released; with a window of it the peer sends NOOPs only."""
        return self._flow.connection.held_bytes

    def release(self, now: float) -> None:
        """Give back all that is held, so that the peer may send as much again."""
        self._flow.release([(self._flow.connection, self.held_bytes)])
        for _, acked_bytes in self._flow.acknowledge(now):
            self._outgoing.request(m.BufferAck(acked_bytes), Opcode.DCP_BUFFER_ACK)

    def acknowledge(self, stream: PassiveStream) -> None:
        """Say how far a stream's copy holds prepares, now that what it received is settled."""
        seqno = stream.next_acknowledgement()
        if seqno is not None:
            self._outgoing.request(
                m.SeqnoAcknowledged(seqno),
                Opcode.DCP_SEQNO_ACKNOWLEDGED,
                vbucket=stream.vbucket,
                opaque=stream.opaque,
            )

    def _message(self, raw: memoryview, touched: dict[int, PassiveStream], now: float) -> None:
        opaque = int.from_bytes(raw[12:16])
        stream = self.streams.get(opaque)
        if stream is None or not stream.is_in_charge:
            return  # late, of a stream that was closed
        try:
            answers = stream.feed(raw)
        except MessageRefusedError as error:
            self._outgoing.answer(raw[1], opaque, error.status)
            raise
        touched[opaque] = stream
        for opcode in answers:
            self._outgoing.answer(opcode, opaque)
        if stream.phase is PassivePhase.ENDED:
            del self.streams[opaque]
            if not stream.takes_over:
                self._retry_later(now)

    def _answer(self, frame: Frame, touched: dict[int, PassiveStream], now: float) -> None:
        if not self._bootstrap.is_done:
            self._bootstrap = self._bootstrap.answer(frame)
            self._ask()
            self.retry()
            return
        stream = self.streams.get(frame.opaque)
        if frame.opcode != Opcode.DCP_STREAM_REQ or stream is None or not stream.is_in_charge:
            return  # to CLOSE_STREAM, or to a stream that was closed
        stream.answered(frame.status, decode(frame))
        touched[stream.opaque] = stream
        if stream.phase is PassivePhase.REQUESTED:
            self._request(stream)
        elif stream.phase is PassivePhase.ENDED:
            stream.end()
            del self.streams[stream.opaque]
            if stream.takes_over:
                raise SourceError(
                    f"takeover of vbucket {stream.vbucket}: found {describe_status(frame.status)}, "
                    "expected a stream"
                )
            self._retry_later(now)
        else:
            self._retry_seconds = self._times.first_retry_seconds

    # --- time

    @property
    def deadline(self) -> float:
        """When ``tick`` has something to do."""
        if not self.is_ready:
            return self._begun_at + self._times.setup_seconds
        silent_at = self._liveness.deadline
        return silent_at if self._retry_at is None else min(silent_at, self._retry_at)

    def tick(self, now: float) -> None:
        """Do what is due by time.

        Raises:
            NodeUnavailableError: the peer is silent for too long, or not ready in time.
        """
        if not self.is_ready:
            if now >= self.deadline:
                raise NodeUnavailableError(
                    f"{self._name}: waited {now - self._begun_at:.1f} s for the answer to "
                    f"{self._bootstrap.step.name}"
                )
            return
        if self._liveness.is_dead(now):
            raise NodeUnavailableError(
                f"{self._name}: the peer is silent for {self._liveness.silence_seconds(now):.1f} s"
            )
        if self._liveness.is_time_to_ask(now):
            self._liveness = self._liveness.ask()
            self._outgoing.request(m.Empty(), Opcode.NOOP)
        if self._retry_at is not None and now >= self._retry_at:
            self.retry()

    def slept(self, now: float) -> None:
        """Note that we did not listen until now: that the peer was silent says nothing."""
        self._liveness = self._liveness.heard(now)

    # --- output

    def output(self) -> bytes:
        """Return what to write."""
        return self._outgoing.take()
