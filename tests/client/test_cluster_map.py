"""The cluster map: every shape that servers send, and errors that name the field."""

import json
from typing import Any

import pytest

from dcp.client.addresses import NodeAddress
from dcp.client.cluster_map import ClusterMap
from dcp.errors import ConfigError, RemoteProtocolError

SENDER = NodeAddress("10.0.0.9", 11210)


def config(**changes: Any) -> dict[str, Any]:
    document: dict[str, Any] = {
        "rev": 1017,
        "revEpoch": 1,
        "name": "travel",
        "uuid": "4afb61e272f216988af8056bcc5965ff",
        "nodeLocator": "vbucket",
        "bucketCapabilities": ["collections", "dcp"],
        "nodes": [{"hostname": "$HOST:8091"}, {"hostname": "b:8091"}],
        "nodesExt": [
            {"services": {"mgmt": 8091, "kv": 11210, "kvSSL": 11207}, "thisNode": True},
            {"services": {"mgmt": 8091, "kv": 12000, "kvSSL": 12007}, "hostname": "b"},
            {"services": {"mgmt": 8091, "n1ql": 8093}, "hostname": "query-only"},
        ],
        "vBucketServerMap": {
            "hashAlgorithm": "CRC",
            "numReplicas": 0,
            "serverList": ["$HOST:11210", "b:12000"],
            "vBucketMap": [[0], [1, 0], [-1], [1]],
        },
    }
    document.update(changes)
    return {name: value for name, value in document.items() if value is not ...}


def parse(document: object, *, tls: bool = False, **more: Any) -> ClusterMap:
    sender = more.pop("sender", SENDER)
    return ClusterMap.parse(json.dumps(document).encode(), sender, tls=tls, **more)


def test_reads_owners_revision_and_identity() -> None:
    found = parse(config())
    assert found.vbucket_count == 4
    assert [found.owner(vbucket) for vbucket in range(4)] == [
        NodeAddress("10.0.0.9", 11210),
        NodeAddress("b", 12000),
        None,
        NodeAddress("b", 12000),
    ]
    assert (found.bucket, found.epoch, found.rev) == ("travel", 1, 1017)
    assert found.bucket_uuid.startswith("4afb")
    assert len(found.nodes) == 2, "a node beyond len(nodes) serves no vbuckets"


def test_reads_replicas_in_order_and_leaves_out_nodes_that_are_none() -> None:
    document = config()
    document["vBucketServerMap"]["vBucketMap"] = [[0, 1, -1], [-1, 0, 1]]
    found = parse(document)
    assert [len(found.replica_nodes(vbucket)) for vbucket in (0, 1, 7)] == [1, 2, 0]
    assert found.replica_nodes(0) == found.nodes[1:]
    assert found.replica_nodes(1) == found.nodes
    assert found.owner(1) is None


def test_tls_takes_the_tls_ports() -> None:
    assert parse(config(), tls=True).owner(1) == NodeAddress("b", 12007)


def test_a_node_without_the_wanted_port_owns_nothing_that_can_be_reached() -> None:
    document = config()
    del document["nodesExt"][1]["services"]["kvSSL"]
    assert parse(document, tls=True).owner(1) is None
    assert parse(document, tls=True).addresses == (NodeAddress("10.0.0.9", 11207),)


def with_alternates() -> dict[str, Any]:
    """Two data nodes behind one host with mapped ports, and another name without ports."""
    document = config()
    first, second = document["nodesExt"][:2]
    ports = {"mgmt": 32790, "kv": 32775, "kvSSL": 32776}
    first["alternateAddresses"] = {"external": {"hostname": "out.example", "ports": ports}}
    second["alternateAddresses"] = {
        "external": {"hostname": "out2.example"},
        "vpn": {"hostname": "vpn.example", "ports": {"mgmt": 1}},
    }
    return document


OUTSIDE = (NodeAddress("out.example", 32775), NodeAddress("out2.example", 12000))
INSIDE = (NodeAddress("10.0.0.9", 11210), NodeAddress("b", 12000))


@pytest.mark.parametrize(
    ("sender", "network", "nodes"),
    [
        (SENDER, "auto", INSIDE),
        (NodeAddress("b", 12000), "auto", (NodeAddress("b", 11210), INSIDE[1])),
        (OUTSIDE[0], "auto", OUTSIDE),
        (NodeAddress("OUT2.example", 12000), "auto", OUTSIDE),
        (NodeAddress("out.example", 32790), "auto", OUTSIDE),
        (NodeAddress("out.example", 443), "auto", OUTSIDE),
        (OUTSIDE[0], "default", (NodeAddress("out.example", 11210), INSIDE[1])),
        (SENDER, "external", OUTSIDE),
        (SENDER, "vpn", (None, None)),
        (NodeAddress("elsewhere", 11210), "auto", (NodeAddress("elsewhere", 11210), INSIDE[1])),
    ],
)
def test_addresses_are_those_of_the_network_where_the_sender_is_found(
    sender: NodeAddress, network: str, nodes: tuple[NodeAddress | None, ...]
) -> None:
    assert parse(with_alternates(), sender=sender, network=network).nodes == nodes


def test_one_host_in_both_networks_is_told_apart_by_its_ports() -> None:
    document = with_alternates()
    del document["nodesExt"][1], document["nodes"][1], document["nodesExt"][0]["thisNode"]
    document["vBucketServerMap"]["vBucketMap"] = [[0]]
    document["nodesExt"][0]["alternateAddresses"]["external"]["hostname"] = "10.0.0.9"
    for port, mapped in ((11210, 11210), (32775, 32775), (32790, 32775)):
        sender = NodeAddress("10.0.0.9", port)
        assert parse(document, sender=sender).nodes == (NodeAddress("10.0.0.9", mapped),)


