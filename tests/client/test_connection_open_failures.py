"""A connection that cannot be opened: each reason is an error of its own that names the node."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from dcp.client.addresses import NodeAddress
from dcp.client.connection import NodeConnection
from dcp.errors import AuthenticationError, BucketError, DcplakeError, NodeUnavailableError
from dcp.protocol.credentials import Credentials, Secret
from tests.client.conftest import MakeCluster
from tests.client.connecting import settings
from tests.client.drained import CREDENTIALS, PATIENCE_SECONDS


def test_wrong_password(make_cluster: MakeCluster) -> None:
    cluster = make_cluster()
    credentials = Credentials("reader", Secret("not-the-password"))
    address = NodeAddress.parse(cluster.seeds[0])
    with pytest.raises(AuthenticationError, match=str(address)) as caught:
        NodeConnection(address, settings(), credentials, "test").open()
    assert "not-the-password" not in str(caught.value)


def test_unknown_bucket(make_cluster: MakeCluster) -> None:
    address = NodeAddress.parse(make_cluster().seeds[0])
    with pytest.raises(BucketError, match="no-such-bucket"):
        NodeConnection(address, settings(bucket="no-such-bucket"), CREDENTIALS, "test").open()


def test_a_missing_privilege_is_named_with_the_role_that_brings_it(
    make_cluster: MakeCluster,
) -> None:
    cluster = make_cluster(users_without_streams=frozenset({"reader"}))
    address = NodeAddress.parse(cluster.seeds[0])
    with pytest.raises(
        BucketError,
        match=r"DCP_OPEN: .*without the DcpProducer privilege\), expected the privilege "
        r"DcpProducer: give the user the role Data DCP Reader on the bucket",
    ):
        NodeConnection(address, settings(), CREDENTIALS, "test").open()


def test_refusing_node() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = NodeAddress("127.0.0.1", unused.getsockname()[1])
    with pytest.raises(
        NodeUnavailableError, match=r"TCP connection with 127\.0\.0\.1:\d+: .*efuse"
    ):
        NodeConnection(address, settings(), CREDENTIALS, "test").open()


@contextmanager
def listener() -> Iterator[tuple[socket.socket, NodeAddress]]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server, NodeAddress("127.0.0.1", server.getsockname()[1])


def test_silent_node_is_named_with_the_step_and_the_time() -> None:
    with listener() as (_, address):
        connection = NodeConnection(
            address, settings(bootstrap_timeout_seconds=0.3), CREDENTIALS, "test"
        )
        with pytest.raises(NodeUnavailableError, match=r"waited 0\.\d s for the answer to HELLO"):
            connection.open()


@pytest.mark.parametrize("said", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\x81\x1f"])
def test_node_that_says_nonsense_or_closes(said: bytes) -> None:
    with listener() as (server, address):

        def answer() -> None:
            client, _ = server.accept()
            client.recv(4096)
            client.sendall(said)
            client.close()

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        with pytest.raises(DcplakeError, match=str(address)):
            NodeConnection(address, settings(), CREDENTIALS, "test").open()
        thread.join(PATIENCE_SECONDS)
