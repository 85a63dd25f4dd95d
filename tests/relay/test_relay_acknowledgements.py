"""The relay acknowledges what it received once, also over connections that are lost."""

from collections.abc import Callable
from contextlib import closing
from time import monotonic

import pytest

from dcp.producer.cluster import ProducerCluster
from dcp.protocol.flow_spec import parse_flow_spec
from dcp.relay.thread import Relay
from dcp.server.replication.replicator import _LOOK_SECONDS
from tests.client.drained import fill, wait_for
from tests.relay.lakes import Lake

WINDOW_BYTES = 50_000


def test_nothing_is_released_twice(
    make_cluster: Callable[..., ProducerCluster],
    make_relay: Callable[..., Relay],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Not over connections that are lost either: what streams held is void with them."""
    cluster = make_cluster(vbuckets=4)
    relay = make_relay(cluster, flow_spec=parse_flow_spec("min,t:60s"), window_bytes=WINDOW_BYTES)
    with closing(Lake(relay.seeds[0], 4)) as lake:
        for round_number in range(3):
            cluster.snapshot_cut_after(20)
            fill(cluster, 200, 1_000, prefix=f"round-{round_number}")
            lake.run_to(cluster)
    # A connection that was cut after the last rows is made anew, and may be reading yet.
    wait_for("all that was received is released, once", lambda: _released_all(relay))
    with cluster.bucket.lock:
        assert sum(each.over_acked_bytes for each in cluster.bucket.counters.flows.values()) == 0
    assert "failed" not in caplog.text


def _released_all(relay: Relay) -> bool:
    with relay.bucket.lock:
        windows = [each.connection.window for each in relay.upstream.links if each.connection]
        return bool(windows) and all(
            each.received == each.taken == each.given == each.released > 0 for each in windows
        )


@pytest.mark.parametrize("strategy", ["max", "min,t:60s"])
def test_what_is_consumed_is_acknowledged_at_once(
    make_cluster: Callable[..., ProducerCluster], make_relay: Callable[..., Relay], strategy: str
) -> None:
    """A hundred windows pass in less time than a look at the clock per window takes."""
    cluster = make_cluster(vbuckets=4)
    relay = make_relay(cluster, flow_spec=parse_flow_spec(strategy), window_bytes=WINDOW_BYTES)
    with closing(Lake(relay.seeds[0], 4)) as lake:
        begin = monotonic()
        fill(cluster, 1_000, 5_000)
        lake.run_to(cluster)
        assert monotonic() - begin < 100 * _LOOK_SECONDS / 3
