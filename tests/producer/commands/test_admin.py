"""Orders over the protocol: to a cluster in this process, by its client and by raw frames."""

import json
from collections.abc import Callable

import pytest

from dcp.client.kv.admin_client import AdminClient, NodeStatus
from dcp.errors import NodeUnavailableError, SourceError
from dcp.producer.cluster import ProducerCluster
from dcp.wire import messages as m
from dcp.wire.vocabulary import HelloFeature, Opcode, Status
from tests.producer.raw_client import RawClient

Connect = Callable[..., RawClient]
MakeCluster = Callable[..., ProducerCluster]


@pytest.fixture
def trio(make_cluster: Callable[..., ProducerCluster]) -> ProducerCluster:
    """Three nodes, two vbuckets on each, and replicas of each at the others."""
    return make_cluster(nodes=3, vbuckets=6, replicas=2)


def _client(cluster: ProducerCluster, *nodes: int) -> AdminClient:
    seeds = [cluster.seeds[node] for node in nodes]
    return AdminClient(seeds, "Administrator", "password", "default", 10.0)


def _order(cluster: ProducerCluster, name: bytes, value: bytes) -> None:
    """Order by a raw frame what the client has no method for."""
    with RawClient(cluster.seeds[0]) as raw:
        raw.log_in().ok(m.IoctlSet(name, value), Opcode.IOCTL_SET)


@pytest.mark.parametrize("asked", [0, 1])
def test_a_node_is_failed_over(trio: ProducerCluster, connect: Connect, asked: int) -> None:
    """Whichever node is asked: also the one that goes away says its answer."""
    bystander = connect(trio, 1).log_in()
    with _client(trio, asked) as admin:
        admin.failover(2)
    assert [trio.vbucket_owner(v) for v in range(6)] == [0, 0, 2, 2, 2, 2]
    assert bystander.is_closed()
    with pytest.raises(NodeUnavailableError):
        _client(trio, 1)
    with _client(trio, 1, 2) as admin:
        assert admin.nodes() == [
            NodeStatus(1, trio.seeds[0], True, True, 2),
            NodeStatus(2, trio.seeds[1], False, False, 0),
            NodeStatus(3, trio.seeds[2], True, True, 4),
        ]
        _order(trio, b"node.restore", b"2")
        assert admin.nodes()[1] == NodeStatus(2, trio.seeds[1], True, True, 0)
    connect(trio, 1).log_in()


def test_nodes_are_killed_and_restored(trio: ProducerCluster) -> None:
    with _client(trio, 0) as admin:
        admin.kill(3)
        assert not admin.nodes()[2].alive
        admin.kill(2)
        with pytest.raises(SourceError, match="no other running node"):
            admin.failover(1)
        _order(trio, b"node.restore", b"3")
        admin.failover(1)
    assert {trio.vbucket_owner(v) for v in range(6)} == {1, 2}


def test_replication_is_paused(trio: ProducerCluster, connect: Connect) -> None:
    raw = connect(trio).log_in()
    question = m.IoctlGet(b"replication")
    assert raw.ok(question, Opcode.IOCTL_GET) == m.Text(b"running")
    with _client(trio, 0) as admin:
        admin.pause_replication()
        trio.set(b"k", b"1")
        assert trio.replica_seqno(trio.vbucket_of(b"k")) == 0
        assert raw.ok(question, Opcode.IOCTL_GET) == m.Text(b"paused")
        admin.resume_replication()
    trio.wait_until_replicated()
    assert trio.replica_seqno(trio.vbucket_of(b"k")) == 1


def test_scopes_and_collections_are_changed(trio: ProducerCluster) -> None:
    with _client(trio, 1) as admin:
        _order(trio, b"scope.create", b"s")
        _order(trio, b"collection.create", b"s.a 60")
        admin.create_collection("_default.b")
        assert trio.manifest.at("s.a").max_ttl_seconds == 60
        trio.set(b"k", b"1", collection="s.a")
        _order(trio, b"collection.flush", b"s.a")
        vbucket = trio.vbucket_of(b"k")
        assert trio.state_at(vbucket, trio.high_seqno(vbucket), collection="s.a") == {}
        _order(trio, b"collection.drop", b"_default.b")
        _order(trio, b"scope.drop", b"s")
    assert (trio.manifest.uid, list(trio.manifest.collections)) == (6, [0])
    assert [trio.high_seqno(v) for v in range(6)] == [7 + (v == vbucket) for v in range(6)]


