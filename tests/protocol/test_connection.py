"""Whole blocks through the connection: streams, violations by name, closing, answers, bytes."""

from collections.abc import Callable

import numpy as np
import pytest

from dcp.errors import LocalProtocolError, RemoteProtocolError, SourceError
from dcp.protocol import events as e
from dcp.protocol.bootstrap import CONTROLS, BootstrapSettings, Control
from dcp.protocol.connection import ClientConnection
from dcp.protocol.position import Position
from dcp.types import FailoverEntry, FailoverLog, SnapshotRange
from dcp.wire import messages as m
from dcp.wire.codec import decode, encode
from dcp.wire.frame import Frame, parse_frame
from dcp.wire.frame_info import stream_id_info
from dcp.wire.vocabulary import EndReason, Magic, Opcode, ServerOpcode, Status, StreamFlag
from tests.protocol.scripted import (
    LOG,
    UUID,
    ScriptedServer,
    advanced,
    answer_to,
    block_of,
    converse,
    marker,
    mutation,
    open_stream,
    ready_connection,
    stream_end,
)

CLUSTER_MAP = b'{"rev":8,"vBucketServerMap":{"vBucketMap":[[0]]}}'


def opened() -> tuple[ClientConnection, ScriptedServer, int]:
    connection, server = ready_connection()
    return connection, server, open_stream(connection, server)


def rows_of(events: list[e.Event]) -> list[tuple[int, int]]:
    return [
        (int(vbucket), int(seqno))
        for event in events
        if isinstance(event, e.Items)
        for vbucket, seqno in zip(event.columns.vbucket, event.columns.seqno, strict=True)
    ]


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
    assert connection.position(7) == Position(UUID, 7, 5, 9, 5)
    assert connection.charged_bytes == sum(len(frame.to_bytes()) for frame in frames)


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
    assert connection.position(7) == Position.complete_at(UUID, 11)
    assert connection.position(8) == Position.complete_at(UUID, 3)


def test_seqnos_and_cas_beyond_63_bits_survive() -> None:
    connection, _, opaque = opened()
    high = 2**64 - 2
    (items, *_) = connection.receive(block_of(marker(opaque, 0, high), mutation(opaque, high)), 1.0)
    assert isinstance(items, e.Items)
    assert int(items.columns.seqno[0]) == int(items.columns.cas[0]) == high
    assert connection.position(7).seqno == high


def oso(opaque: int, flags: int) -> Frame:
    return encode(m.OsoSnapshot(flags), Opcode.DCP_OSO_SNAPSHOT, opaque=opaque, vbucket=7)


def prepare(opaque: int, seqno: int) -> Frame:
    body = m.Prepare(b"\0k", b"v", seqno, 1, 0, 0, 0, 0, 0, 1)
    return encode(body, Opcode.DCP_PREPARE, opaque=opaque, vbucket=7, cas=1)


def abort(opaque: int, seqno: int) -> Frame:
    return encode(m.Abort(b"\0k", 1, seqno), Opcode.DCP_ABORT, opaque=opaque, vbucket=7)


VIOLATIONS: dict[str, Callable[[int], list[Frame]]] = {
    "item before marker": lambda o: [mutation(o, 1)],
    "item beyond marker": lambda o: [marker(o, 0, 5), mutation(o, 6)],
    "item below marker": lambda o: [marker(o, 3, 5), mutation(o, 2)],
    "seqno repeated": lambda o: [marker(o, 0, 5), mutation(o, 3), mutation(o, 3)],
    "seqno repeated or going backwards: found 2 after 3": lambda o: [
        marker(o, 0, 5),
        mutation(o, 3),
        mutation(o, 2),
    ],
    "marker going backwards": lambda o: [
        marker(o, 0, 5),
        mutation(o, 4),
        marker(o, 0, 3),
    ],
    "beyond its end": lambda o: [marker(o, 6, 5)],
    "SEQNO_ADVANCED going backwards": lambda o: [
        marker(o, 0, 5),
        mutation(o, 4),
        advanced(o, 3),
    ],
    "SEQNO_ADVANCED beyond marker": lambda o: [marker(o, 0, 5), advanced(o, 6)],
    "item of another vbucket: found 8, expected 7": lambda o: [
        marker(o, 0, 5),
        mutation(o, 4, vbucket=8),
    ],
    "DCP_SNAPSHOT_MARKER of vbucket 8": lambda o: [marker(o, 0, 5, vbucket=8)],
    "enable_out_of_order_snapshots was not asked for": lambda o: [oso(o, 1)],
    "found DCP_PREPARE, expected none: enable_sync_writes": lambda o: [
        marker(o, 0, 5),
        prepare(o, 1),
    ],
    "found DCP_ABORT, expected none: enable_sync_writes": lambda o: [
        marker(o, 0, 5),
        abort(o, 2),
    ],
    "DCP_SET_VBUCKET_STATE, expected none: stream flag": lambda o: [
        encode(m.SetVbucketState(1), Opcode.DCP_SET_VBUCKET_STATE, opaque=o, vbucket=7)
    ],
    "found acceptance on a stream that is open": lambda o: [],
    "magic 0x83 from a server": lambda o: [
        Frame(Magic.SERVER_RESPONSE, ServerOpcode.CLUSTERMAP_CHANGE_NOTIFICATION, opaque=o)
    ],
}


