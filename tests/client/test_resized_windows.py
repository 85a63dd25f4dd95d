"""The window of an open connection changes: the producer is told, and nothing gets stuck."""

from collections.abc import Callable

import pytest

from dcp.client.consumer import Consumer
from dcp.producer.cluster import ProducerCluster
from dcp.server.bucket.dcp_connection import DcpConnection
from dcp.server.commands.controls import CONTROLS
from dcp.wire.vocabulary import Status
from tests.client.conftest import MakeCluster
from tests.client.connecting import START, connected
from tests.client.consuming import consuming
from tests.client.consuming import settings as chosen
from tests.client.drained import (
    Drained,
    assert_same_state,
    caught_up,
    fill,
    wait_for,
)


def connections(cluster: ProducerCluster) -> list[DcpConnection]:
    """Return all DCP connections as the producer has them."""
    return list(cluster.bucket.dcp_connections.values())


def flows(cluster: ProducerCluster) -> list[int]:
    """Return the windows of all DCP connections as the producer has them."""
    return sorted(each.flow.window_bytes for each in connections(cluster))


def test_a_window_shrinks_and_grows_under_a_stalled_application(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(vbuckets=1)
    fill(cluster, 3000, value_bytes=1000)
    with connected(cluster, window_bytes=500_000, noop_interval_seconds=0.1) as connection:
        connection.open_stream(0, START)
        drained = Drained()
        drained.run(connection, lambda each: each.unreleased_bytes >= 500_000, release=False)
        connection.resize_window(50_000)
        wait_for("the smaller window", lambda: flows(cluster) == [50_000])
        answered = cluster.counters().noops_answered
        wait_for("NOOPs", lambda: cluster.counters().noops_answered >= answered + 5)
        held = len(drained.unacknowledged)
        drained.release_all()
        drained.run(connection, lambda each: each.unreleased_bytes >= 50_000, release=False)
        assert connection.next(0.2) is None
        assert drained.unreleased_bytes < 50_000 + 1200, f"after {held} deliveries"
        connection.resize_window(200_000)
        drained.run(connection, lambda each: each.unreleased_bytes >= 200_000, release=False)
        assert connection.next(0.2) is None
        drained.release_all()
        drained.run(connection, caught_up(cluster))
        assert_same_state(cluster, drained)
    assert cluster.counters().peak_unacked_bytes < 500_000 + 1200


def have_windows(cluster: ProducerCluster, sizes: list[int]) -> Callable[[Drained], bool]:
    return lambda _: flows(cluster) == sizes


def names(consumer: Consumer) -> set[str]:
    return {look.name for look in consumer.stats()}


def test_a_consumer_keeps_its_windows_over_a_lost_connection(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(vbuckets=2, nodes=2)
    fill(cluster, 2000, value_bytes=500)
    with consuming(cluster, chosen=chosen(window_bytes=100_000)) as consumer:
        drained = Drained().run(consumer, lambda each: len(each.seqnos) == 2)
        assert set(flows(cluster)) == {100_000}
        consumer.resize_windows(20_000)
        drained.run(consumer, have_windows(cluster, [20_000] * 2), release=False)
        before = names(consumer)
        cluster.snapshot_cut_after(10)
        drained.release_all()
        drained.run(consumer, caught_up(cluster))
        assert set(flows(cluster)) == {20_000}, "new connections begin with it"
        assert names(consumer) != before
        assert_same_state(cluster, drained)


def test_a_refused_window_is_logged_once_and_the_old_one_stays(
    make_cluster: MakeCluster,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = make_cluster(vbuckets=1)
    fill(cluster, 500, value_bytes=500)
    with consuming(cluster, chosen=chosen(window_bytes=100_000)) as consumer:
        drained = Drained().run(consumer, lambda each: 0 in each.seqnos)
        asked: list[str] = []

        def refused(_: DcpConnection, value: str) -> Status:
            asked.append(value)
            return Status.EINVAL

        monkeypatch.setitem(CONTROLS, b"connection_buffer_size", refused)
        for size in (200_000, 50_000):
            consumer.resize_windows(size)
            drained.run(consumer, lambda _: bool(asked), release=False)
            drained.run(consumer, lambda _: window_sizes(consumer) == [100_000], release=False)
            assert [asked.pop()] == [str(size)]
        assert flows(cluster) == [100_000]
        drained.release_all()
        drained.run(consumer, caught_up(cluster))
    assert [
        record.message for record in caplog.records if "refuses a window" in record.message
    ] == [
        f"{cluster.seeds[0]} refuses a window of 200000 bytes "
        "(status 0x04 EINVAL, the request is invalid): "
        "connections keep those that they have"
    ]


def window_sizes(consumer: Consumer) -> list[int | None]:
    """Return the sizes of all windows as the consumer keeps to them; None: no flow control."""
    return [None if look.window is None else look.window.size for look in consumer.stats()]


def received(consumer: Consumer) -> int:
    return sum(look.received_bytes for look in consumer.stats())


def are_full(consumer: Consumer) -> bool:
    windows = [look.window for look in consumer.stats()]
    return len(windows) == 2 and all(each is not None and each.is_full for each in windows)


def holds_and_is_full(consumer: Consumer, unreleased_bytes: int) -> Callable[[Drained], bool]:
    """Full windows alone say little: a reader learns of a release only a moment later."""
    return lambda drained: drained.unreleased_bytes >= unreleased_bytes and are_full(consumer)


@pytest.mark.parametrize("rules", ["document", "server"])
def test_a_window_goes_and_comes_with_bytes_outstanding(
    make_cluster: MakeCluster, rules: str
) -> None:
    """What is held over a change is acknowledged once or never; what came meanwhile is a debt."""
    cluster = make_cluster(vbuckets=2, nodes=2, rules=rules)
    off_allowed = chosen(window_bytes=40_000, allow_no_flow_control=True)
    fill(cluster, 400, value_bytes=1000)
    with consuming(cluster, chosen=off_allowed) as consumer:
        drained = Drained().run(consumer, lambda _: are_full(consumer), release=False)
        for number, size in enumerate((30_000, 100_000)):
            received_bytes = received(consumer)
            consumer.resize_windows(0)
            drained.run(consumer, caught_up(cluster), release=False)
            fill(cluster, 300, value_bytes=1000, prefix=f"off-{number}")
            drained.run(consumer, caught_up(cluster), release=False)
            assert window_sizes(consumer) == [None, None]
            consumer.resize_windows(size)
            drained.run(consumer, have_windows(cluster, [size, size]), release=False)
            drained.run(consumer, lambda _: are_full(consumer), release=False)  # by the answer
            outstanding = [each.flow.outstanding_bytes for each in connections(cluster)]
            assert sum(outstanding) == received(consumer) - received_bytes, "forgotten with it"
            fill(cluster, 400, value_bytes=1000, prefix=f"on-{number}")
            assert consumer.next(0.2) is None, "what came while it was off fills it"
            drained.release_all()
            drained.run(consumer, holds_and_is_full(consumer, 2 * size), release=False)
            assert drained.unreleased_bytes < 2 * (size + 1200)
        drained.release_all()
        drained.run(consumer, caught_up(cluster))
        assert_same_state(cluster, drained)
        assert [each.flow.over_acked_bytes for each in connections(cluster)] == [0, 0]
