"""Rollbacks that the cluster orders go through a relay: consumers lose exactly the lost tail."""

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any

from dcp.producer.cluster import ProducerCluster
from dcp.relay.thread import Relay
from tests.client.drained import all_of, fill
from tests.relay.following import wait_until_level
from tests.relay.lakes import Lake

MakeCluster = Callable[..., ProducerCluster]
MakeRelay = Callable[..., Relay]


@contextmanager
def lakes(relay: Relay, count: int, **connection: Any) -> Iterator[list[Lake]]:
    vbuckets = relay.bucket.settings.vbuckets
    made = [Lake(relay.seeds[0], vbuckets, f"lake{n}", **connection) for n in range(count)]
    try:
        yield made
    finally:
        for lake in made:
            lake.close()


def test_a_lost_tail(make_cluster: MakeCluster, make_relay: MakeRelay) -> None:
    cluster = make_cluster(nodes=2, replicas=1)
    fill(cluster, 100)
    relay = make_relay(cluster)
    with lakes(relay, 2) as both:
        for lake in both:
            lake.run_to(cluster)
        cluster.wait_until_replicated()
        cluster.pause_replication()
        for number in range(100):
            cluster.set(b"key-%d" % number, b'"lost"')
        for lake in both:
            lake.run_to(cluster)
        gone = [v for v in all_of(cluster) if cluster.vbucket_owner(v) == 1]
        cut = {vbucket: cluster.replica_seqno(vbucket) for vbucket in gone}
        cluster.failover(1)
        for number in range(100):
            cluster.set(b"key-%d" % (number + 50), b'"after"')
        for lake in both:
            lake.run_to(cluster)
            assert lake.rollbacks == cut
    wait_until_level(cluster, relay)


def test_a_failover_that_loses_nothing(make_cluster: MakeCluster, make_relay: MakeRelay) -> None:
    """Consumers learn of the new branch, and go on without going back."""
    cluster = make_cluster(nodes=2, replicas=1)
    fill(cluster, 100)
    relay = make_relay(cluster)
    with lakes(relay, 1) as (lake,):
        lake.run_to(cluster)
        cluster.wait_until_replicated()
        cluster.failover(1)
        fill(cluster, 50, prefix="after")
        lake.run_to(cluster)
        assert lake.rollbacks == {}
        for vbucket in all_of(cluster):
            uuid = lake.positions[vbucket].vb_uuid
            assert uuid == cluster.failover_log(vbucket).current_uuid


def test_a_consumer_that_was_away_meanwhile(
    make_cluster: MakeCluster, make_relay: MakeRelay
) -> None:
    """The relay has followed the cluster back; who comes later is judged by the same log."""
    cluster = make_cluster(vbuckets=2)
    fill(cluster, 100)
    relay = make_relay(cluster)
    with closing(Lake(relay.seeds[0], 2)) as lake:
        lake.run_to(cluster)
        highs = {v: cluster.high_seqno(v) for v in all_of(cluster)}
    cluster.crash_restart(0, lost_seqnos=0)
    lost = fill_each(cluster, 1, b"lost")
    wait_until_level(cluster, relay)
    with closing(Lake(relay.seeds[0], 2)) as other:
        other.run_to(cluster)
    assert lost
    cluster.crash_restart(0, lost_seqnos=1)
    wait_until_level(cluster, relay)
    lake.connect(relay.seeds[0])
    other.connect(relay.seeds[0])
    with closing(lake), closing(other):
        fill_each(cluster, 2, b"after")
        lake.run_to(cluster)
        other.run_to(cluster)
        assert lake.rollbacks == {}
        assert other.rollbacks == highs


def fill_each(cluster: ProducerCluster, count: int, prefix: bytes) -> int:
    """Write so many documents to each vbucket, one after the other."""
    left = dict.fromkeys(all_of(cluster), count)
    number = 0
    while any(left.values()):
        key = b"%b-%d" % (prefix, number)
        vbucket = cluster.vbucket_of(key)
        if left[vbucket]:
            cluster.set(key, b"1")
            left[vbucket] -= 1
        number += 1
    return number
