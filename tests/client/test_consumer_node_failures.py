"""Nodes that die, hang or come back, and the deadline after which a node counts as unavailable."""

import threading
from time import monotonic

import pytest

from dcp.client.consumer import Consumer
from dcp.client.consumer_events import StopReason
from tests.client.conftest import MakeCluster
from tests.client.consuming import consuming, node_addresses, settings, starts
from tests.client.drained import (
    CREDENTIALS,
    Drained,
    all_of,
    assert_same_state,
    caught_up,
    fill,
    wait_for,
)


@pytest.mark.parametrize("fault", ["kill_node", "hang_node"])
def test_a_lost_node_is_reported_and_delays_no_other(make_cluster: MakeCluster, fault: str) -> None:
    cluster = make_cluster(nodes=2)
    fill(cluster, 500)
    chosen = settings(
        node_deadline_seconds=5.0,  # the other node has as long, on a busy machine too
        noop_interval_seconds=0.5,
        silence_grace_seconds=0.5,
        bootstrap_timeout_seconds=2.0,
    )
    lost = [v for v in all_of(cluster) if cluster.vbucket_owner(v) == 1]
    alive = [v for v in all_of(cluster) if v not in lost]
    with consuming(cluster, chosen=chosen) as consumer:
        drained = Drained().run(consumer, caught_up(cluster))
        getattr(cluster, fault)(1)
        fill(cluster, 500, prefix="later")
        drained.run(consumer, caught_up(cluster, *alive))
        drained.run(consumer, lambda each: len(each.stopped) == len(lost))
        assert sorted(drained.stopped) == lost
        assert {each.reason for each in drained.stopped.values()} == {StopReason.NODE_UNAVAILABLE}
        assert all(cluster.seeds[1] in each.detail for each in drained.stopped.values())
        fill(cluster, 100, prefix="last")
        drained.run(consumer, caught_up(cluster, *alive))
        assert_same_state(cluster, drained, *alive)
        assert_same_state(cluster, drained, *lost)  # at the seqnos they reached
    cluster.restore_node(1)


@pytest.mark.parametrize("fault", ["kill_node", "refuse_node", "hang_node"])
def test_a_node_that_comes_back_goes_on(make_cluster: MakeCluster, fault: str) -> None:
    cluster = make_cluster(nodes=2)
    fill(cluster, 300)
    chosen = settings(
        noop_interval_seconds=0.2, silence_grace_seconds=0.1, bootstrap_timeout_seconds=0.4
    )
    with consuming(cluster, chosen=chosen) as consumer:
        drained = Drained().run(consumer, caught_up(cluster))
        getattr(cluster, fault)(1)
        if fault == "refuse_node":
            cluster.drop_connections(1)
        for _ in range(5):  # long enough for failed attempts
            delivery = consumer.next(0.2)
            if delivery is not None:  # a busy machine: the other one seemed silent for once
                assert str(delivery.node) == cluster.seeds[0]
                drained.take(delivery)
        drained.release_all()
        cluster.restore_node(1)
        fill(cluster, 300, prefix="later")
        assert_same_state(cluster, drained.run(consumer, caught_up(cluster)))
        assert not drained.stopped


def test_a_busy_application_makes_no_node_unavailable(make_cluster: MakeCluster) -> None:
    """The time between two calls of ``next`` is the application's; what came meanwhile counts."""
    cluster = make_cluster(nodes=2)
    fill(cluster, 400)
    chosen = settings(node_deadline_seconds=3.0)
    drained = Drained()
    with consuming(cluster, chosen=chosen) as consumer:
        while not drained.rows:  # one node delivers; the other is still being set up, or is queued
            delivery = consumer.next(1.0)
            if delivery is not None:
                drained.take(delivery)
        threading.Event().wait(4.0)  # the application works, for longer than the deadline
        drained.run(consumer, caught_up(cluster))
    assert drained.stopped == {}
    assert_same_state(cluster, drained)


def test_what_is_queued_is_digested_before_a_deadline_is_judged(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(nodes=2)
    fill(cluster, 400)
    drained = Drained()
    with consuming(cluster) as consumer:
        keeper = consumer._keeper
        consumer.next(0.0)  # begins to connect
        links = [keeper.links.link(address) for address in node_addresses(cluster)]
        names = [link.connection.name for link in links if link.connection is not None]
        assert len(names) == 2
        wait_for(
            "both nodes are ready",
            lambda: all(consumer._queue.holds(name) for name in names),
        )
        keeper.act(monotonic() + 1000.0)  # long past the deadline
        assert not keeper.reports
        assert drained.run(consumer, lambda each: each.rows > 0).stopped == {}


def test_where_the_seeds_are_gone_other_nodes_tell_the_map(make_cluster: MakeCluster) -> None:
    """No connection is left, and no seed: the next owner is known by the newest map alone."""
    cluster = make_cluster(nodes=3, replicas=2)
    fill(cluster, 200)
    seed, second, third = node_addresses(cluster)
    streams = [each for each in starts(cluster) if each.address == second]
    with Consumer(streams, [str(seed)], settings(), CREDENTIALS) as consumer:
        ours = [each.vbucket for each in streams]
        drained = Drained().run(consumer, caught_up(cluster, *ours))
        cluster.wait_until_replicated()
        cluster.failover(0)
        cluster.failover(1)
        assert {cluster.seeds[cluster.vbucket_owner(each)] for each in ours} == {str(third)}
        fill(cluster, 200, prefix="later")
        assert_same_state(cluster, drained.run(consumer, caught_up(cluster, *ours)), *ours)
