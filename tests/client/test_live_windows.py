"""The window of a live connection changes: the producer is told, and nothing gets stuck."""

from collections.abc import Callable, Mapping

import pytest

from dcp.client.consumer import Consumer
from dcp.client.read_limit import ReadLimit
from dcp.client.settings import MIB, ConsumerSettings
from dcp.client.vbucket_track import StreamStart
from dcp.errors import LocalProtocolError
from dcp.producer.cluster import ProducerCluster
from dcp.producer.controls import CONTROLS
from dcp.producer.dcp_connection import DcpConnection
from dcp.wire.vocabulary import Status
from tests.client.conftest import MakeCluster
from tests.client.connecting import START, connected, settings
from tests.client.consuming import consuming
from tests.client.drained import (
    CREDENTIALS,
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
        drained.run(connection, lambda each: each.held_bytes >= 500_000, release=False)
        connection.resize_window(50_000)
        wait_for("the smaller window", lambda: flows(cluster) == [50_000])
        answered = cluster.counters().noops_answered
        wait_for("NOOPs", lambda: cluster.counters().noops_answered >= answered + 5)
        held = len(drained.unreleased)
        drained.release_all(connection)
        drained.run(connection, lambda each: each.held_bytes >= 50_000, release=False)
        assert connection.next(0.2) is None
        assert drained.held_bytes < 50_000 + 1200, f"after {held} deliveries"
        connection.resize_window(200_000)
        drained.run(connection, lambda each: each.held_bytes >= 200_000, release=False)
        assert connection.next(0.2) is None
        drained.release_all(connection)
        drained.run(connection, caught_up(cluster))
        assert_same_state(cluster, drained)
    assert cluster.counters().peak_unacked_bytes < 500_000 + 1200


class Chosen:
    """Windows that a test chooses."""

    def __init__(self, window_bytes: int) -> None:
        self.window_bytes = window_bytes
        self.names: list[str] = []
        self.ended: list[str] = []
        self.due: dict[str, int] = {}

    def opened(self, name: str) -> int:
        self.names.append(name)
        return self.window_bytes

    def closed(self, name: str) -> None:
        self.ended.append(name)

    def changes(self, now: float) -> Mapping[str, int]:
        due, self.due = self.due, {}
        return due

    def resize(self, window_bytes: int) -> None:
        self.window_bytes = window_bytes
        self.due = {name: window_bytes for name in self.names if name not in self.ended}


def test_a_consumer_follows_its_windows_over_a_lost_connection(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(vbuckets=2, nodes=2)
    fill(cluster, 2000, value_bytes=500)
    windows = Chosen(100_000)
    consumer = Consumer(
        [StreamStart(vbucket, None, START) for vbucket in range(2)],
        cluster.seeds,
        ConsumerSettings(settings()),
        CREDENTIALS,
        windows=windows,
    )
    with consumer:
        drained = Drained().run(consumer, lambda each: len(each.seqnos) == 2)
        assert set(flows(cluster)) == {100_000}
        assert consumer.least_window_bytes == 100_000
        windows.resize(20_000)
        drained.run(consumer, lambda _: set(flows(cluster)) == {20_000}, release=False)
        assert consumer.least_window_bytes == 20_000
        cluster.snapshot_cut_after(10)
        drained.release_all(consumer)
        drained.run(consumer, caught_up(cluster))
        assert set(flows(cluster)) == {20_000}, "new connections begin with it"
        assert windows.ended
        assert set(windows.ended) < set(windows.names)
        assert_same_state(cluster, drained)


def have_windows(cluster: ProducerCluster, sizes: tuple[int, ...]) -> Callable[[Drained], bool]:
    return lambda _: sorted(flows(cluster)) == sorted(sizes)


def test_the_least_window_is_that_of_a_connection_which_has_one(
    make_cluster: MakeCluster,
) -> None:
    """One without flow control does not hide a small window of another one."""
    cluster = make_cluster(vbuckets=2, nodes=2)
    fill(cluster, 100)
    windows = Chosen(100_000)
    chosen = ConsumerSettings(settings(allow_no_flow_control=True))
    with Consumer(
        [StreamStart(vbucket, None, START) for vbucket in range(2)],
        cluster.seeds,
        chosen,
        CREDENTIALS,
        windows=windows,
    ) as consumer:
        drained = Drained().run(consumer, lambda each: len(each.seqnos) == 2)
        for sizes, least_bytes in [((0, 4096), 4096), ((8192, 0), 8192), ((0, 0), None)]:
            windows.due = dict(zip(windows.names, sizes, strict=True))
            drained.run(consumer, have_windows(cluster, sizes))
            assert consumer.least_window_bytes == least_bytes


def test_a_refused_window_is_logged_once_and_the_old_one_stays(
    make_cluster: MakeCluster,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = make_cluster(vbuckets=1)
    fill(cluster, 500, value_bytes=500)
    windows = Chosen(100_000)
    with Consumer(
        [StreamStart(0, None, START)],
        cluster.seeds,
        ConsumerSettings(settings()),
        CREDENTIALS,
        windows=windows,
    ) as consumer:
        drained = Drained().run(consumer, lambda each: 0 in each.seqnos)
        asked: list[str] = []

        def refused(_: DcpConnection, value: str) -> Status:
            asked.append(value)
            return Status.EINVAL

        monkeypatch.setitem(CONTROLS, b"connection_buffer_size", refused)
        for size in (200_000, 50_000):
            windows.resize(size)
            drained.run(consumer, lambda _: bool(asked), release=False)
            drained.run(consumer, lambda _: consumer.least_window_bytes == 100_000, release=False)
            assert [asked.pop()] == [str(size)]
        assert flows(cluster) == [100_000]
        drained.release_all(consumer)
        drained.run(consumer, caught_up(cluster))
    assert [
        record.message for record in caplog.records if "refuses a window" in record.message
    ] == [
        f"{cluster.seeds[0]} refuses a window of 200000 bytes "
        "(status 0x04 EINVAL, it does not take what was sent): "
        "connections keep those that they have"
    ]


def received(consumer: Consumer) -> int:
    return sum(look.received_bytes for look in consumer.look())


def are_full(consumer: Consumer) -> bool:
    windows = [look.window for look in consumer.look()]
    return len(windows) == 2 and all(each is not None and each.is_full for each in windows)


def holds_and_is_full(consumer: Consumer, held_bytes: int) -> Callable[[Drained], bool]:
    """Full windows alone say little: a reader learns of a release only a moment later."""
    return lambda drained: drained.held_bytes >= held_bytes and are_full(consumer)


@pytest.mark.parametrize("rules", ["document", "server"])
def test_a_window_goes_and_comes_with_bytes_outstanding(
    make_cluster: MakeCluster, rules: str
) -> None:
    """What is held over a change is acknowledged once or never; what came meanwhile is a debt."""
    cluster = make_cluster(vbuckets=2, nodes=2, rules=rules)
    chosen = ConsumerSettings(settings(window_bytes=40_000, allow_no_flow_control=True))
    fill(cluster, 400, value_bytes=1000)
    with consuming(cluster, chosen=chosen) as consumer:
        drained = Drained().run(consumer, lambda _: are_full(consumer), release=False)
        for number, size in enumerate((30_000, 100_000)):
            received_bytes = received(consumer)
            consumer.resize_windows(0)
            drained.run(consumer, caught_up(cluster), release=False)
            fill(cluster, 300, value_bytes=1000, prefix=f"off-{number}")
            drained.run(consumer, caught_up(cluster), release=False)
            assert consumer.least_window_bytes is None
            consumer.resize_windows(size)
            drained.run(consumer, lambda _: are_full(consumer), release=False)
            assert flows(cluster) == [size, size]
            outstanding = [each.flow.outstanding_bytes for each in connections(cluster)]
            assert sum(outstanding) == received(consumer) - received_bytes, "forgotten with it"
            fill(cluster, 400, value_bytes=1000, prefix=f"on-{number}")
            assert consumer.next(0.2) is None, "what came while it was off fills it"
            drained.release_all(consumer)
            drained.run(consumer, holds_and_is_full(consumer, 2 * size), release=False)
            assert drained.held_bytes < 2 * (size + 1200)
        drained.release_all(consumer)
        drained.run(consumer, caught_up(cluster))
        assert_same_state(cluster, drained)
        assert [each.flow.over_acked_bytes for each in connections(cluster)] == [0, 0]


def test_windows_that_were_given_are_not_a_consumers_to_change(make_cluster: MakeCluster) -> None:
    cluster = make_cluster()
    consumer = Consumer(
        [StreamStart(0, None, START)],
        cluster.seeds,
        ConsumerSettings(settings()),
        CREDENTIALS,
        windows=Chosen(100_000),
    )
    with consumer, pytest.raises(LocalProtocolError, match="windows that were given"):
        consumer.resize_windows(10_000)


def allows(limit: ReadLimit, held_bytes: int, window_bytes: int) -> bool:
    limit.follow(held_bytes, window_bytes)
    return held_bytes < limit.limit_bytes


def test_reading_goes_on_while_a_smaller_window_drains() -> None:
    chosen = settings(window_bytes=10 * MIB, max_frame_bytes=MIB)
    limit = ReadLimit(chosen)
    assert allows(limit, 11 * MIB - 1, 10 * MIB)
    assert not allows(limit, 11 * MIB, 10 * MIB)
    assert allows(limit, 10 * MIB, MIB), "what came before the node knew"
    assert not allows(limit, 10 * MIB + 1, MIB), "more than that"
    assert allows(limit, 5 * MIB, MIB)
    assert not allows(limit, 6 * MIB, MIB)
    assert allows(limit, MIB, MIB)
    assert not allows(limit, 2 * MIB, MIB), "drained: the smaller window and one message"
    assert allows(limit, 10 * MIB, 10 * MIB), "and grown again"
