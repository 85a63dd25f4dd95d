"""The endpoints without a socket: a request in, a response out."""

import base64
import json
from http import HTTPStatus

import pytest

from dcp.producer.bucket import ProducerBucket
from dcp.producer.cluster_settings import ClusterSettings
from dcp.server.node.http_endpoints import respond
from dcp.server.node.http_messages import HttpRequest, HttpResponse


@pytest.fixture
def bucket() -> ProducerBucket:
    users = {"ada": "a:secret", "ben": ""}
    return ProducerBucket(
        ClusterSettings(nodes=2, vbuckets=4, bucket="my%bucket.1", users=users, seed=1)
    )


def basic(text: str) -> str:
    return "Basic " + base64.b64encode(text.encode()).decode()


def ask(
    bucket: ProducerBucket,
    path: str,
    *,
    method: str = "GET",
    authorization: str = basic("ada:a:secret"),
) -> HttpResponse:
    return respond(HttpRequest(method, path, authorization), bucket, 1)


def told(bucket: ProducerBucket, path: str) -> dict[str, object]:
    answer = ask(bucket, path)
    assert answer.status == HTTPStatus.OK
    assert answer.fields["Content-Type"] == "application/json"
    tree = json.loads(answer.body)
    assert isinstance(tree, dict)
    return tree


def test_who_am_i(bucket: ProducerBucket) -> None:
    assert told(bucket, "/whoami")["id"] == "ada"


def test_a_node_tells_its_figures(bucket: ProducerBucket) -> None:
    tree = told(bucket, "/figures.json")
    assert tree["connections"] == []
    producer = tree["producer"]
    assert isinstance(producer, dict) and producer["resident_bytes"] > 20 * 2**20
    assert producer["memory_bound_bytes"] == 0, "several nodes have no formula"
    answer = ask(bucket, "/metrics")
    assert answer.fields["Content-Type"].startswith("text/plain; version=0.0.4")
    lines = answer.body.decode().splitlines()
    assert "# TYPE dcp_server_acked_bytes_total counter" in lines
    assert "dcp_producer_memory_bound_bytes 0.0" in lines
    assert ask(bucket, "/metrics", authorization="").status == HTTPStatus.UNAUTHORIZED


def test_the_version_is_one_that_clients_can_compare(bucket: ProducerBucket) -> None:
    tree = told(bucket, "/pools")
    assert str(tree["implementationVersion"]).startswith("8.0.0-")
    assert isinstance(tree["pools"], list)


def test_the_bucket_is_its_map_and_more(bucket: ProducerBucket) -> None:
    tree = told(bucket, "/pools/default/buckets/my%25bucket.1")
    terse = json.loads(bucket.map.as_json(1))
    assert (tree["bucketType"], tree["storageBackend"]) == ("membase", "couchstore")
    assert {name: tree[name] for name in terse if name != "nodes"} == {
        name: value for name, value in terse.items() if name != "nodes"
    }
    assert isinstance(tree["nodes"], list)
    assert [node["status"] for node in tree["nodes"]] == ["healthy", "healthy"]


def test_the_map_is_a_stream(bucket: ProducerBucket) -> None:
    answer = ask(bucket, "/pools/default/bs/my%25bucket.1")
    assert (answer.status, answer.streams_map, answer.body) == (HTTPStatus.OK, True, b"")


@pytest.mark.parametrize(
    "authorization",
    [
        "",
        "Bearer x",
        "Basic",
        "Basic ?",
        basic("ada"),
        basic("ada:wrong"),
        basic("eve:"),
        basic("ben"),
        basic("x\0ada:a:secret"),
    ],
)
@pytest.mark.parametrize("path", ["/whoami", "/nosuch"])
def test_who_is_not_known_learns_nothing(
    bucket: ProducerBucket, path: str, authorization: str
) -> None:
    answer = ask(bucket, path, authorization=authorization)
    assert answer.status == HTTPStatus.UNAUTHORIZED
    assert answer.fields["WWW-Authenticate"].startswith("Basic ")


def test_an_empty_password_is_one(bucket: ProducerBucket) -> None:
    assert ask(bucket, "/whoami", authorization=basic("ben:")).status == HTTPStatus.OK


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/whoami/",
        "/pools/",
        "/pools/default/bs/other",
        "/pools/default/bs/my%bucket.1/1",
        "//whoami",
    ],
)
def test_what_there_is_not(bucket: ProducerBucket, path: str) -> None:
    assert ask(bucket, path).status == HTTPStatus.NOT_FOUND


@pytest.mark.parametrize("method", ["POST", "DELETE", "get"])
def test_nothing_can_be_changed(bucket: ProducerBucket, method: str) -> None:
    answer = ask(bucket, "/whoami", method=method)
    assert (answer.status, answer.fields["Allow"]) == (HTTPStatus.METHOD_NOT_ALLOWED, "GET, HEAD")
