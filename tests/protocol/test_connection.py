"""Whole blocks through the connection: which rows and events come out, in which order.

Stream requests, closing, violations, flow control and questions are tried in
``test_connection_*.py``.
"""

import numpy as np
import pytest

from dcp.errors import RemoteProtocolError
from dcp.protocol import events as e
from dcp.protocol.bootstrap import OPTIONAL_CONTROLS, BootstrapSettings, control_step
from dcp.protocol.connection import ConsumerConnection
from dcp.protocol.position import Position
from dcp.types import SnapshotRange
from dcp.wire import messages as m
from dcp.wire.codec import decode, encode
from dcp.wire.frame import Frame, parse_frame
from dcp.wire.frame_info import stream_id_info
from dcp.wire.system_event import CollectionBegun
from dcp.wire.vocabulary import Magic, Opcode
from tests.protocol.scripted import (
    UUID,
    ScriptedServer,
    block_of,
    converse,
    marker,
    mutation,
    open_stream,
    ready_connection,
    stream_end,
)
from tests.protocol.streaming import opened, position_of, rows_of


def test_one_block_gives_its_rows_first_and_then_what_happened() -> None:
    connection, _, opaque = opened()
    frames = [
        marker(opaque, 0, 5),
        mutation(opaque, 1),
        mutation(opaque, 5),
        marker(opaque, 6, 9),
        mutation(opaque, 7),
    ]
    items, *rest = connection.receive(block_of(*frames), 1.0)
    assert isinstance(items, e.Items)
    assert rows_of([items]) == [(7, 1), (7, 5), (7, 7)]
    assert items.columns.key.to_pylist() == [b"k1", b"k5", b"k7"]
    assert rest == [
        e.SnapshotStarted(7, SnapshotRange(0, 5), 1),
        e.SnapshotCompleted(7, 5),
        e.SnapshotStarted(7, SnapshotRange(6, 9), 1),
    ]
    assert position_of(connection, 7) == Position(UUID, 7, 5, 9, 5)
    assert connection.flow.connection.received == sum(len(frame.to_bytes()) for frame in frames)


def test_streams_of_several_vbuckets_are_kept_apart_in_one_block() -> None:
    connection, server, first = opened()
    second = open_stream(connection, server, 8)
    block = block_of(
        marker(first, 0, 9),
        marker(second, 0, 3, vbucket=8),
        mutation(first, 4),
        mutation(second, 2, 8),
        mutation(first, 9),
        mutation(second, 3, 8),
        marker(first, 10, 11),
        mutation(first, 11),
    )
    events = connection.receive(block, 1.0)
    assert rows_of(events) == [(7, 4), (8, 2), (7, 9), (8, 3), (7, 11)]
    assert position_of(connection, 7) == Position.complete_at(UUID, 11)
    assert position_of(connection, 8) == Position.complete_at(UUID, 3)


def test_several_streams_of_one_vbucket_by_stream_id() -> None:
    controls = (*OPTIONAL_CONTROLS, control_step("enable_stream_id", "true"))
    settings = BootstrapSettings("travel", "ids", controls=controls)
    connection, server = ready_connection(settings=settings)
    opaques = []
    for stream_id in (1, 2):
        filter_json = b'{"sid":%d}' % stream_id
        connection.open_stream(7, Position.beginning(), filter=filter_json, stream_id=stream_id)
        converse(connection, server)
        opaques.append(server.seen[-1][0].opaque)

    def framed(frame: Frame, stream_id: int) -> Frame:
        return encode(
            decode(frame),
            frame.opcode,
            magic=Magic.ALT_REQUEST,
            vbucket=7,
            opaque=frame.opaque,
            framing_extras=stream_id_info(stream_id),
        )

    one, two = opaques
    frames = [marker(one, 0, 9), marker(two, 0, 5), mutation(one, 9), mutation(two, 3)]
    block = block_of(*(framed(f, 1 if f.opaque == one else 2) for f in frames))
    assert rows_of(connection.receive(block, 1.0)) == [(7, 9), (7, 3)]
    assert position_of(connection, 7, stream_id=1) == Position.complete_at(UUID, 9)
    assert position_of(connection, 7, stream_id=2) == Position(UUID, 3, 0, 5, 0)
    connection.close_stream(7, stream_id=1)
    close = parse_frame(connection.bytes_to_send())
    assert (close.magic, close.framing_extras) == (Magic.ALT_REQUEST, bytes.fromhex("220001"))


