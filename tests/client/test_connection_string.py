"""Connection strings, as SDK-RFC 11 has them: hosts, encryption, options, and what is refused."""

import pytest

from dcp.errors import ConfigError
from dcp.seeds import ConnectionString, parse_seed


@pytest.mark.parametrize(
    ("seeds", "addresses"),
    [
        (["couchbase://h1,h2:11999,[::1]"], [("h1", 11210), ("h2", 11999), ("::1", 11210)]),
        (["couchbase://h1", "h2:11999"], [("h1", 11210), ("h2", 11999)]),
        (["couchbase://h1/", "couchbase://h2/"], [("h1", 11210), ("h2", 11210)]),
        (["couchbases://h1,h2:1"], [("h1", 11207), ("h2", 1)]),
        (["h1", "couchbases://h2"], [("h1", 11207), ("h2", 11207)]),
        (["h1:8091", "h2:8091"], [("h1", 8091), ("h2", 8091)]),
        (["couchbases://h1:18091"], [("h1", 18091)]),
        (["couchbase://h1,h2:9000?bootstrap_on=http"], [("h1", 8091), ("h2", 9000)]),
        (["couchbase://h1?bootstrap_on=cccp"], [("h1", 11210)]),
    ],
)
def test_hosts_and_ports(seeds: list[str], addresses: list[tuple[str, int]]) -> None:
    found = ConnectionString.parse(seeds)
    assert list(found.addresses) == addresses
    assert found.tls == any("couchbases" in seed for seed in seeds)
    assert found.over_http == any("091" in seed or "=http" in seed for seed in seeds)


@pytest.mark.parametrize(
    ("seeds", "network"),
    [
        (["couchbase://h1,h2?network=external"], "external"),
        (["couchbase://h1?network=default", "h2"], "default"),
        (["couchbase://h1/?bootstrap_on=http&network=vpn"], "vpn"),
        (["couchbase://h1"], "auto"),
    ],
)
def test_the_network_is_an_option(seeds: list[str], network: str) -> None:
    assert ConnectionString.parse(seeds).network == network


@pytest.mark.parametrize(
    ("seeds", "name"),
    [
        (["couchbase://cb.example.com"], "_couchbase._tcp.cb.example.com"),
        (["couchbases://cb.example.com?network=external"], "_couchbases._tcp.cb.example.com"),
        (["cb.example.com"], ""),
        (["couchbase://cb.example.com:11210"], ""),
        (["couchbase://h1,h2"], ""),
        (["couchbase://10.0.0.1"], ""),
        (["couchbase://[::1]"], ""),
        (["couchbase://cb?bootstrap_on=http"], ""),
    ],
)
def test_one_host_without_a_port_may_have_srv_records(seeds: list[str], name: str) -> None:
    assert ConnectionString.parse(seeds).srv_name == name


def test_encryption_that_is_set_beside_it_counts_as_well() -> None:
    found = ConnectionString.parse(["couchbase://cb"], tls=True)
    assert (found.addresses, found.srv_name) == ((("cb", 11207),), "_couchbases._tcp.cb")


@pytest.mark.parametrize(
    ("seeds", "message"),
    [
        ([], "found none, expected at least one"),
        (["couchbase://h1,"], "found host ''"),
        (["http://h1"], "found http://"),
        (["couchbase://[::1"], "found '[' without ']', expected an IPv6 host in brackets, as [::1"),
        (["[::1]11210"], "found '11210' behind ']', expected an IPv6 host in brackets"),
        (["couchbase://h1/travel"], "found '/travel' behind the address"),
        (["couchbase://h1?compression=on"], "found option 'compression', expected network or"),
        (["couchbase://h1?network="], "option network: found ''"),
        (["couchbase://h1?bootstrap_on=both"], "option bootstrap_on: found 'both', expected cccp"),
        (["couchbase://h1", "couchbases://h2"], "found couchbase:// and couchbases://"),
        (["couchbases://h1:8091"], "found port 8091, where nodes speak HTTP without TLS"),
        (["h1:18091"], "found port 18091, where nodes speak HTTP with TLS"),
        (["h1:8091", "h2"], "among ports of the data service"),
        (["couchbase://h1:8091?bootstrap_on=cccp"], "among ports of the data service"),
        (["couchbase://h1:11210?bootstrap_on=http"], "port 11210, the data service's, with boot"),
    ],
)
def test_what_is_none_is_refused_by_name(seeds: list[str], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        ConnectionString.parse(seeds)
    assert message in str(caught.value)


@pytest.mark.parametrize("password", ["secret", "sec,ret", "sec:ret,x", "sec://ret", "sec/ret"])
def test_a_password_in_it_is_refused_and_not_told(password: str) -> None:
    with pytest.raises(ConfigError, match="found a user in it") as caught:
        ConnectionString.parse([f"couchbase://user:{password}@h1"])
    assert "sec" not in str(caught.value)
    with pytest.raises(ConfigError, match="found a user in it") as caught:
        ConnectionString.parse(f"couchbase://user:{password}@h1,h2".split(","))
    assert "sec" not in str(caught.value)


@pytest.mark.parametrize("text", ["couchbase://h1/travel?password=secret", "h1?password=secret"])
def test_what_is_behind_a_question_mark_is_not_told(text: str) -> None:
    for read in (lambda: ConnectionString.parse([text]), lambda: parse_seed(text)):
        with pytest.raises(ConfigError, match="expected") as caught:
            read()
        assert "secret" not in str(caught.value)