def test_alternate_addresses_have_tls_ports_too() -> None:
    found = parse(with_alternates(), tls=True, network="external")
    assert found.nodes == (NodeAddress("out.example", 32776), NodeAddress("out2.example", 12007))


@pytest.mark.parametrize("document", [with_alternates(), config(nodesExt=...)])
def test_a_network_that_no_node_is_in_is_named(document: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"found addresses of network default.*'lan'"):
        parse(document, network="lan")


def test_the_cluster_is_named_where_the_server_does() -> None:
    assert parse(config()).cluster_uuid == ""
    assert parse(config(clusterUUID="c0ffee")).cluster_uuid == "c0ffee"


@pytest.mark.parametrize("hostname", [..., "$HOST", "10.0.0.9"])
def test_missing_and_placeholder_hostnames_are_the_sender(hostname: Any) -> None:
    document = config()
    if hostname is not ...:
        document["nodesExt"][0]["hostname"] = hostname
    assert parse(document).owner(0) == NodeAddress("10.0.0.9", 11210)


def test_server_list_serves_where_nodes_ext_is_absent() -> None:
    found = parse(config(nodesExt=...))
    assert found.owner(0) == NodeAddress("10.0.0.9", 11210)
    assert found.owner(1) == NodeAddress("b", 12000)
    with pytest.raises(RemoteProtocolError, match="nodesExt"):
        parse(config(nodesExt=...), tls=True)


def test_ipv6_sender_fills_the_placeholder() -> None:
    sender = NodeAddress("::1", 11210)
    text = json.dumps(config(nodesExt=...)).encode()
    assert ClusterMap.parse(text, sender).owner(0) == NodeAddress("::1", 11210)


@pytest.mark.parametrize(
    ("newer", "supersedes"),
    [((1, 1018), True), ((2, 1), True), ((1, 1017), False), ((1, 1016), False), ((1, 0), True)],
)
def test_newer_revisions_supersede(newer: tuple[int, int], supersedes: bool) -> None:
    held = parse(config())
    assert parse(config(revEpoch=newer[0], rev=newer[1])).supersedes(held) is supersedes
    assert held.supersedes(None)


SERVER_MAP = config()["vBucketServerMap"]


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"vBucketServerMap": ...}, "'vBucketServerMap' is missing"),
        ({"vBucketServerMap": {**SERVER_MAP, "vBucketMap": []}}, "vBucketServerMap.vBucketMap"),
        ({"vBucketServerMap": {**SERVER_MAP, "vBucketMap": [[0], [2]]}}, r"vBucketMap\[1\]"),
        ({"vBucketServerMap": {**SERVER_MAP, "vBucketMap": [[]]}}, r"vBucketMap\[0\]"),
        ({"vBucketServerMap": {**SERVER_MAP, "vBucketMap": [[0, 2]]}}, r"vBucketMap\[0\]"),
        ({"vBucketServerMap": {**SERVER_MAP, "vBucketMap": [[0, None]]}}, r"vBucketMap\[0\]"),
        ({"vBucketServerMap": {**SERVER_MAP, "vBucketMap": [["0"]]}}, r"vBucketMap\[0\]"),
        ({"vBucketServerMap": {"serverList": []}}, "'vBucketServerMap.vBucketMap' is missing"),
        (
            {"vBucketServerMap": {**SERVER_MAP, "serverList": ["a:x"]}, "nodesExt": ...},
            r"serverList\[0\]",
        ),
        ({"name": ...}, "'name' is missing"),
        ({"name": 7}, "'name'"),
        ({"rev": ...}, "'rev' is missing"),
        ({"rev": "1"}, "'rev'"),
        ({"rev": True}, "'rev'"),
        ({"nodeLocator": "ketama"}, "'nodeLocator'"),
        ({"nodesExt": [1]}, r"nodesExt\[0\]"),
        ({"nodesExt": [{}]}, r"'nodesExt\[0\].services' is missing"),
        ({"nodesExt": [{"services": {"kv": 99999}}]}, r"nodesExt\[0\]"),
        (
            {"nodesExt": [{"services": {}, "alternateAddresses": {"external": "b"}}]},
            r"nodesExt\[0\].alternateAddresses.external",
        ),
        ({"clusterUUID": 7}, "'clusterUUID'"),
    ],
)
def test_errors_name_the_field(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(RemoteProtocolError, match=field) as caught:
        parse(config(**changes))
    assert "10.0.0.9:11210" in str(caught.value)


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b"\xff", b"null"])
def test_refuses_what_is_no_json_object(text: bytes) -> None:
    with pytest.raises(RemoteProtocolError, match=r"cluster map from 10\.0\.0\.9:11210"):
        ClusterMap.parse(text, SENDER)


def test_owner_refuses_a_vbucket_that_does_not_exist() -> None:
    with pytest.raises(ValueError, match="found vbucket 4, expected 0 to 3"):
        parse(config()).owner(4)


@pytest.mark.parametrize(
    ("told", "is_ephemeral"),
    [
        ({"bucketType": "ephemeral", "bucketCapabilities": []}, True),
        ({"bucketType": "membase", "bucketCapabilities": ["dcp"]}, False),  # Magma has no views
        ({"bucketCapabilities": ["couchapi", "dcp"]}, False),
        ({"bucketCapabilities": ["dcp"]}, True),
        ({"bucketCapabilities": ...}, False),
    ],
)
def test_an_ephemeral_bucket_is_known_by_its_type_or_by_having_no_views(
    told: dict[str, Any], is_ephemeral: bool
) -> None:
    assert parse(config(**told)).is_ephemeral is is_ephemeral
