"""TLS in front of the real producer: encrypted delivery, and certificates that are not trusted.

``tests/data/tls`` holds a self-signed certificate for 127.0.0.1, valid for a hundred years.
"""

import select
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from dcp.client.addresses import NodeAddress
from dcp.client.connection import NodeConnection
from dcp.client.settings import ConnectionSettings, TlsSettings
from dcp.errors import NodeUnavailableError
from dcp.protocol.position import Position
from tests.client.conftest import MakeCluster
from tests.client.drained import CREDENTIALS, Drained, assert_same_state, caught_up, fill

TLS = Path(__file__).parent.parent / "data" / "tls"


def pass_on(client: ssl.SSLSocket, producer: socket.socket) -> None:
    """Copy both directions on one thread (an SSL socket is not made for two) until one closes."""
    while True:
        held_back = client.pending() > 0
        readable = [client] if held_back else select.select([client, producer], [], [])[0]
        source, target = (client, producer) if client in readable else (producer, client)
        data = source.recv(65536)
        target.sendall(data)
        if not data:
            return


@contextmanager
def tls_in_front_of(seed: str) -> Iterator[NodeAddress]:
    """A proxy that decrypts one connection and passes it on to ``seed``."""
    behind = NodeAddress.parse(seed)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(TLS / "certificate.pem", TLS / "key.pem")
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            with suppress(OSError):  # the end of either side ends the proxy
                plain, _ = server.accept()
                with (
                    context.wrap_socket(plain, server_side=True) as client,
                    socket.create_connection((behind.host, behind.port)) as producer,
                ):
                    pass_on(client, producer)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield NodeAddress("127.0.0.1", server.getsockname()[1])
        server.close()
        thread.join(5)


def test_delivers_over_tls(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(vbuckets=2)
    fill(cluster, 2000, value_bytes=1000)
    settings = ConnectionSettings(
        "default",
        window_bytes=100_000,
        read_buffer_bytes=5000,  # less than a TLS record, so that OpenSSL holds bytes back
        tls=TlsSettings(str(TLS / "certificate.pem")),
    )
    with tls_in_front_of(cluster.seeds[0]) as address:
        connection = NodeConnection(address, settings, CREDENTIALS, "tls")
        connection.open()
        try:
            for vbucket in range(2):
                connection.open_stream(vbucket, Position.beginning())
            assert_same_state(cluster, Drained().run(connection, caught_up(cluster)))
        finally:
            connection.close()


def test_a_certificate_that_is_not_trusted_is_refused(make_cluster: MakeCluster) -> None:
    cluster = make_cluster()
    with tls_in_front_of(cluster.seeds[0]) as address:
        settings = ConnectionSettings("default", tls=TlsSettings())
        with pytest.raises(NodeUnavailableError, match=r"TLS handshake with .* certificate verify"):
            NodeConnection(address, settings, CREDENTIALS, "tls").open()
