"""One recorded connection, played through the client's machines.

What the recorded client said is *accepted* where our machines say the same bytes in the same
place; else it is *observed*: taken as said, so that its answer is expected (recorded clients send
malformed requests on purpose), and where no client of ours could make it at all, the server must
refuse it. A client that breaks the protocol must be cut off. All that the server said must be
understood: decoded, matched with what it answers, within the rules of its stream, and without
contradiction (``claims.py``). Every request must be answered before the connection ends, bar those
that a server left when it closed. What a recorded request is to our machines is read in
``recorded_requests.py``.
"""

from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass

from dcp.errors import (
    ConfigError,
    FrameError,
    LocalProtocolError,
    RemoteProtocolError,
    SourceError,
)
from dcp.protocol import bootstrap as b
from dcp.protocol import events as e
from dcp.protocol.inbound import read_block
from dcp.protocol.liveness import Liveness, LivenessSettings
from dcp.protocol.state import ConnectionState, PendingRequest, stream_request
from dcp.protocol.stream import Stream
from dcp.protocol.window import FlowControl
from dcp.protocol.window_policies import FlowSettings
from dcp.protocol.window_resize import WindowResize
from dcp.wire import messages as m
from dcp.wire.codec import TABLE, decode, encode
from dcp.wire.columns import DATA_OPCODES
from dcp.wire.frame import Frame, parse_frame
from dcp.wire.frame_info import stream_id_info, stream_id_of
from dcp.wire.framing import FrameBlock, FrameSplitter
from dcp.wire.vocabulary import Magic, Opcode, Status, opcode_name
from tests.conformance_formats.claims import (
    OF_STREAMS,
    Claims,
    body_of,
    names,
    require,
    require_known,
    require_notification_asked,
)
from tests.conformance_formats.recorded_requests import (
    is_stream_request_of_a_client,
    step_of,
    stream_of,
    unknown_client,
)

_PREPARE_SURCHARGE_BYTES = 2
"""kv_engine charges a PREPARE 57 bytes and its key and value, and sends 55 (MB-46634)."""

_PLAIN_REQUESTS = frozenset(
    {Opcode.GET_ALL_VB_SEQNOS, Opcode.DCP_GET_FAILOVER_LOG, Opcode.GET_FAILOVER_LOG, Opcode.NOOP}
)


