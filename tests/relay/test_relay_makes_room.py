"""The relay's freeing and writing: a lost link's bytes at once, on demand to disk."""

from collections.abc import Callable
from pathlib import Path

import pytest

from dcp.producer.cluster import ProducerCluster
from dcp.protocol.flow_spec import parse_flow_spec
from dcp.relay.thread import Relay
from tests.client.drained import fill, wait_for
from tests.producer.raw_client import RawClient
from tests.relay.lakes import PATIENCE_SECONDS


def test_asking_for_room_writes_nothing(
    make_cluster: Callable[..., ProducerCluster], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = make_cluster(vbuckets=1, data_folder=tmp_path / "data", flush_seconds=600.0)
    fill(cluster, 20)
    bucket = cluster.bucket
    assert bucket.writes.flusher is not None
    with bucket.lock:
        before = bucket.writes.flusher.pending_bytes
        monkeypatch.setattr(bucket.writes.flusher, "_most_bytes", before)
        assert before > 0
        assert (bucket.writes.has_room, bucket.writes.flusher.pending_bytes) == (False, before)
        assert bucket.writes.make_room()
        assert (bucket.writes.has_room, bucket.writes.flusher.pending_bytes) == (True, 0)


def test_a_node_that_leaves_the_map_holds_nothing_any_more(
    make_cluster: Callable[..., ProducerCluster],
    make_relay: Callable[..., Relay],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """At once, and not when its link has ended: another node's bytes may come before that."""
    cluster = make_cluster(vbuckets=1)
    relay = make_relay(cluster, flow_spec=parse_flow_spec("min,t:60s"), window_bytes=50_000)
    upstream = relay.upstream
    with RawClient(relay.seeds[0]) as client:
        client.log_in().open_dcp(b"slow", window=2_000)
        client.request_stream(0)
        wait_for("it counts", lambda: relay.figures().groups[0].receivers == 1, PATIENCE_SECONDS)
        fill(cluster, 40, 1_000)
        wait_for(
            "bytes are not consumed",
            lambda: relay.figures().unconsumed_bytes > 10_000,
            PATIENCE_SECONDS,
        )
        with relay.bucket.lock:
            monkeypatch.setattr(upstream, "_wanted", dict)
            monkeypatch.setattr(upstream, "_ask_for_failover_logs", lambda: None)
            upstream.reconcile()
            assert relay.figures().unconsumed_bytes == 0
