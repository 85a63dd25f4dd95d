"""The mutable state of one connection."""

from dataclasses import dataclass, field

from dcp.errors import LocalProtocolError
from dcp.protocol.bootstrap import Bootstrap
from dcp.protocol.liveness import Liveness
from dcp.protocol.negotiation import STREAM_WINDOW
from dcp.protocol.position import Position
from dcp.protocol.stream import Stream, StreamPhase
from dcp.protocol.window import FlowControl
from dcp.protocol.window_resize import CONNECTION_WINDOW, WindowResize
from dcp.types import U32_MAX
from dcp.wire import messages as m
from dcp.wire.codec import encode
from dcp.wire.frame import Frame
from dcp.wire.frame_info import stream_id_info
from dcp.wire.vocabulary import Magic, Opcode

StreamKey = tuple[int, int | None]
"""(vbucket, stream id). The id is None unless the connection uses stream ids."""


@dataclass(frozen=True, slots=True)
class PendingRequest:
    """A request that waits for its answer."""

    opcode: int
    vbucket: int = 0
    stream: int | None = None
    """The opaque of the stream that the request concerns, if any."""


@dataclass(slots=True)
class ConnectionState:
    """The bootstrap, windows, liveness, open requests and streams of one connection.

    A block with a protocol violation leaves the state half changed; the connection is then
    unusable.

    The handlers in ``answers.py``, ``inbound.py`` and ``connection.py`` set its fields.
    """

    bootstrap: Bootstrap
    flow: FlowControl
    liveness: Liveness
    resize: WindowResize
    hands_out_frames: bool = False
    """Items become frames (``ItemFrames``), not columns."""
    pending: dict[int, PendingRequest] = field(default_factory=dict)
    """By opaque. A BUFFER_ACK has no answer."""
    streams: dict[int, Stream] = field(default_factory=dict)
    """By opaque."""
    opaques: dict[StreamKey, int] = field(default_factory=dict)
    closed_opaques: set[int] = field(default_factory=set)
    """Streams that we closed without a STREAM_END: messages that were sent earlier may still
    arrive."""
    outbound: list[bytes] = field(default_factory=list)
    next_opaque: int = 1
    discarded_frames: int = 0
    """The number of messages for closed or unknown streams, and of unknown messages."""
    resize_opaque: int = 0
    asked_windows: list[int] = field(default_factory=list)
    """Sizes of stream windows that the producer has not answered yet."""
    waiting_windows: list[int] = field(default_factory=list)
    """Sizes of stream windows that still have to be sent."""
    moved: dict[int, Position] = field(default_factory=dict)
    """Positions of the vbuckets that received blocks have moved; the reader clears it."""

    def say(self, frame: Frame) -> None:
        self.outbound.append(frame.to_bytes())

    def ask(
        self,
        body: m.Body,
        opcode: Opcode,
        *,
        vbucket: int = 0,
        stream: int | None = None,
        stream_id: int | None = None,
    ) -> int:
        """Send a request, wait for its answer, and return its opaque.

        ``stream`` is the opaque of the stream that the request concerns, if any. ``stream_id`` goes
        into the framing extras.

        Raises LocalProtocolError if another request with the next opaque is unanswered.
        """
        opaque = self.next_opaque
        # Opaque 0 belongs to messages about the connection itself.
        self.next_opaque = opaque % U32_MAX + 1
        if opaque in self.pending:
            raise LocalProtocolError(f"request: found opaque {opaque:#x} in use")
        self.say(
            encode(
                body,
                opcode,
                magic=Magic.REQUEST if stream_id is None else Magic.ALT_REQUEST,
                vbucket=vbucket,
                opaque=opaque,
                framing_extras=b"" if stream_id is None else stream_id_info(stream_id),
            )
        )
        self.pending[opaque] = PendingRequest(opcode, vbucket, stream)
        return opaque

    def resize_window(self, now: float) -> None:
        """Apply the window in force; send another size to the producer if it is due."""
        before = self.resize
        if self.bootstrap.is_done:  # the bootstrap itself sends the first size
            self.resize = before.ask()
        if self.resize is not before:
            control = m.DcpControl(CONNECTION_WINDOW.encode(), b"%d" % self.resize.wanted_bytes)
            self.resize_opaque = self.ask(control, Opcode.DCP_CONTROL)
        self.flow.connection.resize(self.resize.window_bytes, self.resize.most_bytes, now)

    def change_stream_window(self, window_bytes: int) -> None:
        self.waiting_windows.append(window_bytes)
        self.ask_stream_windows()

    def ask_stream_windows(self) -> None:
        if not self.bootstrap.is_done or not self.waiting_windows:
            return
        if self.flow.counts_streams:
            sizes, self.waiting_windows = self.waiting_windows, []
        else:
            # The producer has counted bytes by stream, and we have not. It forgets its counts when
            # it accepts 0, so both sides then start from nothing.
            sizes = [] if self.asked_windows else [0]
        for size in sizes:
            self.asked_windows.append(size)
            self.ask(m.DcpControl(STREAM_WINDOW.encode(), b"%d" % size), Opcode.DCP_CONTROL)
        self.flow.resume_stream_acks(self.asked_windows)

    def open_stream(self, stream: Stream, filter_json: bytes) -> int:
        """Send the request of ``stream`` and return its opaque.

        Raises LocalProtocolError if the vbucket (with this stream id) has a stream.
        """
        key = (stream.vbucket, stream.stream_id)
        current = self.streams.get(self.opaques.get(key, 0))
        # A stream that only waits for its STREAM_END does not block the next one.
        if current is not None and current.phase is not StreamPhase.DRAINING:
            raise LocalProtocolError(
                f"vbucket {stream.vbucket}: found a stream that is {current.phase.value}, "
                "expected none"
            )
        opaque = self.ask(
            stream_request(stream, filter_json), Opcode.DCP_STREAM_REQ, vbucket=stream.vbucket
        )
        self.streams[opaque] = stream
        self.opaques[key] = opaque
        return opaque

    def close_stream(self, opaque: int) -> None:
        stream = self.streams[opaque].close()
        self.put(opaque, stream)
        self.ask(
            m.Empty(),
            Opcode.DCP_CLOSE_STREAM,
            vbucket=stream.vbucket,
            stream=opaque,
            stream_id=stream.stream_id,
        )

    def put(self, opaque: int, stream: Stream) -> None:
        if stream.phase is not StreamPhase.ENDED:
            self.streams[opaque] = stream
            return
        self.streams.pop(opaque, None)
        self.flow.end_stream(opaque)
        key = (stream.vbucket, stream.stream_id)
        # The vbucket's next stream may have taken its place.
        if self.opaques.get(key) == opaque:
            del self.opaques[key]


def stream_request(stream: Stream, filter_json: bytes = b"") -> m.StreamRequest:
    position = stream.requested
    return m.StreamRequest(
        flags=stream.flags,
        start=position.seqno,
        end=stream.end_seqno,
        vb_uuid=position.vb_uuid,
        snap_start=position.snap_start,
        snap_end=position.snap_end,
        value=filter_json,
    )
