"""A client of a producer in process, and the transcript of what the two say.

A line of the client's is written when it is said, one of the server's when its client reads it: a
client that reads late gets its frames when ``Recorder.read`` is called. Time is the recorder's.
"""

import json
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from dcp.producer.commands.commands import COMMANDS
from dcp.producer.commands.session import Session
from dcp.producer.server.cluster import ProducerCluster
from dcp.protocol.credentials import ALL_MECHANISMS, Credentials, Secret
from dcp.protocol.sasl import SaslExchange
from dcp.types import END_OF_TIME
from dcp.wire import messages as m
from dcp.wire.codec import decode, encode
from dcp.wire.frame import Frame
from dcp.wire.vocabulary import Magic, Opcode, Status
from tests.producer_conformance.subject import Line

TranscriptLine = dict[str, Any]
_COUNTED = frozenset(range(Opcode.DCP_STREAM_END, Opcode.DCP_SET_VBUCKET_STATE)) | {
    Opcode.DCP_SYSTEM_EVENT,
    Opcode.DCP_PREPARE,
    Opcode.DCP_COMMIT,
    Opcode.DCP_ABORT,
    Opcode.DCP_SEQNO_ADVANCED,
    Opcode.DCP_OSO_SNAPSHOT,
}
"""What flow control charges for."""


@dataclass(slots=True)
class Position:
    """Where a client stands in a vbucket."""

    at: int = 0
    snapshot: tuple[int, int] = (0, 0)
    vb_uuid: int = 0

    def request(self, flags: int, end: int, value: bytes) -> m.StreamRequest:
        """Ask for what follows."""
        first, last = self.snapshot if self.at else (0, 0)
        if self.at == last:
            first = last
        vb_uuid = self.vb_uuid if self.at else 0
        return m.StreamRequest(flags, self.at, max(end, self.at), vb_uuid, first, last, value)


@dataclass(slots=True)
class RecordedClient:
    """One connection, and what its client has learned."""

    name: str
    line: Line
    features: frozenset[int] = frozenset()
    reads_late: bool = False
    answers_noops: bool = True
    unread: deque[Frame] = field(default_factory=deque)
    positions: dict[int, Position] = field(default_factory=dict)
    streams: dict[int, tuple[int, int | None]] = field(default_factory=dict)
    asked: dict[int, int] = field(default_factory=dict)
    unacked_bytes: int = 0
    opaque: int = 0x100
    answers: list[Frame] = field(default_factory=list)
    is_gone: bool = False


