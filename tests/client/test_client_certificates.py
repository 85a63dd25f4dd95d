"""Certificates of both sides: names that are checked, and clients whose certificate signs them in.

The producer asks clients for certificates as servers do whose ``clientCertAuth`` is ``enable`` or
``mandatory``; whoever its certificate signs in may not use SASL, which it refuses.
"""

from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from dcp.client.addresses import NodeAddress
from dcp.client.connection import NodeConnection
from dcp.client.probe import probe_cluster
from dcp.client.settings import ConnectionSettings
from dcp.errors import AuthenticationError, BucketError, ConfigError, NodeUnavailableError
from dcp.producer.cluster import ProducerCluster
from dcp.protocol.credentials import Credentials
from dcp.protocol.position import Position
from dcp.tls_settings import TlsSettings
from tests.client.conftest import MakeCluster
from tests.client.drained import CREDENTIALS, Drained, all_of, assert_same_state, caught_up, fill
from tests.producer.tls import CERTIFICATE, ENCRYPTED, READER, STRANGER, TLS_FILES

BY_CERTIFICATE = Credentials.of_certificate()
ASKED = replace(TLS_FILES, ca_file=CERTIFICATE)
REQUIRED = replace(ASKED, requires_client_certificate=True)


def settings(cert_file: str = "", key_file: str = "") -> ConnectionSettings:
    return ConnectionSettings("default", tls=TlsSettings(CERTIFICATE, cert_file, key_file))


def open_first(
    cluster: ProducerCluster, chosen: ConnectionSettings, credentials: Credentials
) -> NodeConnection:
    address = NodeAddress.parse(cluster.tls_seeds[0])
    connection = NodeConnection(address, chosen, credentials, "certified")
    connection.open()
    return connection


@pytest.mark.parametrize("files", [ASKED, REQUIRED], ids=["enable", "mandatory"])
def test_a_certificate_signs_in(make_cluster: MakeCluster, files: object) -> None:
    cluster = make_cluster(vbuckets=2, tls=files)
    fill(cluster, 100)
    connection = open_first(cluster, settings(READER), BY_CERTIFICATE)
    try:
        for vbucket in all_of(cluster):
            connection.open_stream(vbucket, Position.beginning())
        assert_same_state(cluster, Drained().run(connection, caught_up(cluster)))
    finally:
        connection.close()


def test_a_certificate_signs_in_over_http(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(tls=REQUIRED)
    seeds = [f"couchbases://{cluster.https_seeds[0]}?bootstrap_on=http"]
    probed = probe_cluster(seeds, settings(READER), BY_CERTIFICATE)
    assert [str(node) for node in probed.map.addresses] == cluster.tls_seeds
    with pytest.raises(AuthenticationError, match=r"status 401 .*client certificate names"):
        probe_cluster(seeds, settings(STRANGER), BY_CERTIFICATE)


def test_the_key_may_be_in_a_file_of_its_own_and_files_may_be_replaced(
    make_cluster: MakeCluster, tmp_path: Path
) -> None:
    cluster = make_cluster(tls=REQUIRED)
    certificate, key = tmp_path / "tls.crt", tmp_path / "tls.key"

    def write(file: str) -> None:
        text = Path(file).read_text()
        begin = text.index("-----BEGIN PRIVATE KEY")
        certificate.write_text(text[:begin])
        key.write_text(text[begin:])

    chosen = settings(str(certificate), str(key))
    write(STRANGER)
    with pytest.raises(NodeUnavailableError, match="user that the client certificate names"):
        open_first(cluster, chosen, BY_CERTIFICATE)
    write(READER)
    open_first(cluster, chosen, BY_CERTIFICATE).close()


def test_a_certificate_of_nobody_is_told(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(tls=ASKED)
    with pytest.raises(BucketError, match=r"Not authenticated.*the user that the client cert"):
        open_first(cluster, settings(STRANGER), BY_CERTIFICATE)
    open_first(cluster, settings(STRANGER), CREDENTIALS).close()  # who signs in all the same


def test_who_has_a_certificate_needs_no_password(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(tls=ASKED)
    with pytest.raises(AuthenticationError, match=r"SASL_LIST_MECHS: found .* NOT_SUPPORTED"):
        open_first(cluster, settings(READER), CREDENTIALS)


def test_no_certificate_where_one_is_needed_is_told(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(tls=REQUIRED)
    with pytest.raises(AuthenticationError, match=r"certificate required.*source\.tls_cert_file"):
        open_first(cluster, settings(), CREDENTIALS)
    plain = NodeAddress.parse(cluster.seeds[0])
    with closing(NodeConnection(plain, ConnectionSettings("default"), CREDENTIALS, "plain")) as it:
        it.open()


def test_a_certificate_of_another_authority_is_told(
    make_cluster: MakeCluster, tmp_path: Path
) -> None:
    alone = tmp_path / "alone.pem"
    alone.write_text(Path(READER).read_text())
    cluster = make_cluster(tls=replace(REQUIRED, ca_file=str(alone)))
    with pytest.raises(AuthenticationError, match=r"source\.tls_cert_file"):
        open_first(cluster, settings(STRANGER), BY_CERTIFICATE)


@pytest.mark.parametrize("file", [CERTIFICATE, ENCRYPTED, "/no-such-file.pem"])
def test_a_certificate_or_key_that_cannot_be_used_is_named(file: str) -> None:
    """OpenSSL would ask the terminal for the password of an encrypted key."""
    with pytest.raises(ConfigError, match=r"certificate '.*\.pem' and its key: .* not encrypted"):
        TlsSettings(CERTIFICATE, file).client_context()


def test_a_node_of_another_name_is_refused(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(tls=TLS_FILES, host="127.0.0.2")
    told = r"found a certificate of 127\.0\.0\.1, localhost, expected one of '127\.0\.0\.2'"
    with pytest.raises(NodeUnavailableError, match=told):
        open_first(cluster, settings(), CREDENTIALS)
