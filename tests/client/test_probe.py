"""The probe: the map and all high seqnos, with unreachable nodes named."""

import json
from dataclasses import replace
from typing import Any

import pytest

from dcp.client.addresses import NodeAddress
from dcp.client.connection import NodeConnection
from dcp.client.probe import ask_nodes, probe_cluster, probe_replicas
from dcp.client.settings import ConnectionSettings
from dcp.errors import (
    AuthenticationError,
    BucketError,
    DcplakeError,
    NodeUnavailableError,
    RemoteProtocolError,
    SourceError,
)
from dcp.producer.commands import COMMANDS
from dcp.protocol.credentials import Credentials, Secret
from dcp.protocol.events import Ready
from dcp.server.commands.session import Access, CommandHandler, Session
from dcp.types import MAX_FAILOVER_ENTRIES, FailoverEntry, FailoverLog
from dcp.wire.frame import Frame
from dcp.wire.messages import Body
from dcp.wire.vocabulary import Opcode, Status
from tests.client.conftest import MakeCluster
from tests.client.consuming import consuming
from tests.client.drained import CREDENTIALS, Drained, all_of, assert_same_state, caught_up, fill

SETTINGS = ConnectionSettings("default")
QUICK = replace(SETTINGS, bootstrap_timeout_seconds=3.0, request_timeout_seconds=3.0)
"""For nodes that do not answer; those that do have as long, on a busy machine too."""


def test_sees_all_vbuckets_of_all_nodes_without_a_dcp_connection(
    make_cluster: MakeCluster,
) -> None:
    cluster = make_cluster(nodes=3)
    fill(cluster, 300)
    probed = probe_cluster(cluster.seeds, SETTINGS, CREDENTIALS)
    assert probed.high_seqnos == {v: cluster.high_seqno(v) for v in all_of(cluster)}
    assert probed.failover_logs == {v: cluster.failover_log(v) for v in all_of(cluster)}
    assert not probed.unreachable
    assert [str(probed.map.owner(v)) for v in all_of(cluster)] == [
        cluster.seeds[cluster.vbucket_owner(v)] for v in all_of(cluster)
    ]
    assert cluster.counters().dcp_connections_opened == 0
    assert probed.manifest is not None
    assert [scope["name"] for scope in json.loads(probed.manifest)["scopes"]] == ["_default"]


