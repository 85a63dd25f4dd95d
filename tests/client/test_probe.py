"""The probe: the map and all high seqnos, with unreachable nodes named."""

import json

import pytest

from dcp.client.addresses import NodeAddress
from dcp.client.probe import probe_cluster
from dcp.client.settings import ConnectionSettings
from dcp.errors import AuthenticationError, BucketError, NodeUnavailableError
from dcp.protocol.credentials import Credentials, Secret
from tests.client.conftest import MakeCluster
from tests.client.drained import CREDENTIALS, all_of, fill

SETTINGS = ConnectionSettings("default", bootstrap_timeout_seconds=0.5, request_timeout_seconds=0.5)


def test_sees_all_vbuckets_of_all_nodes_without_a_dcp_connection(
    make_cluster: MakeCluster,
) -> None:
    cluster = make_cluster(nodes=3)
    fill(cluster, 300)
    view = probe_cluster(cluster.seeds, SETTINGS, CREDENTIALS)
    assert view.high_seqnos == {v: cluster.high_seqno(v) for v in all_of(cluster)}
    assert not view.unreachable
    assert [str(view.map.owner(v)) for v in all_of(cluster)] == [
        cluster.seeds[cluster.vbucket_owner(v)] for v in all_of(cluster)
    ]
    assert cluster.counters().dcp_connections_opened == 0
    assert view.manifest is not None
    assert [scope["name"] for scope in json.loads(view.manifest)["scopes"]] == ["_default"]


@pytest.mark.parametrize("fault", ["kill_node", "hang_node"])
def test_names_a_node_that_is_missing(make_cluster: MakeCluster, fault: str) -> None:
    cluster = make_cluster(nodes=2)
    fill(cluster, 100)
    getattr(cluster, fault)(0)
    view = probe_cluster(cluster.seeds, SETTINGS, CREDENTIALS)
    missing = NodeAddress.parse(cluster.seeds[0])
    assert list(view.unreachable) == [missing]
    assert str(missing) in view.unreachable[missing]
    assert set(view.high_seqnos) == {v for v in all_of(cluster) if cluster.vbucket_owner(v) == 1}
    cluster.restore_node(0)


def test_no_seed_answers(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(nodes=2)
    cluster.kill_node(0)
    cluster.kill_node(1)
    with pytest.raises(NodeUnavailableError, match="none of 2 seeds answers") as caught:
        probe_cluster(cluster.seeds, SETTINGS, CREDENTIALS)
    assert all(seed in str(caught.value) for seed in cluster.seeds)


def test_refusals_are_fatal(make_cluster: MakeCluster) -> None:
    cluster = make_cluster()
    with pytest.raises(AuthenticationError):
        probe_cluster(cluster.seeds, SETTINGS, Credentials("reader", Secret("no")))
    with pytest.raises(BucketError, match="absent"):
        probe_cluster(cluster.seeds, ConnectionSettings("absent"), CREDENTIALS)
