"""Closing a stream: what is still on its way is dropped, and when the stream has ended."""

from dcp.protocol import events as e
from dcp.protocol.position import Position
from dcp.wire.frame import parse_frame
from dcp.wire.vocabulary import EndReason, Opcode, Status
from tests.protocol.scripted import (
    UUID,
    ScriptedServer,
    answer_to,
    block_of,
    converse,
    marker,
    mutation,
    open_stream,
    ready_connection,
    stream_end,
)
from tests.protocol.streaming import opened


def test_a_close_drops_what_is_still_on_its_way() -> None:
    connection, server, opaque = opened()
    connection.receive(block_of(marker(opaque, 0, 9), mutation(opaque, 1)), 1.0)
    connection.close_stream(7)
    close = parse_frame(connection.bytes_to_send())
    assert close.opcode == Opcode.DCP_CLOSE_STREAM
    assert connection.receive(block_of(mutation(opaque, 2)), 1.0) == []
    assert connection.receive(block_of(answer_to(close)), 1.0) == [e.StreamClosed(7)]
    late = [mutation(opaque, 3), mutation(opaque, 9), marker(opaque, 10, 12)]
    assert connection.receive(block_of(*late), 1.0) == []
    ended = connection.receive(block_of(stream_end(opaque, EndReason.CLOSED)), 1.0)
    assert ended == [e.StreamClosed(7)]
    assert connection._state.discarded_frames == 4
    delivered = Position(UUID, 1, 0, 9, 0)
    assert connection.collect_positions() == {7: delivered}, "the last row delivered"
    assert open_stream(connection, server) != opaque


def test_no_end_of_a_closed_stream_is_that_of_the_next_one() -> None:
    """One block may bring both, so that the next stream is requested between the two events."""
    connection, server, opaque = opened()
    connection.close_stream(7)
    close = parse_frame(connection.bytes_to_send())
    both = block_of(answer_to(close), stream_end(opaque, EndReason.CLOSED))
    assert connection.receive(both, 1.0) == [e.StreamClosed(7), e.StreamClosed(7)]
    assert open_stream(connection, server) != opaque


def test_a_stream_that_the_producer_ends_while_it_is_being_closed() -> None:
    connection, server, opaque = opened()
    connection.close_stream(7)
    close = parse_frame(connection.bytes_to_send())
    ended = connection.receive(block_of(stream_end(opaque, EndReason.STATE_CHANGED)), 1.0)
    assert ended == [e.StreamClosed(7)]
    assert connection.has_stream(7), "the answer is still to come"
    answer = answer_to(close, status=Status.KEY_ENOENT)
    assert connection.receive(block_of(answer), 1.0) == [e.StreamClosed(7)]
    assert open_stream(connection, server) != opaque


def test_without_the_promise_of_a_stream_end_the_answer_ends_the_stream() -> None:
    name = b"send_stream_end_on_client_close_stream"
    connection, server = ready_connection(ScriptedServer(refused_controls=frozenset({name})))
    opaque = open_stream(connection, server)
    connection.close_stream(7)
    assert converse(connection, server) == [e.StreamClosed(7)]
    assert connection.receive(block_of(mutation(opaque, 1)), 1.0) == []
    assert connection._state.discarded_frames == 1
