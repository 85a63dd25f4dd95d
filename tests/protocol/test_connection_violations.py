"""A violation is named with its vbucket, and the connection is of no use any more."""

from collections.abc import Callable

import pytest

from dcp.errors import LocalProtocolError, RemoteProtocolError
from dcp.protocol import events as e
from dcp.protocol.bootstrap import OPTIONAL_CONTROLS, BootstrapSettings, control_step
from dcp.protocol.position import Position
from dcp.wire import messages as m
from dcp.wire.codec import encode
from dcp.wire.frame import Frame
from dcp.wire.vocabulary import Magic, Opcode, ServerOpcode, SystemEventKind
from tests.protocol.scripted import (
    LOG,
    UUID,
    advanced,
    answer_to,
    block_of,
    marker,
    mutation,
    open_stream,
    ready_connection,
    stream_end,
)
from tests.protocol.streaming import opened, position_of, rows_of


def oso(opaque: int, flags: int) -> Frame:
    return encode(m.OsoSnapshot(flags), Opcode.DCP_OSO_SNAPSHOT, opaque=opaque, vbucket=7)


def prepare(opaque: int, seqno: int, key: bytes = b"\0k") -> Frame:
    body = m.Prepare(key, b"v", seqno, 1, 0, 0, 0, 0, 0, 1)
    return encode(body, Opcode.DCP_PREPARE, opaque=opaque, vbucket=7, cas=1)


def commit(opaque: int, seqno: int, key: bytes) -> Frame:
    return encode(m.Commit(key, 1, seqno), Opcode.DCP_COMMIT, opaque=opaque, vbucket=7)


def abort(opaque: int, seqno: int, key: bytes = b"\0k") -> Frame:
    return encode(m.Abort(key, 1, seqno), Opcode.DCP_ABORT, opaque=opaque, vbucket=7)


def system_event(opaque: int, kind: SystemEventKind, version: int, value: bytes) -> Frame:
    body = m.SystemEvent(3, kind, version, b"", value)
    return encode(body, Opcode.DCP_SYSTEM_EVENT, opaque=opaque, vbucket=7)


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
    "found a document with opaque 0xbad, expected the opaque of a stream": lambda o: [
        marker(o, 0, 5),
        mutation(0xBAD, 1),
    ],
    "found DCP_SNAPSHOT_MARKER with opaque 0xbad": lambda o: [marker(0xBAD, 0, 5)],
    "found DCP_STREAM_END with opaque 0xbad": lambda o: [stream_end(0xBAD)],
    "found opcode 0xee from a server": lambda o: [
        Frame(Magic.REQUEST, 0xEE, opaque=o, value=b"from the future")
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
    "found version 2 of END_COLLECTION, expected 0 or 1": lambda o: [
        marker(o, 0, 5),
        system_event(o, SystemEventKind.END_COLLECTION, version=2, value=bytes(16)),
    ],
    "found a value of 15 bytes, expected 16": lambda o: [
        marker(o, 0, 5),
        system_event(o, SystemEventKind.END_COLLECTION, version=0, value=bytes(15)),
    ],
    "found acceptance on a stream that is open": lambda o: [],
    "magic 0x83 from a server": lambda o: [
        Frame(Magic.SERVER_RESPONSE, ServerOpcode.CLUSTERMAP_CHANGE_NOTIFICATION, opaque=o)
    ],
}


@pytest.mark.parametrize("named", VIOLATIONS)
def test_a_violation_is_named_and_the_connection_says_and_takes_nothing_more(named: str) -> None:
    connection, server, opaque = opened()
    good = [marker(opaque, 0, 2), mutation(opaque, 1)]
    frames = VIOLATIONS[named](opaque)
    if not frames:
        frames = [answer_to(server.seen[-1][0], m.FailoverLogAnswer(LOG.entries))]
        named = "expected no answer with this opaque"
    noop = encode(m.Empty(), Opcode.DCP_NOOP)
    with pytest.raises(RemoteProtocolError, match=named):
        connection.receive(block_of(noop, *frames), 1.0)
    assert connection.bytes_to_send() == b""
    with pytest.raises(LocalProtocolError, match="expected it to be closed"):
        connection.receive(block_of(*good), 1.0)


def test_a_violation_names_its_vbucket() -> None:
    connection, _, opaque = opened()
    with pytest.raises(RemoteProtocolError, match=r"^vbucket 7: item before marker"):
        connection.receive(block_of(mutation(opaque, 1)), 1.0)


def test_a_message_that_cannot_be_read_names_its_vbucket() -> None:
    connection, _, opaque = opened()
    short = Frame(
        Magic.REQUEST, Opcode.DCP_SNAPSHOT_MARKER, vbucket_or_status=7, opaque=opaque, extras=b"\0"
    )
    with pytest.raises(RemoteProtocolError, match=r"^vbucket 7: opcode 0x56"):
        connection.receive(block_of(short), 1.0)


@pytest.mark.parametrize(
    ("key", "problem"),
    [
        (b"", "LEB128: found no bytes"),
        (b"\0", "key: found 0 bytes, expected 1 to 250"),
        (b"\0" + b"k" * 250, ""),
        (b"\0" + b"k" * 251, "key: found 251 bytes, expected 1 to 250"),
        (b"\x08", "key: found 0 bytes, expected 1 to 246"),
        (b"\xff\x01" + b"k" * 246, ""),
        (b"\xff\x01" + b"k" * 247, "key: found 247 bytes, expected 1 to 246"),
    ],
)
@pytest.mark.parametrize("kind", [mutation, prepare, commit, abort])
def test_a_key_that_no_server_stores_is_a_violation(
    kind: Callable[..., Frame], key: bytes, problem: str
) -> None:
    controls = (*OPTIONAL_CONTROLS, control_step("enable_sync_writes", "true"))
    settings = BootstrapSettings("travel", "all", controls=controls)
    connection, server = ready_connection(settings=settings)
    opaque = open_stream(connection, server)
    frame = kind(opaque, 12, key=b"k")._replace(key=key)
    block = block_of(marker(opaque, 0, 12), frame)
    if not problem:
        assert connection.receive(block, 1.0)[-1] == e.SnapshotCompleted(7, 12)
        return
    if kind is mutation:  # many at once, and so told in other words
        problem = problem.replace("key: found", "a key of")
        problem = problem.replace("LEB128: found no bytes", "an empty key")
    with pytest.raises(RemoteProtocolError, match=r"vbucket 7.*at seqno 12.*" + problem):
        connection.receive(block, 1.0)
    assert position_of(connection, 7) == Position.beginning()


def test_what_was_asked_for_is_let_through() -> None:
    controls = (
        *OPTIONAL_CONTROLS,
        control_step("enable_out_of_order_snapshots", "true"),
        control_step("enable_sync_writes", "true"),
    )
    settings = BootstrapSettings("travel", "all", controls=controls)
    connection, server = ready_connection(settings=settings)
    opaque = open_stream(connection, server)
    block = block_of(oso(opaque, 1), mutation(opaque, 9), mutation(opaque, 4), oso(opaque, 2))
    assert rows_of(connection.receive(block, 1.0)) == [(7, 9), (7, 4)]
    assert position_of(connection, 7) == Position.complete_at(UUID, 9)
    frames = [marker(opaque, 0, 12), prepare(opaque, 10), mutation(opaque, 11), abort(opaque, 12)]
    assert connection.receive(block_of(*frames), 1.0)[-1] == e.SnapshotCompleted(7, 12)
