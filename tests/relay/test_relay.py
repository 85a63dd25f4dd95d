"""A cluster, a relay, and consumers behind it, over real sockets: everything, once and in order."""

from collections.abc import Callable
from contextlib import ExitStack

from dcp.producer.cluster import ProducerCluster
from dcp.relay.thread import Relay
from tests.client.cut_off import no_stream_cut_off
from tests.client.drained import Drained, assert_same_state, caught_up, fill
from tests.relay.following import behind, wait_until_level

MakeCluster = Callable[..., ProducerCluster]
MakeRelay = Callable[..., Relay]


def test_everything_once_and_in_order(make_cluster: MakeCluster, make_relay: MakeRelay) -> None:
    """The cluster sends each item once, however many consumers the relay has."""
    cluster = make_cluster(nodes=2)
    fill(cluster, 200)
    relay = make_relay(cluster)
    with ExitStack() as stack:
        consumers = [stack.enter_context(behind(relay, name=f"c{n}")) for n in range(3)]
        drained = [Drained() for _ in consumers]
        for consumer, each in zip(consumers, drained, strict=True):
            each.run(consumer, caught_up(cluster))
        for number in range(50):
            cluster.set(b"key-%d" % number, b'{"live":%d}' % number)
        cluster.delete(b"key-7")
        for consumer, each in zip(consumers, drained, strict=True):
            each.run(consumer, caught_up(cluster))
            assert_same_state(cluster, each)
            assert each.seqnos == cluster.counters().seqnos_sent
    assert not cluster.counters().connections_closed_for_errors


def test_a_relay_that_stops_ends_its_streams_first(
    make_cluster: MakeCluster, make_relay: MakeRelay
) -> None:
    cluster = make_cluster(nodes=2)
    fill(cluster, 200)
    with no_stream_cut_off(cluster):
        relay = make_relay(cluster)
        wait_until_level(cluster, relay)
        relay.stop()
