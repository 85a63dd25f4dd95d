"""The consumer finds each vbucket's owner by the cluster map, and follows a vbucket that moves."""

from dataclasses import replace

import pytest

from dcp.client.addresses import NodeAddress
from dcp.client.backoff import Backoff
from dcp.client.consumer import Consumer
from dcp.client.delivery import DeliveryQueue
from dcp.client.node_links import NodeLinks
from dcp.client.vbucket_track import StreamStart
from dcp.server.commands.map_notifier import MapNotifier
from tests.client.conftest import MakeCluster
from tests.client.connecting import START
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
    Drained,
    all_of,
    assert_same_state,
    caught_up,
    fill,
)


def test_finds_owners_by_the_map_when_no_address_is_known(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(nodes=3)
    fill(cluster, 200)
    streams = [StreamStart(vbucket, None, START) for vbucket in all_of(cluster)]
    with consuming(cluster, streams) as consumer:
        assert_same_state(cluster, Drained().run(consumer, caught_up(cluster)))


def test_a_moved_vbucket_is_followed(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(nodes=2)
    fill(cluster, 400)
    with consuming(cluster) as consumer:
        drained = Drained().run(consumer, caught_up(cluster))
        for vbucket in all_of(cluster):
            cluster.move_vbucket(vbucket, 1 - cluster.vbucket_owner(vbucket))
        fill(cluster, 400, prefix="later")
        drained.run(consumer, caught_up(cluster))
        assert_same_state(cluster, drained)
    assert_nothing_sent_twice(cluster, drained)


@pytest.mark.parametrize("has_body", [True, False])
def test_a_stale_plan_is_corrected_by_not_my_vbucket(
    make_cluster: MakeCluster, monkeypatch: pytest.MonkeyPatch, has_body: bool
) -> None:
    """A refusal that brings no map lets the consumer ask for it."""
    if not has_body:
        monkeypatch.setattr(MapNotifier, "for_refusal", lambda *_: b"")
    cluster = make_cluster(nodes=2)
    fill(cluster, 100)
    streams = starts(cluster)
    for vbucket in all_of(cluster):
        cluster.move_vbucket(vbucket, 1 - cluster.vbucket_owner(vbucket))
    with consuming(cluster, streams) as consumer:
        assert_same_state(cluster, Drained().run(consumer, caught_up(cluster)))


def test_moves_are_followed_in_the_network_of_the_seeds(make_cluster: MakeCluster) -> None:
    """To a node that joins later, too."""
    cluster = make_cluster(nodes=2, external_host="localhost")
    fill(cluster, 200)
    seeds = [seed.replace("127.0.0.1", "localhost") for seed in cluster.seeds]
    streams = [StreamStart(vbucket, None, START) for vbucket in all_of(cluster)]
    with Consumer(streams, seeds, settings(), CREDENTIALS) as consumer:
        drained = Drained().run(consumer, caught_up(cluster))
        for vbucket in all_of(cluster):
            cluster.move_vbucket(vbucket, 1 - cluster.vbucket_owner(vbucket))
        cluster.move_vbucket(0, cluster.add_node())
        fill(cluster, 200, prefix="later")
        drained.run(consumer, caught_up(cluster))
        assert_same_state(cluster, drained)
        assert {each.node.host for each in consumer.stats()} == {"localhost"}


def test_a_map_of_who_leaves_the_cluster_is_read_in_the_same_network(
    make_cluster: MakeCluster,
) -> None:
    cluster = make_cluster(nodes=2, replicas=1, external_host="localhost")
    leaving, staying = (replace(node, host="localhost") for node in node_addresses(cluster))
    backoff = Backoff(0.01, 0.1, lambda: 0.5)
    links = NodeLinks([leaving], settings().connection, CREDENTIALS, "t", DeliveryQueue(), backoff)
    links.adopt(cluster.bucket.map.as_json(0), leaving)
    cluster.failover(0)
    links.adopt(cluster.bucket.map.as_json(1), leaving)
    assert links.map is not None and links.map.addresses == (staying,)


REPLICAS = replace(settings(), reads_replicas=True)


def test_replicas_are_read_where_the_active_node_is_gone(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(nodes=3, replicas=1)
    fill(cluster, 300)
    cluster.wait_until_replicated()
    gone = owned(cluster, 0)
    cluster.kill_node(0)
    streams = [StreamStart(vbucket, None, START) for vbucket in gone]
    with consuming(cluster, streams, REPLICAS) as consumer:
        drained = Drained().run(consumer, caught_up(cluster, *gone))
    assert_same_state(cluster, drained, *gone)


def test_a_replica_that_is_promoted_is_left_for_another_one(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(nodes=3, replicas=2)
    fill(cluster, 300)
    cluster.wait_until_replicated()
    vbucket = owned(cluster, 0)[0]
    with consuming(cluster, [StreamStart(vbucket, None, START)], REPLICAS) as consumer:
        drained = Drained().run(consumer, caught_up(cluster, vbucket))
        cluster.failover(0)
        promoted = NodeAddress.parse(cluster.seeds[cluster.vbucket_owner(vbucket)])
        before = {each.node: each.received_bytes for each in consumer.stats()}
        fill(cluster, 300, prefix="later")
        drained.run(consumer, caught_up(cluster, vbucket))
        after = {each.node: each.received_bytes for each in consumer.stats()}
    assert_same_state(cluster, drained, vbucket)
    assert {node for node in after if after[node] > before.get(node, 0)} == {
        each for each in node_addresses(cluster)[1:] if each != promoted
    }