def test_seqnos_and_cas_beyond_63_bits_survive() -> None:
    connection, _, opaque = opened()
    high = 2**64 - 2
    (items, *_) = connection.receive(block_of(marker(opaque, 0, high), mutation(opaque, high)), 1.0)
    assert isinstance(items, e.Items)
    assert int(items.columns.seqno[0]) == int(items.columns.cas[0]) == high
    assert position_of(connection, 7).seqno == high


def opened_beside_a_closed_stream() -> tuple[ConsumerConnection, int, int]:
    """Return a connection, the opaque of its stream, and that of one it closed without an end."""
    name = b"send_stream_end_on_client_close_stream"
    connection, server = ready_connection(ScriptedServer(refused_controls=frozenset({name})))
    closed = open_stream(connection, server)
    connection.close_stream(7)
    converse(connection, server)
    return connection, open_stream(connection, server), closed


def test_rows_of_a_mixed_block_keep_their_order_when_some_are_dropped() -> None:
    connection, opaque, closed = opened_beside_a_closed_stream()
    frames = [marker(opaque, 0, 100)]
    for seqno in range(1, 50):
        frames += [mutation(opaque, seqno), mutation(closed, seqno)]
    (items, *_) = connection.receive(block_of(*frames), 1.0)
    assert isinstance(items, e.Items)
    assert np.array_equal(items.columns.seqno, np.arange(1, 50))
    assert items.columns.key.to_pylist() == [b"k%d" % seqno for seqno in range(1, 50)]


def test_late_frames_of_a_closed_stream_are_charged_dropped_and_counted() -> None:
    connection, opaque, closed = opened_beside_a_closed_stream()
    late = [mutation(closed, 1), marker(closed, 0, 9), stream_end(closed)]
    block = block_of(marker(opaque, 0, 5), *late, mutation(opaque, 1))
    events = connection.receive(block, 1.0)
    assert rows_of(events) == [(7, 1)]
    assert connection._state.discarded_frames == len(late)
    assert connection.flow.connection.received == block.frame_bytes
    assert connection.flow.connection.unacked_bytes == block.frame_bytes


def test_system_events_take_their_place_among_the_seqnos() -> None:
    connection, _, opaque = opened()
    body = m.SystemEvent(3, 0, 0, b"inventory", bytes(16))
    event = encode(body, Opcode.DCP_SYSTEM_EVENT, opaque=opaque, vbucket=7)
    block = block_of(marker(opaque, 0, 4), mutation(opaque, 2), event, mutation(opaque, 4))
    events = connection.receive(block, 1.0)
    meaning = CollectionBegun(0, 0, 0, b"inventory")
    assert e.SystemEventReceived(7, 3, 0, 0, b"inventory", bytes(16), meaning) in events
    assert position_of(connection, 7) == Position.complete_at(UUID, 4)
    with pytest.raises(RemoteProtocolError, match="seqno repeated"):
        connection.receive(block_of(marker(opaque, 4, 9), event), 1.0)


def test_a_marker_that_wants_an_answer_gets_it_at_its_end() -> None:
    connection, _, opaque = opened()
    connection.receive(block_of(marker(opaque, 0, 2, flags=0x0D), mutation(opaque, 1)), 1.0)
    assert connection.bytes_to_send() == b""
    connection.receive(block_of(mutation(opaque, 2)), 1.0)
    answer = parse_frame(connection.bytes_to_send())
    assert answer.opcode == Opcode.DCP_SNAPSHOT_MARKER
    assert (answer.magic, answer.opaque) == (Magic.RESPONSE, opaque)


def test_an_empty_block_tells_nothing() -> None:
    connection, _, _ = opened()
    assert connection.receive(block_of(), 1.0) == []


def test_a_part_of_a_large_frame_is_a_sign_of_life() -> None:
    connection, _, _ = opened()
    before = connection.next_deadline()
    assert connection.receive(block_of(), 1.0) == []
    after = connection.next_deadline()
    assert before is not None and after is not None and after > before
