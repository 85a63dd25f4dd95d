"""A DCP client of a producer without a socket: frames in, frames out, one message at a time.

The cluster need not run: bytes go straight into a session of its bucket.
"""

from collections import Counter

from dcp.producer.cluster import ProducerCluster
from dcp.producer.commands import COMMANDS
from dcp.server.bucket.dcp_connection import DcpConnection
from dcp.server.commands.session import Session
from dcp.types import END_OF_TIME
from dcp.wire import messages as m
from dcp.wire.codec import encode
from dcp.wire.frame import Frame
from dcp.wire.framing import FrameSplitter
from dcp.wire.vocabulary import HEADER_BYTES, Opcode

_TURN_BYTES = 64 * 1024
_LOG_IN = (
    encode(m.Sasl(b"PLAIN", b"\0Administrator\0password"), Opcode.SASL_AUTH),
    encode(m.SelectBucket(b"default"), Opcode.SELECT_BUCKET),
)


def frame_bytes(frame: Frame) -> int:
    """Return how long a frame is on the wire."""
    return HEADER_BYTES + frame.body_bytes


class DcpSession:
    """A connection that is open for DCP, with these controls; answers and messages apart."""

    def __init__(self, cluster: ProducerCluster, **controls: object) -> None:
        self._session = Session(cluster.bucket, 0, COMMANDS, 0.0)
        self._out = FrameSplitter()
        for frame in (*_LOG_IN, encode(m.DcpOpen(b"client", 1), Opcode.DCP_OPEN)):
            assert self.ask(frame).status == 0
        for key, value in controls.items():
            assert self.control(key, str(value)).status == 0

    @property
    def dcp(self) -> DcpConnection:
        assert self._session.dcp is not None
        return self._session.dcp

    @property
    def is_closing(self) -> bool:
        return self._session.is_closing

    def say(self, frame: Frame) -> None:
        self._session.feed(frame, 0.0)

    def ask(self, frame: Frame) -> Frame:
        """Say something and return its answer, which comes before anything of a stream."""
        self.say(frame)
        (answer,) = self.answers()
        assert answer.opcode == frame.opcode
        return answer

    def answers(self) -> list[Frame]:
        found = self._frames(0)
        assert all(frame.magic.is_response for frame in found)
        return found

    def control(self, name: str, value: str) -> Frame:
        body = m.DcpControl(name.encode(), value.encode())
        return self.ask(encode(body, Opcode.DCP_CONTROL))

    def request_stream(self, vbucket: int, opaque: int) -> Frame:
        body = m.StreamRequest(0, 0, END_OF_TIME, 0, 0, 0, b"")
        return self.ask(encode(body, Opcode.DCP_STREAM_REQ, vbucket=vbucket, opaque=opaque))

    def close_stream(self, vbucket: int) -> Frame:
        return self.ask(encode(m.Empty(), Opcode.DCP_CLOSE_STREAM, vbucket=vbucket))

    def ack(self, count: int, opaque: int = 0) -> list[Frame]:
        """Acknowledge; return the answers, of which there should be none."""
        self.say(encode(m.BufferAck(count), Opcode.DCP_BUFFER_ACK, opaque=opaque))
        return self.answers()

    def sent(self, turn_bytes: int = _TURN_BYTES, now: float = 0.0) -> list[Frame]:
        """Return all that the streams send until they have to wait, and a NOOP that is due."""
        found: list[Frame] = []
        while more := self._frames(turn_bytes, now):
            assert not any(frame.magic.is_response for frame in more)
            found += more
        return found

    def sent_bytes(self, turn_bytes: int = _TURN_BYTES) -> dict[int, int]:
        """Return how many bytes each opaque sends until it has to wait."""
        found: Counter[int] = Counter()
        for frame in self.sent(turn_bytes):
            found[frame.opaque] += frame_bytes(frame)
        return dict(found)

    def outstanding(self, opaque: int) -> int:
        """Return what is outstanding of a stream; of the connection with opaque 0."""
        flow = self.dcp.stream_windows.flow(opaque) if opaque else self.dcp.flow
        assert flow is not None
        return flow.outstanding_bytes

    def _frames(self, most_bytes: int, now: float = 0.0) -> list[Frame]:
        found: list[Frame] = []
        for data in self._session.output(most_bytes, now):
            block = self._out.feed(bytes(data))
            found += [block.frame(index) for index in range(len(block))]
        return found
