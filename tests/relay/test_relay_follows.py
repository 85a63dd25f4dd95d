"""The relay follows its cluster: moves, rebalances, nodes that are lost, new ones."""

from collections.abc import Callable
from contextlib import closing

from dcp.producer.cluster import ProducerCluster
from dcp.relay.thread import Relay
from tests.client.drained import fill
from tests.relay.lakes import Lake

MakeCluster = Callable[..., ProducerCluster]
MakeRelay = Callable[..., Relay]


def test_a_rebalance(make_cluster: MakeCluster, make_relay: MakeRelay) -> None:
    cluster = make_cluster(nodes=2, replicas=1)
    fill(cluster, 100)
    relay = make_relay(cluster)
    with closing(Lake(relay.seeds[0], 8)) as lake:
        lake.run_to(cluster)
        cluster.add_node()
        cluster.rebalance()
        fill(cluster, 100, prefix="after")
        lake.run_to(cluster)
        cluster.rebalance(remove=0)  # the one that the relay was told of at first
        fill(cluster, 100, prefix="later")
        lake.run_to(cluster)
        assert lake.rollbacks == {}


def test_a_node_dies_and_is_failed_over(make_cluster: MakeCluster, make_relay: MakeRelay) -> None:
    cluster = make_cluster(nodes=3, replicas=1)
    fill(cluster, 100)
    relay = make_relay(cluster)
    with closing(Lake(relay.seeds[0], 8)) as lake:
        lake.run_to(cluster)
        cluster.wait_until_replicated()
        cluster.kill_node(2)
        lake.take_one()
        cluster.failover(2)
        fill(cluster, 100, prefix="after")
        lake.run_to(cluster)


def test_a_node_comes_back(make_cluster: MakeCluster, make_relay: MakeRelay) -> None:
    cluster = make_cluster(nodes=1)
    fill(cluster, 100)
    relay = make_relay(cluster)
    with closing(Lake(relay.seeds[0], 8)) as lake:
        lake.run_to(cluster)
        cluster.kill_node(0)
        fill(cluster, 100, prefix="after")
        lake.take_one()
        cluster.restore_node(0)
        lake.run_to(cluster)
