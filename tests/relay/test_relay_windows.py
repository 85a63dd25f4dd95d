"""The windows of a relay's connections: shares of a quota, resized as nodes come and go."""

from collections.abc import Callable
from contextlib import closing

from dcp.producer.cluster import ProducerCluster
from dcp.relay.settings import FULL_WINDOWS, MIB
from dcp.relay.thread import Relay
from tests.client.drained import fill, wait_for
from tests.relay.lakes import PATIENCE_SECONDS, Lake

WINDOW_BYTES = 3 * MIB
VBUCKETS = 12


def _windows(cluster: ProducerCluster) -> list[int]:
    """What the nodes were told, by connection of the relay."""
    with cluster.bucket.lock:
        return [
            consumer.flow.window_bytes
            for (_, name), consumer in cluster.bucket.dcp_connections.items()
            if name.startswith(b"dcplake-relay:")
        ]


def test_connections_share_windows_as_nodes_come_and_go(
    make_cluster: Callable[..., ProducerCluster], make_relay: Callable[..., Relay]
) -> None:
    """Four nodes have whole windows, six share four of them; documents go on arriving."""
    cluster = make_cluster(nodes=4, vbuckets=VBUCKETS)
    relay = make_relay(cluster, window_bytes=WINDOW_BYTES)
    with closing(Lake(relay.seeds[0], VBUCKETS)) as lake:

        def has_all(nodes: int, window_bytes: int) -> None:
            wait_for(
                f"{nodes} windows of {window_bytes} bytes",
                lambda: _windows(cluster) == [window_bytes] * nodes,
                PATIENCE_SECONDS,
            )
            fill(cluster, 100, 1_000, prefix=f"with-{nodes}")
            lake.run_to(cluster)

        has_all(4, WINDOW_BYTES)
        for _ in range(2):
            cluster.add_node()
        cluster.rebalance()
        has_all(6, FULL_WINDOWS * WINDOW_BYTES // 6)
        cluster.rebalance(remove=5)
        has_all(5, FULL_WINDOWS * WINDOW_BYTES // 5)
    told = relay.figures().upstream
    assert {link.window_bytes for link in told} == {FULL_WINDOWS * WINDOW_BYTES // 5}
    with cluster.bucket.lock:
        assert sum(each.over_acked_bytes for each in cluster.bucket.counters.flows.values()) == 0
