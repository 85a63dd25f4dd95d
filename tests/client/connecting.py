"""A connection with one node of a producer's cluster, for the tests: its settings, its opening."""

from collections.abc import Iterator
from contextlib import contextmanager

from dcp.client.addresses import NodeAddress
from dcp.client.connection import NodeConnection
from dcp.client.settings import ConnectionSettings
from dcp.producer.cluster import ProducerCluster
from dcp.protocol.position import Position
from tests.client.drained import CREDENTIALS

START = Position.beginning()


def settings(**changes: object) -> ConnectionSettings:
    return ConnectionSettings(**{"bucket": "default", **changes})  # type: ignore[arg-type]


def connecting(
    cluster: ProducerCluster, name: str = "test", node: int = 0, **changes: object
) -> NodeConnection:
    """Return a connection that is not begun."""
    address = NodeAddress.parse(cluster.seeds[node])
    return NodeConnection(address, settings(**changes), CREDENTIALS, name)


@contextmanager
def connected(
    cluster: ProducerCluster, name: str = "test", node: int = 0, **changes: object
) -> Iterator[NodeConnection]:
    connection = connecting(cluster, name, node, **changes)
    connection.open()
    try:
        yield connection
    finally:
        connection.close()
