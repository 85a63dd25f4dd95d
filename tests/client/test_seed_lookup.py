"""Data nodes to begin with: by DNS SRV records, and by the map that a node tells over HTTP."""

import json
import socket
from collections.abc import Mapping, Sequence
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread

import pytest

from dcp.client.addresses import NodeAddress
from dcp.client.probe import probe_cluster
from dcp.client.seed_lookup import FoundSeeds, find_seeds
from dcp.client.settings import ConnectionSettings
from dcp.errors import (
    AuthenticationError,
    BucketError,
    ConfigError,
    NodeUnavailableError,
    RemoteProtocolError,
)
from dcp.producer.cluster import ProducerCluster
from dcp.protocol.credentials import ALL_MECHANISMS, Credentials, Secret
from dcp.tls_settings import TlsSettings
from tests.client.conftest import MakeCluster
from tests.client.dns_server import dns_server
from tests.client.drained import CREDENTIALS, all_of, fill
from tests.producer.tls import CERTIFICATE, TLS_FILES

SETTINGS = ConnectionSettings("default")
ENCRYPTED = replace(SETTINGS, tls=TlsSettings(CERTIFICATE))
PLAINLY = Credentials("reader", Secret("secret-of-reader"), ALL_MECHANISMS)
NAME, TLS_NAME = "_couchbase._tcp.cb.test", "_couchbases._tcp.cb.test"


def port_of(seed: str) -> int:
    return int(seed.rpartition(":")[2])


def over_http(seeds: Sequence[str], scheme: str = "couchbase") -> list[str]:
    return [f"{scheme}://{','.join(seeds)}?bootstrap_on=http"]


@pytest.mark.parametrize("encrypted", [False, True])
def test_srv_records_name_the_nodes(make_cluster: MakeCluster, encrypted: bool) -> None:
    cluster = make_cluster(nodes=2, tls=TLS_FILES)
    fill(cluster, 100)
    first, second = cluster.tls_seeds if encrypted else cluster.seeds
    records = {
        TLS_NAME if encrypted else NAME: [
            f"20 1 {port_of(second)} localhost.",
            f"10 1 {port_of(first)} localhost.",
        ]
    }
    seed = f"couchbase{'s' if encrypted else ''}://cb.test"
    settings = ENCRYPTED if encrypted else SETTINGS
    with dns_server(records) as resolver:
        found = find_seeds([seed], settings, CREDENTIALS, resolver)
    nodes = tuple(NodeAddress("localhost", port_of(each)) for each in (first, second))
    assert found.nodes == nodes
    (name,) = records
    assert found.lookup == f"SRV records {name}: {nodes[0]}, {nodes[1]}"
    probed = probe_cluster([str(each) for each in found.nodes], settings, CREDENTIALS)
    assert probed.high_seqnos == {v: cluster.high_seqno(v) for v in all_of(cluster)}


@pytest.mark.parametrize(
    ("records", "answers"),
    [({}, True), ({NAME: []}, True), ({NAME: ["0 0 0 cb1.test."]}, True), ({}, False)],
    ids=["no such name", "no such record", "no port", "no answer"],
)
def test_without_records_the_host_is_a_node(
    records: Mapping[str, Sequence[str]], answers: bool
) -> None:
    settings = replace(SETTINGS, connect_timeout_seconds=0.3 if not answers else 10.0)
    with dns_server(records, answers=answers) as resolver:
        found = find_seeds(["couchbase://cb.test"], settings, CREDENTIALS, resolver)
    assert found.nodes == (NodeAddress("cb.test", 11210),)
    assert found.lookup.startswith(f"SRV records {NAME}: found none (")
    assert found.lookup.endswith("), so cb.test:11210 itself is the node")


def test_a_lookup_without_records_is_told_where_the_host_is_no_node_either() -> None:
    with pytest.raises(NodeUnavailableError) as caught:
        probe_cluster(["couchbase://nowhere.invalid"], SETTINGS, CREDENTIALS)
    assert "SRV records _couchbase._tcp.nowhere.invalid: found none (" in str(caught.value)


def test_hosts_with_a_port_and_lists_are_not_looked_up() -> None:
    with dns_server({NAME: ["0 0 1 wrong.test."]}) as resolver:
        for seeds in (["couchbase://cb.test:11210"], ["cb.test"], ["couchbase://cb.test,cb.test"]):
            found = find_seeds(seeds, SETTINGS, CREDENTIALS, resolver)
            assert found == FoundSeeds((NodeAddress("cb.test", 11210),))


@pytest.mark.parametrize("encrypted", [False, True])
def test_a_map_over_http_names_the_nodes(make_cluster: MakeCluster, encrypted: bool) -> None:
    cluster = make_cluster(nodes=2, tls=TLS_FILES)
    fill(cluster, 100)
    if encrypted:
        seeds, settings = over_http(cluster.https_seeds, "couchbases"), ENCRYPTED
        credentials, nodes = CREDENTIALS, cluster.tls_seeds
    else:
        seeds, settings = over_http(cluster.http_seeds), SETTINGS
        credentials, nodes = PLAINLY, cluster.seeds
    probed = probe_cluster(seeds, settings, credentials)
    assert [str(node) for node in probed.map.addresses] == nodes
    assert probed.high_seqnos == {v: cluster.high_seqno(v) for v in all_of(cluster)}


@pytest.mark.skipif(not socket.has_ipv6, reason="no IPv6")
@pytest.mark.parametrize("form", ["{}", "couchbase://{}", "{http}"])
def test_seeds_may_be_ipv6_addresses(make_cluster: MakeCluster, form: str) -> None:
    cluster = make_cluster(nodes=2, host="::1")
    fill(cluster, 100)
    [http] = over_http(cluster.http_seeds)
    probed = probe_cluster([form.format(cluster.seeds[0], http=http)], SETTINGS, PLAINLY)
    assert [str(node) for node in probed.map.addresses] == cluster.seeds
    assert probed.high_seqnos == {v: cluster.high_seqno(v) for v in all_of(cluster)}


