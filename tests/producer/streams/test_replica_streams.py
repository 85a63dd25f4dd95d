"""Streams from a node that has a replica: by hand, number for number, and against a naive model."""

from collections.abc import Callable, Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dcp.producer.cluster import ProducerCluster
from dcp.producer.cluster_settings import ClusterSettings
from dcp.server.model.manifest import FIRST
from dcp.server.model.resume_rules import Verdict
from dcp.server.model.stream_filter import EVERYTHING, LEGACY
from dcp.server.model.versions import Content, Flavour, Version
from dcp.server.storage.stored_items import STORED_FLAVOUR
from dcp.server.streams.active_stream import ActiveStream
from dcp.server.streams.dcp_options import StreamSettings
from dcp.server.vbucket.replica import Replica
from dcp.server.vbucket.vbucket_states import Vbucket
from dcp.wire import messages as m
from dcp.wire.codec import decode, encode
from dcp.wire.framing import FrameSplitter
from dcp.wire.vocabulary import (
    EndReason,
    Opcode,
    SnapshotFlag,
    Status,
    StreamFlag,
    VbucketState,
)
from tests.producer.fed_replica import FedReplica
from tests.producer.raw_client import FEATURES, PLAIN_FEATURES, RawClient

Connect = Callable[..., RawClient]
MEMORY, DISK = 0x05, 0x06
VB_UUID = 0xABC


def _frame(version: Version) -> bytes:
    return b"".join(version.wire(STORED_FLAVOUR))


def _key(seqno: int) -> bytes:
    """K1 changed twice: at 100, which de-duplication took away, and at 400."""
    return b"K1" if seqno in (100, 400) else b"k%d" % seqno


class Hand:
    """Feeds the replica of vbucket 0 on node 1 of a cluster whose replication stands still."""

    def __init__(self, cluster: ProducerCluster) -> None:
        self.cluster = cluster
        cluster.pause_replication()
        replica = cluster.bucket.replicas.at(1, 0)
        assert replica is not None
        self.replica = replica
        with cluster.batch():
            self.fed = FedReplica(replica)

    def begin(self, start: int, end: int, flags: int = MEMORY) -> None:
        marker = encode(m.SnapshotMarker(start, end, flags), Opcode.DCP_SNAPSHOT_MARKER)
        with self.cluster.batch():
            self.fed.feed(marker.to_bytes())
            self.cluster.bucket.writes.received(1, 0)

    def send(self, seqnos: Iterable[int]) -> None:
        with self.cluster.batch():
            for seqno in seqnos:
                content = Content(b"1")
                version = Version(0, _key(seqno), content, seqno=seqno, rev=1, cas=seqno)
                self.fed.feed(_frame(version))
            self.cluster.bucket.writes.received(1, 0)


@pytest.fixture
def hand(make_cluster: Callable[..., ProducerCluster]) -> Hand:
    return Hand(make_cluster(nodes=2, vbuckets=1, replicas=1))


def _item(seqno: int, prefix: bytes = b"\0") -> m.Mutation:
    return m.Mutation(prefix + _key(seqno), b"1", seqno, 1, cache_hint=2)


def _client(hand: Hand, connect: Connect, collections: bool = True) -> RawClient:
    features = FEATURES if collections else PLAIN_FEATURES
    return connect(hand.cluster, 1).log_in(features).open_dcp()


FIRST_PART = [seqno for seqno in range(1, 301) if seqno != 100]
REST = list(range(301, 501))


def test_the_example_of_the_concepts_document(hand: Hand, connect: Connect) -> None:
    """Disk and memory are one snapshot from 1 to 500, complete when the replica has it all."""
    hand.begin(1, 500)
    hand.send(FIRST_PART)
    assert hand.replica.vbucket.data.disk.persisted_seqno == 300
    hand.replica.vbucket.data.checkpoints.expel()  # the replica's memory has nothing any more
    dcp = _client(hand, connect)
    assert dcp.request_stream(0).status == Status.SUCCESS
    assert dcp.message() == m.SnapshotMarker(0, 500, DISK)
    assert dcp.messages_to(300) == [_item(seqno) for seqno in FIRST_PART]
    assert dcp.is_quiet()
    hand.send(REST[:99])  # K1 is not among them yet
    assert dcp.messages_to(399) == [_item(seqno) for seqno in REST[:99]]
    assert dcp.is_quiet()
    hand.send(REST[99:])
    assert dcp.messages_to(500) == [_item(seqno) for seqno in REST[99:]]
    hand.begin(501, 502)
    hand.send([502])
    assert [dcp.message(), dcp.message()] == [m.SnapshotMarker(502, 502, MEMORY), _item(502)]


