"""A hand-driven server for the client machines: frames in, frames out, no socket."""

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType

from scramp import ScramMechanism

from dcp.protocol.bootstrap import BootstrapSettings
from dcp.protocol.connection import ConsumerConnection
from dcp.protocol.credentials import ALL_MECHANISMS, Credentials, Secret
from dcp.protocol.events import Event
from dcp.protocol.liveness import LivenessSettings
from dcp.protocol.position import Position
from dcp.protocol.window_policies import FlowSettings
from dcp.types import FailoverEntry, FailoverLog
from dcp.wire import messages as m
from dcp.wire.codec import decode, encode
from dcp.wire.frame import Frame
from dcp.wire.framing import FrameBlock, FrameSplitter
from dcp.wire.vocabulary import HelloFeature, Magic, Opcode, Status

USER, PASSWORD = "reader", "correct horse"
UUID = 0xFEED_FACE_CAFE_BEEF
LOG = FailoverLog((FailoverEntry(UUID, 0),))
NONCE = "fyko+d2lbbFgONRv9qkxdawL"
ALL_FEATURES = frozenset(int(feature) for feature in HelloFeature)

Answerer = Callable[[Frame, m.Body], Frame | list[Frame] | None]


def answer_to(request: Frame, body: m.Body | None = None, status: int = Status.SUCCESS) -> Frame:
    if body is None:
        body = m.Empty() if status == Status.SUCCESS else m.Refusal()
    return encode(body, request.opcode, magic=Magic.RESPONSE, opaque=request.opaque, status=status)


class ScriptedServer:
    """Answers a bootstrap; ``overrides`` replace the answer to an opcode (None: silence)."""

    def __init__(
        self,
        *,
        granted: Iterable[int] = ALL_FEATURES,
        mechanisms: bytes = b"SCRAM-SHA512 SCRAM-SHA256 SCRAM-SHA1 PLAIN",
        password: str = PASSWORD,
        refused_controls: frozenset[bytes] = frozenset(),
    ) -> None:
        self.granted = frozenset(granted)
        self.mechanisms = mechanisms
        self.password = password
        self.refused_controls = refused_controls
        self.overrides: dict[int, Answerer] = {}
        self.seen: list[tuple[Frame, m.Body]] = []
        self._splitter = FrameSplitter()
        self._scram: object = None

    def take(self, data: bytes) -> list[Frame]:
        answers: list[Frame] = []
        block = self._splitter.feed(data)
        for index in range(len(block)):
            frame = block.frame(index)
            body = decode(frame)
            self.seen.append((frame, body))
            override = self.overrides.get(frame.opcode)
            answer = override(frame, body) if override else self._answer(frame, body)
            answers += answer if isinstance(answer, list) else [answer] if answer else []
        return answers

    def names_of(self, opcode: int) -> list[bytes]:
        return [body.name for _, body in self.seen if isinstance(body, m.DcpControl)]

    def _answer(self, frame: Frame, body: m.Body) -> Frame | None:
        if frame.magic.is_response or frame.opcode == Opcode.DCP_BUFFER_ACK:
            return None
        match body:
            case m.Hello():
                granted = tuple(code for code in body.features if code in self.granted)
                return answer_to(frame, m.HelloAnswer(granted))
            case m.Sasl():
                return self._sasl(frame, body)
            case m.DcpControl() if body.name in self.refused_controls:
                return answer_to(frame, status=Status.EINVAL)
            case m.StreamRequest():
                return answer_to(frame, m.FailoverLogAnswer(LOG.entries))
        if frame.opcode == Opcode.SASL_LIST_MECHS:
            return answer_to(frame, m.Text(self.mechanisms))
        if frame.opcode == Opcode.GET_CLUSTER_CONFIG:
            return answer_to(frame, m.Text(b'{"rev":1}'))
        if frame.opcode == Opcode.VERSION:
            return answer_to(frame, m.Text(b"8.0.0-3777"))
        return answer_to(frame)

    def _sasl(self, frame: Frame, body: m.Sasl) -> Frame:
        if body.mechanism == b"PLAIN":
            good = body.payload == f"\0{USER}\0{self.password}".encode()
            return (
                answer_to(frame, m.SaslAnswer())
                if good
                else answer_to(frame, status=Status.AUTH_ERROR)
            )
        name = body.mechanism.decode().replace("SHA", "SHA-")
        if frame.opcode == Opcode.SASL_AUTH:
            mechanism = ScramMechanism(name)
            info = mechanism.make_auth_info(self.password, salt=b"0123456789abcdef")
            self._scram = mechanism.make_server(lambda _: info, s_nonce="3rfcNHYJY1ZVvWVs7j")
            self._scram.set_client_first(body.payload.decode())  # type: ignore[attr-defined]
            challenge = self._scram.get_server_first().encode()  # type: ignore[attr-defined]
            return answer_to(frame, m.SaslAnswer(challenge), Status.AUTH_CONTINUE)
        try:
            self._scram.set_client_final(body.payload.decode())  # type: ignore[attr-defined]
        except Exception:  # scramp's own class; any failure is a wrong proof
            return answer_to(frame, status=Status.AUTH_ERROR)
        final = self._scram.get_server_final().encode()  # type: ignore[attr-defined]
        return answer_to(frame, m.SaslAnswer(final))