@pytest.mark.parametrize("named", VIOLATIONS)
def test_a_violation_is_named_and_leaves_the_connection_as_it_was(named: str) -> None:
    connection, server, opaque = opened()
    good = [marker(opaque, 0, 2), mutation(opaque, 1)]
    frames = VIOLATIONS[named](opaque)
    if not frames:
        frames = [answer_to(server.seen[-1][0], m.FailoverLogAnswer(LOG.entries))]
        named = "expected no answer with this opaque"
    before = (connection.position(7), connection.charged_bytes, connection.discarded_frames)
    with pytest.raises(RemoteProtocolError, match=named):
        connection.receive(block_of(*frames), 1.0)
    after = (connection.position(7), connection.charged_bytes, connection.discarded_frames)
    assert after == before
    assert connection.bytes_to_send() == b""
    assert rows_of(connection.receive(block_of(*good), 1.0)) == [(7, 1)], "still usable"


def test_a_violation_names_its_vbucket() -> None:
    connection, _, opaque = opened()
    with pytest.raises(RemoteProtocolError, match=r"^vbucket 7: item before marker"):
        connection.receive(block_of(mutation(opaque, 1)), 1.0)


def test_what_was_asked_for_is_let_through() -> None:
    controls = (
        *CONTROLS,
        Control("enable_out_of_order_snapshots", "true"),
        Control("enable_sync_writes", "true"),
    )
    settings = BootstrapSettings("travel", "all", controls=controls)
    connection, server = ready_connection(settings=settings)
    opaque = open_stream(connection, server)
    block = block_of(oso(opaque, 1), mutation(opaque, 9), mutation(opaque, 4), oso(opaque, 2))
    assert rows_of(connection.receive(block, 1.0)) == [(7, 9), (7, 4)]
    assert connection.position(7) == Position.complete_at(UUID, 9)
    frames = [marker(opaque, 0, 12), prepare(opaque, 10), mutation(opaque, 11), abort(opaque, 12)]
    assert connection.receive(block_of(*frames), 1.0)[-1] == e.SnapshotCompleted(7, 12)


def test_frames_of_streams_that_we_do_not_have_are_charged_dropped_and_counted() -> None:
    connection, _, opaque = opened()
    strangers = [
        mutation(0xBAD, 1),
        marker(0xBAD, 0, 9),
        stream_end(0xBAD),
        Frame(Magic.REQUEST, 0xEE, opaque=opaque, value=b"from the future"),
    ]
    block = block_of(marker(opaque, 0, 5), *strangers, mutation(opaque, 1))
    events = connection.receive(block, 1.0)
    assert rows_of(events) == [(7, 1)]
    assert connection.discarded_frames == len(strangers)
    assert connection.charged_bytes == block.frame_bytes
    assert connection.unacked_bytes == block.frame_bytes


def test_a_close_drops_what_is_still_on_its_way() -> None:
    connection, server, opaque = opened()
    connection.receive(block_of(marker(opaque, 0, 9), mutation(opaque, 1)), 1.0)
    connection.close_stream(7)
    close = parse_frame(connection.bytes_to_send())
    assert close.opcode == Opcode.DCP_CLOSE_STREAM
    assert connection.receive(block_of(mutation(opaque, 2)), 1.0) == []
    assert connection.receive(block_of(answer_to(close)), 1.0) == [e.StreamClosed(7, 0)]
    late = [mutation(opaque, 3), mutation(opaque, 9), marker(opaque, 10, 12)]
    assert connection.receive(block_of(*late), 1.0) == []
    ended = connection.receive(block_of(stream_end(opaque, EndReason.CLOSED)), 1.0)
    assert ended == [e.StreamEnded(7, EndReason.CLOSED)]
    assert connection.discarded_frames == 4
    assert connection.position(7) == Position(UUID, 1, 0, 9, 0), "the last row delivered"
    assert open_stream(connection, server) != opaque