def test_older_items_on_disk_before_an_unfinished_snapshot_may_repeat(
    hand: Hand, connect: Connect
) -> None:
    """K1 changed in a snapshot that is complete, and again in one that is not."""
    hand.begin(1, 100)
    hand.send(range(1, 101))
    hand.begin(101, 500)
    hand.send(range(101, 301))
    hand.replica.vbucket.data.checkpoints.expel()
    dcp = _client(hand, connect)
    dcp.request_stream(0)
    assert dcp.message() == m.SnapshotMarker(0, 500, DISK | SnapshotFlag.MAY_CONTAIN_DUPLICATES)
    hand.send(REST)
    assert dcp.messages_to(500) == [_item(seqno) for seqno in (*range(1, 301), *REST)]


def test_the_same_from_memory(hand: Hand, connect: Connect) -> None:
    """A stream that is there before gets one marker, whenever it looks."""
    dcp = _client(hand, connect)
    dcp.request_stream(0)
    hand.begin(1, 500)
    hand.send(FIRST_PART)
    assert dcp.message() == m.SnapshotMarker(0, 500, MEMORY)
    assert dcp.messages_to(300) == [_item(seqno) for seqno in FIRST_PART]
    hand.send(REST)
    assert dcp.messages_to(500) == [_item(seqno) for seqno in REST]
    assert hand.cluster.counters().disk_scans == 0


def test_going_on_inside_the_snapshot(hand: Hand, connect: Connect) -> None:
    """Whoever had a part of it, from here or from elsewhere, gets the rest."""
    hand.begin(1, 500)
    hand.send(FIRST_PART)
    dcp = _client(hand, connect)
    answer = dcp.request_stream(0, 300, vb_uuid=VB_UUID, snapshot=(1, 500))
    assert answer.status == Status.SUCCESS
    assert dcp.is_quiet()
    hand.send(REST)
    assert dcp.message() == m.SnapshotMarker(1, 500, MEMORY)
    assert dcp.messages_to(500) == [_item(seqno) for seqno in REST]


def test_who_had_more_than_the_replica_goes_back(hand: Hand, connect: Connect) -> None:
    hand.begin(1, 500)
    hand.send(FIRST_PART)
    dcp = _client(hand, connect)
    for start, snapshot, seqno in ((500, (500, 500), 300), (400, (1, 500), 1)):
        answer = dcp.request_stream(0, start, vb_uuid=VB_UUID, snapshot=snapshot)
        assert (answer.status, decode(answer)) == (Status.ROLLBACK, m.RollbackAnswer(seqno))


@pytest.mark.parametrize(
    ("collections", "flags", "value"),
    [(False, 0, b""), (True, StreamFlag.DISK_ONLY, b""), (True, 0, b'{"collections":["0"]}')],
)
@pytest.mark.parametrize("in_memory", [False, True])
def test_who_waits_for_the_whole(
    hand: Hand, connect: Connect, collections: bool, flags: int, value: bytes, in_memory: bool
) -> None:
    """Streams that may have to end before the snapshot does, or see the disk only."""
    hand.begin(1, 500)
    hand.send(FIRST_PART)
    if not in_memory:
        hand.replica.vbucket.data.checkpoints.expel()
    dcp = _client(hand, connect, collections)
    assert dcp.request_stream(0, flags=flags, value=value).status == Status.SUCCESS
    assert dcp.is_quiet()
    hand.send(REST)
    marker = dcp.message()
    assert isinstance(marker, m.SnapshotMarker)
    assert (marker.start, marker.end) == (0, 500)
    prefix = b"\0" if collections else b""
    assert dcp.messages_to(500) == [_item(seqno, prefix) for seqno in FIRST_PART + REST]


def test_up_to_now_is_up_to_the_end_of_the_snapshot(hand: Hand, connect: Connect) -> None:
    hand.begin(1, 500)
    hand.send(FIRST_PART)
    dcp = _client(hand, connect)
    dcp.request_stream(0, flags=StreamFlag.TO_LATEST)
    assert dcp.message() == m.SnapshotMarker(0, 500, MEMORY)
    dcp.messages_to(300)
    assert dcp.is_quiet()
    hand.send(REST)
    dcp.messages_to(500)
    assert dcp.message() == m.StreamEnd(EndReason.OK)


