"""Connections between nodes: streams that are asked for again, peers that fall silent."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import count
from time import monotonic, sleep

import pytest

from dcp.errors import NodeUnavailableError, RemoteProtocolError
from dcp.producer.cluster import ProducerCluster
from dcp.producer.replication import NodeReplicator
from dcp.protocol.liveness import LivenessSettings
from dcp.server.model.versions import Version
from dcp.server.replication.passive_connection import PassiveConnection
from dcp.server.vbucket.replica import Replica
from dcp.types import vbucket_of
from dcp.wire import messages as m
from dcp.wire.codec import encode
from dcp.wire.framing import FrameSplitter
from dcp.wire.vocabulary import EndReason, Magic, Opcode, SnapshotFlag, Status, VbucketState
from tests.producer.in_process_wire import InProcessWire
from tests.producer.raw_client import PATIENCE_SECONDS

MakeCluster = Callable[..., ProducerCluster]
QUICK = LivenessSettings(
    noop_interval_seconds=0.1, silence_grace_seconds=0.0, bootstrap_timeout_seconds=0.2
)
SILENCE = LivenessSettings(noop_interval_seconds=1.0, silence_grace_seconds=0.0)
"""Who is heard is so within two seconds, on a busy machine too."""


@pytest.fixture
def pair(make_cluster: MakeCluster) -> ProducerCluster:
    return make_cluster(nodes=2, vbuckets=4, replicas=1)


def _key_of(vbucket: int) -> bytes:
    return next(key for key in (b"k%d" % n for n in count()) if vbucket_of(key, 4) == vbucket)


def test_a_busy_connection_asks_again_for_a_stream(pair: ProducerCluster) -> None:
    """Vbuckets 0 and 1 go from node 1 to node 2 by one connection, which is never idle here."""
    dead, busy = _key_of(0), _key_of(1)
    pair.set(dead, b"1")
    pair.wait_until_replicated()
    pair.set_vbucket_state(0, VbucketState.DEAD)
    sleep(1.5)  # it is refused so often that a second goes by between two requests
    for _ in range(10):
        pair.set(busy, b"1")
        sleep(0.002)
    pair.set_vbucket_state(0, VbucketState.ACTIVE)
    pair.set(dead, b"2")
    until = monotonic() + PATIENCE_SECONDS
    while monotonic() < until:
        pair.set(busy, b"2")
        if pair.replica_seqno(0) == pair.high_seqno(0):
            return
        sleep(0.002)
    pytest.fail(f"the replica is at {pair.replica_seqno(0)} of {pair.high_seqno(0)}")


# --- without a socket: time is what a test says


class Talk:
    """A connection for vbuckets 0 and 1 whose peer says what a test wants."""

    def __init__(self, pair: ProducerCluster, takes_over: frozenset[int] = frozenset()) -> None:
        pair.pause_replication()
        self.wire = InProcessWire(pair.bucket, 0, 1)
        self.connection: PassiveConnection = self.wire.connection
        self.wire.pump()
        replicas = pair.bucket.replicas.of_node(1)
        self.connection.streams.follow({}, 0.0)
        self.wire.pump()
        self.connection.streams.follow({v: replicas[v] for v in (0, 1)}, 0.0, takes_over)
        self.connection.streams.tick(6.0)  # what was released is acknowledged by then
        self.requested()

    def requested(self) -> list[int]:
        """Return the vbuckets whose streams were asked for since the last call."""
        said = FrameSplitter().feed(self.connection.protocol.bytes_to_send())
        frames = [said.frame(index) for index in range(len(said))]
        return [each.vbucket for each in frames if each.opcode == Opcode.DCP_STREAM_REQ]

    def _stream(self, vbucket: int) -> int:
        return self.connection.streams.by_vbucket[vbucket].opaque

    def say(self, body: m.Body, opcode: Opcode, now: float, **fields: int) -> None:
        frame = encode(body, opcode, **fields).to_bytes()  # type: ignore[arg-type]
        self.connection.feed(FrameSplitter().feed(frame), now)

    def begin_snapshot(self, vbucket: int, end: int, now: float) -> None:
        body, opaque = m.SnapshotMarker(0, end, SnapshotFlag.MEMORY), self._stream(vbucket)
        self.say(body, Opcode.DCP_SNAPSHOT_MARKER, now, opaque=opaque, vbucket=vbucket)

    def items(self, vbucket: int, seqnos: list[int], now: float) -> None:
        """Say all of them in one block."""
        opaque = self._stream(vbucket)
        frames = [
            encode(
                m.Mutation(b"\0k%d" % seqno, b"1", seqno, 1),
                Opcode.DCP_MUTATION,
                opaque=opaque,
                vbucket=vbucket,
            ).to_bytes()
            for seqno in seqnos
        ]
        self.connection.feed(FrameSplitter().feed(b"".join(frames)), now)

    def refuse(self, vbucket: int, now: float) -> None:
        self.say(
            m.Refusal(b""),
            Opcode.DCP_STREAM_REQ,
            now,
            magic=Magic.RESPONSE,
            opaque=self._stream(vbucket),
            status=Status.NOT_MY_VBUCKET,
        )

    def end(self, vbucket: int, now: float) -> None:
        body = m.StreamEnd(EndReason.STATE_CHANGED)
        self.say(body, Opcode.DCP_STREAM_END, now, opaque=self._stream(vbucket), vbucket=vbucket)

    def accept(self, pair: ProducerCluster, vbucket: int, now: float) -> None:
        log = pair.bucket.vbuckets[vbucket].failover_log.entries
        body = m.FailoverLogAnswer(tuple(log))
        opaque = self._stream(vbucket)
        self.say(body, Opcode.DCP_STREAM_REQ, now, magic=Magic.RESPONSE, opaque=opaque)
        assert self.connection.streams.by_vbucket[vbucket].is_open


@pytest.fixture
def talk(pair: ProducerCluster) -> Iterator[Talk]:
    with pair.bucket.lock:
        found = Talk(pair)
        yield found
        found.wire.close()


def test_a_stream_is_asked_for_again_after_longer_waits(talk: Talk, pair: ProducerCluster) -> None:
    talk.accept(pair, 0, 0.0)
    now, waits = 10.0, list[float]()
    for attempt in range(8):
        talk.refuse(1, now)
        talk.refuse(0, now) if attempt else talk.end(0, now)
        waits.append(talk.connection.streams.deadline - now)
        talk.connection.streams.tick(now + waits[-1] - 0.001)
        assert talk.requested() == []
        now += waits[-1]
        talk.connection.streams.tick(now)
        assert sorted(talk.requested()) == [0, 1]
    assert waits == pytest.approx([0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.0, 1.0])
    talk.accept(pair, 0, now)
    talk.refuse(1, now)
    assert talk.connection.streams.deadline - now == pytest.approx(0.02)


def test_a_wait_is_not_put_off_by_another_refusal(talk: Talk) -> None:
    talk.refuse(0, 10.0)
    at = talk.connection.streams.deadline
    talk.refuse(1, 10.01)
    assert talk.connection.streams.deadline == at
    talk.connection.streams.tick(at)
    assert sorted(talk.requested()) == [0, 1]


def test_a_takeover_that_ended_leaves_the_wait_of_another_stream(pair: ProducerCluster) -> None:
    with pair.bucket.lock:
        talk = Talk(pair, takes_over=frozenset({0}))
        talk.refuse(1, 10.0)
        talk.accept(pair, 0, 10.0)
        talk.end(0, 10.0)
        assert talk.connection.streams.retry_at is not None
        talk.wire.close()


def test_a_silent_peer_is_asked_and_then_given_up(talk: Talk) -> None:
    talk.say(m.Empty(), Opcode.DCP_NOOP, 100.0, opaque=1)
    talk.requested()
    assert talk.connection.streams.deadline == pytest.approx(100.0 + 1.2 * 20)
    talk.connection.streams.tick(124.1)
    said = FrameSplitter().feed(talk.connection.protocol.bytes_to_send())
    assert [said.frame(index).opcode for index in range(len(said))] == [Opcode.NOOP]
    talk.connection.streams.tick(144.9)
    with pytest.raises(NodeUnavailableError, match=r"peer silent for 45\.1 s"):
        talk.connection.streams.tick(145.1)


def test_who_did_not_listen_holds_nothing_against_its_peer(talk: Talk) -> None:
    talk.say(m.Empty(), Opcode.DCP_NOOP, 100.0, opaque=1)
    talk.connection.protocol.excuse_silence(1000.0)
    talk.connection.streams.tick(1000.1)
    assert talk.connection.streams.deadline > 1001.0


# --- over sockets


class Link:
    """Stands between a replicator and a node; once ``is_cut`` nothing gets through, unheard."""

    def __init__(self, port: int | None) -> None:
        self._port = port
        self.is_cut = asyncio.Event()
        self._writers: list[asyncio.StreamWriter] = []

    async def serve(self) -> asyncio.Server:
        return await asyncio.start_server(self._accept, "127.0.0.1", 0)

    def close(self) -> None:
        for writer in self._writers:
            writer.transport.abort()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.append(writer)
        if self._port is None:  # it listens, and says nothing
            return
        there, to_node = await asyncio.open_connection("127.0.0.1", self._port)
        self._writers.append(to_node)
        await asyncio.gather(self._pass_on(reader, to_node), self._pass_on(there, writer))

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(65536):
                if not self.is_cut.is_set():
                    writer.write(data)


async def _converse(
    pair: ProducerCluster, link: Link, liveness: LivenessSettings, *, cut_at_seqno: int | None
) -> None:
    """Fill the replicas on node 2 over a link, until that is cut and the replicator says so."""
    bucket = pair.bucket
    awake = asyncio.Event()
    awake.set()
    async with await link.serve() as server:
        port = server.sockets[0].getsockname()[1]
        with bucket.lock:
            addresses = list(bucket.map.addresses)
            addresses[0] = replace(addresses[0], kv=port)
            bucket.map.set_addresses(addresses)
            replicas = bucket.replicas.of_node(1)
        replicator = NodeReplicator(bucket, 0, 1, awake, liveness=liveness)
        with bucket.lock:
            replicator.follow({0: replicas[0]})
        talk = asyncio.ensure_future(replicator.converse())
        while cut_at_seqno is not None and pair.replica_seqno(0) < cut_at_seqno:
            assert not talk.done(), talk
            await asyncio.sleep(0.01)
        link.is_cut.set()
        try:
            await talk
        finally:
            link.close()


def test_a_feed_leaves_a_peer_that_says_nothing_any_more(pair: ProducerCluster) -> None:
    pair.pause_replication()
    pair.set(_key_of(0), b"1")
    link_to_node = pair.bucket.map.addresses[0].kv

    async def run() -> None:
        await _converse(pair, Link(link_to_node), SILENCE, cut_at_seqno=1)

    with pytest.raises(NodeUnavailableError, match="peer silent for"):
        asyncio.run(run())


def test_a_feed_leaves_a_peer_that_never_gets_ready(pair: ProducerCluster) -> None:
    pair.pause_replication()

    async def run() -> None:
        await _converse(pair, Link(None), QUICK, cut_at_seqno=None)

    with pytest.raises(NodeUnavailableError, match=r"waited .* for the answer to"):
        asyncio.run(run())


def test_a_feed_waits_as_long_for_a_connection(
    pair: ProducerCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No host of a test is one that answers nothing at all: this one stands in for it."""
    pair.pause_replication()
    was_cancelled = False

    async def never(host: str, port: int) -> None:
        nonlocal was_cancelled
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            was_cancelled = True
            raise

    async def run() -> str:
        with monkeypatch.context() as patched:
            patched.setattr(asyncio, "open_connection", never)
            replicator = NodeReplicator(pair.bucket, 0, 1, asyncio.Event(), liveness=QUICK)
            return await replicator.converse()

    assert asyncio.run(run()) == "TimeoutError"
    assert was_cancelled


def test_items_before_a_bad_one_are_noted(
    pair: ProducerCluster, talk: Talk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The replica has them, so its disk and its readers must learn of them."""
    receive = Replica.receive

    def receives(self: Replica, version: Version) -> None:
        if version.seqno == 2:
            raise ValueError("bad item")
        receive(self, version)

    monkeypatch.setattr(Replica, "receive", receives)
    talk.accept(pair, 0, 7.0)
    talk.begin_snapshot(0, 3, 7.0)
    with pytest.raises(RemoteProtocolError, match="bad item"):
        talk.items(0, [1, 2, 3], 7.0)
    assert pair.bucket.replicas.of_node(1)[0].high_seqno == 1
    assert list(talk.connection.touched) == [0]
