"""One recorded connection, played through the client's machines.

What the recorded client said is *accepted* where our machines say the same bytes in the same
place; else it is *observed*: taken as said, so that its answer is expected (recorded clients send
malformed requests on purpose). All that the server said must be understood: decoded, matched with
what it answers, within the rules of its stream. What a recorded request is to our machines is read
in ``recorded_requests.py``.
"""

from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass

from dcp.errors import (
    AuthenticationError,
    FrameError,
    LocalProtocolError,
    RemoteProtocolError,
    SourceError,
)
from dcp.protocol import bootstrap as b
from dcp.protocol import events as e
from dcp.protocol.flow_control import FlowSettings, ReceiveWindow
from dcp.protocol.inbound import read_block
from dcp.protocol.liveness import Liveness, LivenessSettings
from dcp.protocol.responses import PendingRequest, opcode_name
from dcp.protocol.state import ConnectionState, stream_request
from dcp.wire import messages as m
from dcp.wire.codec import decode, encode
from dcp.wire.columns import DATA_OPCODES
from dcp.wire.frame import Frame, parse_frame
from dcp.wire.frame_info import stream_id_info, stream_id_of
from dcp.wire.framing import FrameBlock, FrameSplitter
from dcp.wire.vocabulary import Magic, Opcode, Status
from tests.conformance_formats.recorded_requests import (
    frames_in,
    step_of,
    stream_of,
    unknown_client,
)

_PREPARE_SURCHARGE_BYTES = 2
"""kv_engine charges a PREPARE 57 bytes and its key and value, and sends 55 (MB-46634)."""

_LOGINS = frozenset({Opcode.SASL_AUTH, Opcode.SASL_STEP})
_OF_STREAMS = frozenset(
    {
        *DATA_OPCODES,
        Opcode.DCP_SNAPSHOT_MARKER,
        Opcode.DCP_STREAM_END,
        Opcode.DCP_SEQNO_ADVANCED,
        Opcode.DCP_SYSTEM_EVENT,
        Opcode.DCP_OSO_SNAPSHOT,
        Opcode.DCP_PREPARE,
        Opcode.DCP_COMMIT,
        Opcode.DCP_ABORT,
    }
)
"""What a producer sends in streams only."""

_PLAIN_REQUESTS = frozenset(
    {Opcode.GET_ALL_VB_SEQNOS, Opcode.DCP_GET_FAILOVER_LOG, Opcode.GET_FAILOVER_LOG, Opcode.NOOP}
)


@dataclass(frozen=True, slots=True)
class _Asked:
    """A request on the wire, and what to do with its answer."""

    opcode: int
    understand: Callable[[Frame], None]