def test_the_first_disk_snapshot_is_waited_for(hand: Hand, connect: Connect) -> None:
    dcp = _client(hand, connect)
    assert dcp.request_stream(0, flags=StreamFlag.ACTIVE_VB_ONLY).status == Status.NOT_MY_VBUCKET
    hand.begin(0, 500, DISK)
    hand.send(FIRST_PART)
    assert dcp.request_stream(0).status == Status.ETMPFAIL
    hand.send(REST)
    assert dcp.request_stream(0).status == Status.SUCCESS
    assert dcp.message() == m.SnapshotMarker(0, 500, DISK)
    dcp.messages_to(500)


def test_a_later_disk_snapshot_is_one(hand: Hand, connect: Connect) -> None:
    dcp = _client(hand, connect)
    dcp.request_stream(0)
    hand.begin(1, 1)
    hand.send([1])
    dcp.messages_to(1)
    hand.begin(2, 500, DISK)
    hand.send(FIRST_PART[1:])
    assert dcp.message() == m.SnapshotMarker(2, 500, DISK)
    dcp.messages_to(300)
    hand.send(REST)
    assert dcp.messages_to(500) == [_item(seqno) for seqno in REST]
    counters = hand.cluster.counters()  # the marker's flag says how it was received
    assert (counters.items_from_disk, counters.disk_scans) == (0, 0)


@pytest.mark.parametrize(("flags", "again"), [(MEMORY, MEMORY), (MEMORY, DISK), (DISK, MEMORY)])
def test_a_snapshot_that_was_broken_off(
    hand: Hand, connect: Connect, flags: int, again: int
) -> None:
    """The active merged the rest with what came later: its new end counts."""
    hand.begin(1, 1)
    hand.send([1])
    dcp = _client(hand, connect)
    dcp.request_stream(0)
    waiting = connect(hand.cluster, 1).log_in().open_dcp(name=b"waiting")
    waiting.request_stream(0, value=b'{"collections":["0"]}')
    waiting.messages_to(1)
    hand.begin(2, 500, flags)
    hand.send(FIRST_PART[1:])
    dcp.messages_to(300)
    hand.begin(2, 700, again)
    hand.send([350])
    marker = dcp.message()
    assert isinstance(marker, m.SnapshotMarker)
    assert marker.end == 700
    assert dcp.messages_to(350) == [_item(350)]
    assert waiting.is_quiet()
    hand.send([400, 700])
    assert [dcp.message(), dcp.message()] == [_item(400), _item(700)]
    marker = waiting.message()
    assert isinstance(marker, m.SnapshotMarker)
    assert marker.end == 700
    expected = [_item(seqno) for seqno in (*FIRST_PART[1:], 350, 400, 700)]
    assert waiting.messages_to(700) == expected


@pytest.mark.parametrize("state", [VbucketState.PENDING, VbucketState.DEAD])
def test_a_change_of_the_replicas_state_ends_its_streams(
    hand: Hand, connect: Connect, state: VbucketState
) -> None:
    active = connect(hand.cluster, 0).log_in().open_dcp()
    active.request_stream(0)
    dcp = _client(hand, connect)
    dcp.request_stream(0)
    hand.cluster.set_vbucket_state(0, state, node=1)
    assert dcp.message() == m.StreamEnd(EndReason.STATE_CHANGED)
    assert dcp.request_stream(0).status == Status.NOT_MY_VBUCKET
    assert active.is_quiet()


@pytest.mark.parametrize("state", [VbucketState.ACTIVE, VbucketState.ALIVE])
def test_a_replica_does_not_become_active_by_order(hand: Hand, state: VbucketState) -> None:
    with pytest.raises(ValueError, match="expected REPLICA, PENDING or DEAD"):
        hand.cluster.set_vbucket_state(0, state, node=1)


def test_a_rollback_of_the_replica_ends_its_streams(
    make_cluster: Callable[..., ProducerCluster], connect: Connect
) -> None:
    """Over the wire: the active crashed and lost what the replica had."""
    cluster = make_cluster(nodes=2, vbuckets=1, replicas=1)
    for number in range(10):
        cluster.set(b"k%d" % number, b"1")
    cluster.wait_until_replicated()
    dcp = connect(cluster, 1).log_in().open_dcp()
    dcp.request_stream(0)
    dcp.messages_to(10)
    cluster.crash_restart(0, lost_seqnos=3)
    assert dcp.message() == m.StreamEnd(EndReason.ROLLBACK)
    cluster.wait_until_replicated()
    high = cluster.high_seqno(0)
    assert dcp.request_stream(0).status == Status.SUCCESS
    assert len(dcp.messages_to(high)) == high + 1


