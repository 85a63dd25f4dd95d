"""A connection whose items are handed out as frames, in the wire order of each stream."""

import pytest

from dcp.errors import LocalProtocolError, RemoteProtocolError
from dcp.protocol import events as e
from dcp.protocol.bootstrap import OPTIONAL_CONTROLS, BootstrapSettings, control_step
from dcp.protocol.connection import ConsumerConnection
from dcp.protocol.position import Position
from dcp.types import SnapshotRange
from dcp.wire import messages as m
from dcp.wire.codec import decode, encode
from dcp.wire.frame import Frame, parse_frame
from dcp.wire.vocabulary import Magic, Opcode, StreamFlag
from tests.protocol.scripted import (
    ScriptedServer,
    advanced,
    block_of,
    converse,
    marker,
    mutation,
    ready_connection,
)

SYNC_WRITES = control_step("enable_sync_writes", "true")
SETTINGS = BootstrapSettings("travel", "frames", controls=(*OPTIONAL_CONTROLS, SYNC_WRITES))


def opened(
    *vbuckets: int, flags: int = StreamFlag.TAKEOVER
) -> tuple[ConsumerConnection, ScriptedServer, list[int]]:
    connection, server = ready_connection(hands_out_frames=True, settings=SETTINGS)
    opaques = [connection.open_stream(v, Position.beginning(), flags=flags) for v in vbuckets]
    converse(connection, server)
    return connection, server, opaques


def told(events: list[e.Event]) -> list[object]:
    """Events, of frames their opcodes and seqnos."""
    found: list[object] = []
    for event in events:
        if isinstance(event, e.ItemFrames):
            frames = [parse_frame(bytes(each)) for each in event.frames]
            found += [(event.vbucket, each.opcode, _seqno(decode(each))) for each in frames]
        else:
            found.append(event)
    return found


def _seqno(body: m.Body) -> int:
    match body:
        case m.Mutation() | m.SystemEvent() | m.Prepare():
            return body.by_seqno
        case m.Abort():
            return body.abort_seqno
    raise AssertionError(body)


def test_frames_stand_among_the_other_events_of_their_stream() -> None:
    connection, _, (one, two) = opened(7, 8)
    block = block_of(
        marker(one, 0, 2),
        mutation(one, 1),
        marker(two, 0, 9, vbucket=8),
        mutation(two, 5, vbucket=8),
        mutation(one, 2),
        marker(one, 3, 9),
        mutation(one, 4),
        advanced(one, 9),
    )
    events = connection.receive(block, 1.0)
    assert not any(isinstance(event, e.Items) for event in events)
    mutated = Opcode.DCP_MUTATION
    of_one = [each for each in told(events) if not _is_of(each, 8)]
    assert of_one == [
        e.SnapshotStarted(7, SnapshotRange(0, 2), 1),
        (7, mutated, 1),
        (7, mutated, 2),
        e.SnapshotCompleted(7, 2),
        e.SnapshotStarted(7, SnapshotRange(3, 9), 1),
        (7, mutated, 4),
        e.StreamAdvanced(7, 9),
        e.SnapshotCompleted(7, 9),
    ]
    of_two = [each for each in told(events) if _is_of(each, 8)]
    assert of_two == [e.SnapshotStarted(8, SnapshotRange(0, 9), 1), (8, mutated, 5)]


def _is_of(each: object, vbucket: int) -> bool:
    found = each[0] if isinstance(each, tuple) else getattr(each, "vbucket", None)
    return found == vbucket