def test_another_host_is_asked_over_http_where_one_does_not_answer(
    make_cluster: MakeCluster,
) -> None:
    cluster = make_cluster(nodes=2)
    cluster.kill_node(0)
    found = find_seeds(over_http(cluster.http_seeds), SETTINGS, PLAINLY)
    assert [str(node) for node in found.nodes] == cluster.seeds
    answered = f"http://{cluster.http_seeds[1]}/pools/default/b/default"
    assert found.lookup == f"{answered}: {', '.join(cluster.seeds)}"
    asked = f"http://{cluster.http_seeds[0]}/pools/default/b/default"
    told = rf"none of 1 seeds answers: {asked}: .*efused, expected a cluster manager .* 8091"
    with pytest.raises(NodeUnavailableError, match=told):
        find_seeds(over_http(cluster.http_seeds[:1]), SETTINGS, PLAINLY)


def test_the_password_is_not_sent_over_plain_http_unless_that_is_allowed(
    make_cluster: MakeCluster,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        nobody.settimeout(0.2)
        seeds = over_http([f"127.0.0.1:{nobody.getsockname()[1]}"])
        with pytest.raises(ConfigError, match=r"source\.allow_plain.*sends the password as it is"):
            find_seeds(seeds, SETTINGS, CREDENTIALS)
        with pytest.raises(TimeoutError):
            nobody.accept()


@pytest.mark.parametrize(
    ("user", "bucket", "error", "message"),
    [
        ("reader", "default", AuthenticationError, "status 401 .*check the name 'reader'"),
        ("reader", "absent", AuthenticationError, "status 401"),
        ("", "absent", BucketError, "status 404 .*expected bucket 'absent' to exist"),
    ],
)
def test_refusals_over_http_are_told(
    make_cluster: MakeCluster, user: str, bucket: str, error: type[Exception], message: str
) -> None:
    cluster = make_cluster()
    wrong = Credentials("reader", Secret("not-the-password"), ALL_MECHANISMS)
    settings = ConnectionSettings(bucket)
    with pytest.raises(error, match=message) as caught:
        find_seeds(over_http(cluster.http_seeds), settings, wrong if user else PLAINLY)
    assert "not-the-password" not in str(caught.value)


NO_DATA_NODES = {
    "name": "default",
    "rev": 1,
    "nodes": [{}],
    "nodesExt": [{"services": {"mgmt": 8091}}],
    "vBucketServerMap": {"vBucketMap": [[0]]},
}
FORBIDDEN = b'{"message":"Forbidden. User needs one of the following permissions"}'


@pytest.mark.parametrize(
    ("status", "body", "error", "message"),
    [
        (403, FORBIDDEN, BucketError, "User needs one of .* Data DCP Reader"),
        (500, b"\x1b[2J", NodeUnavailableError, r"status 500 \('\\x1b\[2J'\), expected status 200"),
        (200, b"<html>", RemoteProtocolError, "found 6 bytes that are no JSON"),
        (200, json.dumps(NO_DATA_NODES).encode(), NodeUnavailableError, "found no data node with"),
    ],
)
def test_answers_over_http_that_are_no_map(
    status: int, body: bytes, error: type[Exception], message: str
) -> None:
    class Answering(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Nothing goes to the terminal."""

    with HTTPServer(("127.0.0.1", 0), Answering) as server:
        thread = Thread(target=server.handle_request)
        thread.start()
        with pytest.raises(error, match=message):
            find_seeds(over_http([f"127.0.0.1:{server.server_port}"]), SETTINGS, PLAINLY)
        thread.join()


def test_a_port_without_http_is_told(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(tls=TLS_FILES)
    quick = replace(SETTINGS, connect_timeout_seconds=1.0)
    for seed in (cluster.seeds[0], cluster.tls_seeds[0]):
        with pytest.raises(NodeUnavailableError, match=f"http://{seed}/pools/default/b/default: "):
            find_seeds(over_http([seed]), quick, PLAINLY)
    told = r"does not use TLS; expected the HTTP port of the cluster manager: 8091, or 18091"
    with pytest.raises(NodeUnavailableError, match=told) as caught:
        find_seeds(over_http(cluster.http_seeds[:1], "couchbases"), ENCRYPTED, CREDENTIALS)
    assert str(caught.value).count("expected") == 1


def test_encryption_that_is_not_set_up_is_refused() -> None:
    with pytest.raises(ConfigError, match="couchbases://"):
        find_seeds(["couchbases://db1"], SETTINGS, CREDENTIALS)


def test_the_external_network_is_that_of_the_seed(make_cluster: MakeCluster) -> None:
    cluster: ProducerCluster = make_cluster(nodes=2, external_host="localhost")
    external = [f"localhost:{port_of(seed)}" for seed in cluster.seeds]
    for seeds, network, nodes in (
        (cluster.seeds, "auto", cluster.seeds),
        (external, "auto", external),
        (external[:1], "default", cluster.seeds),
        (cluster.seeds[:1], "external", external),
    ):
        chosen = replace(SETTINGS, network=network)
        probed = probe_cluster(seeds, chosen, CREDENTIALS)
        assert [str(node) for node in probed.map.addresses] == nodes
        assert not probed.unreachable
    with pytest.raises(ConfigError, match="of network default, external, expected 'lan'"):
        probe_cluster(cluster.seeds, replace(SETTINGS, network="lan"), CREDENTIALS)
