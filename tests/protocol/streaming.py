"""A connection with an open stream, the rows that its events tell, and a cluster map, for tests."""

import pytest

from dcp.protocol import events as e
from dcp.protocol.connection import ConsumerConnection
from dcp.protocol.position import Position
from dcp.types import FailoverEntry
from tests.protocol.scripted import ScriptedServer, open_stream, ready_connection

CLUSTER_MAP = b'{"rev":8,"vBucketServerMap":{"vBucketMap":[[0]]}}'


IMPOSSIBLE_LOGS = [
    pytest.param((), "failover log: found no entry, expected at least one", id="empty"),
    pytest.param(
        (FailoverEntry(1, 5), FailoverEntry(2, 9)),
        "failover log: found seqno 9 in an older entry than seqno 5, expected seqnos that do not "
        "grow towards the past",
        id="unordered",
    ),
    pytest.param(
        (FailoverEntry(0, 0),),
        "failover log: found vb_uuid 0, expected every branch to have another",
        id="uuid-0",
    ),
    pytest.param(
        tuple(FailoverEntry(99 - seqno, seqno) for seqno in range(26, 0, -1)),
        "failover log: found 26 entries, expected at most 25",
        id="too-long",
    ),
]
"""Failover logs that no server could have made, and what is said of each."""


def opened() -> tuple[ConsumerConnection, ScriptedServer, int]:
    connection, server = ready_connection()
    return connection, server, open_stream(connection, server)


def position_of(
    connection: ConsumerConnection, vbucket: int, *, stream_id: int | None = None
) -> Position:
    """The position of a stream that has not ended."""
    state = connection._state
    return state.streams[state.opaques[vbucket, stream_id]].position


def rows_of(events: list[e.Event]) -> list[tuple[int, int]]:
    return [
        (int(vbucket), int(seqno))
        for event in events
        if isinstance(event, e.Items)
        for vbucket, seqno in zip(event.columns.vbucket, event.columns.seqno, strict=True)
    ]
