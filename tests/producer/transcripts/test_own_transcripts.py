"""Conversations with our own producer, recorded in the transcripts' format, are repeated without
a difference: the state is found again from what was shown, whatever was done to the vbucket.
"""

from dataclasses import dataclass, field
from random import Random
from typing import Any

import pytest

from dcp.producer.bucket import failover
from dcp.producer.commands.commands import COMMANDS
from dcp.producer.commands.session import Session
from dcp.producer.model.settings import ClusterSettings
from dcp.producer.server.cluster import ProducerCluster
from dcp.types import END_OF_TIME
from dcp.wire import messages as m
from dcp.wire.codec import decode, encode
from dcp.wire.frame import Frame
from dcp.wire.vocabulary import HelloFeature, Opcode, VbucketState
from tests.producer_conformance.conversation import Conversation
from tests.producer_conformance.rehearsal import rehearse
from tests.producer_conformance.subject import Line
from tests.seeds import seeds

KEYS = [b"k%d" % number for number in range(6)]
STEPS = 40


@dataclass
class Client:
    """A client that streams vbucket 0, and what it knows of it."""

    name: str
    line: Line
    at: int = 0
    snapshot: tuple[int, int] = (0, 0)
    vb_uuid: int = 0


@dataclass
class Recorder:
    """A producer, its clients, and the transcript of what they say.

    It forks or purges, not both: what was purged on a branch that nobody saw cannot be told.
    """

    random: Random
    purges: bool
    lines: list[dict[str, Any]] = field(default_factory=list)
    seconds: float = 0.0
    clients: list[Client] = field(default_factory=list)
    opened: int = 0

    def __post_init__(self) -> None:
        self.cluster = ProducerCluster(
            ClusterSettings(
                vbuckets=1,
                seed=self.random.randrange(2**32),
                rules="server",
                clock=lambda: 1_700_000_000.0 + self.seconds,
            )
        )

    def say(self, client: Client, *frames: Frame) -> None:
        if self.random.random() < 0.3:  # what is on disk may leave memory at any time
            self.cluster.bucket.vbuckets[0].data.checkpoints.expel()
        data = b"".join(frame.to_bytes() for frame in frames)
        self._note({"conn": client.name, "dir": "c2s", "hex": data.hex()})
        client.line.send(data, self.seconds)
        self.listen(client)

    def listen(self, client: Client) -> None:
        while frames := client.line.next_message(self.seconds):
            for frame in frames:
                self._note({"conn": client.name, "dir": "s2c", "hex": frame.to_bytes().hex()})
                self._learn(client, frame)

    def _note(self, line: dict[str, Any]) -> None:
        self.seconds += 0.001
        self.lines.append(line | {"t": round(self.seconds, 4)})

    def _learn(self, client: Client, frame: Frame) -> None:
        body = decode(frame)
        match body:
            case m.FailoverLogAnswer():
                client.vb_uuid = body.entries[0].vb_uuid
            case m.SnapshotMarker():
                client.snapshot = body.start, body.end
            case m.Mutation() | m.Deletion():
                client.at = body.by_seqno
            case m.RollbackAnswer():
                client.at, client.snapshot = 0, (0, 0)

    # --- what happens

    def open(self, resumed: Client | None = None) -> None:
        self.opened += 1
        session = Session(self.cluster.bucket, 0, COMMANDS, 0.0)
        client = Client(f"c{self.opened}", Line(session))
        if resumed is not None:
            client.at, client.snapshot = resumed.at, resumed.snapshot
            client.vb_uuid = resumed.vb_uuid
        plain = b"\0Administrator\0password"
        flags = self.random.choice((1, 0x21))
        self.say(client, encode(m.Hello(b"x", (HelloFeature.JSON,)), Opcode.HELLO))
        self.say(client, encode(m.Sasl(b"PLAIN", plain), Opcode.SASL_AUTH))
        self.say(client, encode(m.SelectBucket(b"default"), Opcode.SELECT_BUCKET))
        self.say(client, encode(m.DcpOpen(client.name.encode(), flags & 1), Opcode.DCP_OPEN))
        self.clients.append(client)
        self.ask(client)

    def ask(self, client: Client) -> None:
        first, end = client.snapshot if client.at else (0, 0)
        snapshot = (client.at, client.at) if client.at == end else (first, end)
        bounds = (client.at, END_OF_TIME, client.vb_uuid, *snapshot)
        self.say(client, encode(m.StreamRequest(0, *bounds), Opcode.DCP_STREAM_REQ, opaque=7))

    def close(self, client: Client) -> None:
        self.seconds += 1.0
        self.clients.remove(client)
        self._note({"mark": f"{client.name}: client closes"})
        client.line.close()

    def change(self) -> None:
        self.seconds += 1.0
        self._note({"mark": "something happens"})
        match self.random.randrange(8), self.purges:
            case 0, False:
                failover.crash(self.cluster.bucket, 0, self.random.randrange(3))
            case 1, False:
                self.cluster.set_vbucket_state(0, VbucketState.REPLICA)
                self.cluster.set_vbucket_state(0, VbucketState.ACTIVE)
            case 0, True:
                self.cluster.purge_tombstones(0)
            case _:
                with self.cluster.batch():
                    for _ in range(self.random.randrange(1, 6)):
                        self._write(self.random.choice(KEYS))
        bucket = self.cluster.bucket
        for connection in list(bucket.dcp_connections.values()):
            connection.vbuckets_changed({0})
        for client in self.clients:
            self.listen(client)
        self.seconds += 1.0

    def _write(self, key: bytes) -> None:
        held = self.cluster.state_at(0, self.cluster.high_seqno(0))
        if key in held and self.random.random() < 0.4:
            self.cluster.delete(key)
        else:
            self.cluster.set(key, b'{"n":%d}' % len(self.lines))


@pytest.mark.parametrize("purges", [False, True], ids=["forks", "purges"])
@pytest.mark.parametrize("seed", seeds(6))
def test_our_own_conversations_are_repeated(seed: int, purges: bool) -> None:
    recorder = Recorder(Random(seed), purges)
    for _ in range(STEPS):
        choice = recorder.random.randrange(6)
        if choice == 0 or not recorder.clients:
            recorder.open()
        elif choice == 1:
            gone = recorder.random.choice(recorder.clients)
            recorder.close(gone)
            recorder.open(resumed=gone)
        else:
            recorder.change()
    conversation = Conversation.read(recorder.lines)
    assert [text for result in rehearse(conversation) for text in result.failures] == []
