"""Windows of single streams over sockets: all arrives, whatever the server makes of them."""

import logging
from collections.abc import Callable
from time import monotonic

import pytest

from dcp.client.connection import NodeConnection
from dcp.errors import ConfigError
from dcp.producer.cluster import ProducerCluster
from dcp.protocol.events import StreamClosed, StreamWindowChanged
from dcp.wire.vocabulary import Status
from tests.client.conftest import MakeCluster
from tests.client.connecting import START, connected
from tests.client.consuming import consuming, settings
from tests.client.drained import (
    PATIENCE_SECONDS,
    Drained,
    assert_same_state,
    caught_up,
    fill,
    wait_for,
)

MESSAGE = 1100
"""No message is longer here."""
STREAM_WINDOW = 8192


@pytest.mark.parametrize("rules", ["document", "server"])
@pytest.mark.parametrize("window", [16_384, 10_000_000])
@pytest.mark.parametrize("stream_window", [1, STREAM_WINDOW, 1_000_000])
def test_all_arrives_with_both_windows(
    make_cluster: MakeCluster,
    caplog: pytest.LogCaptureFixture,
    rules: str,
    window: int,
    stream_window: int,
) -> None:
    cluster = make_cluster(nodes=2, vbuckets=8, rules=rules)
    fill(cluster, 1600, value_bytes=1000)
    chosen = settings(window_bytes=window, stream_window_bytes=stream_window)
    with caplog.at_level(logging.WARNING), consuming(cluster, chosen=chosen) as consumer:
        drained = Drained().run(consumer, caught_up(cluster))
        fill(cluster, 160, value_bytes=1000, prefix="later")
        drained.run(consumer, caught_up(cluster))
        assert_same_state(cluster, drained)
    counters = cluster.counters()
    assert counters.peak_unacked_bytes < window + MESSAGE
    told = [text for text in caplog.messages if "stream_buffer_size" in text]
    if rules == "server":
        assert counters.peak_stream_unacked_bytes == 0
        assert len(told) == 1, "once for all connections"
        assert "refuses windows of single streams (stream_buffer_size)" in told[0]
    else:
        assert 0 < counters.peak_stream_unacked_bytes < stream_window + MESSAGE
        assert told == []


@pytest.mark.parametrize("rules", ["document", "server"])
def test_windows_of_streams_alone(make_cluster: MakeCluster, rules: str) -> None:
    """Where they are refused nothing is left but not to read."""
    cluster = make_cluster(vbuckets=4, rules=rules)
    fill(cluster, 400, value_bytes=1000)
    chosen = settings(window_bytes=0, allow_no_flow_control=True, stream_window_bytes=STREAM_WINDOW)
    with consuming(cluster, chosen=chosen) as consumer:
        assert_same_state(cluster, Drained().run(consumer, caught_up(cluster)))
    assert cluster.counters().peak_stream_unacked_bytes < STREAM_WINDOW + MESSAGE


def filled(connection: NodeConnection, vbucket: int, drained: Drained) -> None:
    """Open a stream and take what its window lets pass; release nothing."""
    connection.open_stream(vbucket, START)
    drained.run(connection, lambda each: each.unreleased_bytes >= STREAM_WINDOW, release=False)
    assert connection.next(0.2) is None


