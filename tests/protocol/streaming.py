"""A connection with an open stream, the rows that its events tell, and a cluster map, for tests."""

from dcp.protocol import events as e
from dcp.protocol.connection import ClientConnection
from tests.protocol.scripted import ScriptedServer, open_stream, ready_connection

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