def test_what_has_a_seqno_of_its_own_is_a_frame() -> None:
    connection, _, (opaque,) = opened(7)

    def frame(body: m.Body, opcode: Opcode) -> Frame:
        return encode(body, opcode, vbucket=7, opaque=opaque)

    block = block_of(
        marker(opaque, 0, 4),
        frame(m.SystemEvent(1, 0, 0, b"c", bytes(16)), Opcode.DCP_SYSTEM_EVENT),
        frame(m.Prepare(b"\0k", b"1", 2, 1, 0, 0, 0, 0, 0, 1), Opcode.DCP_PREPARE),
        frame(m.Abort(b"\0k", 2, 3), Opcode.DCP_ABORT),
        mutation(opaque, 4),
    )
    assert told(connection.receive(block, 1.0)) == [
        e.SnapshotStarted(7, SnapshotRange(0, 4), 1),
        (7, Opcode.DCP_SYSTEM_EVENT, 1),
        (7, Opcode.DCP_PREPARE, 2),
        (7, Opcode.DCP_ABORT, 3),
        (7, Opcode.DCP_MUTATION, 4),
        e.SnapshotCompleted(7, 4),
    ]


def test_a_violation_tells_nothing_of_its_block() -> None:
    connection, _, (opaque,) = opened(7)
    block = block_of(marker(opaque, 0, 4), mutation(opaque, 2), mutation(opaque, 2))
    with pytest.raises(RemoteProtocolError, match="vbucket 7: seqno repeated"):
        connection.receive(block, 1.0)
    connection.request_cluster_config()
    assert connection.bytes_to_send() == b""


def test_what_a_closed_stream_sends_is_not_handed_out() -> None:
    connection, server, (opaque,) = opened(7)
    connection.close_stream(7)
    assert connection.receive(block_of(marker(opaque, 0, 4), mutation(opaque, 2)), 1.0) == []
    assert connection.has_stream(7)
    converse(connection, server)
    end = encode(m.StreamEnd(1), Opcode.DCP_STREAM_END, vbucket=7, opaque=opaque)
    connection.receive(block_of(end), 1.0)
    assert not connection.has_stream(7)


def test_a_takeover_tells_the_state_and_answers_it() -> None:
    connection, _, (opaque,) = opened(7)
    body = m.SetVbucketState(3)
    frame = encode(body, Opcode.DCP_SET_VBUCKET_STATE, vbucket=7, opaque=opaque)
    assert connection.receive(block_of(frame), 1.0) == [e.VbucketStateSet(7, 3)]
    answer = parse_frame(connection.bytes_to_send())
    assert (answer.magic, answer.opcode) == (Magic.RESPONSE, Opcode.DCP_SET_VBUCKET_STATE)
    assert answer.opaque == opaque


def test_prepares_are_acknowledged_on_their_stream() -> None:
    connection, server, _ = opened(7)
    connection.acknowledge_prepares(7, 12)
    converse(connection, server)
    frame, body = server.seen[-1]
    assert (frame.vbucket, body) == (7, m.SeqnoAcknowledged(12))
    with pytest.raises(LocalProtocolError, match="vbucket 8: found no stream"):
        connection.acknowledge_prepares(8, 12)


def test_bytes_are_told_by_stream_where_they_are_counted_so() -> None:
    connection, _, (one, two) = opened(7, 8)
    connection.count_streams()
    frames = [marker(one, 0, 2), mutation(one, 1), marker(two, 0, 9, vbucket=8)]
    connection.receive(block_of(*frames), 1.0)
    sizes = [len(frame.to_bytes()) for frame in frames]
    shares = {window.opaque: count for window, count in connection.flow.deliver()}
    assert shares == {0: sum(sizes), one: sizes[0] + sizes[1], two: sizes[2]}


def test_who_did_not_listen_excuses_the_silence() -> None:
    connection, _, _ = opened(7)
    connection.excuse_silence(1000.0)
    connection.tick(1000.1)
    deadline = connection.next_deadline()
    assert deadline is not None and deadline > 1001.0


def test_whether_a_question_is_under_way() -> None:
    connection, server, _ = opened(7)
    connection.request_failover_log(7)
    opcode = Opcode.DCP_GET_FAILOVER_LOG
    assert [connection.awaits(opcode, vbucket) for vbucket in (7, 8)] == [True, False]
    server.overrides[opcode] = lambda frame, _: encode(
        m.FailoverLogAnswer(()), opcode, magic=Magic.RESPONSE, opaque=frame.opaque
    )
    converse(connection, server)
    assert not connection.awaits(opcode, 7)
