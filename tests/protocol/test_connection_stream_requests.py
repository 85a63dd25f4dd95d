"""Stream requests: what they say, what each answer means, and which are our own mistakes."""

import pytest

from dcp.errors import LocalProtocolError, RemoteProtocolError
from dcp.protocol import events as e
from dcp.protocol.position import Position
from dcp.types import FailoverEntry, FailoverLog
from dcp.wire import messages as m
from dcp.wire.vocabulary import Opcode, Status, StreamFlag
from tests.protocol.scripted import (
    LOG,
    UUID,
    answer_to,
    block_of,
    converse,
    marker,
    mutation,
    open_stream,
    ready_connection,
)
from tests.protocol.streaming import CLUSTER_MAP, opened


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
