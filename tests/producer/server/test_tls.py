"""The producer's own TLS: what it shows, what it carries, and what a client's nonsense costs."""

import json
import socket
import ssl
from collections.abc import Callable

import pytest

from dcp.errors import ConfigError
from dcp.producer.cluster import ProducerCluster
from dcp.tls_settings import TlsSettings
from dcp.wire import messages as m
from dcp.wire.vocabulary import Opcode, Status
from tests.producer.raw_client import RawClient
from tests.producer.tls import CERTIFICATE, KEY, TLS_FILES, client_context

MakeCluster = Callable[..., ProducerCluster]


@pytest.fixture
def cluster(make_cluster: MakeCluster) -> ProducerCluster:
    return make_cluster(nodes=2, vbuckets=1, tls=TLS_FILES)


def _port(seed: str) -> int:
    return int(seed.rsplit(":", 1)[1])


def test_the_map_names_the_encrypted_ports(cluster: ProducerCluster) -> None:
    with RawClient(cluster.tls_seeds[1], tls=client_context()) as client:
        config = client.log_in().ok(m.GetClusterConfig(), Opcode.GET_CLUSTER_CONFIG)
    assert isinstance(config, m.Text)
    assert [node["services"] for node in json.loads(config.value)["nodesExt"]] == [
        {
            "mgmt": _port(cluster.http_seeds[node]),
            "mgmtSSL": _port(cluster.https_seeds[node]),
            "kv": _port(cluster.seeds[node]),
            "kvSSL": _port(cluster.tls_seeds[node]),
        }
        for node in (0, 1)
    ]


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_a_stream_larger_than_any_buffer(cluster: ProducerCluster, version: ssl.TLSVersion) -> None:
    values = {b"k%d" % number: bytes([number]) * 700_000 for number in range(6)}
    for key, value in values.items():
        cluster.set(key, value)
    context = client_context()
    context.minimum_version = context.maximum_version = version
    with RawClient(cluster.tls_seeds[0], tls=context) as client:
        client.log_in().open_dcp()
        client.request_stream(0)
        messages = client.messages_to(6)
    mutations = [message for message in messages if isinstance(message, m.Mutation)]
    assert {message.key.lstrip(b"\0"): message.value for message in mutations} == values


def test_plain_is_enough_for_a_password(cluster: ProducerCluster) -> None:
    with RawClient(cluster.tls_seeds[0], tls=client_context()) as client:
        plain = m.Sasl(b"PLAIN", b"\0Administrator\0password")
        assert client.call(plain, Opcode.SASL_AUTH).status == Status.SUCCESS


@pytest.mark.parametrize(
    "nonsense", [b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\xff\xff" + bytes(90), b""]
)
def test_who_speaks_no_tls_is_closed_alone(cluster: ProducerCluster, nonsense: bytes) -> None:
    with RawClient(cluster.tls_seeds[0], tls=client_context()) as well:
        with socket.create_connection(("127.0.0.1", _port(cluster.tls_seeds[0])), 10.0) as other:
            other.sendall(nonsense)
            other.shutdown(socket.SHUT_WR)
            while other.recv(4096):
                pass
        assert well.log_in().call(m.Empty(), Opcode.NOOP).status == Status.SUCCESS
    assert cluster.counters().connections_closed_for_errors == 0


def test_a_restored_node_has_its_encrypted_port_again(cluster: ProducerCluster) -> None:
    seeds = cluster.tls_seeds
    cluster.kill_node(1)
    with pytest.raises(ConnectionRefusedError):
        RawClient(seeds[1])
    cluster.restore_node(1)
    assert cluster.tls_seeds == seeds
    with RawClient(seeds[1], tls=client_context()) as client:
        assert client.log_in().call(m.Empty(), Opcode.NOOP).status == Status.SUCCESS


@pytest.mark.parametrize(
    ("cert_file", "key_file"), [("nosuch.pem", KEY), (CERTIFICATE, CERTIFICATE), (CERTIFICATE, "")]
)
def test_a_certificate_that_cannot_be_used_is_named(
    make_cluster: MakeCluster, cert_file: str, key_file: str
) -> None:
    with pytest.raises(ConfigError, match=r"certificate '.*' and its key: .*expected both in PEM"):
        make_cluster(tls=TlsSettings(cert_file=cert_file, key_file=key_file))


def test_without_tls_there_are_no_such_ports(make_cluster: MakeCluster) -> None:
    plain = make_cluster()
    assert (plain.tls_seeds, plain.https_seeds) == ([], [])
