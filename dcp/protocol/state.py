"""The mutable state of one connection.

A received block changes it in place. A block with a violation leaves it half changed: the machine
is not used any more then (`connection.ConsumerConnection.receive`).
"""

from dataclasses import dataclass, field

from dcp.errors import LocalProtocolError
from dcp.protocol.bootstrap import Bootstrap
from dcp.protocol.liveness import Liveness
from dcp.protocol.negotiation import STREAM_WINDOW
from dcp.protocol.position import Position
from dcp.protocol.responses import PendingRequest, PendingRequests
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
"""(vbucket, stream id); the id is None unless the connection uses stream ids."""


@dataclass(slots=True)
class ConnectionState:
    """One connection: its bootstrap, windows, liveness, requests under way, streams by opaque.

    ``asked_windows`` are sizes of the streams' windows that the producer has not answered yet,
    ``waiting_windows`` those that it is not asked for yet (see ``change_stream_window``).
    ``closed_opaques`` are of streams that we closed and whose end the server does not announce:
    what it had sent before it heard of that may still arrive. ``moved`` is where vbuckets stand
    that the last blocks moved; whoever reads it clears it. With ``hands_out_frames`` items are
    told as frames (``ItemFrames``), not as columns.

    Written from outside: these functions change it (``answers.py``, ``inbound.py``,
    ``connection.py``).
    """

    bootstrap: Bootstrap
    flow: FlowControl
    liveness: Liveness
    resize: WindowResize
    hands_out_frames: bool = False
    pending: PendingRequests = field(default_factory=PendingRequests)
    streams: dict[int, Stream] = field(default_factory=dict)
    opaques: dict[StreamKey, int] = field(default_factory=dict)
    ended: dict[StreamKey, Stream] = field(default_factory=dict)
    closed_opaques: set[int] = field(default_factory=set)
    outbound: list[bytes] = field(default_factory=list)
    next_opaque: int = 1
    discarded_frames: int = 0
    resize_opaque: int = 0
    asked_windows: list[int] = field(default_factory=list)
    waiting_windows: list[int] = field(default_factory=list)
    moved: dict[int, Position] = field(default_factory=dict)

    def say(self, frame: Frame) -> None:
        """Queue a frame for sending."""
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

        ``stream`` is the opaque of the stream that the request is about, if any; ``stream_id`` goes
        into the framing extras. Opaque 0 is left to messages about the connection itself.
        """
        opaque = self.next_opaque
        self.next_opaque = opaque % U32_MAX + 1
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
        self.pending.add(opaque, PendingRequest(opcode, vbucket, stream))
        return opaque

    def resize_window(self, now: float) -> None:
        """Keep to the window in force; tell the producer of another one if that is due."""
        before = self.resize
        if self.bootstrap.is_done:  # which tells the first one
            self.resize = before.ask()
        if self.resize is not before:
            control = m.DcpControl(CONNECTION_WINDOW.encode(), b"%d" % self.resize.wanted_bytes)
            self.resize_opaque = self.ask(control, Opcode.DCP_CONTROL)
        self.flow.connection.resize(self.resize.window_bytes, self.resize.most_bytes, now)

    def change_stream_window(self, window_bytes: int) -> None:
        """Ask for another size of the streams' windows, when the bootstrap is done.

        Where streams have had none, the producer counted what it sent them and we did not. So 0 is
        asked for first, with which it forgets that; the size follows its answer.
        """
        self.waiting_windows.append(window_bytes)
        self.ask_stream_windows()

    def ask_stream_windows(self) -> None:
        """Ask for the sizes that wait, or for what they wait for."""
        if not self.bootstrap.is_done or not self.waiting_windows:
            return
        if self.flow.counts_streams:
            sizes, self.waiting_windows = self.waiting_windows, []
        else:
            sizes = [] if self.asked_windows else [0]
        for size in sizes:
            self.asked_windows.append(size)
            self.ask(m.DcpControl(STREAM_WINDOW.encode(), b"%d" % size), Opcode.DCP_CONTROL)
        self.flow.resume_stream_acks(self.asked_windows)

    def open_stream(self, stream: Stream, filter_json: bytes) -> int:
        """Send the request of ``stream`` and return its opaque.

        Raises:
            LocalProtocolError: the vbucket (with this stream id) has a stream already.
        """
        key = (stream.vbucket, stream.stream_id)
        current = self.streams.get(self.opaques.get(key, 0))
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
        self.ended.pop(key, None)
        return opaque

    def close_stream(self, opaque: int) -> None:
        """Send the request to end a stream; what is still on its way will be dropped."""
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
        """Store the successor of a stream; of an ended one only its last position matters."""
        if stream.phase is not StreamPhase.ENDED:
            self.streams[opaque] = stream
            return
        self.streams.pop(opaque, None)
        self.flow.end_stream(opaque)
        key = (stream.vbucket, stream.stream_id)
        if self.opaques.get(key) == opaque:
            del self.opaques[key]
            self.ended[key] = stream

    def stream_of(self, vbucket: int, stream_id: int | None = None) -> Stream:
        """Return the vbucket's stream, under way or ended.

        Raises:
            LocalProtocolError: there has been none on this connection.
        """
        key = (vbucket, stream_id)
        opaque = self.opaques.get(key)
        stream = self.ended.get(key) if opaque is None else self.streams[opaque]
        if stream is None:
            raise LocalProtocolError(f"vbucket {vbucket}: found no stream on this connection")
        return stream


def stream_request(stream: Stream, filter_json: bytes = b"") -> m.StreamRequest:
    """Return the request that opens ``stream``."""
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