def block_of(*frames: Frame) -> FrameBlock:
    return FrameBlock.of(frame.to_bytes() for frame in frames)


def new_connection(
    *,
    password: str = PASSWORD,
    mechanisms: tuple[str, ...] | None = None,
    window_bytes: int = 10_000,
    stream_window_bytes: int = 0,
    prepare_extra_bytes: int = 0,
    ack_fraction: float = 0.2,
    ack_seconds: float = 5.0,
    noop_interval_seconds: float = 20.0,
    settings: BootstrapSettings | None = None,
    hands_out_frames: bool = False,
) -> ConsumerConnection:
    secret = Secret(password)
    credentials = Credentials(USER, secret)
    if mechanisms is not None:
        credentials = Credentials(USER, secret, mechanisms)
    return ConsumerConnection(
        settings or BootstrapSettings("travel", "test-connection"),
        credentials,
        NONCE,
        FlowSettings(
            window_bytes=window_bytes,
            ack_fraction=ack_fraction,
            ack_seconds=ack_seconds,
            stream_window_bytes=stream_window_bytes,
            prepare_extra_bytes=prepare_extra_bytes,
        ),
        LivenessSettings(noop_interval_seconds=noop_interval_seconds, silence_grace_seconds=5.0),
        hands_out_frames=hands_out_frames,
    )


def converse(
    connection: ConsumerConnection, server: ScriptedServer, now: float = 0.0
) -> list[Event]:
    """Carry bytes both ways until neither has more to say; return the client's events."""
    events: list[Event] = []
    while data := connection.bytes_to_send():
        for answer in server.take(data):
            events += connection.receive(block_of(answer), now)
    return events


def ready_connection(
    server: ScriptedServer | None = None, **options: object
) -> tuple[ConsumerConnection, ScriptedServer]:
    """Bootstrap by PLAIN, which costs no key derivation."""
    server = server or ScriptedServer()
    options = {"mechanisms": ALL_MECHANISMS} | options
    server.mechanisms = b"PLAIN"
    connection = new_connection(**options)  # type: ignore[arg-type]
    connection.start(0.0)
    converse(connection, server)
    assert connection.is_ready
    return connection, server


def open_stream(
    connection: ConsumerConnection,
    server: ScriptedServer,
    vbucket: int = 7,
    position: Position | None = None,
) -> int:
    """Open a stream that the server accepts; return its opaque."""
    connection.open_stream(vbucket, position or Position.beginning(), failover_log=None)
    converse(connection, server)
    return server.seen[-1][0].opaque


def release(
    connection: ConsumerConnection,
    frame_bytes: int,
    now: float,
    streams: Mapping[int, int] = MappingProxyType({}),
) -> None:
    """Release bytes of the connection's window, and of streams' by opaque; acknowledge."""
    flow = connection.flow
    shares = [(flow.streams[opaque], count) for opaque, count in streams.items()]
    flow.release([(flow.connection, frame_bytes), *shares])
    connection.acknowledge(now)


def marker(opaque: int, start: int, end: int, flags: int = 1, vbucket: int = 7) -> Frame:
    body = m.SnapshotMarker(start, end, flags)
    return encode(body, Opcode.DCP_SNAPSHOT_MARKER, opaque=opaque, vbucket=vbucket)


def mutation(
    opaque: int, seqno: int, vbucket: int = 7, value: bytes = b"{}", key: bytes | None = None
) -> Frame:
    body = m.Mutation(b"\0" + (key or b"k%d" % seqno), value, seqno, 1)
    return encode(body, Opcode.DCP_MUTATION, opaque=opaque, vbucket=vbucket, cas=seqno)


def advanced(opaque: int, seqno: int, vbucket: int = 7) -> Frame:
    body = m.SeqnoAdvanced(seqno)
    return encode(body, Opcode.DCP_SEQNO_ADVANCED, opaque=opaque, vbucket=vbucket)


def stream_end(opaque: int, reason: int = 0, vbucket: int = 7) -> Frame:
    return encode(m.StreamEnd(reason), Opcode.DCP_STREAM_END, opaque=opaque, vbucket=vbucket)