@dataclass(frozen=True, slots=True)
class _Asked:
    """A request on the wire, and what to do with its answer.

    ``makeable`` says whether our client could have made it; ``number`` counts requests.
    """

    number: int
    request: Frame
    understand: Callable[[Frame], None]
    makeable: bool
    where: str


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
            unknown_client(),
            FlowControl(FlowSettings(), 0.0),
            Liveness(LivenessSettings(), 0.0),
            WindowResize(0, 0),
        )
        self._asked: dict[int, deque[_Asked]] = defaultdict(deque)
        self._charged_lengths: list[int] = []
        self._client_splitter = FrameSplitter()
        self._claims = Claims()
        self._where = ""
        self._requests = 0
        self._answered_up_to = 0
        self._violation: tuple[int, str] | None = None
        self._failures: list[str] = []

    @property
    def unacked_bytes_at_server(self) -> int:
        """What the server's statistic says, its known error included."""
        return self.unacked_bytes + self._surcharge_bytes

    def take_charged_lengths(self) -> list[int]:
        """Return the lengths of the messages charged since the last call."""
        lengths, self._charged_lengths = self._charged_lengths, []
        return lengths

    def finish(self, *, closed_by_server: bool = False) -> list[str]:
        """Return the findings, with what was left open when the connection ended."""
        left = [one for waiting in self._asked.values() for one in waiting if _is_answered(one)]
        broken_at, violation = self._violation or (None, "")
        cut = closed_by_server
        for one in sorted(left, key=lambda one: one.number):
            if broken_at is not None and one.number > broken_at:
                cut = True  # it shows that the server listened no more
            elif not closed_by_server or one.number <= self._answered_up_to:
                self._failures.append(
                    f"{one.where}: found no answer to {names(one.request)}, expected one before "
                    "the connection ends"
                )
        if violation and not cut:
            self._failures.append(f"{violation} (nothing shows that the server minded)")
        if self._client_splitter.pending_bytes:
            self._failures.append(
                f"{self._where}: found {self._client_splitter.pending_bytes} bytes of the client's "
                "last frame, expected all of it"
            )
        return self._failures

    # --- what the client said ----------------------------------------------------------------

    def take_from_client(self, data: bytes, where: str) -> None:
        """Take a segment that the recorded client sent."""
        self._where = where
        try:
            block = self._client_splitter.feed(data)
        except FrameError as error:
            self._client_splitter = FrameSplitter()
            self.observed += 1
            self._break(f"{error}, from a client")
            return
        for index in range(len(block)):
            self._take_client_frame(block.frame(index))

    def _break(self, what: str) -> None:
        """Note that the client broke the protocol: from here on the server must not listen."""
        if self._violation is None:
            self._violation = (self._requests, f"{self._where}: {what}")

    def _take_client_frame(self, frame: Frame) -> None:
        if frame.magic.is_response:
            self._take_client_answer(frame)
            return
        if frame.opcode == Opcode.DCP_NOOP or frame.magic is Magic.SERVER_REQUEST:
            self.observed += 1
            self._break(f"found {names(frame)} from a client, expected none: only servers send it")
            return
        before = self.accepted + self.observed
        try:
            self._take_request(frame)
        except (FrameError, LocalProtocolError, ConfigError, ValueError, TypeError):
            self._ask(frame, self._ignore, makeable=False)  # our client could not make it
        if self.accepted + self.observed == before:
            self.observed += 1

    def _take_request(self, frame: Frame) -> None:
        if frame.cas or frame.datatype or (Magic.REQUEST, frame.opcode) not in TABLE:
            raise ValueError("found a header or an opcode that our client does not send")
        body = body_of(frame)
        match body:
            case m.BufferAck():
                self.unacked_bytes = max(0, self.unacked_bytes - body.bytes)
                self._compare(frame, body)
                if frame.vbucket:
                    raise ValueError("found a vbucket in what is about the connection")
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
            self._break(
                f"found a client's answer {said.hex()}, expected one that the server waits for: "
                f"{[waiting.hex() for waiting in self._state.outbound] or 'none'}"
            )

    def _take_setup(self, frame: Frame, body: m.Body) -> None:
        known = self._state.bootstrap
        try:
            step, progress = step_of(frame.opcode, body, known, self._passwords)
        except UnicodeDecodeError:
            raise
        except (ConfigError, ValueError):
            if not isinstance(body, m.DcpOpen):
                raise
            step, progress = None, known  # servers take longer names than we send
        if step is None:
            self._ask(frame, self._ignore)
            return
        if frame.vbucket:
            raise ValueError("found a vbucket in what is about the connection")
        self._state.bootstrap = progress
        matches = self._compare(frame, step.request(progress))
        if not matches and step.opcode == Opcode.SASL_STEP:
            # Another password than the user's: no signature to check. If no login of the recording
            # tells the password, we cannot know whether this one was right.
            is_wrong = progress.credentials.username in self._passwords
            self._ask(frame, self._ignore, makeable=not is_wrong)
            return
        self._ask(frame, lambda answer: self._take_step_answer(step, answer))

    def _take_step_answer(self, step: b.BootstrapStep, answer: Frame) -> None:
        state = self._state
        state.bootstrap = step.answer(state.bootstrap, answer)

    def _take_stream_request(self, frame: Frame, body: m.StreamRequest) -> None:
        stream = stream_of(frame.vbucket, body)
        self._compare(frame, stream_request(stream, body.value))

        def understand(answer: Frame) -> None:
            self._require_stream_is_new(answer, stream)
            before = self._state.streams.get(frame.opaque)
            self._state.streams[frame.opaque] = stream
            self._state.closed_opaques.discard(frame.opaque)
            self._feed_answer(frame, answer)
            if frame.opaque not in self._state.streams and before is not None:
                self._state.streams[frame.opaque] = before

        self._ask(frame, understand, makeable=is_stream_request_of_a_client(body))

    def _require_stream_is_new(self, answer: Frame, stream: Stream) -> None:
        has_one = self._streaming(stream.vbucket, stream.stream_id) is not None
        found = f"an answer to {names(answer)} with status {answer.status:#04x}"
        what = f"vbucket {stream.vbucket} has {'a' if has_one else 'no'} stream"
        if answer.status == Status.SUCCESS:
            require(not has_one, found, f"KEY_EEXISTS: {what}")
        elif answer.status == Status.KEY_EEXISTS:
            require(has_one, found, f"another status: {what}")

    def _streaming(self, vbucket: int, stream_id: int | None) -> int | None:
        """The opaque of the stream that is open, if one is."""
        return next(
            (
                opaque
                for opaque, stream in self._state.streams.items()
                if (stream.vbucket, stream.stream_id) == (vbucket, stream_id)
                and stream.is_streaming
            ),
            None,
        )

    def _take_close(self, frame: Frame) -> None:
        stream_id = stream_id_of(frame.framing_extras)
        closing = self._streaming(frame.vbucket, stream_id)
        if closing is not None:
            self._state.streams[closing] = self._state.streams[closing].close()
            self._compare(frame, m.Empty(), b"" if stream_id is None else stream_id_info(stream_id))

        def understand(answer: Frame) -> None:
            found = f"an answer to {names(answer)} with status {answer.status:#04x}"
            is_open = closing is not None and closing not in self._claims.ended
            if answer.status == Status.SUCCESS:
                there = closing is not None or self._streaming(frame.vbucket, stream_id)
                require(there is not None, found, f"a refusal: vbucket {frame.vbucket} is not open")
            elif answer.status == Status.KEY_ENOENT:
                require(not is_open, found, f"success: vbucket {frame.vbucket} has a stream")
            self._feed_answer(frame, answer, closing)

        self._ask(frame, understand)

    def _ask(
        self, frame: Frame, understand: Callable[[Frame], None], *, makeable: bool = True
    ) -> None:
        self._requests += 1
        asked = _Asked(self._requests, frame, understand, makeable, self._where)
        self._asked[frame.opaque].append(asked)

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
        except (RemoteProtocolError, LocalProtocolError, SourceError) as error:
            self._failures.append(f"{where}: {error}; frame {data[:64].hex()}")
        else:
            self.understood += 1

    def _take_server_frame(self, frame: Frame) -> None:
        require_known(frame)
        body = body_of(frame)
        if not frame.magic.is_response:
            self._take_message(frame, body)
            return
        try:
            self._take_answer(frame, body)
        except SourceError:
            if frame.status == Status.SUCCESS:
                raise  # it was granted, and is not what our machines can use

    def _take_answer(self, frame: Frame, body: m.Body) -> None:
        waiting = self._asked.get(frame.opaque) or deque()
        asked = next((one for one in waiting if one.request.opcode == frame.opcode), None)
        if asked is None:
            raise RemoteProtocolError(
                f"found an answer to {names(frame)}, expected none: nothing like it was asked"
            )
        if not _more_follow(frame):
            waiting.remove(asked)
        self._answered_up_to = max(self._answered_up_to, asked.number)
        if self._violation is not None and asked.number > self._violation[0]:
            raise RemoteProtocolError(
                f"found an answer to {names(frame)}, expected none after {self._violation[1]}"
            )
        self._claims.take_answer(asked.request, frame, body, asked.makeable)
        asked.understand(frame)

    def _feed_answer(self, request: Frame, answer: Frame, stream: int | None = None) -> None:
        asked = PendingRequest(request.opcode, request.vbucket, stream)
        if self._state.pending.setdefault(request.opaque, asked) is not asked:
            raise LocalProtocolError(f"request: found opaque {request.opaque:#x} in use")
        self._feed(answer)

    def _take_message(self, frame: Frame, body: m.Body) -> None:
        progress = self._state.bootstrap
        if frame.magic is Magic.SERVER_REQUEST:
            require_notification_asked(body, progress.features)
        if frame.opcode == Opcode.DCP_NOOP:
            self._require_noops_answered(frame)
        self._claims.take_message(frame, body, progress.accepted_controls)
        charged_before = self._state.flow.connection.received
        discarded_before = self._state.discarded_frames
        events = self._feed(frame)
        charged = self._state.flow.connection.received - charged_before
        self.unacked_bytes += charged
        if charged:
            self._charged_lengths.append(charged)
        if isinstance(body, m.Prepare):
            self._surcharge_bytes += _PREPARE_SURCHARGE_BYTES
        discarded = self._state.discarded_frames > discarded_before
        if discarded and frame.opcode in OF_STREAMS:
            known = {*self._state.streams, *self._state.closed_opaques, *self._claims.ended}
            require(frame.opaque in known, names(frame), "the opaque of a stream asked for")
        if frame.opcode in DATA_OPCODES and not discarded:
            _check_row(events, frame, body)

    def _require_noops_answered(self, frame: Frame) -> None:
        """A server sends no NOOP while it waits for the answer to one."""
        sent = (parse_frame(said) for said in self._state.outbound)
        waiting = [noop.opaque for noop in sent if noop.opcode == Opcode.DCP_NOOP]
        told = ", ".join(f"{opaque:#x}" for opaque in waiting)
        require(not waiting, names(frame), f"none before the answer to the NOOP with opaque {told}")

    def _feed(self, frame: Frame) -> list[e.Event]:
        events = read_block(self._state, FrameBlock.of([frame.to_bytes()]), 0.0)
        _require_possible(events)
        return events


def _require_possible(events: list[e.Event]) -> None:
    """Raise RemoteProtocolError for an answer that cost the client one vbucket: it is damage."""
    for event in events:
        if isinstance(event, e.StreamRejected):
            raise RemoteProtocolError(f"vbucket {event.vbucket}: {event.detail}")
        if isinstance(event, e.FailoverLogReceived) and event.fault and not event.status:
            raise RemoteProtocolError(f"vbucket {event.vbucket}: {event.fault}")


def _is_answered(one: _Asked) -> bool:
    """A BUFFER_ACK is answered only where it is refused."""
    return one.request.opcode != Opcode.DCP_BUFFER_ACK or not one.makeable


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
