"""Silence has a deadline; NOOPs are answered whatever else goes on."""

import pytest

from dcp.errors import ConfigError, NodeUnavailableError
from dcp.protocol.credentials import ALL_MECHANISMS
from dcp.protocol.liveness import LivenessSettings
from dcp.wire import messages as m
from dcp.wire.codec import decode, encode
from dcp.wire.frame import Frame, parse_frame
from dcp.wire.vocabulary import Magic, Opcode
from tests.protocol.scripted import (
    ScriptedServer,
    answer_to,
    block_of,
    converse,
    marker,
    mutation,
    new_connection,
    open_stream,
    ready_connection,
    release,
)

NOOP = encode(m.Empty(), Opcode.DCP_NOOP, opaque=0x81969800)


def test_a_noop_is_answered_with_its_opaque() -> None:
    connection, _ = ready_connection()
    assert connection.receive(block_of(NOOP), 1.0) == []
    answer = parse_frame(connection.bytes_to_send())
    assert (answer.magic, answer.opcode, answer.opaque) == (
        Magic.RESPONSE,
        Opcode.DCP_NOOP,
        0x81969800,
    )
    assert connection.bytes_to_send() == b""


def test_a_noop_is_answered_and_not_charged_while_the_window_is_full() -> None:
    connection, server = ready_connection(window_bytes=1000)
    opaque = open_stream(connection, server)
    connection.receive(block_of(marker(opaque, 0, 9), mutation(opaque, 1, value=b"x" * 5000)), 1.0)
    full = connection.flow.connection.unacked_bytes
    assert full > 1000
    for now in range(20, 200, 20):
        connection.receive(block_of(NOOP), float(now))
        assert decode(parse_frame(connection.bytes_to_send())) == m.Empty()
        connection.tick(float(now))
    assert connection.flow.connection.unacked_bytes == full


def test_silence_of_one_interval_and_a_fifth_makes_us_ask() -> None:
    connection, _ = ready_connection(noop_interval_seconds=20)
    assert connection.next_deadline() == 24.0
    connection.tick(23.9)
    assert connection.bytes_to_send() == b""
    connection.tick(24.0)
    asked = parse_frame(connection.bytes_to_send())
    assert asked.opcode == Opcode.NOOP, "DCP_NOOP from a client would close the connection"
    connection.tick(30.0)
    assert connection.bytes_to_send() == b"", "asked once"
    connection.receive(block_of(answer_to(asked)), 31.0)
    assert connection.next_deadline() == 31.0 + 24.0


def test_a_peer_that_is_silent_for_two_intervals_and_the_grace_is_dead() -> None:
    connection, _ = ready_connection(noop_interval_seconds=20)
    connection.tick(44.9)
    assert connection.next_deadline() == 45.0
    with pytest.raises(NodeUnavailableError, match=r"peer silent for 45\.0 s"):
        connection.tick(45.0)


def test_any_frame_is_a_sign_of_life() -> None:
    connection, server = ready_connection(noop_interval_seconds=20)
    opaque = open_stream(connection, server)
    for now in range(30, 300, 30):
        connection.receive(block_of(marker(opaque, now, now)), float(now))
        connection.tick(float(now) + 10)


def test_the_bootstrap_has_a_deadline_that_names_the_step() -> None:
    server = ScriptedServer()
    server.overrides[Opcode.DCP_OPEN] = lambda _frame, _body: None
    connection = new_connection()
    connection.start(100.0)
    converse(connection, server, 101.0)
    assert connection.next_deadline() == 130.0
    connection.tick(129.9)
    with pytest.raises(NodeUnavailableError, match=r"waited 30\.0 s for the answer to DCP_OPEN"):
        connection.tick(130.0)


def test_what_is_due_at_a_time_is_done_then() -> None:
    """Whatever sums round to: a caller that waits until the deadline would wait for ever."""
    for tenths in range(1, 2000):
        connection = new_connection()
        connection.start(tenths / 10 + 1e-9)
        due_at = connection.next_deadline()
        assert due_at is not None
        with pytest.raises(NodeUnavailableError, match="waited"):
            connection.tick(due_at)


def test_nothing_is_due_before_the_start() -> None:
    connection = new_connection()
    assert connection.next_deadline() is None
    connection.tick(1e9)
    assert connection.bytes_to_send() == b""


def test_what_is_released_is_acknowledged_by_time_from_the_start_on() -> None:
    connection, server = new_connection(mechanisms=ALL_MECHANISMS), ScriptedServer()
    server.mechanisms = b"PLAIN"
    connection.start(100.0)
    converse(connection, server, 100.0)
    opaque = open_stream(connection, server)
    connection.receive(block_of(marker(opaque, 0, 9)), 101.0)
    release(connection, connection.flow.connection.unreleased_bytes, 104.9)
    assert connection.bytes_to_send() == b""
    connection.tick(105.1)
    assert connection.bytes_to_send()


@pytest.mark.parametrize(("seconds", "text"), [(20.0, "20"), (0.5, "0.500000"), (1, "1")])
def test_the_interval_is_said_in_whole_seconds_where_it_is_whole(seconds: float, text: str) -> None:
    assert LivenessSettings(noop_interval_seconds=seconds).interval_text == text


@pytest.mark.parametrize("seconds", [0.0, -1.0, 10_801.0])
def test_intervals_that_no_producer_takes_are_refused(seconds: float) -> None:
    with pytest.raises(ConfigError, match="noop_interval_seconds"):
        LivenessSettings(noop_interval_seconds=seconds)


def test_a_noop_with_a_body_is_malformed() -> None:
    connection, _ = ready_connection()
    bad = Frame(Magic.REQUEST, Opcode.DCP_NOOP, value=b"x")
    with pytest.raises(Exception, match="expected no value"):
        connection.receive(block_of(bad), 1.0)