@pytest.mark.parametrize(
    ("name", "value", "context"),
    [
        (b"scope.create", b"_s", "scope name: found '_s'"),
        (b"scope.drop", b"s", "scope: found 's', expected one of _default"),
        (b"collection.create", b"a", "path: found 'a', expected scope.collection"),
        (b"collection.create", b".a", "path: found '.a', expected scope.collection"),
        (b"collection.create", b"s.a x", "max_ttl: found 'x', expected a number of seconds"),
        (b"collection.create", b"s.a", "scope: found 's'"),
        (b"collection.drop", b".a", "path: found '.a', expected scope.collection"),
        (b"collection.drop", b"_default.a", "collection: found 'a' in scope _default"),
        (b"collection.flush", b"", "path: found '', expected scope.collection"),
        (b"node.failover", b"0", "node: found '0', expected a number from 1 to 3"),
        (b"node.failover", b"4", "node: found '4'"),
        (b"node.kill", b"two", "node: found 'two'"),
        (b"node.restore", b"", "node: found ''"),
        (b"node.add", b"1", "node.add: found '1', expected no value"),
        (b"rebalance", b"4", "node: found '4'"),
        (b"node.explode", b"1", "key: found 'node.explode', expected node.failover, "),
        (b"replication", b"maybe", "replication: found 'maybe', expected paused or running"),
    ],
)
def test_orders_without_meaning(
    trio: ProducerCluster, connect: Connect, name: bytes, value: bytes, context: str
) -> None:
    answer = connect(trio).log_in().call(m.IoctlSet(name, value), Opcode.IOCTL_SET)
    assert answer.status == Status.EINVAL
    assert context in json.loads(answer.value)["error"]["context"]
    assert [trio.vbucket_owner(v) for v in range(6)] == [0, 0, 1, 1, 2, 2]


def test_questions_without_meaning(trio: ProducerCluster, connect: Connect) -> None:
    answer = connect(trio).log_in().call(m.IoctlGet(b"weather"), Opcode.IOCTL_GET)
    assert answer.status == Status.EINVAL
    context = json.loads(answer.value)["error"]["context"]
    assert context == "key: found 'weather', expected nodes, rebalance, replication"


@pytest.mark.parametrize(
    ("body", "opcode"),
    [
        (m.IoctlSet(b"node.failover", b"1"), Opcode.IOCTL_SET),
        (m.IoctlGet(b"nodes"), Opcode.IOCTL_GET),
    ],
)
def test_only_users_may_order_and_ask(
    trio: ProducerCluster, connect: Connect, body: m.Body, opcode: int
) -> None:
    client = connect(trio)
    client.ok(m.Hello(b"raw", (int(HelloFeature.XERROR),)), Opcode.HELLO)
    assert client.call(body, opcode).status == Status.EACCESS
    assert trio.vbucket_owner(0) == 0


@pytest.mark.parametrize(
    ("chosen", "may", "may_not"),
    [
        (None, "Administrator", "reader"),
        (frozenset({"reader"}), "reader", "Administrator"),
    ],
)
def test_only_administrators_give_orders(
    make_cluster: MakeCluster,
    connect: Connect,
    chosen: frozenset[str] | None,
    may: str,
    may_not: str,
) -> None:
    """The first user is one where none is named."""
    users = {"Administrator": "password", "reader": "password"}
    cluster = make_cluster(nodes=2, replicas=1, users=users, administrators=chosen)
    other, administrator = (connect(cluster).log_in(user=user) for user in (may_not, may))
    order = m.IoctlSet(b"node.failover", b"2")
    assert other.call(order, Opcode.IOCTL_SET).status == Status.EACCESS
    for question in (b"nodes", b"nonsense"):
        assert other.call(m.IoctlGet(question), Opcode.IOCTL_GET).status == Status.EACCESS
    assert cluster.vbucket_owner(3) == 1
    administrator.ok(m.IoctlGet(b"nodes"), Opcode.IOCTL_GET)
    administrator.ok(m.IoctlSet(b"node.failover", b"2"), Opcode.IOCTL_SET)
    assert cluster.vbucket_owner(3) == 0