def test_a_consumer_of_a_replica_keeps_up(
    make_cluster: Callable[..., ProducerCluster], connect: Connect
) -> None:
    """Later writes come through, each once, from the replica's memory."""
    cluster = make_cluster(nodes=2, vbuckets=1, replicas=1)
    dcp = connect(cluster, 1).log_in().open_dcp()
    dcp.request_stream(0)
    for number in range(100):
        cluster.set(b"k%d" % (number % 9), b"%d" % number)
    bodies = dcp.messages_to(100)
    items = [body.by_seqno for body in bodies if isinstance(body, m.Mutation)]
    assert items == sorted(set(items))
    counters = cluster.counters()
    assert (counters.items_from_disk, counters.disk_scans) == (0, 0)


# --- against a naive model


def _messages(stream: ActiveStream, splitter: FrameSplitter) -> list[m.Body]:
    found: list[m.Body] = []
    while (batch := stream.next_batch(1 << 30, 1 << 20, 1 << 20)) is not None:
        block = splitter.feed(bytes(batch.data))
        found += [decode(block.frame(index)) for index in range(len(block))]
    return found


@given(st.data())
def test_every_whole_snapshot_is_a_state_of_the_active(data: st.DataObject) -> None:
    """Whatever is received, in whichever parts, merged and broken off, and whenever it is sent."""

    def draw(least: int, most: int) -> int:
        return data.draw(st.integers(least, most))

    numbers = iter(range(1, 100))
    vbucket = Vbucket(0, lambda: next(numbers), ClusterSettings(vbuckets=1))
    replica = Replica(vbucket, lambda: FIRST)
    fed = FedReplica(replica)
    size = draw(1, 40)
    keys = [b"k%d" % draw(0, 5) for _ in range(size)]
    states = [{key: at for at, key in enumerate(keys[:end], 1)} for end in range(size + 1)]
    is_legacy, splitter = bool(draw(0, 1)), FrameSplitter()
    flavour = 0 if is_legacy else int(Flavour.COLLECTIONS)
    client: ActiveStream | None = None
    held: dict[bytes, int] = {}
    snapshot_end = received = told = 0
    sent, may_repeat = set[bytes](), False
    while received < size:
        told = draw(max(received + 1, told), size)
        marker = m.SnapshotMarker(received + 1, told, DISK if draw(0, 1) else MEMORY)
        fed.feed(encode(marker, Opcode.DCP_SNAPSHOT_MARKER).to_bytes())
        items = sorted(at for at in states[told].values() if at > received)
        for seqno in items[: draw(1, len(items))]:
            version = Version(0, keys[seqno - 1], Content(b"1"), seqno=seqno, rev=1, cas=1)
            fed.feed(_frame(version))
            received = seqno
            if draw(0, 2):
                continue
            replica.store_received()
            if client is not None and set(replica.lost_cursors) & {client.cursor}:
                client.cursor_dropped()
            replica.lost_cursors = ()
            if client is None and not replica.awaits_first_disk_snapshot and draw(0, 1):
                wanted = LEGACY if is_legacy else EVERYTHING
                verdict, settings = Verdict(Status.SUCCESS), StreamSettings(flavour)
                client = ActiveStream(vbucket.data, 1, verdict, 0, settings, wanted)
            for body in _messages(client, splitter) if client and draw(0, 1) else ():
                if isinstance(body, m.SnapshotMarker):
                    if body.end != snapshot_end:
                        sent, may_repeat = set(), False
                    snapshot_end = body.end
                    may_repeat |= bool(body.flags & SnapshotFlag.MAY_CONTAIN_DUPLICATES)
                    continue
                assert isinstance(body, m.Mutation)
                assert max(held.values(), default=0) < body.by_seqno <= snapshot_end
                assert may_repeat or body.key not in sent, "a key twice, unannounced"
                sent.add(body.key)
                held[body.key.removeprefix(b"\0")] = body.by_seqno
                if body.by_seqno == snapshot_end:
                    assert held == states[snapshot_end]
