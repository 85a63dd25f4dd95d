"""The consumer in a healthy cluster: it drains all nodes, follows writes, asks, and closes.

What it does when something goes wrong is tried in the files ``test_consumer_*.py``.
"""

import threading

import pytest

from dcp.client.consumer import Consumer
from dcp.client.vbucket_track import StreamStart
from dcp.errors import ConfigError, LocalProtocolError
from dcp.protocol.events import SeqnosReceived, StreamOpened
from dcp.protocol.position import Position
from dcp.types import vbucket_of
from tests.client.conftest import MakeCluster
from tests.client.consuming import (
    assert_nothing_sent_twice,
    consuming,
    node_addresses,
    owned,
    settings,
    starts,
)
from tests.client.drained import (
    CREDENTIALS,
    PATIENCE_SECONDS,
    Drained,
    all_of,
    assert_same_state,
    caught_up,
    fill,
)


def test_drains_all_nodes_and_follows_writes(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(nodes=3)
    fill(cluster, 1000)
    with consuming(cluster) as consumer:
        drained = Drained().run(consumer, caught_up(cluster))
        assert_same_state(cluster, drained)
        fill(cluster, 100)
        cluster.delete(b"key-500")
        drained.run(consumer, caught_up(cluster))
        assert_same_state(cluster, drained)
        for vbucket in all_of(cluster):
            assert consumer.position(vbucket) == drained.positions[vbucket]
            assert drained.logs[vbucket] == cluster.failover_log(vbucket)
    assert_nothing_sent_twice(cluster, drained)
    assert cluster.counters().dcp_connections_opened == 3


def test_vbuckets_that_are_read_from_disk_become_complete_one_by_one(
    make_cluster: MakeCluster,
) -> None:
    cluster = make_cluster(checkpoint_items=0)
    fill(cluster, 800)
    with consuming(cluster, chosen=settings(window_bytes=4096)) as consumer:
        drained = Drained()
        for rows in range(50, 800, 50):
            drained.run(consumer, lambda each, rows=rows: each.rows >= rows)  # type: ignore[misc]
            assert len(drained.seqnos.keys() - drained.complete.keys()) <= 1
        drained.run(consumer, caught_up(cluster))
    assert_same_state(cluster, drained)
    assert_nothing_sent_twice(cluster, drained)


def test_a_stream_with_nothing_to_send_is_open(make_cluster: MakeCluster) -> None:
    """From the beginning of an empty vbucket, and from the end of one that is not."""
    cluster = make_cluster(vbuckets=2)
    key = next(b"k%d" % n for n in range(100) if vbucket_of(b"k%d" % n, 2) == 1)
    cluster.set(key, b"{}")
    log = cluster.failover_log(1)
    streams = starts(cluster)
    end = Position.complete_at(log.current_uuid, cluster.high_seqno(1))
    streams[1] = StreamStart(1, streams[1].address, end, log)
    with consuming(cluster, streams) as consumer:
        drained = Drained().run(
            consumer, lambda each: sum(isinstance(e, StreamOpened) for e in each.events) == 2
        )
        assert [consumer.is_streaming(vbucket) for vbucket in (0, 1)] == [True, True]
        assert drained.positions == {}, "nothing moved"
        assert [consumer.position(vbucket) for vbucket in (0, 1)] == [Position.beginning(), end]


def test_metadata_only_brings_keys_seqnos_and_cas_but_no_values(make_cluster: MakeCluster) -> None:
    cluster = make_cluster()
    fill(cluster, 100, value_bytes=50_000)
    sent_before = cluster.counters().bytes_sent
    with consuming(cluster, chosen=settings(metadata_only=True)) as consumer:
        drained = Drained().run(consumer, caught_up(cluster))
    for vbucket in all_of(cluster):
        assert drained.documents.get(vbucket, {}) == {
            key: (each.seqno, each.cas, b"")
            for key, each in cluster.state_at(vbucket, cluster.high_seqno(vbucket)).items()
        }
    assert cluster.counters().bytes_sent - sent_before < 50_000


@pytest.mark.parametrize("prefix", ["x" * 190, 'a"b', "a{b}", "späß", "a\nb"])
def test_names_that_servers_refuse(make_cluster: MakeCluster, prefix: str) -> None:
    with pytest.raises(ConfigError, match="name prefix"):
        Consumer([], ["127.0.0.1:1"], settings(), CREDENTIALS, prefix)


def test_close_from_another_thread_ends_the_wait(make_cluster: MakeCluster) -> None:
    cluster = make_cluster()
    with consuming(cluster) as consumer:
        Drained().run(
            consumer, lambda each: sum(isinstance(e, StreamOpened) for e in each.events) == 8
        )
        closer = threading.Timer(0.1, consumer.close)
        closer.start()
        with pytest.raises(LocalProtocolError, match="closed"):
            consumer.next(30.0)
        closer.join(PATIENCE_SECONDS)


def test_the_high_seqnos_can_be_asked_over_the_streams_connection(
    make_cluster: MakeCluster,
) -> None:
    cluster = make_cluster(nodes=2)
    fill(cluster, 100)
    node = node_addresses(cluster)[1]
    with consuming(cluster) as consumer:
        assert not consumer.request_high_seqnos(node), "not connected yet"
        drained = Drained().run(consumer, caught_up(cluster))
        assert all(consumer.is_streaming(vbucket) for vbucket in all_of(cluster))
        assert consumer.request_high_seqnos(node)
        drained.run(consumer, lambda each: isinstance(each.events[-1], SeqnosReceived))
        assert drained.events[-1] == SeqnosReceived(
            tuple((v, cluster.high_seqno(v)) for v in all_of(cluster) if v in owned(cluster, 1))
        )
        cluster.kill_node(1)
        drained.run(
            consumer, lambda _: not any(consumer.is_streaming(v) for v in owned(cluster, 1))
        )
        assert all(consumer.is_streaming(v) for v in owned(cluster, 0))
        assert str(node) in consumer.trouble(owned(cluster, 1)[0])
