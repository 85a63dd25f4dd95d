"""Clients that are silent: who is closed after how long, and what TCP looks for by itself."""

import asyncio
import socket
from collections.abc import Callable

import pytest

from dcp.errors import ConfigError
from dcp.producer.bucket import ProducerBucket, bucket_of
from dcp.producer.cluster import ProducerCluster
from dcp.producer.cluster_settings import ClusterSettings
from dcp.producer.commands import COMMANDS
from dcp.producer.writes.document_writer import checked
from dcp.server.commands.session import Session
from dcp.server.node.channels import PlainChannel
from dcp.types import END_OF_TIME
from dcp.wire import messages as m
from dcp.wire.codec import encode
from dcp.wire.frame import Frame
from dcp.wire.framing import FrameSplitter
from dcp.wire.vocabulary import Magic, Opcode
from tests.producer.raw_client import RawClient

Connect = Callable[..., RawClient]
MakeCluster = Callable[..., ProducerCluster]

LOG_IN = (
    encode(m.Sasl(b"PLAIN", b"\0Administrator\0password"), Opcode.SASL_AUTH),
    encode(m.SelectBucket(b"default"), Opcode.SELECT_BUCKET),
)
OPEN_DCP = (*LOG_IN, encode(m.DcpOpen(b"x", 1), Opcode.DCP_OPEN))
NOOPS_ON = (*OPEN_DCP, encode(m.DcpControl(b"enable_noop", b"true"), Opcode.DCP_CONTROL))

_STREAM = encode(m.StreamRequest(0, 0, END_OF_TIME, 0, 0, 0), Opcode.DCP_STREAM_REQ, opaque=7)


def _window(window_bytes: int) -> Frame:
    control = m.DcpControl(b"connection_buffer_size", b"%d" % window_bytes)
    return encode(control, Opcode.DCP_CONTROL)


def _answer_noops(session: Session, now: float) -> None:
    block = FrameSplitter().feed(b"".join(session.output(100_000, now)))
    for frame in (block.frame(index) for index in range(len(block))):
        if frame.opcode == Opcode.DCP_NOOP and frame.magic is Magic.REQUEST:
            answer = encode(m.Empty(), frame.opcode, magic=Magic.RESPONSE, opaque=frame.opaque)
            session.feed(answer, now)


def session_of(now: float = 0.0, **settings: float | str) -> Session:
    return Session(ProducerBucket(ClusterSettings(vbuckets=1, **settings)), 0, COMMANDS, now)  # type: ignore[arg-type]  # of the right types


@pytest.mark.parametrize(
    ("said", "closes_after"),
    [((), 10.0), (LOG_IN, None), (OPEN_DCP, None), (NOOPS_ON, 30.0)],
    ids=["nothing", "a user", "DCP", "DCP with NOOPs"],
)
def test_who_is_closed_after_how_long(said: tuple[Frame, ...], closes_after: float | None) -> None:
    session = session_of(authentication_seconds=10.0, idle_timeout_seconds=30.0)
    session.close_if_overdue(0.0)
    for frame in said:
        session.feed(frame, 5.0)
    heard_at = 5.0 if said else 0.0
    session.close_if_overdue(heard_at + (closes_after or 1e9))
    assert not session.is_closing
    session.close_if_overdue(heard_at + (closes_after or 1e9) + 0.1)
    assert session.is_closing is (closes_after is not None)


@pytest.mark.parametrize("opened_at", [0.0, 5000.0])
def test_a_client_is_there_since_it_connected(opened_at: float) -> None:
    """Not since somebody first looked whether it is overdue."""
    session = session_of(opened_at, authentication_seconds=10.0)
    session.close_if_overdue(opened_at + 10.0)
    assert not session.is_closing
    session = session_of(opened_at, authentication_seconds=10.0)
    session.close_if_overdue(opened_at + 10.1)
    assert session.is_closing


STUCK_AFTER = 720.0
NAMED = "eq_dcpq:x"