class Recorder:
    """Writes down what the clients of a cluster and its node say."""

    def __init__(self, cluster: ProducerCluster) -> None:
        self.cluster = cluster
        self.lines: list[TranscriptLine] = []
        self.seconds = 0.0
        self.clients: list[RecordedClient] = []
        self._opened = 0

    # --- what is written down

    def note(self, line: TranscriptLine) -> None:
        """Write a line; the next one comes a little later."""
        self.seconds += 0.0001
        self.lines.append(line | {"t": round(self.seconds, 6)})

    def text(self) -> str:
        """Return the transcript as a file has it."""
        return "".join(json.dumps(line) + "\n" for line in self.lines)

    # --- connections

    def connect(self, *, reads_late: bool = False) -> RecordedClient:
        """Open a connection."""
        self._opened += 1
        line = Line(Session(self.cluster.bucket, 0, COMMANDS, 0.0))
        client = RecordedClient(f"c{self._opened}", line, reads_late=reads_late)
        self.clients.append(client)
        return client

    def close(self, client: RecordedClient) -> None:
        """Let a client close, what it has not read stays unread."""
        if not client.is_gone:
            self.note({"mark": f"{client.name}: client closes"})
        self._forget(client)

    def _forget(self, client: RecordedClient) -> None:
        client.is_gone = True
        client.line.close()
        if client in self.clients:
            self.clients.remove(client)

    # --- the client speaks

    def say(self, client: RecordedClient, *frames: Frame) -> None:
        """Send frames in one segment."""
        data = b"".join(frame.to_bytes() for frame in frames)
        self.note({"conn": client.name, "dir": "c2s", "hex": data.hex()})
        client.line.send(data, self.seconds)
        self.spread()

    def ask(
        self,
        client: RecordedClient,
        body: m.Body,
        opcode: int,
        *,
        vbucket: int = 0,
        framing_extras: bytes = b"",
        datatype: int = 0,
    ) -> Frame | None:
        """Send a request and read up to its answer; None where there is none."""
        frame = self.request(
            client, body, opcode, vbucket=vbucket, framing_extras=framing_extras, datatype=datatype
        )
        client.answers.clear()
        self.say(client, frame)
        while client.unread and not self._answer_to(client, frame.opaque):
            self.read(client, 1)
        return self._answer_to(client, frame.opaque)

    def request(
        self,
        client: RecordedClient,
        body: m.Body,
        opcode: int,
        *,
        vbucket: int = 0,
        framing_extras: bytes = b"",
        datatype: int = 0,
    ) -> Frame:
        """Return a request with an opaque of its own."""
        client.opaque += 1
        return encode(
            body,
            opcode,
            magic=Magic.ALT_REQUEST if framing_extras else Magic.REQUEST,
            vbucket=vbucket,
            opaque=client.opaque,
            datatype=datatype,
            framing_extras=framing_extras,
        )

    @staticmethod
    def _answer_to(client: RecordedClient, opaque: int) -> Frame | None:
        return next((each for each in client.answers if each.opaque == opaque), None)

    def log_in(self, client: RecordedClient, mechanism: str, features: tuple[int, ...]) -> None:
        """Negotiate, authenticate, and choose the bucket."""
        said = self.ask(client, m.Hello(b"recorded", features), Opcode.HELLO)
        body = decode(said) if said is not None else None
        if isinstance(body, m.HelloAnswer):
            client.features = frozenset(body.features)
        credentials = Credentials("Administrator", Secret("password"), ALL_MECHANISMS)
        exchange = SaslExchange.start(mechanism, credentials, f"nonce{self._opened}")
        name = mechanism.encode()
        answer = self.ask(client, m.Sasl(name, exchange.payload), Opcode.SASL_AUTH)
        if answer is not None and answer.status == Status.AUTH_CONTINUE:
            exchange = exchange.answer(answer.value)
            self.ask(client, m.Sasl(name, exchange.payload), Opcode.SASL_STEP)
        self.ask(client, m.SelectBucket(b"default"), Opcode.SELECT_BUCKET)

    def stream(
        self,
        client: RecordedClient,
        vbucket: int,
        *,
        flags: int = 0,
        end: int = END_OF_TIME,
        value: bytes = b"",
        stream_id: int | None = None,
    ) -> Frame | None:
        """Ask for a stream from where the client stands."""
        position = client.positions.setdefault(vbucket, Position())
        body = position.request(flags, end, value)
        request = self.request(client, body, Opcode.DCP_STREAM_REQ, vbucket=vbucket)
        client.asked[request.opaque] = vbucket
        client.streams[request.opaque] = (vbucket, stream_id)
        client.answers.clear()
        self.say(client, request)
        if not client.reads_late:
            self.read(client)
        return self._answer_to(client, request.opaque)

    def acknowledge(self, client: RecordedClient, count: int) -> None:
        """Acknowledge bytes that were read."""
        client.unacked_bytes -= count
        self.say(client, self.request(client, m.BufferAck(count), Opcode.DCP_BUFFER_ACK))

    # --- the server speaks

    def spread(self) -> None:
        """Let the streams of all clients hear of what has changed, and send it."""
        bucket = self.cluster.bucket
        moved = True
        while moved:
            changed = bucket.changes.collect()
            for connection in list(bucket.dcp_connections.values()):
                connection.vbuckets_changed(changed)
            moved = bool(sum(self._hear(client) for client in self.clients))  # all are heard
        for client in list(self.clients):
            if not client.reads_late:
                self.read(client)

    def _hear(self, client: RecordedClient) -> bool:
        frames = list(self._sent(client.line))
        client.unread.extend(frames)
        return bool(frames)

    def _sent(self, line: Line) -> Iterator[Frame]:
        while frames := line.next_message(self.seconds):
            yield from frames

    def read(self, client: RecordedClient, count: int | None = None) -> None:
        """Let a client read so many frames of what it was sent, or all."""
        while client.unread and count != 0 and not client.is_gone:
            frame = client.unread.popleft()
            self.note({"conn": client.name, "dir": "s2c", "hex": frame.to_bytes().hex()})
            self._learn(client, frame)
            count = None if count is None else count - 1
        if client.line.is_closed and not client.unread and not client.is_gone:
            self.note({"mark": f"{client.name}: server closed connection"})
            self._forget(client)

    def _learn(self, client: RecordedClient, frame: Frame) -> None:
        if frame.magic.is_response:
            client.answers.append(frame)
        elif frame.opcode in _COUNTED:
            client.unacked_bytes += 24 + frame.body_bytes
        body = decode(frame)
        vbucket = client.asked.get(frame.opaque, 0)
        position = client.positions.setdefault(vbucket, Position())
        match body:
            case m.FailoverLogAnswer() if frame.opcode == Opcode.DCP_STREAM_REQ:
                position.vb_uuid = body.entries[0].vb_uuid
            case m.RollbackAnswer():
                position.at = body.rollback_seqno
                position.snapshot = (position.at, position.at)
                client.streams.pop(frame.opaque, None)
            case m.SnapshotMarker():
                position.snapshot = body.start, body.end
            case m.Mutation() | m.Deletion() | m.Expiration() | m.SystemEvent() | m.Prepare():
                position.at = max(position.at, body.by_seqno)
            case m.Commit():
                position.at = body.commit_seqno
            case m.Abort():
                position.at = body.abort_seqno
            case m.SeqnoAdvanced():
                position.at = max(position.at, body.seqno)
            case m.StreamEnd():
                client.streams.pop(frame.opaque, None)
        if frame.opcode == Opcode.DCP_STREAM_REQ and frame.magic.is_response and frame.status:
            client.streams.pop(frame.opaque, None)
        if frame.opcode == Opcode.DCP_NOOP and client.answers_noops and not frame.magic.is_response:
            answer = encode(m.Empty(), Opcode.DCP_NOOP, magic=Magic.RESPONSE, opaque=frame.opaque)
            self.say(client, answer)
