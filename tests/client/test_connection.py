"""One connection over a real socket: delivery, back-pressure, liveness, refusals, closing."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic

import pytest

from dcp.client.addresses import NodeAddress
from dcp.client.connection import NodeConnection
from dcp.client.reader import Reader
from dcp.client.settings import MIB, ConnectionSettings
from dcp.client.transport import Transport
from dcp.errors import (
    AuthenticationError,
    BucketError,
    DcplakeError,
    LocalProtocolError,
    NodeUnavailableError,
)
from dcp.producer.cluster import ProducerCluster
from dcp.protocol.credentials import Credentials, Secret
from dcp.protocol.events import Items
from dcp.protocol.position import Position
from tests.client.conftest import MakeCluster
from tests.client.drained import (
    CREDENTIALS,
    Drained,
    assert_same_state,
    caught_up,
    fill,
    wait_for,
)

START = Position.beginning()


def settings(**changes: object) -> ConnectionSettings:
    return ConnectionSettings(**{"bucket": "default", **changes})  # type: ignore[arg-type]


@contextmanager
def connected(
    cluster: ProducerCluster, name: str = "test", node: int = 0, **changes: object
) -> Iterator[NodeConnection]:
    address = NodeAddress.parse(cluster.seeds[node])
    connection = NodeConnection(address, settings(**changes), CREDENTIALS, name)
    connection.open()
    try:
        yield connection
    finally:
        connection.close()


def test_delivers_all_documents_and_answers_questions(make_cluster: MakeCluster) -> None:
    cluster = make_cluster()
    fill(cluster, 500)
    with connected(cluster) as connection:
        seqnos = connection.all_vb_seqnos()
        assert seqnos == {vbucket: cluster.high_seqno(vbucket) for vbucket in range(8)}
        assert connection.failover_log(3) == cluster.failover_log(3)
        assert b"vBucketServerMap" in connection.cluster_config()
        for vbucket in range(8):
            connection.open_stream(vbucket, START)
        drained = Drained().run(connection, caught_up(cluster))
        assert_same_state(cluster, drained)
        assert drained.positions == {
            vbucket: Position.complete_at(cluster.failover_log(vbucket).current_uuid, seqno)
            for vbucket, seqno in seqnos.items()
        }


def test_rows_are_not_changed_by_later_reads(make_cluster: MakeCluster) -> None:
    """Deliveries must not refer to the read buffer, which is used again."""
    cluster = make_cluster(vbuckets=1)
    fill(cluster, 2000, value_bytes=300)
    with connected(cluster, read_buffer_bytes=8192) as connection:
        connection.open_stream(0, START)
        drained = Drained().run(connection, caught_up(cluster), release=False)
        kept = [
            event.columns
            for each in drained.unreleased
            for event in each.events
            if isinstance(event, Items)
        ]
        assert len(kept) > 20
        values = {
            key: value
            for columns in kept
            for key, value in zip(columns.key.to_pylist(), columns.value.to_pylist(), strict=True)
        }
        state = cluster.state_at(0, cluster.high_seqno(0))
        assert values == {key: document.value for key, document in state.items()}
        for columns in kept:  # nor pin much more than they hold
            assert columns.value.get_total_buffer_size() < columns.value.nbytes * 2 + 4096


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
        drained = Drained().run(connection, caught_up(cluster), timeout_seconds=60)
        assert_same_state(cluster, drained)
    assert size < cluster.counters().peak_unacked_bytes < size + MIB + 1024


def test_released_twice_counts_once(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(vbuckets=1)
    fill(cluster, 2000, value_bytes=500)
    with connected(cluster, window_bytes=100_000) as connection:
        connection.open_stream(0, START)
        drained = Drained()
        done = caught_up(cluster)
        while not done(drained):
            delivery = connection.next(5.0)
            assert delivery is not None
            drained.take(delivery)
            connection.release(delivery)
            connection.release(delivery)
        assert_same_state(cluster, drained)
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


def test_wrong_password(make_cluster: MakeCluster) -> None:
    cluster = make_cluster()
    credentials = Credentials("reader", Secret("not-the-password"))
    address = NodeAddress.parse(cluster.seeds[0])
    with pytest.raises(AuthenticationError, match=str(address)) as caught:
        NodeConnection(address, settings(), credentials, "test").open()
    assert "not-the-password" not in str(caught.value)


def test_unknown_bucket(make_cluster: MakeCluster) -> None:
    address = NodeAddress.parse(make_cluster().seeds[0])
    with pytest.raises(BucketError, match="no-such-bucket"):
        NodeConnection(address, settings(bucket="no-such-bucket"), CREDENTIALS, "test").open()


def test_refusing_node() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = NodeAddress("127.0.0.1", unused.getsockname()[1])
    with pytest.raises(
        NodeUnavailableError, match=r"TCP connection with 127\.0\.0\.1:\d+: .*efuse"
    ):
        NodeConnection(address, settings(), CREDENTIALS, "test").open()


@contextmanager
def listener() -> Iterator[tuple[socket.socket, NodeAddress]]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server, NodeAddress("127.0.0.1", server.getsockname()[1])


def test_silent_node_is_named_with_the_step_and_the_time() -> None:
    with listener() as (_, address):
        connection = NodeConnection(
            address, settings(bootstrap_timeout_seconds=0.3), CREDENTIALS, "test"
        )
        with pytest.raises(NodeUnavailableError, match=r"waited 0\.\d s for the answer to HELLO"):
            connection.open()


@pytest.mark.parametrize("said", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\x81\x1f"])
def test_node_that_says_nonsense_or_closes(said: bytes) -> None:
    with listener() as (server, address):

        def answer() -> None:
            client, _ = server.accept()
            client.recv(100)
            client.sendall(said)
            client.close()

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        with pytest.raises(DcplakeError, match=str(address)):
            NodeConnection(address, settings(), CREDENTIALS, "test").open()
        thread.join(5)


def test_hanging_node_is_found_by_its_silence(make_cluster: MakeCluster) -> None:
    cluster = make_cluster()
    fill(cluster, 50)
    with connected(cluster, noop_interval_seconds=0.2, silence_grace_seconds=0.1) as connection:
        for vbucket in range(8):
            connection.open_stream(vbucket, START)
        drained = Drained().run(connection, caught_up(cluster))
        cluster.hang_node(0)
        began = monotonic()
        with pytest.raises(NodeUnavailableError, match="silent for"):
            drained.run(connection, lambda _: False, timeout_seconds=10)
        assert monotonic() - began < 5
        cluster.restore_node(0)


def test_unanswered_question_is_named_with_its_time(make_cluster: MakeCluster) -> None:
    cluster = make_cluster()
    with connected(cluster) as connection:
        cluster.hang_node(0)
        with pytest.raises(NodeUnavailableError, match=r"waited 0\.2 s for the high seqnos from"):
            connection.all_vb_seqnos(0.2)
        cluster.restore_node(0)


def test_connection_of_the_same_name_ends_the_older(make_cluster: MakeCluster) -> None:
    cluster = make_cluster()
    with connected(cluster, "twin") as older, connected(cluster, "twin") as newer:
        with pytest.raises(NodeUnavailableError, match="closed"):
            Drained().run(older, lambda _: False, timeout_seconds=5)
        assert newer.all_vb_seqnos()


def test_what_was_received_is_delivered_before_the_failure(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(vbuckets=1)
    fill(cluster, 1000)
    with connected(cluster) as connection:
        connection.open_stream(0, START)
        wait_for("all sent", lambda: cluster.counters().items_sent.get(0) == 1000)
        cluster.drop_connections()
        drained = Drained()
        with pytest.raises(NodeUnavailableError):
            drained.run(connection, lambda _: False)
        assert drained.seqnos[0] == cluster.counters().seqnos_sent[0]
        with pytest.raises(NodeUnavailableError):
            connection.next(0.1)


def test_close_wakes_a_waiting_application(make_cluster: MakeCluster) -> None:
    cluster = make_cluster()
    with connected(cluster) as connection:
        caught: list[BaseException] = []
        waiting = threading.Event()

        def wait() -> None:
            waiting.set()
            try:
                connection.next(60.0)
            except LocalProtocolError as error:
                caught.append(error)

        thread = threading.Thread(target=wait, daemon=True)
        thread.start()
        assert waiting.wait(5)
        connection.close()
        thread.join(5)
        assert not thread.is_alive()
        assert len(caught) == 1
        with pytest.raises(LocalProtocolError, match="closed"):
            connection.open_stream(0, START)
        connection.close()


def test_misuse_raises_at_the_caller_and_harms_nothing(make_cluster: MakeCluster) -> None:
    cluster = make_cluster()
    with connected(cluster) as connection:
        connection.open_stream(1, START)
        with pytest.raises(LocalProtocolError, match="vbucket 1"):
            connection.open_stream(1, START)
        assert connection.all_vb_seqnos()


@pytest.mark.parametrize("base", [2**63, 2**64 - 1000])
def test_seqno_and_cas_beyond_63_bits(make_cluster: MakeCluster, base: int) -> None:
    cluster = make_cluster(vbuckets=1)
    cluster.start_vbucket_at(0, seqno=base, cas=2**63 + 2**62)
    fill(cluster, 100)
    with connected(cluster) as connection:
        connection.open_stream(0, START)
        drained = Drained().run(connection, caught_up(cluster))
        assert_same_state(cluster, drained)
        assert drained.seqnos[0] == list(range(base + 1, base + 101))
        assert all(cas > 2**63 for _, cas, _ in drained.documents[0].values())
        assert drained.positions[0].seqno == base + 100


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
        noop_interval_seconds=0.2,
        silence_grace_seconds=0.1,
    ) as connection:
        connection.open_stream(0, START)
        drained = Drained()
        drained.run(connection, lambda each: each.held_bytes >= 4 * MIB, release=False)
        while connection.next(0.2) is not None:
            pass
        begin = monotonic()
        assert connection.next(1.5) is None, "the dead-peer deadline passes meanwhile"
        assert sum(at >= begin for at in turns) <= 5
        connection.close_stream(0)  # commands still run
        assert connection.next(0.2) is None


@contextmanager
def busy_reader(connection: NodeConnection) -> Iterator[None]:
    """Keep the reader thread in a command, so that it comes to no other."""
    begun, go_on = threading.Event(), threading.Event()

    def block(_: object, __: float) -> None:
        begun.set()
        go_on.wait(10)

    thread = threading.Thread(target=lambda: connection._reader.call(block, "a test"))
    thread.start()
    begun.wait(10)
    try:
        yield
    finally:
        go_on.set()
        thread.join()


def test_a_command_that_came_too_late_never_runs(
    make_cluster: MakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its caller tries again: run twice, a stream request would count as a misuse."""
    cluster = make_cluster(vbuckets=1)
    fill(cluster, 5)
    with connected(cluster) as connection:
        with busy_reader(connection):
            monkeypatch.setattr("dcp.client.reader._COMMAND_SECONDS", 0.1)
            with pytest.raises(NodeUnavailableError, match=r"waited 0\.1 s to send open_stream"):
                connection.open_stream(0, START)
            monkeypatch.setattr("dcp.client.reader._COMMAND_SECONDS", 10.0)
        connection.open_stream(0, START)
        assert_same_state(cluster, Drained().run(connection, caught_up(cluster)))


def test_a_question_that_was_never_asked_takes_no_answer(
    make_cluster: MakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = make_cluster(vbuckets=1)
    fill(cluster, 5)
    with connected(cluster) as connection:
        with busy_reader(connection):
            monkeypatch.setattr("dcp.client.reader._COMMAND_SECONDS", 0.1)
            with pytest.raises(NodeUnavailableError, match="to send the high seqnos"):
                connection.all_vb_seqnos()
            monkeypatch.setattr("dcp.client.reader._COMMAND_SECONDS", 10.0)
        assert connection.all_vb_seqnos(2.0) == {0: 5}