@pytest.mark.parametrize(
    ("regex", "window_bytes", "is_closed"),
    [
        (NAMED, 10, True),
        ("eq_dcpq:[a-z]", 10, True),
        ("eq_dcpq:", 10, False),  # the whole name must match, as in kv_engine
        ("x", 10, False),  # the name has a beginning of its own in servers
        ("", 10, False),  # the default: nobody
        (NAMED, 10_000, False),  # not full
        (NAMED, 0, False),  # no flow control
    ],
)
def test_who_is_closed_when_stuck(
    regex: str, window_bytes: int, is_closed: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Times are arguments. It answers every NOOP, and acknowledges nothing."""
    session = session_of(stuck_name_regex=regex)
    for frame in (*NOOPS_ON, _window(window_bytes), _STREAM):
        session.feed(frame, 0.0)
    bucket_of(session).write(b"k", lambda store: store.store(b"k", checked(b"x" * 100), 0.0))
    for second in range(0, int(STUCK_AFTER), 10):
        _answer_noops(session, float(second))
        session.close_if_overdue(float(second))
        assert not session.is_closing
    session.close_if_overdue(STUCK_AFTER)
    assert session.is_closing is is_closed
    assert ("eq_dcpq:x: closed because it acknowledged nothing" in caplog.text) is is_closed


def test_any_acknowledgement_begins_the_time_anew() -> None:
    session = session_of(stuck_name_regex=NAMED, idle_timeout_seconds=1e6)
    for frame in (*NOOPS_ON, _window(10), _STREAM):
        session.feed(frame, 0.0)
    bucket_of(session).write(b"k", lambda store: store.store(b"k", checked(b"x" * 100), 0.0))
    session.output(1000, 0.0)
    for begin in (0.0, STUCK_AFTER):
        session.close_if_overdue(begin)
        session.feed(encode(m.BufferAck(1), Opcode.DCP_BUFFER_ACK), begin + STUCK_AFTER - 1)
        session.close_if_overdue(begin + STUCK_AFTER)
        assert not session.is_closing
    session.close_if_overdue(3 * STUCK_AFTER - 1)
    assert not session.is_closing
    session.close_if_overdue(3 * STUCK_AFTER)
    assert session.is_closing


def test_who_does_not_log_in_cannot_gain_time_by_talking() -> None:
    session = session_of(authentication_seconds=10.0)
    for second in range(11):
        session.close_if_overdue(second)
        assert not session.is_closing
        session.feed(encode(m.Empty(), Opcode.SASL_LIST_MECHS), second)
    session.close_if_overdue(10.1)
    assert session.is_closing


def test_silent_connections_are_closed(make_cluster: MakeCluster, connect: Connect) -> None:
    cluster = make_cluster(vbuckets=1, authentication_seconds=0.2, last_words_seconds=0.1)
    dcp = connect(cluster).log_in().open_dcp(noop=False)
    silent, stranger, user = connect(cluster), connect(cluster), connect(cluster).log_in()
    stranger.ok(m.Empty(), Opcode.SASL_LIST_MECHS)
    assert all(client.is_closed() for client in (silent, stranger))
    assert cluster.counters().connections_closed_for_errors == 2
    for client in (dcp, user):
        client.ok(m.Empty(), Opcode.NOOP)


def test_a_client_that_takes_noops_and_reads_nothing_is_closed(
    make_cluster: MakeCluster, connect: Connect
) -> None:
    """The NOOP that it owes an answer to cannot even be sent: there is no room for it."""
    cluster = make_cluster(vbuckets=1, idle_timeout_seconds=0.5, last_words_seconds=0.1)
    for number in range(20):
        cluster.set(b"large-%d" % number, b"x" * 1_000_000)
    stuck = connect(cluster).log_in().open_dcp(set_noop_interval="0.1")
    stuck.send(encode(m.StreamRequest(0, 0, END_OF_TIME, 0, 0, 0), Opcode.DCP_STREAM_REQ))
    other = connect(cluster).log_in()
    while cluster.counters().connections:
        other.ok(m.Empty(), Opcode.NOOP)
    assert cluster.counters().connections_closed_for_errors == 1


def test_tcp_looks_for_dead_peers() -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    with listener, socket.create_connection(listener.getsockname()):
        accepted, _ = listener.accept()

        async def options() -> list[int]:
            channel = PlainChannel(accepted)
            names = (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
            found = [accepted.getsockopt(socket.IPPROTO_TCP, name) for name in names]
            is_on = accepted.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
            channel.close()
            return [is_on, *found]

        assert asyncio.run(options()) == [1, 360, 10, 3]


@pytest.mark.parametrize(
    "name",
    [
        "idle_timeout_seconds",
        "authentication_seconds",
        "last_words_seconds",
        "stuck_timeout_seconds",
    ],
)
@pytest.mark.parametrize("seconds", [-1.0, float("inf"), float("nan")])
def test_impossible_times_are_refused(name: str, seconds: float) -> None:
    with pytest.raises(ConfigError, match=r"producer .*expected a number, 0 or more"):
        session_of(**{name: seconds})


def test_an_impossible_regex_is_refused() -> None:
    with pytest.raises(
        ConfigError,
        match=r"stuck_name_regex \(--stuck-name-regex\): found '\(', expected a regular expression",
    ):
        session_of(stuck_name_regex="(")
