"""The relay's DCP connection to one node of the cluster, sans-I/O: bytes and time go in and out.

    follow(copies)       have a passive stream into each of these copies, and no other
    feed(block, now)     frames of the node; returns what arrived, stream by stream
    release(bytes, now)  the relay is done with so many bytes: they may be acknowledged
    tick(now)            acknowledge what is due by time, ask whether the node lives
    output()             what to write next

It signs in as any consumer does and asks for all that a consumer can be told: no prepares, which
are for the cluster's own nodes. What belongs to no stream is released at once; what a stream
brought is released by whoever was told of it. What to do about a refused or ended stream is the
client's table (``dcp/client/reactions.py``). Messages that fit no stream end the connection.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from dcp.client.reactions import ENDINGS, REFUSALS, Reaction, end_reason_name
from dcp.errors import BucketError, NodeUnavailableError, RemoteProtocolError
from dcp.producer.passive_stream import MessageRefusedError, PassivePhase, PassiveStream
from dcp.producer.replica_copy import ReplicaCopy
from dcp.protocol.bootstrap import (
    FEATURES,
    Bootstrap,
    BootstrapSettings,
    Progress,
    steps_for,
)
from dcp.protocol.credentials import Credentials
from dcp.protocol.liveness import Liveness, LivenessSettings
from dcp.protocol.outgoing import Outgoing
from dcp.protocol.refusals import describe_status
from dcp.relay.upstream_questions import Questions
from dcp.relay.upstream_window import UpstreamWindow
from dcp.wire import messages as m
from dcp.wire.codec import decode
from dcp.wire.frame import Frame, parse_frame
from dcp.wire.framing import FrameBlock
from dcp.wire.vocabulary import HelloFeature, Magic, Opcode, OpenFlag, Status

_OPEN_FLAGS: Final = (
    OpenFlag.PRODUCER
    | OpenFlag.INCLUDE_XATTRS
    | OpenFlag.INCLUDE_DELETE_TIMES
    | OpenFlag.INCLUDE_DELETED_USER_XATTRS
)
_EXTRAS_BYTES: Final = {
    Opcode.DCP_MUTATION: 31,
    Opcode.DCP_DELETION: 21,
    Opcode.DCP_EXPIRATION: 20,
    Opcode.DCP_SYSTEM_EVENT: 13,
}
"""Of items on a connection that asked for the times of deletions."""


@dataclass(frozen=True, slots=True)
class UpstreamSettings:
    """What a connection says of itself, and its window."""

    bucket: str
    window_bytes: int
    liveness: LivenessSettings = field(default_factory=LivenessSettings)
    bootstrap_seconds: float = 20.0


@dataclass(frozen=True, slots=True)
class Arrived:
    """Bytes of a stream that one block brought, and what became of it."""

    stream: PassiveStream
    frame_bytes: int
    begins_branch: bool = False
    """Whether the stream was accepted just now on another branch than the copy knew."""


class UpstreamConnection:
    """One connection; used under the bucket's lock. ``streams`` are by opaque."""

    def __init__(
        self,
        settings: UpstreamSettings,
        credentials: Credentials,
        name: str,
        nonce: str,
        now: float,
        may_open: Callable[[], bool] = lambda: True,
    ) -> None:
        """``name`` must be unique, ``nonce`` is SCRAM's: fresh for each connection.

        While ``may_open`` says no, no stream is asked for: each connection has a window of its own.
        """
        self._may_open = may_open
        self.name = name
        self._started_at = now
        self._settings = settings
        self._outgoing = Outgoing()
        self.window = UpstreamWindow(settings.window_bytes, self._outgoing, now)
        self.questions = Questions(name, self._outgoing)
        bootstrap = BootstrapSettings(
            settings.bucket,
            name,
            agent="dcplake-relay",
            features=(*FEATURES, HelloFeature.SNAPPY),
            open_flags=int(_OPEN_FLAGS),
        )
        steps = steps_for(bootstrap, self.window.settings, settings.liveness)
        self._bootstrap = Bootstrap(steps, Progress(bootstrap, credentials, nonce)).settled()
        self._liveness = Liveness(settings.liveness, now)
        self._copies: dict[int, ReplicaCopy] = {}
        self.streams: dict[int, PassiveStream] = {}
        self.unanswered_closes = 0
        """How many CLOSE_STREAMs the node has not answered."""
        self.troubles: dict[int, str] = {}
        """By vbucket why it had no stream at last."""
        self.wants_retry = False
        """Whether streams are to be asked for again."""
        self.ended: list[int] = []
        """Vbuckets whose stream is over, asked for again or not; for who reads to clear."""
        self.arrived: dict[int, Arrived] = {}
        """What the last block brought, by opaque; also where ``feed`` came to no end of it."""
        self._last_opaque = 0
        self._ask_next()

    # --- where it stands

    @property
    def is_ready(self) -> bool:
        """Whether streams may be asked for."""
        return self._bootstrap.is_done

    def _ask_next(self) -> None:
        if not self._bootstrap.is_done:
            step = self._bootstrap.step
            self._outgoing.request(step.request(self._bootstrap.progress), step.opcode)

    # --- streams

    def follow(self, copies: Mapping[int, ReplicaCopy]) -> None:
        """Fill exactly these copies, by vbucket."""
        fresh = [v for v, copy in copies.items() if self._copies.get(v) is not copy]
        self._copies = dict(copies)
        for stream in list(self.streams.values()):
            if self._copies.get(stream.vbucket) is not stream.copy:
                self._close(stream)
        self._open(fresh)

    def _close(self, stream: PassiveStream) -> None:
        """Want no more of a stream; what is on its way belongs to none."""
        stream.end()
        del self.streams[stream.opaque]
        self.ended.append(stream.vbucket)
        self.unanswered_closes += 1
        self._outgoing.request(m.Empty(), Opcode.DCP_CLOSE_STREAM, vbucket=stream.vbucket)

    def retry(self) -> None:
        """Ask for all streams that are wanted and not there."""
        self.wants_retry = False
        self._open(self._copies)

    def _open(self, vbuckets: Iterable[int]) -> None:
        if not self.is_ready:
            return
        if not self._may_open():
            self.wants_retry = True
            return
        streaming = {stream.vbucket for stream in self.streams.values()}
        for vbucket in vbuckets:
            if vbucket not in streaming:
                self._last_opaque += 1
                stream = PassiveStream(self._copies[vbucket], self._last_opaque)
                stream.take_charge()
                self.streams[stream.opaque] = stream
                self._request(stream)

    def _request(self, stream: PassiveStream) -> None:
        request, vbucket = stream.request(), stream.vbucket
        self._outgoing.request(
            request, Opcode.DCP_STREAM_REQ, vbucket=vbucket, opaque=stream.opaque
        )

    def close(self) -> None:
        """Let all streams be over, as the connection is."""
        for stream in self.streams.values():
            stream.end()
        self.streams.clear()

    # --- input

    def feed(self, block: FrameBlock, now: float) -> list[Arrived]:
        """Act on frames; return what came for which streams, each once, as ``arrived`` has it.

        Raises:
            MessageRefusedError: a message that fits no stream; ``output`` answers it.
            RemoteProtocolError: the node broke the protocol.
            SourceError: it refuses us.
        """
        self._liveness = self._liveness.heard(now)
        arrived = self.arrived = {}
        view = memoryview(block.buffer)
        for index in range(len(block)):
            raw = view[int(block.offsets[index]) : int(block.offsets[index + 1])]
            magic, opcode = raw[0], raw[1]
            if magic == Magic.RESPONSE:
                self._answer(block.frame(index), arrived)
            elif magic == Magic.SERVER_REQUEST:
                self.questions.pushed(block.frame(index))
            elif magic == Magic.REQUEST and opcode == Opcode.DCP_NOOP:
                self._outgoing.answer(Opcode.DCP_NOOP, int.from_bytes(raw[12:16]))
            elif magic == Magic.REQUEST:
                self._message(raw, arrived, now)
            else:
                raise RemoteProtocolError(
                    f"{self.name}: found a frame of magic {magic:#04x}, expected a request, an "
                    "answer or a push"
                )
        return list(arrived.values())

    def _message(self, raw: memoryview, arrived: dict[int, Arrived], now: float) -> None:
        opaque, opcode = int.from_bytes(raw[12:16]), raw[1]
        self.window.receive(len(raw), now)
        stream = self.streams.get(opaque)
        if stream is None or not stream.is_in_charge:
            self.release(len(raw), now)  # late, of a stream that was closed
            return
        before = arrived.get(opaque) or Arrived(stream, 0)
        arrived[opaque] = Arrived(stream, before.frame_bytes + len(raw), before.begins_branch)
        expected = _EXTRAS_BYTES.get(Opcode(opcode)) if opcode in _EXTRAS_BYTES else None
        if expected is not None and raw[4] != expected:
            raise RemoteProtocolError(
                f"{self.name}: vbucket {stream.vbucket}: found {raw[4]} bytes of extras in opcode "
                f"{opcode:#04x}, expected {expected}"
            )
        reason = decode(parse_frame(bytes(raw))) if opcode == Opcode.DCP_STREAM_END else None
        try:
            answers = stream.feed(raw)
        except MessageRefusedError as error:
            self._outgoing.answer(opcode, opaque, error.status)
            raise
        for answer in answers:
            self._outgoing.answer(answer, opaque)
        if isinstance(reason, m.StreamEnd):
            del self.streams[opaque]
            reaction = ENDINGS.get(reason.reason, Reaction.RETRY)
            self._lost(stream, reaction, f"ended: {end_reason_name(reason.reason)}")

    def _lost(self, stream: PassiveStream, reaction: Reaction, why: str) -> None:
        self.troubles[stream.vbucket] = why
        self.ended.append(stream.vbucket)
        if reaction is Reaction.FAIL_BUCKET:
            raise BucketError(f"{self.name}: vbucket {stream.vbucket}: its stream {why}")
        if reaction is Reaction.REROUTE:
            self.questions.wants_map = True
        self.wants_retry = True

    def _answer(self, frame: Frame, arrived: dict[int, Arrived]) -> None:
        if not self._bootstrap.is_done:
            self._bootstrap = self._bootstrap.answer(frame)
            self._ask_next()
            if self._bootstrap.is_done:
                self._begin()
            return
        if self.questions.answered(frame):
            return
        if frame.opcode == Opcode.DCP_CLOSE_STREAM:
            self.unanswered_closes -= 1
        stream = self.streams.get(frame.opaque)
        if frame.opcode != Opcode.DCP_STREAM_REQ or stream is None or not stream.is_in_charge:
            return  # to CLOSE_STREAM or NOOP, or to a stream that was closed
        copy, asked_from = stream.copy, stream.copy.high_seqno
        uuid = copy.vbucket.failover_log.current_uuid if copy.has_history else None
        body = decode(frame)
        if isinstance(body, m.FailoverLogAnswer):
            self.questions.log_of(stream.vbucket, body)  # or it is refused
        stream.answered(frame.status, body)
        is_other = uuid not in (None, copy.vbucket.failover_log.current_uuid)
        arrived[stream.opaque] = Arrived(stream, 0, is_other)
        if stream.phase is PassivePhase.REQUESTED:
            if not asked_from:
                raise RemoteProtocolError(
                    f"{self.name}: vbucket {stream.vbucket}: found ROLLBACK as the answer to a "
                    "stream from the beginning, expected a stream"
                )
            self._request(stream)
        elif stream.phase is PassivePhase.ENDED:
            stream.end()
            del self.streams[stream.opaque], arrived[stream.opaque]
            reaction = REFUSALS.get(frame.status, Reaction.RETRY)
            self._lost(stream, reaction, f"was refused with {describe_status(frame.status)}")
            if frame.status == Status.NOT_MY_VBUCKET and frame.value:
                self.questions.maps.append(frame.value)
        else:
            self.troubles.pop(stream.vbucket, None)

    def _begin(self) -> None:
        self.questions.is_ready = True
        if self._bootstrap.progress.cluster_config:
            self.questions.maps.append(self._bootstrap.progress.cluster_config)
        if HelloFeature.COLLECTIONS in self._bootstrap.progress.features:
            self.questions.ask_for_manifest()
        self.retry()

    # --- flow control and time

    def release(self, frame_bytes: int, now: float) -> None:
        """Be done with bytes that streams brought; acknowledge when it is time."""
        self.window.release(frame_bytes, now)

    def tick(self, now: float) -> None:
        """Do what time demands.

        Raises:
            NodeUnavailableError: the node is silent for too long, or not ready within the time.
        """
        if not self.is_ready:
            if now - self._started_at >= self._settings.bootstrap_seconds:
                raise NodeUnavailableError(
                    f"{self.name}: waited {now - self._started_at:.1f} s for the answer to "
                    f"{self._bootstrap.step.name}"
                )
            return
        if self._liveness.is_dead(now):
            raise NodeUnavailableError(
                f"{self.name}: the node is silent for {self._liveness.silence_seconds(now):.1f} s"
            )
        if self._liveness.is_time_to_ask(now):
            self._liveness = self._liveness.ask()
            self._outgoing.request(m.Empty(), Opcode.NOOP)
        self.window.acknowledge(now)

    # --- output

    def output(self) -> bytes:
        """Return what to write."""
        return self._outgoing.take()
