"""An application that releases late stops the producer, at the window or at the unread limit."""

from time import monotonic

import pytest

from dcp.client.delivery import Delivery
from dcp.client.reader import Reader
from dcp.client.settings import MIB
from dcp.client.transport import Transport
from dcp.protocol.events import Items
from tests.client.conftest import MakeCluster
from tests.client.connecting import START, connected
from tests.client.drained import (
    PATIENCE_SECONDS,
    Drained,
    assert_same_state,
    caught_up,
    fill,
    wait_for,
)


def test_stalled_application_stops_the_producer_at_the_window_while_noops_are_answered(
    make_cluster: MakeCluster,
) -> None:
    cluster = make_cluster(vbuckets=1)
    fill(cluster, 3000, value_bytes=1000)
    window = 200_000
    with connected(cluster, window_bytes=window, noop_interval_seconds=0.1) as connection:
        connection.open_stream(0, START)
        drained = Drained()
        drained.run(connection, lambda each: each.held_bytes >= window, release=False)
        answered = cluster.counters().noops_answered
        wait_for("NOOPs under stall", lambda: cluster.counters().noops_answered >= answered + 5)
        assert connection.next(0.0) is None, "nothing more may come before a release"
        counters = cluster.counters()
        assert window <= counters.peak_unacked_bytes <= window + 1200
        assert drained.held_bytes == counters.peak_unacked_bytes
        assert counters.buffer_acks == 0
        drained.release_all(connection)
        drained.run(connection, caught_up(cluster))
        assert cluster.counters().peak_unacked_bytes <= window + 1200
        assert_same_state(cluster, drained)


def test_documents_of_20_mib_pass_a_window_of_1_mib(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(vbuckets=1)
    size = 20 * MIB
    for number in range(3):
        cluster.set(b"big-%d" % number, bytes([number + 1]) * size)
    with connected(cluster, window_bytes=MIB) as connection:
        connection.open_stream(0, START)
        drained = Drained().run(connection, caught_up(cluster))
        assert_same_state(cluster, drained)
    assert size < cluster.counters().peak_unacked_bytes < size + MIB + 1024


def test_a_document_passes_a_socket_account_of_a_hundredth_of_it(make_cluster: MakeCluster) -> None:
    """No read takes more than the account has room for, into the document's own buffer either."""
    cluster = make_cluster(vbuckets=1)
    size, read_buffer = 5 * MIB, MIB // 20
    for number in range(2):
        cluster.set(b"big-%d" % number, bytes([number + 1]) * size)
    with connected(cluster, window_bytes=MIB, read_buffer_bytes=read_buffer) as connection:
        connection.open_stream(0, START)
        drained = Drained().run(connection, caught_up(cluster))
        assert_same_state(cluster, drained)
        look = connection.look(monotonic())
    stages = {each.name: each for each in look.stages}
    assert 0 < stages["socket"].peak <= read_buffer
    assert size - read_buffer < stages["frame"].peak < size + 200
    assert 0 < look.window_overflow_bytes < size + 200
    assert [each.second_releases for each in look.stages] == [0, 0, 0]


def test_parts_of_a_delivery_are_acknowledged_before_the_rest(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(vbuckets=1)
    fill(cluster, 100, value_bytes=1000)
    with connected(cluster, window_bytes=20_000, ack_seconds=60.0) as connection:
        connection.open_stream(0, START)
        held: list[Delivery] = []
        while sum(each.frame_bytes for each in held) < 20_000:
            delivery = connection.next(PATIENCE_SECONDS)
            assert delivery is not None
            held.append(delivery)
        largest = max(held, key=lambda each: each.frame_bytes)
        assert largest.frame_bytes > 12_000
        assert cluster.counters().buffer_acks == 0
        frames = [
            length
            for event in largest.events
            if isinstance(event, Items)
            for length in event.columns.frame_bytes.tolist()
        ]
        part_bytes = sum(frames[:6])
        connection.release_part(largest, part_bytes, {})
        wait_for("an acknowledgement", lambda: cluster.counters().buffer_acks == 1)
        wait_for("more", lambda: cluster.counters().peak_unacked_bytes >= 20_000)
        look = connection.look(monotonic())
        assert look.acked_bytes == part_bytes, "whole messages"
        for delivery in held:
            connection.release(delivery)
        drained = Drained()
        for delivery in held:
            drained.take(delivery)
        drained.unreleased.clear()
        assert_same_state(cluster, drained.run(connection, caught_up(cluster)))
        assert connection.look(monotonic()).unaccounted_bytes == 0


def test_released_twice_counts_once(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(vbuckets=1)
    fill(cluster, 2000, value_bytes=500)
    with connected(cluster, window_bytes=100_000) as connection:
        connection.open_stream(0, START)
        drained, releases = Drained(), 0
        done = caught_up(cluster)
        while not done(drained):
            delivery = connection.next(PATIENCE_SECONDS)
            assert delivery is not None
            drained.take(delivery)
            connection.release(delivery)
            connection.release(delivery)
            releases += 1
        assert_same_state(cluster, drained)
        handover = connection.look(monotonic()).stages[-1]
        assert (handover.name, handover.second_releases) == ("handover", releases)
    assert cluster.counters().peak_unacked_bytes <= 100_000 + 700


def test_without_flow_control_reading_stops_at_the_limit(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(vbuckets=1)
    fill(cluster, 30, value_bytes=MIB)
    limit, read_buffer = 4 * MIB, MIB
    with connected(
        cluster,
        window_bytes=0,
        allow_no_flow_control=True,
        unread_limit_bytes=limit,
        read_buffer_bytes=read_buffer,
    ) as connection:
        connection.open_stream(0, START)
        drained = Drained()
        drained.run(connection, lambda each: each.held_bytes >= limit, release=False)
        assert connection.next(0.3) is None
        assert drained.held_bytes <= limit + read_buffer + 2 * MIB
        drained.release_all(connection)
        assert_same_state(cluster, drained.run(connection, caught_up(cluster)))


def test_a_reader_that_may_not_read_neither_spins_nor_calls_the_node_dead(
    make_cluster: MakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = make_cluster(vbuckets=1)
    fill(cluster, 30, value_bytes=MIB)
    turns: list[float] = []
    turn = Reader._turn

    def counted(reader: Reader, transport: Transport) -> None:
        turns.append(monotonic())
        turn(reader, transport)

    monkeypatch.setattr(Reader, "_turn", counted)
    with connected(
        cluster,
        window_bytes=0,
        allow_no_flow_control=True,
        unread_limit_bytes=4 * MIB,
        noop_interval_seconds=0.8,
        silence_grace_seconds=0.4,
    ) as connection:
        connection.open_stream(0, START)
        drained = Drained()
        drained.run(connection, lambda each: each.held_bytes >= 4 * MIB, release=False)
        while connection.next(1.0) is not None:
            pass
        begin = monotonic()
        assert connection.next(3.0) is None, "the dead-peer deadline passes meanwhile"
        assert sum(at >= begin for at in turns) <= 5
        connection.close_stream(0)  # commands still run
        assert connection.next(0.2) is None
