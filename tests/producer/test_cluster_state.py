"""What the processes of a cluster tell each other, as JSON and back."""

import json
from collections.abc import Callable
from dataclasses import replace

import pytest

from dcp.errors import RemoteProtocolError
from dcp.producer.bucket import Bucket
from dcp.producer.bucket_type import BucketType
from dcp.producer.cluster_map import NodeAddress
from dcp.producer.cluster_state import ClusterState
from dcp.producer.manifest_changes import CreateCollection, CreateScope, FlushCollection
from dcp.producer.move_orders import MoveOrder, MoveReport
from dcp.producer.settings import ClusterSettings


@pytest.fixture
def state() -> ClusterState:
    """Of a cluster in which there is something of everything."""
    settings = ClusterSettings(
        nodes=3, vbuckets=4, replicas=2, bucket_type=BucketType.EPHEMERAL, rules="server"
    )
    bucket = Bucket(settings)
    bucket.change_manifest(CreateScope("s"), CreateCollection("s", "a", 60))
    bucket.change_manifest(FlushCollection("s", "a"))
    bucket.map.set_addresses([NodeAddress(kv=n, kv_tls=n or None) for n in range(3)])
    bucket.map.fail_over(1, dict.fromkeys(bucket.map.vbuckets_of(1), 2))
    bucket.dead_nodes.add(1)
    bucket.moving = frozenset({3})
    return ClusterState.of(bucket, 7)


def test_a_state_goes_over_the_wire_whole(state: ClusterState) -> None:
    assert ClusterState.decode(state.encode()) == state
    assert state.replica_count == 2
    assert state.manifest.at("s.a").max_ttl_seconds == 60


def test_where_orders_go(state: ClusterState) -> None:
    """To a node of the first process that lives, or to its first one where none does."""
    assert state.first_address == "127.0.0.1:0"
    assert replace(state, dead=frozenset({0, 1})).first_address == "127.0.0.1:2"
    assert replace(state, home=frozenset({1})).first_address == "127.0.0.1:1"


@pytest.mark.parametrize("name", ["number", "uuid", "addresses", "rows", "manifests", "home"])
def test_a_state_that_lacks_something(state: ClusterState, name: str) -> None:
    tree = json.loads(state.encode())
    del tree[name]
    with pytest.raises(RemoteProtocolError, match=f"state of the cluster: malformed.*{name}"):
        ClusterState.decode(json.dumps(tree).encode())


def test_orders_and_reports_of_moves() -> None:
    order = MoveOrder(3, 0, 1, (5, 6))
    report = MoveReport(3, (5,), is_over=False, error="why")
    assert MoveOrder.decode(order.encode()) == order
    assert MoveReport.decode(report.encode()) == report


@pytest.mark.parametrize("data", [b"", b"1", b"{}", b"[1,2,3]", b'["a",1,1,[]]', b"[1,1,1,1]"])
@pytest.mark.parametrize("decode", [ClusterState.decode, MoveOrder.decode])
def test_nonsense(decode: Callable[[bytes], object], data: bytes) -> None:
    with pytest.raises(RemoteProtocolError, match="malformed"):
        decode(data)


@pytest.mark.parametrize("data", [b"", b"1", b"{}", b"[1,2,3]", b'["a",[],true,""]', b"[1,1,1,1]"])
def test_reports_that_are_none(data: bytes) -> None:
    with pytest.raises(RemoteProtocolError, match="report of a move: malformed"):
        MoveReport.decode(data)
