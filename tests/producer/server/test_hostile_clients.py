"""Clients that break the protocol, flood, or never read: they harm only themselves.

While each of them goes on, another client streams everything, in order; and what the producer keeps
for the hostile one stays within bounds. Nothing is asserted on time: how often others have a turn
is counted in ``test_turns.py``, ``test_channels.py`` and ``test_long_values.py``.
"""

import socket
import ssl
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from itertools import repeat
from random import Random
from threading import Event, Thread

import pytest

from dcp.producer.cluster import ProducerCluster
from dcp.server.bucket import dcp_connection
from dcp.server.bucket.client_load import LARGEST_BATCH_BYTES
from dcp.server.commands.outbox import LONG_ANSWER_BYTES
from dcp.server.model.server_settings import OUTBOX_BYTES
from dcp.types import U32_MAX
from dcp.wire import messages as m
from dcp.wire.codec import encode
from dcp.wire.frame import Frame
from dcp.wire.frame_info import stream_id_info
from dcp.wire.vocabulary import EndReason, HelloFeature, Magic, Opcode, Status
from tests.producer.hostile_clients import (
    CLOSING,
    DOCUMENTS,
    EVERYTHING,
    GARBAGE,
    MANY,
    UNREAD_ANSWERS,
    another_reads_on,
    in_blocks,
    requests,
    send_garbage,
    send_until_stuck,
    write,
)
from tests.producer.raw_client import FEATURES, RawClient
from tests.producer.tls import TLS_FILES, client_context

Connect = Callable[..., RawClient]
MakeCluster = Callable[..., ProducerCluster]

ONE_MAP_BYTES = 32 * 1024  # more than the map of 1024 vbuckets on two nodes has


@pytest.fixture
def good(cluster: ProducerCluster) -> Iterator[None]:
    """A client that reads; it has one half of the documents to get meanwhile, one afterwards."""
    with another_reads_on(cluster, cluster.seeds[0]):
        yield


# --- garbage


@pytest.mark.parametrize("stage", ["silent", "logged in", "streaming"])
@pytest.mark.parametrize("garbage", GARBAGE)
def test_garbage(
    cluster: ProducerCluster,
    connect: Connect,
    good: None,
    caplog: pytest.LogCaptureFixture,
    garbage: Callable[[Random], bytes],
    stage: str,
) -> None:
    send_garbage(lambda: connect(cluster), garbage, stage)
    counters = cluster.counters()
    if garbage in CLOSING[stage]:
        assert counters.connections_closed_for_errors == 20
    assert counters.peak_outbox_bytes <= OUTBOX_BYTES
    assert not [record for record in caplog.records if record.exc_info]


@pytest.mark.parametrize(
    ("value", "status"),
    [
        (b"9" * 5000, Status.EINVAL),
        (b"0" * 5000 + b"8", Status.SUCCESS),
        (b"00", Status.SUCCESS),
        ("٣".encode(), Status.EINVAL),
    ],
)
def test_numbers_of_any_length_are_read(
    cluster: ProducerCluster, connect: Connect, value: bytes, status: Status
) -> None:
    dcp = connect(cluster).log_in().open_dcp()
    control = m.DcpControl(b"connection_buffer_size", value)
    assert dcp.call(control, Opcode.DCP_CONTROL).status == status


# --- clients that never read


@pytest.mark.parametrize("window", [0, 1, 100_000, 2**31])
def test_a_stream_that_nobody_reads(
    cluster: ProducerCluster, connect: Connect, good: None, window: int
) -> None:
    greedy = connect(cluster).log_in().open_dcp(name=b"bad", window=window)
    send_until_stuck(greedy, iter(requests(EVERYTHING, Opcode.DCP_STREAM_REQ, 1, 1)))
    cluster.set(b"large", b"x" * 1_000_000)
    for number in range(40):
        cluster.set(b"large-%d" % number, b"x" * 1_000_000)
    message_bytes = 1_000_100
    both = 2  # clients: the good one may be about to get a large document too
    assert cluster.bucket.clients.unsent_bytes <= both * (LARGEST_BATCH_BYTES + message_bytes)
    if window:
        flow = cluster.counters().connections[0, "bad"]
        assert flow.peak_bytes < window + message_bytes