class ConnectionReplay:
    """One connection under replay."""

    def __init__(self, name: str, passwords: dict[str, str]) -> None:
        """``passwords`` by user name, as far as the transcript tells them."""
        self.name = name
        self.accepted = 0
        self.observed = 0
        self.understood = 0
        self.unacked_bytes = 0
        self._surcharge_bytes = 0
        self._passwords = passwords
        # The window stays on whatever the server was told: it only counts here.
        self._state = ConnectionState(
            b.Bootstrap((), unknown_client()),
            ReceiveWindow(FlowSettings(), 0.0),
            Liveness(LivenessSettings(), 0.0),
        )
        self._asked: dict[int, deque[_Asked]] = defaultdict(deque)
        self._known_opaques: set[int] = set()
        self._charged_lengths: list[int] = []
        self._client_splitter = FrameSplitter()
        self._saw_garbage = False
        self._failures: list[str] = []

    @property
    def unacked_bytes_at_server(self) -> int:
        """What the server's statistic says, its known error included."""
        return self.unacked_bytes + self._surcharge_bytes

    def take_charged_lengths(self) -> list[int]:
        """Return the lengths of the messages charged since the last call."""
        lengths, self._charged_lengths = self._charged_lengths, []
        return lengths

    def finish(self) -> list[str]:
        """Return the findings."""
        return self._failures

    # --- what the client said ----------------------------------------------------------------

    def take_from_client(self, data: bytes, where: str) -> None:
        """Take a segment that the recorded client sent."""
        frames = frames_in(data, self._client_splitter)
        if not frames and not self._client_splitter.pending_bytes:
            self._saw_garbage = True
            self._client_splitter = FrameSplitter()
        for frame in frames:
            try:
                self._take_client_frame(frame)
            except (FrameError, LocalProtocolError, ValueError, TypeError):
                self._ask(frame, self._ignore)  # a request that our client could not make

    def _take_client_frame(self, frame: Frame) -> None:
        if frame.magic.is_response:
            self._take_client_answer(frame)
            return
        body = decode(frame)
        match body:
            case m.BufferAck():
                self.unacked_bytes = max(0, self.unacked_bytes - body.bytes)
                self._compare(frame, body)
            case m.StreamRequest():
                self._take_stream_request(frame, body)
            case _ if frame.opcode == Opcode.DCP_CLOSE_STREAM:
                self._take_close(frame)
            case _ if frame.opcode in _PLAIN_REQUESTS:
                self._compare(frame, body)
                self._ask(frame, lambda answer: self._feed_answer(frame, answer))
            case _:
                self._take_setup(frame, body)

    def _take_client_answer(self, frame: Frame) -> None:
        said = frame.to_bytes()
        if said in self._state.outbound:
            self._state.outbound.remove(said)
            self.accepted += 1
        else:
            self.observed += 1

    def _take_setup(self, frame: Frame, body: m.Body) -> None:
        step, progress = step_of(
            frame.opcode, body, self._state.bootstrap.progress, self._passwords
        )
        if step is None:
            self._ask(frame, self._ignore)
            return
        self._state.bootstrap = b.Bootstrap((), progress)
        matches = self._compare(frame, step.request(progress))
        if not matches and step.opcode == Opcode.SASL_STEP:
            self._ask(frame, self._ignore)  # another password than ours: no signature to check
            return
        self._ask(frame, lambda answer: self._take_step_answer(step, answer))

    def _take_step_answer(self, step: b.Step, answer: Frame) -> None:
        state = self._state
        state.bootstrap = b.Bootstrap((), step.answer(state.bootstrap.progress, answer))

    def _take_stream_request(self, frame: Frame, body: m.StreamRequest) -> None:
        stream = stream_of(frame.vbucket, body)
        self._compare(frame, stream_request(stream, body.value))

        def understand(answer: Frame) -> None:
            before = self._state.streams.get(frame.opaque)
            self._state.streams[frame.opaque] = stream
            self._known_opaques.add(frame.opaque)
            self._feed_answer(frame, answer)
            if frame.opaque not in self._state.streams and before is not None:
                self._state.streams[frame.opaque] = before

        self._ask(frame, understand)

    def _take_close(self, frame: Frame) -> None:
        stream_id = stream_id_of(frame.framing_extras)
        wanted = (frame.vbucket, stream_id)
        closing = next(
            (
                opaque
                for opaque, stream in self._state.streams.items()
                if (stream.vbucket, stream.stream_id) == wanted and stream.is_live
            ),
            None,
        )
        if closing is not None:
            self._state.streams[closing] = self._state.streams[closing].close()
            self._compare(frame, m.Empty(), b"" if stream_id is None else stream_id_info(stream_id))
        self._ask(frame, lambda answer: self._feed_answer(frame, answer, closing))

    def _ask(self, frame: Frame, understand: Callable[[Frame], None]) -> None:
        self._asked[frame.opaque].append(_Asked(frame.opcode, understand))

    def _ignore(self, answer: Frame) -> None:
        decode(answer)

    def _compare(self, frame: Frame, ours: m.Body, framing_extras: bytes = b"") -> bool:
        said = encode(
            ours,
            frame.opcode,
            magic=Magic.ALT_REQUEST if framing_extras else Magic.REQUEST,
            vbucket=frame.vbucket,
            opaque=frame.opaque,
            framing_extras=framing_extras,
        )
        same = said.to_bytes() == frame.to_bytes()
        self.accepted += same
        self.observed += not same
        return same

    # --- what the server said ----------------------------------------------------------------

    def take_from_server(self, data: bytes, where: str) -> None:
        """Take the one frame of a line that the server sent."""
        try:
            self._take_server_frame(parse_frame(data))
        except (RemoteProtocolError, LocalProtocolError, AuthenticationError) as error:
            self._failures.append(f"{where}: {error}; frame {data[:64].hex()}")
        else:
            self.understood += 1

    def _take_server_frame(self, frame: Frame) -> None:
        body = decode(frame)
        if not frame.magic.is_response:
            self._take_message(frame, body)
            return
        try:
            self._take_answer(frame)
        except SourceError:
            if frame.status == Status.SUCCESS and frame.opcode in _LOGINS:
                raise  # the server let the client in, and could not prove who it is

    def _take_answer(self, frame: Frame) -> None:
        waiting = self._asked.get(frame.opaque)
        asked = next((one for one in waiting or () if one.opcode == frame.opcode), None)
        if waiting is None or asked is None:
            if self._saw_garbage:
                return
            raise RemoteProtocolError(
                f"found an answer to {opcode_name(frame.opcode)} with opaque {frame.opaque:#x}, "
                "expected none: nothing like it was asked"
            )
        if not _more_follow(frame):
            waiting.remove(asked)
        asked.understand(frame)

    def _feed_answer(self, request: Frame, answer: Frame, stream: int | None = None) -> None:
        self._state.pending.add(
            request.opaque, PendingRequest(request.opcode, request.vbucket, stream)
        )
        self._feed(answer)

    def _take_message(self, frame: Frame, body: m.Body) -> None:
        charged_before = self._state.window.charged_total
        discarded_before = self._state.discarded_frames
        events = self._feed(frame)
        charged = self._state.window.charged_total - charged_before
        self.unacked_bytes += charged
        if charged:
            self._charged_lengths.append(charged)
        if isinstance(body, m.Prepare):
            self._surcharge_bytes += _PREPARE_SURCHARGE_BYTES
        discarded = self._state.discarded_frames > discarded_before
        if discarded and frame.opcode in _OF_STREAMS and frame.opaque not in self._known_opaques:
            raise RemoteProtocolError(
                f"found {opcode_name(frame.opcode)} with opaque {frame.opaque:#x}, "
                "expected a stream with this opaque to have been asked for"
            )
        if frame.opcode in DATA_OPCODES and not discarded:
            _check_row(events, frame, body)

    def _feed(self, frame: Frame) -> list[e.Event]:
        working = self._state.copy()
        events = read_block(working, FrameBlock.of([frame.to_bytes()]), 0.0)
        self._state = working
        return events


def _more_follow(answer: Frame) -> bool:
    """STAT has many answers, the last of them empty."""
    has_more = answer.status == Status.SUCCESS and bool(answer.key or answer.value)
    return answer.opcode == Opcode.STAT and has_more


def _check_row(events: list[e.Event], frame: Frame, body: m.Body) -> None:
    """The row that came out must be the message that went in."""
    items = [event for event in events if isinstance(event, e.Items)]
    seqno = getattr(body, "by_seqno", None)
    found = [int(row) for item in items for row in item.columns.seqno]
    if found != [seqno]:
        raise RemoteProtocolError(f"{opcode_name(frame.opcode)}: found {found}, expected [{seqno}]")