def test_tells_what_each_node_holds_as_a_replica(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(nodes=3, replicas=2)
    fill(cluster, 100)
    cluster.wait_until_replicated()
    cluster.pause_replication()
    held = {v: cluster.high_seqno(v) for v in all_of(cluster)}
    fill(cluster, 100, prefix="later")
    cluster.kill_node(2)
    probed = probe_cluster(cluster.seeds[:1], QUICK, CREDENTIALS)
    replicas = probe_replicas(probed, QUICK, CREDENTIALS)
    for vbucket in all_of(cluster):
        nodes = [node for node in (0, 1) if node != cluster.vbucket_owner(vbucket)]
        assert {str(each.node) for each in replicas[vbucket]} == {cluster.seeds[n] for n in nodes}
        for each in replicas[vbucket]:
            assert each.high_seqno == held[vbucket]
            assert each.failover_log == cluster.failover_log(vbucket)


@pytest.mark.parametrize("vbuckets", [64, 128, 1024])
def test_buckets_of_every_size(make_cluster: MakeCluster, vbuckets: int) -> None:
    cluster = make_cluster(nodes=2, vbuckets=vbuckets)
    fill(cluster, 2 * vbuckets)
    probed = probe_cluster(cluster.seeds, SETTINGS, CREDENTIALS)
    assert probed.map.vbucket_count == vbuckets
    assert probed.high_seqnos == {v: cluster.high_seqno(v) for v in range(vbuckets)}
    with consuming(cluster) as consumer:
        assert_same_state(cluster, Drained().run(consumer, caught_up(cluster)))


@pytest.mark.parametrize("fault", ["kill_node", "hang_node"])
def test_names_a_node_that_is_missing(make_cluster: MakeCluster, fault: str) -> None:
    cluster = make_cluster(nodes=2)
    fill(cluster, 100)
    getattr(cluster, fault)(0)
    probed = probe_cluster(cluster.seeds, QUICK, CREDENTIALS)
    missing = NodeAddress.parse(cluster.seeds[0])
    assert list(probed.unreachable) == [missing]
    assert str(missing) in probed.unreachable[missing]
    assert set(probed.high_seqnos) == {v for v in all_of(cluster) if cluster.vbucket_owner(v) == 1}
    cluster.restore_node(0)


def test_a_failover_log_that_cannot_be_true_is_left_out(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(nodes=2)
    fill(cluster, 100)
    repeated = tuple(FailoverEntry(1, 0) for _ in range(MAX_FAILOVER_ENTRIES + 1))
    cluster.bucket.vbuckets[3].failover_log = FailoverLog(repeated)
    probed = probe_cluster(cluster.seeds, SETTINGS, CREDENTIALS)
    assert set(probed.high_seqnos) == set(all_of(cluster))
    assert not probed.unreachable
    assert set(probed.failover_logs) == set(all_of(cluster)) - {3}


@pytest.mark.parametrize(
    ("context", "expected"),
    [
        ("", "no access, give the user the role Data DCP Reader"),
        (
            "Authorization failure: can't execute GET_ALL_VB_SEQNOS operation without the MetaRead "
            "privilege",
            "expected the privilege MetaRead: give the user the role Data DCP Reader",
        ),
    ],
)
def test_a_missing_privilege_is_named(
    make_cluster: MakeCluster, monkeypatch: pytest.MonkeyPatch, context: str, expected: str
) -> None:
    def refuse(session: Session, frame: Frame, _: Body, __: float) -> None:
        session.refuse(frame, Status.EACCESS, context)

    monkeypatch.setitem(COMMANDS, Opcode.GET_ALL_VB_SEQNOS, CommandHandler(Access.BUCKET, refuse))
    cluster = make_cluster()
    with pytest.raises(BucketError, match=expected):
        probe_cluster(cluster.seeds, SETTINGS, CREDENTIALS)


@pytest.mark.parametrize("status", [Status.UNKNOWN_COMMAND, Status.EACCESS, None])
def test_a_node_that_does_not_tell_failover_logs_is_no_failure(
    make_cluster: MakeCluster, monkeypatch: pytest.MonkeyPatch, status: Status | None
) -> None:
    """None: it does not even answer."""

    def refuse(session: Session, frame: Frame, _: Body, __: float) -> None:
        if status is not None:
            session.refuse(frame, status)

    monkeypatch.setitem(COMMANDS, Opcode.GET_FAILOVER_LOG, CommandHandler(Access.BUCKET, refuse))
    cluster = make_cluster(nodes=2)  # its nodes take the table as it is now
    fill(cluster, 100)
    probed = probe_cluster(cluster.seeds, QUICK, CREDENTIALS)
    assert set(probed.high_seqnos) == set(all_of(cluster))
    assert not probed.unreachable
    assert probed.failover_logs == {}


def test_no_seed_answers(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(nodes=2)
    cluster.kill_node(0)
    cluster.kill_node(1)
    with pytest.raises(NodeUnavailableError, match="none of 2 seeds answers") as caught:
        probe_cluster(cluster.seeds, SETTINGS, CREDENTIALS, named="--upstream")
    assert all(seed in str(caught.value) for seed in cluster.seeds)
    assert str(caught.value).endswith("check --upstream")


def test_refusals_are_fatal(make_cluster: MakeCluster) -> None:
    cluster = make_cluster()
    with pytest.raises(AuthenticationError):
        probe_cluster(cluster.seeds, SETTINGS, Credentials("reader", Secret("no")))
    with pytest.raises(BucketError, match="absent"):
        probe_cluster(cluster.seeds, ConnectionSettings("absent"), CREDENTIALS)


REFUSING = pytest.mark.parametrize(
    ("of_the_refusing", "refusal"),
    [({"bucket": "another"}, BucketError), ({"users": {"another": "no"}}, AuthenticationError)],
)
"""Nodes without the bucket, and without users, as a node is that starts or was rebalanced out."""


@REFUSING
def test_a_seed_that_refuses_leaves_the_others(
    make_cluster: MakeCluster, of_the_refusing: dict[str, Any], refusal: type[DcplakeError]
) -> None:
    refusing, cluster = make_cluster(**of_the_refusing), make_cluster()
    probed = probe_cluster([*refusing.seeds, *cluster.seeds], SETTINGS, CREDENTIALS)
    assert set(probed.high_seqnos) == set(all_of(cluster))
    cluster.kill_node(0)
    with pytest.raises(refusal):
        probe_cluster([*cluster.seeds, *refusing.seeds], SETTINGS, CREDENTIALS)


@REFUSING
def test_a_node_that_refuses_is_missing(
    make_cluster: MakeCluster, of_the_refusing: dict[str, Any], refusal: type[DcplakeError]
) -> None:
    cluster = make_cluster(nodes=2)
    node = NodeAddress.parse(cluster.seeds[1])
    cluster.kill_node(1)
    make_cluster(port=node.port, **of_the_refusing)
    probed = probe_cluster(cluster.seeds, SETTINGS, CREDENTIALS)
    assert list(probed.unreachable) == [node]
    assert set(probed.high_seqnos) == {v for v in all_of(cluster) if cluster.vbucket_owner(v) == 0}
    with pytest.raises(refusal):
        ask_nodes([node], SETTINGS, CREDENTIALS, NodeConnection.all_vb_seqnos)


BUSY = SourceError("GET_CLUSTER_CONFIG: found ETMPFAIL (0x86), expected success")
GARBAGE = RemoteProtocolError("cluster map: found 3 bytes that are no JSON")


@pytest.mark.parametrize("failure", [BUSY, GARBAGE])
def test_a_seed_in_trouble_leaves_the_others(
    make_cluster: MakeCluster, monkeypatch: pytest.MonkeyPatch, failure: DcplakeError
) -> None:
    cluster = make_cluster(nodes=2)
    fill(cluster, 100)
    asked = break_seeds(monkeypatch, cluster.seeds[:1], failure)
    probed = probe_cluster(cluster.seeds, SETTINGS, CREDENTIALS)
    assert asked == cluster.seeds[:1]
    assert probed.high_seqnos == {v: cluster.high_seqno(v) for v in all_of(cluster)}


@pytest.mark.parametrize(
    ("failure", "expected"), [(BUSY, NodeUnavailableError), (GARBAGE, RemoteProtocolError)]
)
def test_all_seeds_in_trouble(
    make_cluster: MakeCluster,
    monkeypatch: pytest.MonkeyPatch,
    failure: DcplakeError,
    expected: type[DcplakeError],
) -> None:
    cluster = make_cluster(nodes=2)
    asked = break_seeds(monkeypatch, cluster.seeds, failure)
    with pytest.raises(expected, match=r"ETMPFAIL|no JSON"):
        probe_cluster(cluster.seeds, SETTINGS, CREDENTIALS)
    assert asked == cluster.seeds


def break_seeds(
    monkeypatch: pytest.MonkeyPatch, broken: list[str], failure: DcplakeError
) -> list[str]:
    """Let connections to these seeds fail once each; return which were asked."""
    asked: list[str] = []
    really_open = NodeConnection.open

    def fail_once(connection: NodeConnection, on_step: None = None) -> Ready:
        seed = str(connection.address)
        if seed in broken and seed not in asked:
            asked.append(seed)
            raise failure
        return really_open(connection, on_step)

    monkeypatch.setattr(NodeConnection, "open", fail_once)
    return asked
