"""An application that releases late stops the producer, at the window or at the unread limit."""

from time import monotonic

import pytest

from dcp.client.reader import Reader
from dcp.client.settings import MIB
from dcp.client.transport import Transport
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
        drained.run(connection, lambda each: each.unreleased_bytes >= window, release=False)
        answered = cluster.counters().noops_answered
        wait_for("NOOPs under stall", lambda: cluster.counters().noops_answered >= answered + 5)
        assert connection.next(0.0) is None, "nothing more may come before a release"
        counters = cluster.counters()
        assert window <= counters.peak_unacked_bytes <= window + 1200
        assert drained.unreleased_bytes == counters.peak_unacked_bytes
        assert counters.buffer_acks == 0
        drained.release_all()
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


def test_a_document_is_read_in_pieces_of_a_hundredth_of_it(
    make_cluster: MakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No read takes more than a read buffer, into the document's own buffer either."""
    cluster = make_cluster(vbuckets=1)
    size, read_buffer = 5 * MIB, MIB // 20
    for number in range(2):
        cluster.set(b"big-%d" % number, bytes([number + 1]) * size)
    reads: list[int] = []
    read = Transport.read

    def noted(transport: Transport, buffer: memoryview) -> int:
        reads.append(len(buffer))
        return read(transport, buffer)

    monkeypatch.setattr(Transport, "read", noted)
    with connected(cluster, window_bytes=MIB, read_buffer_bytes=read_buffer) as connection:
        connection.open_stream(0, START)
        drained = Drained().run(connection, caught_up(cluster))
        assert_same_state(cluster, drained)
        window = connection.stats(monotonic()).window
    assert len(reads) > 2 * size // read_buffer
    assert max(reads) == read_buffer
    assert window is not None
    assert size - MIB <= window.overshoot_bytes < size + 200


def test_released_twice_counts_once(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(vbuckets=1)
    fill(cluster, 2000, value_bytes=500)
    with connected(cluster, window_bytes=100_000) as connection:
        connection.open_stream(0, START)
        drained = Drained()
        done = caught_up(cluster)
        while not done(drained):
            delivery = connection.next(PATIENCE_SECONDS)
            assert delivery is not None
            drained.take(delivery)
            delivery.release()
            delivery.release()
        assert_same_state(cluster, drained)
        look = connection.stats(monotonic())
        assert look.received_bytes == look.taken_bytes == look.given_bytes == look.released_bytes
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
        drained.run(connection, lambda each: each.unreleased_bytes >= limit, release=False)
        assert connection.next(0.3) is None
        assert drained.unreleased_bytes <= limit + read_buffer + 2 * MIB
        while drained.unreleased_bytes - drained.unacknowledged[0].frame_bytes >= limit * 3 // 4:
            drained.unacknowledged.pop(0).release()
            assert connection.next(0.1) is None, "not before a quarter of the limit is free"
        drained.release_all()
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
        drained.run(connection, lambda each: each.unreleased_bytes >= 4 * MIB, release=False)
        while connection.next(1.0) is not None:
            pass
        begin = monotonic()
        assert connection.next(3.0) is None, "the dead-peer deadline passes meanwhile"
        assert sum(at >= begin for at in turns) <= 5
        connection.close_stream(0)  # commands still run
        assert connection.next(0.2) is None
