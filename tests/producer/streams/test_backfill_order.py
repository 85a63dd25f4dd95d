"""Streams that read the disk one after another (``backfill_order``): who waits, and who does not.

All without sockets: frames are looked at one by one, in the order in which a session lets them out.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import groupby
from random import Random
from typing import Any

import pytest

from dcp.producer.cluster import ProducerCluster
from dcp.producer.cluster_settings import ClusterSettings
from dcp.wire.frame import Frame
from dcp.wire.vocabulary import EndReason, Opcode, Status
from tests.producer.dcp_session import DcpSession, frame_bytes
from tests.seeds import seeds

KIB = 1024
ITEMS = 20
VBUCKETS = 4
ITEM_OPCODES = {Opcode.DCP_MUTATION, Opcode.DCP_DELETION}
NewCluster = Callable[..., ProducerCluster]


@pytest.fixture
def new_cluster() -> Iterator[NewCluster]:
    """Clusters that do not run, whose memory keeps nothing for streams that are to come."""
    with ExitStack() as stack:

        def make(**settings: Any) -> ProducerCluster:
            chosen = {"vbuckets": VBUCKETS, "checkpoint_items": 0, "seed": 1, **settings}
            cluster = ProducerCluster(ClusterSettings(**chosen))
            stack.callback(cluster.stop)
            fill(cluster, range(VBUCKETS))
            return cluster

        yield make


def fill(cluster: ProducerCluster, vbuckets: range, prefix: bytes = b"k") -> None:
    """Store ``ITEMS`` documents of about a KiB in each of these vbuckets."""
    wanted = dict.fromkeys(vbuckets, ITEMS)
    with cluster.batch():
        for number in range(100_000):
            key = prefix + b"%05d" % number
            vbucket = cluster.vbucket_of(key)
            if wanted.get(vbucket):
                wanted[vbucket] -= 1
                cluster.set(key, b"x" * (KIB - 100))
            if not any(wanted.values()):
                return


def streaming(cluster: ProducerCluster, order: str, **controls: object) -> DcpSession:
    """Return a client with a stream of each vbucket, whose opaque is one more than its number."""
    client = DcpSession(cluster, enable_noop="true", backfill_order=order, **controls)
    for vbucket in range(VBUCKETS):
        assert client.request_stream(vbucket, vbucket + 1).status == Status.SUCCESS
    return client


def runs(frames: list[Frame]) -> list[int]:
    """Return the vbuckets whose items come, each once for all items in a row."""
    items = (frame.vbucket for frame in frames if frame.opcode in ITEM_OPCODES)
    return [vbucket for vbucket, _ in groupby(items)]


def count_items(frames: list[Frame], vbucket: int) -> int:
    return sum(frame.opcode in ITEM_OPCODES and frame.vbucket == vbucket for frame in frames)


def take_acknowledged(client: DcpSession, turn_bytes: int = KIB) -> list[Frame]:
    """Return all that comes while everything is acknowledged at once, to both windows."""
    found: list[Frame] = []
    while frames := client.sent(turn_bytes):
        found += frames
        for frame in frames:
            client.ack(frame_bytes(frame))
            client.ack(frame_bytes(frame), frame.opaque)
    return found


def test_one_disk_snapshot_is_sent_to_its_end_before_the_next(new_cluster: NewCluster) -> None:
    cluster = new_cluster()
    in_turns = streaming(cluster, "round-robin").sent(turn_bytes=KIB)
    assert len(runs(in_turns)) > 2 * VBUCKETS
    one_by_one = streaming(cluster, "sequential").sent(turn_bytes=KIB)
    assert [frame.opcode for frame in one_by_one[:VBUCKETS]] == [Opcode.DCP_SNAPSHOT_MARKER] * 4
    assert runs(one_by_one) == [0, 1, 2, 3]
    sent = [sorted(frame.to_bytes() for frame in found) for found in (in_turns, one_by_one)]
    assert sent[0] == sent[1]


def test_streams_from_memory_go_on_meanwhile(new_cluster: NewCluster) -> None:
    cluster = new_cluster()
    client = DcpSession(
        cluster, enable_noop="true", backfill_order="sequential", connection_buffer_size=4 * KIB
    )
    client.request_stream(3, 4)
    take_acknowledged(client)  # this one is in memory now
    for vbucket in range(3):
        client.request_stream(vbucket, vbucket + 1)
    found = client.sent(turn_bytes=KIB)
    assert runs(found) == [0]
    fill(cluster, range(3, 4), prefix=b"live")
    client.dcp.vbuckets_changed({3})
    client.ack(4 * KIB)
    found += take_acknowledged(client)
    assert runs([frame for frame in found if frame.vbucket != 3]) == [0, 1, 2]
    assert runs(found)[:4] == [0, 3, 0, 3]
    assert count_items(found, 3) == ITEMS


@pytest.mark.parametrize("announced", ["true", "false"])
def test_a_closed_stream_passes_its_turn_on(new_cluster: NewCluster, announced: str) -> None:
    cluster = new_cluster()
    client = streaming(
        cluster,
        "sequential",
        connection_buffer_size=4 * KIB,
        send_stream_end_on_client_close_stream=announced,
    )
    found = client.sent(turn_bytes=KIB)
    assert runs(found) == [0]
    client.close_stream(2)  # one that waits
    client.close_stream(0)  # the one that is read
    rest = take_acknowledged(client)
    client.ack(sum(map(frame_bytes, found)))
    rest += take_acknowledged(client)
    assert runs(rest) == [1, 3]
    assert [count_items(rest, vbucket) for vbucket in range(4)] == [0, ITEMS, 0, ITEMS]
    ends = {frame.vbucket for frame in rest if frame.opcode == Opcode.DCP_STREAM_END}
    assert ends == ({0, 2} if announced == "true" else set())


def test_a_vbucket_that_goes_passes_its_turn_on(new_cluster: NewCluster) -> None:
    cluster = new_cluster()
    client = streaming(cluster, "sequential", connection_buffer_size=4 * KIB)
    found = client.sent(turn_bytes=KIB)
    for vbucket in (0, 1):
        client.dcp.end_streams(vbucket, EndReason.STATE_CHANGED)
    client.ack(sum(map(frame_bytes, found)))
    rest = take_acknowledged(client)
    assert runs(rest) == [2, 3]


def test_a_full_window_of_its_own_lets_the_next_read_and_comes_first_again(
    new_cluster: NewCluster,
) -> None:
    cluster = new_cluster()
    client = streaming(cluster, "sequential", stream_buffer_size=4 * KIB)
    stalled = client.sent(turn_bytes=KIB)
    assert runs(stalled) == [0, 1, 2, 3], "each goes as far as its window"
    assert all(count_items(stalled, vbucket) < ITEMS for vbucket in range(4))
    first = client.dcp.streams.find(0, None)
    assert first is not None
    client.ack(2 * KIB, 2)  # vbucket 1 reads alone
    assert runs(client.sent(turn_bytes=KIB)) == [1]
    client.ack(4 * KIB, 3)
    client.ack(4 * KIB, 4)
    client.ack(4 * KIB, 1)
    assert client.dcp.ready.has(first), "it waits behind vbucket 2, which reads"
    assert runs(client.sent(turn_bytes=KIB)) == [2, 0, 3]


def test_the_order_may_change_meanwhile(new_cluster: NewCluster) -> None:
    cluster = new_cluster()
    client = streaming(cluster, "sequential", connection_buffer_size=8 * KIB)
    found = client.sent(turn_bytes=KIB)
    assert runs(found) == [0]
    client.control("backfill_order", "round-robin")
    client.ack(8 * KIB)
    in_turns = client.sent(turn_bytes=KIB)
    assert set(runs(in_turns)) == {0, 1, 2, 3}
    client.control("backfill_order", "sequential")
    rest = take_acknowledged(client)
    client.ack(8 * KIB)
    rest += take_acknowledged(client)
    assert len(runs(rest)) == VBUCKETS
    assert [count_items(found + in_turns + rest, vbucket) for vbucket in range(4)] == [ITEMS] * 4


@pytest.mark.parametrize("seed", seeds(40))
def test_nothing_waits_for_ever(new_cluster: NewCluster, seed: int) -> None:
    """Whatever happens to streams while they wait: what is acknowledged brings all that is left."""
    random = Random(seed)
    cluster = new_cluster(checkpoint_items=random.choice([0, 7]))
    client = streaming(
        cluster,
        "sequential",
        connection_buffer_size=random.choice([3 * KIB, 30 * KIB]),
        stream_buffer_size=random.choice([0, 2 * KIB, 9 * KIB]),
    )
    newest = dict.fromkeys(range(VBUCKETS), 0)

    def look(frames: list[Frame]) -> None:
        for frame in frames:
            stream = client.dcp.streams.find(frame.vbucket, None)
            if stream is not None:
                newest[frame.vbucket] = stream.sent_seqno

    closed: set[int] = set()
    for _ in range(60):
        vbucket = random.randrange(VBUCKETS)
        match random.randrange(7):
            case 0:
                client.ack(random.randrange(1, 4 * KIB))
            case 1:
                client.ack(random.randrange(1, 4 * KIB), vbucket + 1)
            case 2:
                key = b"live%d" % random.randrange(50)
                cluster.set(key, b"live")
                client.dcp.vbuckets_changed({cluster.vbucket_of(key)})
            case 3:
                data = cluster.bucket.vbuckets[vbucket].data
                stream = client.dcp.streams.find(vbucket, None)
                if stream is not None and stream.has_cursor:
                    data.checkpoints.remove(stream.cursor)
                    client.dcp.cursors_dropped(data, (stream.cursor,))
            case 4 if random.random() < 0.1:
                client.close_stream(vbucket)
                closed.add(vbucket)
            case 5 if random.random() < 0.1:
                order = random.choice(["round-robin", "sequential"])
                assert client.control("backfill_order", order).status == Status.SUCCESS
            case _:
                look(client.sent(turn_bytes=random.randrange(1, 3 * KIB)))
    client.ack(2**31)
    for opaque in range(1, VBUCKETS + 1):
        client.ack(2**31, opaque)
    look(take_acknowledged(client))
    for vbucket in set(range(VBUCKETS)) - closed:
        assert newest[vbucket] == cluster.high_seqno(vbucket), vbucket
