"""HTTP over real sockets: maps that follow each other, and clients that harm only themselves."""

import base64
import json
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from http.client import HTTPConnection, HTTPResponse, HTTPSConnection
from typing import Any

import pytest

from dcp.producer.cluster import ProducerCluster
from tests.producer.raw_client import PATIENCE_SECONDS
from tests.producer.tls import TLS_FILES, client_context

MakeCluster = Callable[..., ProducerCluster]
Connect = Callable[..., HTTPConnection]

AUTHORIZATION = "Basic " + base64.b64encode(b"Administrator:password").decode()
HEADERS = {"Authorization": AUTHORIZATION}
STREAM = "/pools/default/bs/default"


@pytest.fixture
def cluster(make_cluster: MakeCluster) -> ProducerCluster:
    return make_cluster(nodes=2, tls=TLS_FILES)


@pytest.fixture
def http() -> Iterator[Connect]:
    with ExitStack() as stack:

        def connect(seed: str, *, tls: bool = False) -> HTTPConnection:
            client = (
                HTTPSConnection(seed, timeout=PATIENCE_SECONDS, context=client_context())
                if tls
                else HTTPConnection(seed, timeout=PATIENCE_SECONDS)
            )
            stack.callback(client.close)
            return client

        yield connect


def ask(
    client: HTTPConnection, path: str, method: str = "GET", body: bytes | None = None
) -> HTTPResponse:
    client.request(method, path, body, HEADERS)
    return client.getresponse()


def next_map(response: HTTPResponse) -> dict[str, Any]:
    """The next document: one line and the separator behind it."""
    line = response.readline()
    assert [response.readline() for _ in range(3)] == [b"\n"] * 3
    tree = json.loads(line)
    assert isinstance(tree, dict)
    return tree


def raw(seed: str) -> socket.socket:
    host, port = seed.rsplit(":", 1)
    return socket.create_connection((host, int(port)), PATIENCE_SECONDS)


def read_all(client: socket.socket) -> bytes:
    return b"".join(iter(lambda: client.recv(65536), b""))


@pytest.mark.parametrize("tls", [False, True])
def test_requests_one_after_the_other(cluster: ProducerCluster, http: Connect, tls: bool) -> None:
    client = http((cluster.https_seeds if tls else cluster.http_seeds)[1], tls=tls)
    client.connect()
    port = client.sock.getsockname()[1]
    for method, path, body, status in (
        ("GET", "/whoami", None, 200),
        ("POST", "/whoami", b"x" * 60_000, 405),
        ("GET", "/pools", b"a body that nobody reads", 200),
        ("HEAD", "/pools", None, 200),
        ("GET", "/nosuch", None, 404),
        ("GET", "/pools/default/buckets/default", None, 200),
    ):
        response = ask(client, path, method, body)
        content = response.read()
        assert response.status == status
        assert bool(content) == (method != "HEAD")
        assert client.sock.getsockname()[1] == port


@pytest.mark.parametrize("tls", [False, True])
def test_every_change_of_the_map_follows(
    make_cluster: MakeCluster, http: Connect, tls: bool
) -> None:
    cluster = make_cluster(nodes=2, replicas=1, tls=TLS_FILES)
    stream = ask(http((cluster.https_seeds if tls else cluster.http_seeds)[0], tls=tls), STREAM)
    first = next_map(stream)
    assert first["vBucketServerMap"]["vBucketMap"] == [[0, 1], [0, 1], [1, 0], [1, 0]]
    assert [node.get("thisNode") for node in first["nodesExt"]] == [True, None]
    cluster.move_vbucket(0, 1)
    second = next_map(stream)
    assert second["vBucketServerMap"]["vBucketMap"] == [[1, 0], [0, 1], [1, 0], [1, 0]]
    cluster.failover(1)
    third = next_map(stream)
    assert (first["rev"], second["rev"], third["rev"]) == (1, 2, 3)
    assert len(third["nodesExt"]) == 1


def test_a_client_of_http_1_0_gets_documents_without_chunks(cluster: ProducerCluster) -> None:
    with raw(cluster.http_seeds[0]) as client:
        client.sendall(f"GET {STREAM} HTTP/1.0\r\nAuthorization: {AUTHORIZATION}\r\n\r\n".encode())
        received = b""
        while not received.endswith(b"\n\n\n\n"):
            received += client.recv(65536)
    head, _, body = received.partition(b"\r\n\r\n")
    assert b"chunked" not in head
    assert json.loads(body)["rev"] == 1


def test_a_stream_ends_with_its_node(cluster: ProducerCluster, http: Connect) -> None:
    stream = ask(http(cluster.http_seeds[1]), STREAM)
    next_map(stream)
    cluster.kill_node(1)
    assert stream.readline() == b""
    with pytest.raises(ConnectionRefusedError):
        raw(cluster.http_seeds[1])
    cluster.restore_node(1)
    assert next_map(ask(http(cluster.http_seeds[1]), STREAM))["rev"] == 1


def test_a_hanging_node_says_nothing(cluster: ProducerCluster, http: Connect) -> None:
    client = http(cluster.http_seeds[0])
    assert ask(client, "/whoami").read()
    cluster.hang_node(0)
    client.sock.settimeout(0.2)
    client.request("GET", "/whoami", headers=HEADERS)
    with pytest.raises(TimeoutError):
        client.sock.recv(1)
    cluster.restore_node(0)
    client.sock.settimeout(PATIENCE_SECONDS)
    assert client.getresponse().status == 200


def test_a_reader_that_sleeps_delays_nobody(cluster: ProducerCluster, http: Connect) -> None:
    sleeper, reader = (ask(http(cluster.http_seeds[0]), STREAM) for _ in range(2))
    for turn in range(50):
        assert next_map(reader)["rev"] == turn + 1
        cluster.move_vbucket(0, 1 - turn % 2)
    newest = 0
    while newest < 51:
        rev = next_map(sleeper)["rev"]
        assert rev > newest
        newest = rev


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"\x80\x1f\0\0\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\r\n\r\n", b"400"),
        (b"GET / HTTP/2.0\r\n\r\n", b"505"),
        (b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"x" * 20_000, b"431"),
        (b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"x" * 20_000 + b"\r\n\r\n", b"431"),
        (b"PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: 99999999999\r\n\r\n", b"413"),
        (b"PUT / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n", b"501"),
    ],
)
def test_nonsense_is_answered_and_closed(
    cluster: ProducerCluster, http: Connect, sent: bytes, status: bytes
) -> None:
    with raw(cluster.http_seeds[0]) as client:
        client.sendall(sent)
        answer = read_all(client)
    assert answer.startswith(b"HTTP/1.1 " + status)
    assert b"Connection: close" in answer
    assert ask(http(cluster.http_seeds[0]), "/whoami").status == 200


def test_half_a_request_is_no_request(cluster: ProducerCluster) -> None:
    with raw(cluster.http_seeds[0]) as client:
        client.sendall(b"GET / HTTP/1.1\r\nHost")
        client.shutdown(socket.SHUT_WR)
        assert read_all(client) == b""
