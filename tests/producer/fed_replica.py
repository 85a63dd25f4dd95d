"""A replica that is fed by hand: its passive stream on a connection whose peer a test plays."""

from dcp.protocol.bootstrap import OPTIONAL_CONTROLS, BootstrapSettings, BootstrapStep, control_step
from dcp.protocol.connection import ConsumerConnection
from dcp.protocol.credentials import ALL_MECHANISMS, Credentials, Secret
from dcp.protocol.liveness import LivenessSettings
from dcp.protocol.negotiation import STREAM_END_ON_CLOSE
from dcp.protocol.window_policies import FlowSettings
from dcp.server.replication.passive_stream import PassiveStream
from dcp.server.replication.passive_streams import PassiveStreams
from dcp.server.vbucket.replica import Replica
from dcp.types import FailoverEntry, FailoverLog
from dcp.wire import messages as m
from dcp.wire.codec import encode
from dcp.wire.frame import parse_frame
from dcp.wire.framing import FrameBlock
from dcp.wire.vocabulary import Magic, Opcode, Status
from tests.protocol.scripted import NONCE, PASSWORD, USER, ScriptedServer, answer_to, converse

LOG = FailoverLog((FailoverEntry(0xABC, 0),))
_OPAQUE_AT = slice(12, 16)


class FedReplica:
    """One connection with the stream into a replica; ``asked`` has its requests, newest last."""

    def __init__(
        self,
        replica: Replica,
        log: FailoverLog | None = LOG,
        *,
        takes_over: bool = False,
        ends_are_told: bool = True,
    ) -> None:
        """With a ``log`` the stream is accepted at once.

        ``ends_are_told``: the peer tells the end of a stream that was closed. While ``has_room`` is
        false no stream is asked for.
        """
        self.replica = replica
        self.has_room = True
        controls: tuple[BootstrapStep, ...] = (
            *OPTIONAL_CONTROLS,
            control_step("enable_sync_writes", "true"),
        )
        if not ends_are_told:
            controls = tuple(each for each in controls if STREAM_END_ON_CLOSE not in each.name)
        self.asked: list[m.StreamRequest] = []
        server = self._server = ScriptedServer(mechanisms=b"PLAIN")
        server.overrides = {Opcode.DCP_STREAM_REQ: lambda *_: None}
        self._connection = ConsumerConnection(
            BootstrapSettings("travel", "replica", controls=controls),
            Credentials(USER, Secret(PASSWORD), ALL_MECHANISMS),
            NONCE,
            FlowSettings(),
            LivenessSettings(),
            hands_out_frames=True,
        )
        self._connection.start(0.0)
        converse(self._connection, server)
        self.streams = PassiveStreams(self._connection, lambda: self.has_room)
        vbucket = replica.vbucket.id
        self.streams.follow({vbucket: replica}, 0.0, [vbucket] if takes_over else [])
        self.stream = self.streams.by_vbucket[vbucket]
        self._said()
        if log is not None:
            self.answer(Status.SUCCESS, m.FailoverLogAnswer(log.entries))

    def answer(self, status: int, body: m.Body) -> PassiveStream:
        """Answer the newest stream request."""
        frame = encode(
            body,
            Opcode.DCP_STREAM_REQ,
            magic=Magic.RESPONSE,
            opaque=self.stream.opaque,
            status=status,
        )
        self._take(frame.to_bytes())
        self._said()
        return self.stream

    def feed(self, *messages: bytes) -> list[int]:
        """Let the stream bring messages; return the opcodes that were answered."""
        opaque = self.stream.opaque.to_bytes(4)
        for message in messages:
            frame = bytearray(message)
            frame[_OPAQUE_AT] = opaque
            self._take(bytes(frame))
        return self._said()

    def answer_close_and_end(self, end: bytes) -> None:
        """Answer CLOSE_STREAM, and tell the end of the stream with it, in one block."""
        close = parse_frame(self._connection.bytes_to_send())
        frame = bytearray(end)
        frame[_OPAQUE_AT] = self.stream.opaque.to_bytes(4)
        self._take(answer_to(close).to_bytes(), bytes(frame))

    def _take(self, *frames: bytes) -> None:
        for event in self._connection.receive(FrameBlock.of(frames), 0.0):
            self.streams.take(event, 0.0)

    def _said(self) -> list[int]:
        before = len(self._server.seen)
        while events := converse(self._connection, self._server):
            for event in events:
                self.streams.take(event, 0.0)
        said = self._server.seen[before:]
        self.asked += [body for _, body in said if isinstance(body, m.StreamRequest)]
        return [frame.opcode for frame, _ in said if frame.magic is Magic.RESPONSE]
