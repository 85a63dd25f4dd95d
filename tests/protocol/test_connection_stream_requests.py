"""Stream requests: what they say, what each answer means, and which are our own mistakes."""

import pytest

from dcp.errors import LocalProtocolError, RemoteProtocolError
from dcp.protocol import events as e
from dcp.protocol.position import Position
from dcp.types import U64_MAX, FailoverEntry, FailoverLog
from dcp.wire import messages as m
from dcp.wire.frame import Frame
from dcp.wire.vocabulary import HelloFeature, Opcode, Status, StreamFlag
from tests.protocol.scripted import (
    ALL_FEATURES,
    LOG,
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
from tests.protocol.streaming import CLUSTER_MAP, IMPOSSIBLE_LOGS, opened, position_of, rows_of


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
    assert position_of(connection, 7) == AT_9


def test_a_resumed_stream_whose_marker_extends_the_snapshot() -> None:
    connection, server = ready_connection()
    opaque = open_stream(connection, server, position=AT_9)
    connection.receive(block_of(marker(opaque, 4, 20), mutation(opaque, 12)), 1.0)
    assert position_of(connection, 7) == Position(UUID, 12, 4, 20, 4)


def test_a_rollback_is_an_event() -> None:
    events = ask_and_answer(Status.ROLLBACK, m.RollbackAnswer(4), AT_9)
    assert events == [e.RollbackOrdered(7, AT_9, 4)]


def test_a_rollback_beyond_the_request_costs_its_vbucket_alone() -> None:
    connection, server = ready_connection()
    open_stream(connection, server, 8)
    server.overrides[Opcode.DCP_STREAM_REQ] = lambda frame, _: answer_to(
        frame, m.RollbackAnswer(10), Status.ROLLBACK
    )
    connection.open_stream(7, AT_9, failover_log=None)
    detail = "found ROLLBACK to 10, above the requested seqno 9, expected at most that"
    assert converse(connection, server) == [e.StreamRejected(7, detail)]
    opaque = server_opaque_of(server, 8)
    connection.receive(block_of(marker(opaque, 0, 1, vbucket=8), mutation(opaque, 1, 8)), 1.0)
    assert position_of(connection, 8).seqno == 1


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


def server_opaque_of(server: ScriptedServer, vbucket: int) -> int:
    return next(f.opaque for f, b in server.seen if f.vbucket == vbucket and f.extras)


@pytest.mark.parametrize(("log", "detail"), IMPOSSIBLE_LOGS)
def test_an_impossible_failover_log_costs_its_vbucket_alone(
    log: tuple[FailoverEntry, ...], detail: str
) -> None:
    """The accepted stream is closed again; what it had sent is dropped, and charged."""
    connection, server = ready_connection()
    open_stream(connection, server, 8)
    other = server_opaque_of(server, 8)
    server.overrides[Opcode.DCP_STREAM_REQ] = lambda frame, _: answer_to(
        frame, m.FailoverLogAnswer(log)
    )
    connection.open_stream(7, AT_9, failover_log=None)
    assert converse(connection, server) == [
        e.StreamRejected(7, detail),
        e.StreamClosed(7),
    ]
    closing, _ = server.seen[-1]
    assert (closing.opcode, closing.vbucket) == (Opcode.DCP_CLOSE_STREAM, 7)
    rejected = server_opaque_of(server, 7)
    sent = [
        marker(rejected, 4, 20),
        mutation(rejected, 12),
        stream_end(rejected, reason=1),
        marker(other, 0, 1, vbucket=8),
        mutation(other, 1, vbucket=8),
    ]
    assert rows_of(connection.receive(block_of(*sent), 1.0)) == [(8, 1)]
    assert connection.flow.connection.received == sum(len(frame.to_bytes()) for frame in sent)
    del server.overrides[Opcode.DCP_STREAM_REQ]
    connection.open_stream(7, AT_9, failover_log=None)
    assert converse(connection, server) == [e.StreamOpened(7, LOG)]


def test_the_longest_possible_failover_log_is_accepted() -> None:
    entries = tuple(FailoverEntry(99 - seqno, seqno) for seqno in range(25, 0, -1))
    events = ask_and_answer(Status.SUCCESS, m.FailoverLogAnswer(entries), AT_9)
    assert events == [e.StreamOpened(7, FailoverLog(entries))]


@pytest.mark.parametrize(
    ("purge_seqno", "value"),
    [
        (None, b""),
        (0, b""),
        (9, b'{"purge_seqno":"9"}'),
        (U64_MAX, b'{"purge_seqno":"18446744073709551615"}'),
    ],
)
def test_a_purge_seqno_is_named_in_decimal(purge_seqno: int | None, value: bytes) -> None:
    connection, _ = ready_connection()
    assert connection.purge_filter(purge_seqno) == value


def test_a_purge_seqno_is_not_named_without_collections() -> None:
    granted = ALL_FEATURES - {int(HelloFeature.COLLECTIONS)}
    connection, _ = ready_connection(ScriptedServer(granted=granted))
    assert connection.purge_filter(9) == b""


@pytest.mark.parametrize("early", [marker(1, 0, 1), mutation(1, 1)])
def test_data_before_the_answer_breaks_the_protocol(early: Frame) -> None:
    connection, server = ready_connection()
    server.overrides[Opcode.DCP_STREAM_REQ] = lambda _frame, _body: None
    opaque = open_stream(connection, server)
    with pytest.raises(RemoteProtocolError, match="on a stream that is requested"):
        connection.receive(block_of(early._replace(opaque=opaque)), 1.0)


def test_one_stream_per_vbucket() -> None:
    connection, _, _ = opened()
    with pytest.raises(LocalProtocolError, match="found a stream that is open"):
        connection.open_stream(7, Position.beginning(), failover_log=None)
    with pytest.raises(LocalProtocolError, match="vbucket 99: found no stream"):
        connection.close_stream(99)


def test_a_position_of_another_branch_is_our_mistake() -> None:
    connection, _ = ready_connection()
    log = FailoverLog((FailoverEntry(UUID + 1, 0),))
    with pytest.raises(LocalProtocolError, match="expected one of its failover log"):
        connection.open_stream(7, AT_9, failover_log=log)
