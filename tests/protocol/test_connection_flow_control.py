"""Flow control on a connection: releases become acks; a full window holds up no stream end."""

import pytest

from dcp.errors import LocalProtocolError, RemoteProtocolError
from dcp.protocol import events as e
from dcp.wire import messages as m
from dcp.wire.codec import decode, encode
from dcp.wire.frame import parse_frame
from dcp.wire.vocabulary import EndReason, Magic, Opcode, Status
from tests.protocol.scripted import (
    block_of,
    marker,
    mutation,
    open_stream,
    ready_connection,
    release,
    stream_end,
)
from tests.protocol.streaming import opened


def test_releases_become_acks_by_the_policy() -> None:
    connection, server = ready_connection(window_bytes=10_000)
    opaque = open_stream(connection, server)
    connection.receive(block_of(marker(opaque, 0, 9), mutation(opaque, 1, value=b"x" * 5000)), 1.0)
    release(connection, 2000, 1.0)
    assert connection.bytes_to_send() == b""
    assert connection.next_deadline() == pytest.approx(5.0)
    connection.tick(5.5)
    assert decode(parse_frame(connection.bytes_to_send())) == m.BufferAck(2000)
    with pytest.raises(LocalProtocolError, match="release: found 99999 bytes"):
        release(connection, 99_999, 6.0)


def test_a_stream_end_is_taken_while_the_window_is_full() -> None:
    connection, server = ready_connection(window_bytes=300)
    opaque = open_stream(connection, server)
    connection.receive(block_of(marker(opaque, 0, 9), mutation(opaque, 1, value=b"x" * 900)), 1.0)
    assert connection.flow.connection.unacked_bytes > 300
    ended = connection.receive(block_of(stream_end(opaque, EndReason.STATE_CHANGED)), 1.0)
    assert ended == [e.StreamEnded(7, EndReason.STATE_CHANGED)]
    release(connection, connection.flow.connection.received, 1.0)
    ack = decode(parse_frame(connection.bytes_to_send()))
    assert ack == m.BufferAck(connection.flow.connection.received)


def test_an_error_answer_to_an_ack_breaks_the_protocol() -> None:
    connection, _, _ = opened()
    answer = encode(m.Refusal(), Opcode.DCP_BUFFER_ACK, magic=Magic.RESPONSE, status=Status.EINVAL)
    with pytest.raises(RemoteProtocolError, match="found DCP_BUFFER_ACK status 0x04"):
        connection.receive(block_of(answer), 1.0)