def test_without_the_promise_of_a_stream_end_the_answer_ends_the_stream() -> None:
    name = b"send_stream_end_on_client_close_stream"
    connection, server = ready_connection(ScriptedServer(refused_controls=frozenset({name})))
    opaque = open_stream(connection, server)
    connection.close_stream(7)
    assert converse(connection, server) == [e.StreamClosed(7, 0)]
    assert connection.receive(block_of(mutation(opaque, 1)), 1.0) == []
    assert connection.discarded_frames == 1


def test_a_stream_end_is_taken_while_the_window_is_full() -> None:
    connection, server = ready_connection(window_bytes=300)
    opaque = open_stream(connection, server)
    connection.receive(block_of(marker(opaque, 0, 9), mutation(opaque, 1, value=b"x" * 900)), 1.0)
    assert connection.unacked_bytes > 300
    ended = connection.receive(block_of(stream_end(opaque, EndReason.STATE_CHANGED)), 1.0)
    assert ended == [e.StreamEnded(7, EndReason.STATE_CHANGED)]
    connection.release(connection.charged_bytes, 1.0)
    ack = decode(parse_frame(connection.bytes_to_send()))
    assert ack == m.BufferAck(connection.charged_bytes)


def test_releases_become_acks_by_the_policy() -> None:
    connection, server = ready_connection(window_bytes=10_000)
    opaque = open_stream(connection, server)
    connection.receive(block_of(marker(opaque, 0, 9), mutation(opaque, 1, value=b"x" * 5000)), 1.0)
    connection.release(2000, 1.0)
    assert connection.bytes_to_send() == b""
    assert connection.next_deadline() == pytest.approx(5.0)
    connection.tick(5.5)
    assert decode(parse_frame(connection.bytes_to_send())) == m.BufferAck(2000)
    with pytest.raises(LocalProtocolError, match="release: found 99999 bytes"):
        connection.release(99_999, 6.0)


# --- answers to stream requests ---------------------------------------------------------------


def ask_and_answer(status: int, body: m.Body, position: Position) -> list[e.Event]:
    connection, server = ready_connection()
    server.overrides[Opcode.DCP_STREAM_REQ] = lambda frame, _: answer_to(frame, body, status)
    connection.open_stream(7, position, failover_log=None)
    return converse(connection, server)


AT_9 = Position(UUID, 9, 4, 12, 4)


def test_a_stream_request_names_the_position() -> None:
    connection, server = ready_connection()
    connection.open_stream(7, AT_9, failover_log=LOG, end_seqno=99, filter=b'{"collections":["8"]}')
    assert converse(connection, server) == [e.StreamOpened(7, LOG)]
    frame, body = server.seen[-1]
    assert frame.vbucket == 7
    assert frame.datatype == 0
    flags = StreamFlag.ACTIVE_VB_ONLY
    assert body == m.StreamRequest(flags, 9, 99, UUID, 4, 12, b'{"collections":["8"]}')
    assert connection.position(7) == AT_9


def test_a_resumed_stream_whose_marker_extends_the_snapshot() -> None:
    connection, server = ready_connection()
    opaque = open_stream(connection, server, position=AT_9)
    connection.receive(block_of(marker(opaque, 4, 20), mutation(opaque, 12)), 1.0)
    assert connection.position(7) == Position(UUID, 12, 4, 20, 4)


def test_a_rollback_is_an_event() -> None:
    events = ask_and_answer(Status.ROLLBACK, m.RollbackAnswer(4), AT_9)
    assert events == [e.RollbackOrdered(7, AT_9, 4)]


def test_a_rollback_beyond_the_request_breaks_the_protocol() -> None:
    with pytest.raises(RemoteProtocolError, match=r"found ROLLBACK to 10, expected at most .* 9"):
        ask_and_answer(Status.ROLLBACK, m.RollbackAnswer(10), AT_9)