def test_a_stream_that_is_not_released_holds_up_no_other(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(vbuckets=3)
    fill(cluster, 900, value_bytes=1000)
    with connected(cluster, stream_window_bytes=STREAM_WINDOW) as connection:
        stalled = Drained()
        filled(connection, 0, stalled)
        assert STREAM_WINDOW <= stalled.unreleased_bytes < STREAM_WINDOW + MESSAGE
        look = connection.stats(monotonic())
        assert (look.stream_window_bytes, look.full_stream_windows) == (STREAM_WINDOW, 1)
        others = Drained()
        for vbucket in (1, 2):
            connection.open_stream(vbucket, START)
        others.run(connection, caught_up(cluster, 1, 2))
        assert_same_state(cluster, others, 1, 2)
        assert others.seqnos.keys() == {1, 2}, "the other one has to wait"
        stalled.release_all()
        assert_same_state(cluster, stalled.run(connection, caught_up(cluster, 0)), 0)
        wait_for("acks", lambda: connection.stats(monotonic()).full_stream_windows == 0)


def test_a_stream_may_be_closed_while_its_window_is_full(make_cluster: MakeCluster) -> None:
    """Its STREAM_END waits for the window, as that of a connection does; then it is free."""
    cluster = make_cluster(vbuckets=1)
    fill(cluster, 200, value_bytes=1000)
    with connected(cluster, stream_window_bytes=STREAM_WINDOW) as connection:
        drained = Drained()
        filled(connection, 0, drained)
        connection.close_stream(0)
        delivery = connection.next(PATIENCE_SECONDS)
        assert delivery is not None
        assert [type(event) for event in delivery.events] == [StreamClosed]
        assert connection.next(0.2) is None
        drained.release_all()
        delivery = connection.next(PATIENCE_SECONDS)
        assert delivery is not None
        assert [type(event) for event in delivery.events] == [StreamClosed]
        delivery.release()
        again = Drained()
        connection.open_stream(0, START)
        assert_same_state(cluster, again.run(connection, caught_up(cluster)))


def test_what_is_dropped_of_a_closed_stream_gives_back_its_window(
    make_cluster: MakeCluster,
) -> None:
    """Else its STREAM_END would never come."""
    cluster = make_cluster(vbuckets=1)
    fill(cluster, 3000, value_bytes=1000)
    with connected(cluster, stream_window_bytes=100_000) as connection:
        for _ in range(5):
            connection.open_stream(0, START)
            drained = Drained()
            drained.run(connection, lambda each: each.rows > 0)
            connection.close_stream(0)
            drained.run(connection, is_closed_and_ended)


def is_closed_and_ended(drained: Drained) -> bool:
    """Whether the close was answered, and the STREAM_END came."""
    return sum(isinstance(event, StreamClosed) for event in drained.events) == 2


def has_rows(least: int) -> Callable[[Drained], bool]:
    return lambda drained: drained.rows >= least


def test_sizes_change_while_data_flows(make_cluster: MakeCluster) -> None:
    """Off and on again too: neither side forgets what the other counts."""
    cluster = make_cluster(vbuckets=2)
    fill(cluster, 4000, value_bytes=1000)
    sizes = [100_000, 0, 4096, 1, 0, 50_000, STREAM_WINDOW]
    with connected(cluster, stream_window_bytes=STREAM_WINDOW) as connection:
        for vbucket in range(2):
            connection.open_stream(vbucket, START)
        drained = Drained()
        for number, size in enumerate(sizes, 1):
            drained.run(connection, has_rows(number * 300))
            connection.change_stream_window(size)
        drained.run(connection, caught_up(cluster))
        assert_same_state(cluster, drained)
        fill(cluster, 1000, value_bytes=1000, prefix="later")
        assert_same_state(cluster, drained.run(connection, caught_up(cluster)))
        changed = [each for each in drained.events if isinstance(each, StreamWindowChanged)]
        assert changed == [StreamWindowChanged(size, 0) for size in sizes]
        (dcp,) = cluster.bucket.dcp_connections.values()

        def at_rest() -> bool:
            """Whether nothing is outstanding but what is too little to be acknowledged at once."""
            flows = [dcp.stream_windows.flow(stream.opaque) for stream in dcp.streams]
            most = STREAM_WINDOW // 5
            return all(flow is not None and flow.outstanding_bytes <= most for flow in flows)

        wait_for("all acknowledged", at_rest)


@pytest.mark.parametrize("rules", ["document", "server"])
def test_windows_of_streams_come_late_and_go(make_cluster: MakeCluster, rules: str) -> None:
    """Nobody asked for them in the bootstrap; bytes are outstanding at each change."""
    cluster = make_cluster(vbuckets=2, rules=rules)
    fill(cluster, 4000, value_bytes=1000)
    with connected(cluster, window_bytes=200_000) as connection:
        for vbucket in range(2):
            connection.open_stream(vbucket, START)
        drained = Drained()
        sizes = [STREAM_WINDOW, 0, 30_000]
        for number, size in enumerate(sizes, 1):
            drained.run(connection, has_rows(number * 300))
            drained.run(connection, lambda each: each.unreleased_bytes >= 8_000, release=False)
            connection.change_stream_window(size)
            drained.run(connection, answered(number), release=False)
            drained.release_all()
        assert_same_state(cluster, drained.run(connection, caught_up(cluster)))
        fill(cluster, 200, value_bytes=1000, prefix="later")
        if rules == "document":
            full = lambda _: connection.stats(monotonic()).full_stream_windows == 2  # noqa: E731
            drained.run(connection, full, release=False)
            assert drained.unreleased_bytes < 2 * (30_000 + MESSAGE)
        drained.release_all()
        assert_same_state(cluster, drained.run(connection, caught_up(cluster)))
        assert over_acked_bytes(cluster) == 0
    status = Status.SUCCESS if rules == "document" else Status.NOT_SUPPORTED
    changed = [each for each in drained.events if isinstance(each, StreamWindowChanged)]
    assert changed == [StreamWindowChanged(size, status) for size in sizes]
    assert (cluster.counters().peak_stream_unacked_bytes > 0) == (rules == "document")


def over_acked_bytes(cluster: ProducerCluster) -> int:
    """Return what was acknowledged beyond what was sent, to connections and streams."""
    connections = list(cluster.bucket.dcp_connections.values())
    flows = [each.stream_windows.flow(one.opaque) for each in connections for one in each.streams]
    of_streams = sum(flow.over_acked_bytes for flow in flows if flow is not None)
    return of_streams + sum(each.flow.over_acked_bytes for each in connections)


def answered(count: int) -> Callable[[Drained], bool]:
    return lambda drained: (
        sum(isinstance(each, StreamWindowChanged) for each in drained.events) >= count
    )


@pytest.mark.parametrize("rules", ["document", "server"])
def test_a_consumer_changes_the_windows_of_its_streams(
    make_cluster: MakeCluster, caplog: pytest.LogCaptureFixture, rules: str
) -> None:
    """Of all nodes, over lost connections too; where they are refused all arrives just so."""
    cluster = make_cluster(nodes=2, vbuckets=4, rules=rules)
    fill(cluster, 4000, value_bytes=1000)
    with caplog.at_level(logging.WARNING), consuming(cluster) as consumer:
        drained = Drained()
        consumer.resize_stream_windows(50_000)
        for number, size in enumerate([0, STREAM_WINDOW, 20_000], 1):
            drained.run(consumer, has_rows(number * 500))
            consumer.resize_stream_windows(size)
            if number == 2:
                cluster.snapshot_cut_after(10)
        drained.run(consumer, caught_up(cluster))
        assert_same_state(cluster, drained)
        assert over_acked_bytes(cluster) == 0
        # All may have arrived before a node's last answer.
        wanted = {20_000 if rules == "document" else 0}
        drained.run(consumer, lambda _: {e.stream_window_bytes for e in consumer.stats()} == wanted)
    told = [text for text in caplog.messages if "stream_buffer_size" in text]
    assert len(told) == (rules == "server"), "once, however often it is asked for"


def test_sizes_that_a_consumer_refuses(make_cluster: MakeCluster) -> None:
    with consuming(make_cluster()) as consumer:
        for size in (-1, 2**32):
            with pytest.raises(ConfigError, match=f"stream_window_bytes: found {size}"):
                consumer.resize_stream_windows(size)
            with pytest.raises(ConfigError, match=f"window_bytes: found {size}"):
                consumer.resize_windows(size)
        with pytest.raises(ConfigError, match="set allow_no_flow_control"):
            consumer.resize_windows(0)
