"""Settings of a cluster: what cannot be is refused, with what was found and what is expected."""

import pytest

from dcp.errors import ConfigError
from dcp.producer.cluster_settings import ClusterSettings
from dcp.tls_settings import TlsSettings


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"nodes": 0}, "nodes (--nodes): found 0 (int), expected an integer from 1 to 128"),
        ({"nodes": 129}, "nodes (--nodes): found 129 (int), expected an integer from 1 to 128"),
        (
            {"vbuckets": 0},
            "vbuckets (--vbuckets): found 0 (int), expected an integer from 1 to 1024",
        ),
        (
            {"vbuckets": 1025},
            "vbuckets (--vbuckets): found 1025 (int), expected an integer from 1 to 1024",
        ),
        ({"port": 65536}, "port (--port): found 65536 (int), expected an integer from 0 to 65535"),
        (
            {"http_port": "1"},
            "http_port (--http-port): found '1' (str), expected a number from 0 to 65535",
        ),
        ({"nodes": 2, "port": 65535}, "port (--port): found 65536, expected 0 to 65535"),
        (
            {"port": 9000, "http_port": 9000},
            "port, http_port (--port, --http-port): found 9000 twice",
        ),
        (
            {"nodes": 2, "port": 9000, "http_port": 9001},
            "port, http_port (--port, --http-port): found 9001 twice",
        ),
        ({"tls": TlsSettings()}, "tls.cert_file (--tls-cert): found no certificate, expected"),
        (
            {"tls_port": 9000},
            "tls_port, https_port (--tls-port, --https-port): found some, expected",
        ),
        ({"bucket": ""}, "bucket (--bucket): found '' (str), expected a non-empty text"),
        ({"bucket": "a b"}, "bucket (--bucket): found name 'a b', expected"),
        ({"bucket": "a/b"}, "bucket (--bucket): found name 'a/b', expected"),
        ({"bucket": "\xfc"}, "bucket (--bucket): found name '\xfc', expected"),
        ({"bucket": "a" * 101}, "expected 1 to 100 of the characters"),
        ({"users": {}}, "users: found none"),
        ({"users": {"a": "1", "": "2"}}, "users: found '', expected a name"),
        ({"users": {"@replication": "1"}}, "users: found '@replication', expected a name that"),
        ({"rebalance_timeout_seconds": -1.0}, "rebalance_timeout_seconds: found -1.0 (float)"),
        (
            {"administrators": frozenset({"root", "x"})},
            "administrators: found 'root', expected one of Administrator",
        ),
        ({"unpersisted_seqnos": -1}, "unpersisted_seqnos: found -1 (int)"),
        (
            {"prepare_extra_bytes": -1},
            "prepare_extra_bytes (--prepare-extra-bytes): found -1 (int)",
        ),
        (
            {"rules": "mine"},
            'rules (--rules): found \'mine\' (str), expected one of "document", "server"',
        ),
    ],
)
def test_impossible_settings_are_refused(settings: dict[str, object], told: str) -> None:
    with pytest.raises(ConfigError) as caught:
        ClusterSettings(**settings)  # type: ignore[arg-type]  # each value is of some field's type
    assert str(caught.value).startswith("producer ")
    assert told in str(caught.value)


@pytest.mark.parametrize("name", ["default", "travel-sample", "a.b_c%20", "a" * 100])
def test_names_of_buckets(name: str) -> None:
    assert ClusterSettings(bucket=name).bucket == name