def test_not_my_vbucket_may_bring_a_map() -> None:
    refused = e.StreamRefused(7, Status.NOT_MY_VBUCKET, CLUSTER_MAP)
    events = ask_and_answer(Status.NOT_MY_VBUCKET, m.Refusal(CLUSTER_MAP), AT_9)
    assert events == [refused, e.ClusterConfigReceived(CLUSTER_MAP)]
    events = ask_and_answer(Status.NOT_MY_VBUCKET, m.Refusal(b""), AT_9)
    assert events == [e.StreamRefused(7, Status.NOT_MY_VBUCKET)]


@pytest.mark.parametrize("status", [Status.ETMPFAIL, Status.ERANGE, Status.KEY_EEXISTS, 0x7777])
def test_other_refusals_are_events_too(status: int) -> None:
    body = b'{"error":{"context":"later"}}'
    events = ask_and_answer(status, m.Refusal(body), AT_9)
    assert events == [e.StreamRefused(7, status, body)]


@pytest.mark.parametrize(
    ("log", "named"),
    [
        ((), "found no entry"),
        ((FailoverEntry(1, 5), FailoverEntry(2, 9)), "grow towards the past"),
        ((FailoverEntry(0, 0),), "vb_uuid 0"),
    ],
)
def test_impossible_failover_logs_break_the_protocol(
    log: tuple[FailoverEntry, ...], named: str
) -> None:
    with pytest.raises(RemoteProtocolError, match=named):
        ask_and_answer(Status.SUCCESS, m.FailoverLogAnswer(log), AT_9)


def test_data_before_the_answer_breaks_the_protocol() -> None:
    connection, server = ready_connection()
    server.overrides[Opcode.DCP_STREAM_REQ] = lambda _frame, _body: None
    opaque = open_stream(connection, server)
    with pytest.raises(RemoteProtocolError, match="on a stream that is requested"):
        connection.receive(block_of(marker(opaque, 0, 1)), 1.0)
    with pytest.raises(RemoteProtocolError, match="on a stream that is requested"):
        connection.receive(block_of(mutation(opaque, 1)), 1.0)


def test_one_stream_per_vbucket() -> None:
    connection, _, _ = opened()
    with pytest.raises(LocalProtocolError, match="found a stream that is open"):
        connection.open_stream(7, Position.beginning(), failover_log=None)
    with pytest.raises(LocalProtocolError, match="vbucket 99: found no stream"):
        connection.close_stream(99)
    with pytest.raises(LocalProtocolError, match="vbucket 99: found no stream"):
        connection.position(99)


def test_a_position_of_another_branch_is_our_mistake() -> None:
    connection, _ = ready_connection()
    log = FailoverLog((FailoverEntry(UUID + 1, 0),))
    with pytest.raises(LocalProtocolError, match="expected one of its failover log"):
        connection.open_stream(7, AT_9, failover_log=log)


# --- everything else --------------------------------------------------------------------------


def test_several_streams_of_one_vbucket_by_stream_id() -> None:
    controls = (*CONTROLS, Control("enable_stream_id", "true"))
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
    assert connection.position(7, stream_id=1) == Position.complete_at(UUID, 9)
    assert connection.position(7, stream_id=2) == Position(UUID, 3, 0, 5, 0)
    connection.close_stream(7, stream_id=1)
    close = parse_frame(connection.bytes_to_send())
    assert (close.magic, close.framing_extras) == (Magic.ALT_REQUEST, bytes.fromhex("220001"))


def test_a_pushed_cluster_map_is_told_and_not_charged() -> None:
    connection, _, _ = opened()
    push = encode(
        m.ClustermapNotification(b"travel", CLUSTER_MAP, 1, 8),
        ServerOpcode.CLUSTERMAP_CHANGE_NOTIFICATION,
        magic=Magic.SERVER_REQUEST,
    )
    assert connection.receive(block_of(push), 1.0) == [e.ClusterConfigReceived(CLUSTER_MAP)]
    assert connection.charged_bytes == 0


def test_a_marker_that_wants_an_answer_gets_it_at_its_end() -> None:
    connection, _, opaque = opened()
    connection.receive(block_of(marker(opaque, 0, 2, flags=0x0D), mutation(opaque, 1)), 1.0)
    assert connection.bytes_to_send() == b""
    connection.receive(block_of(mutation(opaque, 2)), 1.0)
    answer = parse_frame(connection.bytes_to_send())
    assert answer.opcode == Opcode.DCP_SNAPSHOT_MARKER
    assert (answer.magic, answer.opaque) == (Magic.RESPONSE, opaque)