@pytest.mark.parametrize(
    ("body", "opcode", "vbuckets", "answer_bytes"),
    UNREAD_ANSWERS,
)
def test_requests_whose_answers_nobody_reads(
    make_cluster: MakeCluster,
    connect: Connect,
    body: m.Body,
    opcode: int,
    vbuckets: int,
    answer_bytes: int,
) -> None:
    """However many there are, what waits is the bound and one answer."""
    cluster = make_cluster(vbuckets=1024)
    cluster.set(b"large", b"x" * 1_000_000)
    greedy = connect(cluster).log_in().open_dcp(name=b"bad")
    send_until_stuck(greedy, in_blocks(requests(body, opcode, vbuckets)))
    good = connect(cluster).log_in().open_dcp(name=b"good")
    home = cluster.vbucket_of(b"large")
    assert good.request_stream(home).status == Status.SUCCESS
    good.messages_to(cluster.high_seqno(home))
    assert cluster.counters().peak_outbox_bytes <= OUTBOX_BYTES + answer_bytes


def test_ten_thousand_stream_requests_are_all_answered(
    cluster: ProducerCluster, connect: Connect, good: None
) -> None:
    """The vbucket's first is accepted, its others refused; unknown vbuckets get the map."""
    dcp = connect(cluster).log_in().open_dcp(name=b"bad")
    body = EVERYTHING
    dcp.send(*(encode(body, 0x53, opaque=n, vbucket=n % 2) for n in range(MANY)))
    answers = [dcp.answer() for _ in range(MANY)]
    assert [answer.opaque for answer in answers] == list(range(MANY))
    assert {answer.status for answer in answers[1::2]} == {Status.NOT_MY_VBUCKET}
    assert [answer.status for answer in answers[::2]] == [
        Status.SUCCESS,
        *repeat(Status.KEY_EEXISTS, MANY // 2 - 1),
    ]
    assert cluster.counters().streams_opened == {0: 2}


@pytest.fixture
def few_streams(monkeypatch: pytest.MonkeyPatch) -> int:
    """A lower limit of streams on a connection."""
    monkeypatch.setattr(dcp_connection, "MAX_STREAMS", 50)
    return 50


def test_a_connection_has_so_many_streams_and_no_more(
    cluster: ProducerCluster, connect: Connect, good: None, few_streams: int
) -> None:
    dcp = connect(cluster).log_in().open_dcp(name=b"bad", enable_stream_id="true")

    def request(stream_id: int) -> Status:
        value = b'{"sid":%d}' % stream_id
        return Status(dcp.request_stream(0, value=value).status)

    accepted = [request(stream_id) for stream_id in range(1, few_streams + 1)]
    assert accepted == [Status.SUCCESS] * few_streams
    assert request(few_streams + 1) == Status.ENOMEM
    closing = Frame(Magic.ALT_REQUEST, Opcode.DCP_CLOSE_STREAM, framing_extras=stream_id_info(1))
    dcp.send(closing)
    assert dcp.answer().status == Status.SUCCESS
    assert request(few_streams + 1) == Status.SUCCESS


@pytest.mark.parametrize(("announced", "most"), [("true", 49), ("false", 500)])
def test_streams_that_are_opened_and_closed_behind_a_full_window(
    cluster: ProducerCluster,
    connect: Connect,
    good: None,
    few_streams: int,
    announced: str,
    most: int,
) -> None:
    """Ends that are to be told wait for the window: no more of them than streams may be."""
    dcp = connect(cluster).log_in()
    dcp.open_dcp(b"bad", window=1, send_stream_end_on_client_close_stream=announced)
    dcp.request_stream(0)
    dcp.stream_frame()  # its marker has filled the window
    dcp.ok(m.Empty(), Opcode.DCP_CLOSE_STREAM)
    statuses = []
    for _ in range(500):
        statuses.append(dcp.request_stream(0).status)
        dcp.call(m.Empty(), Opcode.DCP_CLOSE_STREAM)
    assert statuses == [Status.SUCCESS] * most + [Status.ENOMEM] * (500 - most)


# --- half-open connections


def begun_handshake() -> bytes:
    """The first half of what a client says to begin TLS."""
    hello = ssl.MemoryBIO()
    tls = client_context().wrap_bio(ssl.MemoryBIO(), hello, server_hostname="127.0.0.1")
    with suppress(ssl.SSLWantReadError):
        tls.do_handshake()
    said = hello.read()
    return said[: len(said) // 2]


@pytest.mark.parametrize("said", [b"", b"\x80", encode(m.Hello(b"x", ()), 0x1F).to_bytes()])
@pytest.mark.parametrize("tls", [None, "nothing", "begun", "done"])
def test_half_open_connections(make_cluster: MakeCluster, said: bytes, tls: str | None) -> None:
    """With TLS after nothing, half or all of its handshake; one half is closed, some both."""
    cluster = make_cluster(vbuckets=1, tls=TLS_FILES)
    write(cluster, b"doc")
    context = None if tls is None else client_context()
    seed = (cluster.seeds if context is None else cluster.tls_seeds)[0]
    with ExitStack() as stack:
        waiting: list[socket.socket] = []
        for number in range(50):
            half = stack.enter_context(RawClient(seed, tls=context if tls == "done" else None))
            half.socket.sendall(begun_handshake() + said if tls == "begun" else said)
            if number % 2:
                half.socket.shutdown(socket.SHUT_WR)
            if number % 5 == 0:
                half.socket.close()
            elif not number % 2:
                waiting.append(half.socket)
        good = stack.enter_context(RawClient(seed, tls=context)).log_in().open_dcp()
        good.request_stream(0)
        good.messages_to(DOCUMENTS)
        if tls == "begun":  # which is waited for, meanwhile too
            for each in waiting:
                each.setblocking(False)
                with pytest.raises(BlockingIOError):
                    each.recv(1)


def test_who_stops_writing_is_closed(cluster: ProducerCluster, connect: Connect) -> None:
    client = connect(cluster).log_in()
    client.socket.shutdown(socket.SHUT_WR)
    assert client.is_closed()


def test_the_name_of_a_client_that_is_stuck_can_be_taken(
    cluster: ProducerCluster, connect: Connect, good: None
) -> None:
    """Its connection ends although it reads nothing: ``test_accepted_connection.py``."""
    for number in range(10):
        cluster.set(b"large-%d" % number, b"x" * 1_000_000)
    stuck = connect(cluster).log_in().open_dcp(name=b"same")
    stuck.send(encode(EVERYTHING, Opcode.DCP_STREAM_REQ))
    send_until_stuck(stuck, repeat(encode(m.Empty(), Opcode.NOOP).to_bytes() * 1000))
    successor = connect(cluster).log_in().open_dcp(name=b"same")
    successor.request_stream(0)
    successor.messages_to(cluster.high_seqno(0))


# --- storms


def test_a_connection_for_each_request(
    cluster: ProducerCluster, connect: Connect, good: None
) -> None:
    for number in range(100):
        with RawClient(cluster.seeds[0]) as client:
            client.log_in().open_dcp(name=b"storm-%d" % number)
            client.request_stream(0)
    counters = cluster.counters()
    assert counters.dcp_connections_opened == 101
    assert counters.connections_closed_for_errors == 0


def test_more_connections_than_allowed_are_closed_unheard(
    make_cluster: MakeCluster, connect: Connect
) -> None:
    cluster = make_cluster(vbuckets=1, max_connections=10)
    clients = [connect(cluster) for _ in range(10)]
    assert all(client.log_in() for client in clients)
    refused = [connect(cluster) for _ in range(20)]
    assert all(client.is_closed() for client in refused)
    counters = cluster.counters()
    assert (counters.connections_opened, counters.connections_refused) == (10, 20)
    clients[0].socket.close()
    with pytest.raises(EOFError):
        while True:  # until the producer has noticed
            connect(cluster).log_in()


@pytest.mark.parametrize("acked", [0, 1, U32_MAX])
def test_an_endless_stream_of_acks(
    cluster: ProducerCluster, connect: Connect, good: None, acked: int
) -> None:
    """They have no answer that could slow them down, and take back no more than was sent."""
    dcp = connect(cluster).log_in().open_dcp(name=b"bad", window=10_000)
    dcp.request_stream(0)
    block = encode(m.BufferAck(acked), Opcode.DCP_BUFFER_ACK).to_bytes() * 10_000
    enough = Event()

    def flood() -> None:
        while not enough.is_set():
            dcp.socket.sendall(block)

    thread = Thread(target=flood)
    thread.start()
    try:
        other = connect(cluster).log_in()
        while cluster.counters().buffer_acks < 30_000:
            other.ok(m.Empty(), Opcode.NOOP)
        assert cluster.counters().connections[0, "bad"].outstanding_bytes >= 0
    finally:
        enough.set()
        thread.join()


def test_maps_do_not_pile_up_for_a_client_that_reads_none(
    make_cluster: MakeCluster, connect: Connect
) -> None:
    cluster = make_cluster(nodes=2, vbuckets=1024)
    features = (*FEATURES, HelloFeature.DUPLEX, HelloFeature.CLUSTERMAP_CHANGE_NOTIFICATION)
    lazy = connect(cluster).log_in(features).open_dcp(name=b"bad")
    stat = encode(m.Stat(b"vbucket-seqno"), Opcode.STAT).to_bytes()
    send_until_stuck(lazy, repeat(stat, 500))
    for turn in range(200):
        cluster.move_vbucket(0, 1 - turn % 2)
    most_bytes = OUTBOX_BYTES + 2 * LONG_ANSWER_BYTES + ONE_MAP_BYTES
    assert cluster.counters().peak_outbox_bytes <= most_bytes
    good = connect(cluster).log_in().open_dcp(name=b"good")
    assert good.request_stream(1).status == Status.SUCCESS


def test_tls_clients_that_flood_and_never_read(make_cluster: MakeCluster, connect: Connect) -> None:
    cluster = make_cluster(vbuckets=1, tls=TLS_FILES)
    write(cluster, b"doc")
    with RawClient(cluster.tls_seeds[0], tls=client_context()) as greedy:
        greedy.log_in().open_dcp(name=b"bad")
        send_until_stuck(greedy, repeat(encode(m.Empty(), Opcode.NOOP).to_bytes() * 1000))
        good = connect(cluster).log_in().open_dcp(name=b"good")
        good.request_stream(0)
        good.messages_to(DOCUMENTS)
    assert cluster.counters().peak_outbox_bytes <= OUTBOX_BYTES + 24


def test_an_expiry_that_is_written_again_and_again(
    cluster: ProducerCluster, connect: Connect, good: None
) -> None:
    """What is to expire is a list of documents, not of writes."""
    writer = connect(cluster).log_in(())
    for expiry in range(2_000_000_000, 2_000_001_000):
        writer.send(encode(m.Store(b"k", b"1", expiry=expiry), Opcode.SET))
    for _ in range(1_000):
        assert writer.answer().status == Status.SUCCESS
    assert len(cluster.bucket.writers[0].expiries) < 100


def test_the_end_that_is_told_last(cluster: ProducerCluster, connect: Connect) -> None:
    """Streams that end behind a full window are told in order once there is room."""
    dcp = connect(cluster).log_in()
    dcp.open_dcp(window=1, send_stream_end_on_client_close_stream="true")
    write(cluster, b"doc")
    for _ in range(3):
        assert dcp.request_stream(0).status == Status.SUCCESS
        dcp.ok(m.Empty(), Opcode.DCP_CLOSE_STREAM)
    ends: list[m.Body] = []
    while len(ends) < 3:
        dcp.ack(100)
        message = dcp.message()
        ends += [message] if isinstance(message, m.StreamEnd) else []
    assert ends == [m.StreamEnd(EndReason.CLOSED)] * 3
