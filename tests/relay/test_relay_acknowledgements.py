"""The relay acknowledges what it received once, also over connections that are lost."""

from collections.abc import Callable
from contextlib import closing

from dcp.producer.cluster import ProducerCluster
from dcp.protocol.flow_spec import parse_flow_spec
from dcp.relay.relay import Relay
from tests.client.drained import fill
from tests.relay.lakes import Lake

WINDOW_BYTES = 50_000


def test_nothing_is_released_twice(
    make_cluster: Callable[..., ProducerCluster],
    make_relay: Callable[..., Relay],
) -> None:
    """Not over connections that are lost either: what streams held is void with them."""
    cluster = make_cluster(vbuckets=4)
    relay = make_relay(cluster, flow_spec=parse_flow_spec("min,t:60s"), window_bytes=WINDOW_BYTES)
    with closing(Lake(relay.seeds[0], 4)) as lake:
        for round_number in range(3):
            cluster.snapshot_cut_after(20)
            fill(cluster, 200, 1_000, prefix=f"round-{round_number}")
            lake.run_to(cluster)
    with cluster.bucket.lock:
        assert sum(each.over_acked_bytes for each in cluster.bucket.counters.flows.values()) == 0