def test_system_events_take_their_place_among_the_seqnos() -> None:
    connection, _, opaque = opened()
    body = m.SystemEvent(3, 0, 0, b"inventory", bytes(16))
    event = encode(body, Opcode.DCP_SYSTEM_EVENT, opaque=opaque, vbucket=7)
    block = block_of(marker(opaque, 0, 4), mutation(opaque, 2), event, mutation(opaque, 4))
    events = connection.receive(block, 1.0)
    assert e.SystemEventReceived(7, 3, 0, 0, b"inventory", bytes(16)) in events
    assert connection.position(7) == Position.complete_at(UUID, 4)
    with pytest.raises(RemoteProtocolError, match="seqno repeated"):
        connection.receive(block_of(marker(opaque, 4, 9), event), 1.0)


def test_questions_and_their_answers() -> None:
    connection, server, _ = opened()
    server.overrides[Opcode.GET_ALL_VB_SEQNOS] = lambda frame, _: answer_to(
        frame, m.AllVbSeqnos(((0, 5), (1, 2**64 - 1)))
    )
    server.overrides[Opcode.DCP_GET_FAILOVER_LOG] = lambda frame, _: (
        answer_to(frame, m.FailoverLogAnswer(LOG.entries))
        if frame.vbucket == 1
        else answer_to(frame, m.Refusal(CLUSTER_MAP), Status.NOT_MY_VBUCKET)
    )
    connection.request_seqnos()
    connection.request_cluster_config()
    connection.request_failover_log(1)
    connection.request_failover_log(2)
    assert converse(connection, server) == [
        e.SeqnosReceived(((0, 5), (1, 2**64 - 1))),
        e.ClusterConfigReceived(b'{"rev":1}'),
        e.FailoverLogReceived(1, LOG),
        e.FailoverLogReceived(2, None),
        e.ClusterConfigReceived(CLUSTER_MAP),
    ]


def test_a_refused_question_is_a_source_error() -> None:
    connection, server, _ = opened()
    server.overrides[Opcode.GET_ALL_VB_SEQNOS] = lambda frame, _: answer_to(
        frame, status=Status.EACCESS
    )
    connection.request_seqnos()
    with pytest.raises(SourceError, match=r"GET_ALL_VB_SEQNOS: found status 0x24 EACCESS"):
        converse(connection, server)


@pytest.mark.parametrize(
    ("answer", "status", "manifest"),
    [
        (m.Text(b'{"uid":"0"}'), Status.SUCCESS, b'{"uid":"0"}'),
        (m.Refusal(), Status.NOT_SUPPORTED, None),
        (m.Refusal(), Status.UNKNOWN_COMMAND, None),
    ],
)
def test_a_manifest_is_asked_for_and_may_be_missing(
    answer: m.Body, status: Status, manifest: bytes | None
) -> None:
    connection, server, _ = opened()
    server.overrides[Opcode.GET_COLLECTIONS_MANIFEST] = lambda frame, _: answer_to(
        frame, answer, status
    )
    connection.request_manifest()
    assert converse(connection, server) == [e.ManifestReceived(manifest)]


def test_a_part_of_a_large_frame_is_a_sign_of_life() -> None:
    connection, _, _ = opened()
    before = connection.next_deadline()
    assert connection.receive(block_of(), 1.0) == []
    after = connection.next_deadline()
    assert before is not None and after is not None and after > before


def test_an_error_answer_to_an_ack_breaks_the_protocol() -> None:
    connection, _, _ = opened()
    answer = encode(m.Refusal(), Opcode.DCP_BUFFER_ACK, magic=Magic.RESPONSE, status=Status.EINVAL)
    with pytest.raises(RemoteProtocolError, match="found DCP_BUFFER_ACK status 0x04"):
        connection.receive(block_of(answer), 1.0)


def test_an_empty_block_tells_nothing() -> None:
    connection, _, _ = opened()
    assert connection.receive(block_of(), 1.0) == []


def test_rows_of_a_mixed_block_keep_their_order_when_some_are_dropped() -> None:
    connection, _, opaque = opened()
    frames = [marker(opaque, 0, 100)]
    for seqno in range(1, 50):
        frames += [mutation(opaque, seqno), mutation(0xBAD, seqno)]
    (items, *_) = connection.receive(block_of(*frames), 1.0)
    assert isinstance(items, e.Items)
    assert np.array_equal(items.columns.seqno, np.arange(1, 50))
    assert items.columns.key.to_pylist() == [b"k%d" % seqno for seqno in range(1, 50)]
