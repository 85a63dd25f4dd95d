"""Addresses: every written form, and a clear refusal of what is none."""

import pytest

from dcp.client.addresses import NodeAddress, parse_seeds
from dcp.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("127.0.0.1:11999", "127.0.0.1", 11999),
        ("db1.example.com", "db1.example.com", 11210),
        (" db1:1 ", "db1", 1),
        ("[::1]:12000", "::1", 12000),
        ("[fe80::2]", "fe80::2", 11210),
        ("::1", "::1", 11210),
        ("[fe80::2%eth0]:1", "fe80::2%eth0", 1),
        ("couchbase://db1", "db1", 11210),
        ("couchbase://[::1]:12000/", "::1", 12000),
    ],
)
def test_parses_and_prints_every_form(text: str, host: str, port: int) -> None:
    address = NodeAddress.parse(text)
    assert address == NodeAddress(host, port)
    assert NodeAddress.parse(str(address)) == address


@pytest.mark.parametrize(
    "text",
    [
        "",
        ":11210",
        "db1:",
        "db1:http",
        "db1:0",
        "db1:65536",
        "db1:-1",
        "[::1",
        "[::1]x",
        "a b:1",
        "http://db1",
        "couchbase://db1/travel",
        "couchbases://db1",
        "db1,db2",
        "db1:8091",
        "db1:18091",
        "db1:１１",
        "a:b:c",
        "[a:b]:1",
        "1:2:3:11210",
        '["db1:1"]',
    ],
)
def test_refuses_what_is_no_address_and_quotes_it(text: str) -> None:
    with pytest.raises(ConfigError, match="node address") as caught:
        NodeAddress.parse(text)
    assert repr(text) in str(caught.value)
    assert str(caught.value).count("node address") == 1


def test_a_user_in_an_address_is_refused_and_its_password_is_not_told() -> None:
    with pytest.raises(ConfigError, match=r"address 'db1:1': found a user in it") as caught:
        NodeAddress.parse("couchbase://user:secret@db1:1")
    assert "secret" not in str(caught.value)


def test_tls_decides_the_port_that_is_not_named() -> None:
    for text in ("db1", "couchbases://db1", "couchbase://db1"):
        assert NodeAddress.parse(text, tls=True) == NodeAddress("db1", 11207)
    with pytest.raises(ConfigError, match=r"couchbases://, which is TLS, .*source\.tls = true"):
        NodeAddress.parse("couchbases://db1")


def test_seeds_are_not_repeated_and_not_empty() -> None:
    assert parse_seeds(["b:2", "a:1", "b:2"]) == (NodeAddress("b", 2), NodeAddress("a", 1))
    with pytest.raises(ConfigError, match="at least one"):
        parse_seeds([])
