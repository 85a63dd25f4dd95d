"""Nodes that come and go, and vbuckets that move by takeover streams over real sockets."""

import logging
from collections.abc import Callable
from concurrent.futures import CancelledError
from threading import Event, Thread

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dcp.client.kv.admin_client import AdminClient, NodeStatus
from dcp.client.kv.kv_client import KvClient
from dcp.errors import LocalProtocolError, NodeUnavailableError, SourceError
from dcp.producer.cluster import ProducerCluster
from dcp.producer.cluster_settings import ClusterSettings
from dcp.producer.rebalance import even_owners
from dcp.server.model.cluster_map import ABSENT, replicas_behind
from dcp.wire import messages as m
from dcp.wire.codec import encode
from dcp.wire.vocabulary import EndReason, Opcode, Status, StreamFlag, VbucketState
from tests.producer.compared_replicas import (
    assert_replicas_are_equal,
    assert_replicas_are_there,
    frames_of,
    write_everything,
)
from tests.producer.raw_client import PATIENCE_SECONDS, RawClient

Connect = Callable[..., RawClient]
MakeCluster = Callable[..., ProducerCluster]


def _owners(cluster: ProducerCluster) -> list[int]:
    return [cluster.vbucket_owner(v) for v in range(cluster.settings.vbuckets)]


def _is_everywhere(cluster: ProducerCluster, seed_node: int, keys: list[bytes]) -> bool:
    seeds = [cluster.seeds[seed_node]]
    with KvClient(seeds, "Administrator", "password", "default") as client:
        return client.get(keys).keys() == set(keys)


@pytest.mark.parametrize("replicas", [0, 1])
def test_a_new_node_takes_its_share(
    make_cluster: MakeCluster, connect: Connect, replicas: int
) -> None:
    """All that there is moves as it is: no branch, no seqno, no byte is another."""
    cluster = make_cluster(nodes=2, vbuckets=6, replicas=replicas)
    write_everything(cluster)
    keys = [b"x%d" % n for n in range(2, 40)]
    cluster.set(b"k", b"1")
    before = [(cluster.failover_log(v), frames_of(cluster.bucket.vbuckets[v])) for v in range(6)]
    bystander = connect(cluster).log_in().open_dcp()
    bystander.request_stream(2)
    assert cluster.add_node() == 2
    assert len(cluster.seeds) == 3
    assert _owners(cluster) == [0, 0, 0, 1, 1, 1]
    cluster.rebalance()
    assert _owners(cluster) == [0, 0, 2, 1, 1, 2]
    after = [(cluster.failover_log(v), frames_of(cluster.bucket.vbuckets[v])) for v in range(6)]
    assert after == before
    assert bystander.messages_until(lambda body: isinstance(body, m.StreamEnd))[-1] == (
        m.StreamEnd(EndReason.STATE_CHANGED)
    )
    refused = bystander.request_stream(2, flags=StreamFlag.ACTIVE_VB_ONLY)
    assert refused.status == Status.NOT_MY_VBUCKET
    dcp = connect(cluster, 2).log_in().open_dcp()
    log, high = cluster.failover_log(2), cluster.high_seqno(2)
    answer = dcp.request_stream(2, high, vb_uuid=log.current_uuid)
    assert answer.status == Status.SUCCESS
    assert _is_everywhere(cluster, 2, [b"k"])
    if replicas:
        assert [cluster.bucket.map.replica_nodes(v) for v in range(6)] == [
            [1],
            [1],
            [0],
            [2],
            [2],
            [0],
        ]
        assert_replicas_are_equal(cluster)
    assert not _is_everywhere(cluster, 0, [*keys, b"none"])


@pytest.mark.parametrize("replicas", [0, 1])
def test_a_node_is_removed(make_cluster: MakeCluster, connect: Connect, replicas: int) -> None:
    cluster = make_cluster(nodes=3, vbuckets=6, replicas=replicas)
    write_everything(cluster)
    uuids = [cluster.failover_log(v).current_uuid for v in range(6)]
    cluster.rebalance(remove=0)
    assert _owners(cluster) == [1, 2, 1, 1, 2, 2]
    assert [cluster.failover_log(v).current_uuid for v in range(6)] == uuids
    with pytest.raises(ConnectionRefusedError):
        connect(cluster, 0)
    assert cluster.rebalance_state == "none"
    if replicas:
        assert_replicas_are_equal(cluster)
    cluster.restore_node(0)
    cluster.rebalance()
    assert _owners(cluster).count(0) == 2


def test_histories_go_on_where_they_moved(make_cluster: MakeCluster) -> None:
    """The record of branches knows what was written before, and what is after."""
    cluster = make_cluster(nodes=2, vbuckets=1)
    first = cluster.set(b"k", b"1")
    cluster.move_vbucket(0, 1)
    cluster.rebalance(remove=1)
    second = cluster.set(b"k", b"2")
    assert (second.rev, second.cas > first.cas) == (2, True)
    uuid = cluster.failover_log(0).current_uuid
    assert cluster.state_at(0, 1, uuid) == {b"k": first}
    assert cluster.state_at(0, 2, uuid) == {b"k": second}
    cluster.crash_restart(0, lost_seqnos=1)
    assert cluster.get(b"k").value == b"1"


def test_seqnos_of_an_empty_vbucket_go_on(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(nodes=2, vbuckets=1)
    cluster.start_vbucket_at(0, 1000)
    cluster.rebalance(remove=0)
    assert cluster.set(b"k", b"1").seqno == 1001


def test_writes_go_on_meanwhile(make_cluster: MakeCluster) -> None:
    """None is lost, none is refused; the replicas have them all."""
    cluster = make_cluster(nodes=2, vbuckets=8, replicas=1)
    is_over, failures = Event(), list[Exception]()
    written: list[bytes] = []

    def write() -> None:
        try:
            while not is_over.is_set():
                key = b"k%d" % len(written)
                cluster.set(key, b"1")
                written.append(key)
        except Exception as error:
            failures.append(error)

    writer = Thread(target=write)
    writer.start()
    try:
        cluster.add_node()
        cluster.rebalance()
        cluster.rebalance(remove=0)
    finally:
        is_over.set()
        writer.join()
    assert failures == []
    assert set(_owners(cluster)) == {1, 2}
    assert all(cluster.get(key).value == b"1" for key in written)
    assert_replicas_are_equal(cluster)


def test_collections_that_come_meanwhile(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(nodes=2, vbuckets=4, replicas=1)
    cluster.create_collection("_default", "a")
    cluster.rebalance(remove=1)
    cluster.create_collection("_default", "b")
    manifests = [each.documents.collections.manifest for each in cluster.bucket.vbuckets]
    assert manifests == [cluster.manifest] * 4
    assert [cluster.high_seqno(v) for v in range(4)] == [2] * 4


def _dead_member(cluster: ProducerCluster) -> None:
    cluster.kill_node(1)


def _pending_vbucket(cluster: ProducerCluster) -> None:
    cluster.set_vbucket_state(0, VbucketState.PENDING)


def _only_member(cluster: ProducerCluster) -> None:
    cluster.failover(1)


@pytest.mark.parametrize(
    ("prepare", "remove", "message"),
    [
        (_dead_member, None, "does not answer; restore it, or fail it over first"),
        (_pending_vbucket, None, "found vbucket 0 PENDING, expected ACTIVE"),
        (_only_member, 0, "found no other node to take"),
        (_only_member, 1, "found node 2 to remove, expected a member"),
        (_only_member, 7, "found node 8 to remove"),
    ],
)
def test_what_cannot_be_done(
    make_cluster: MakeCluster,
    prepare: Callable[[ProducerCluster], None],
    remove: int | None,
    message: str,
) -> None:
    cluster = make_cluster(nodes=2, vbuckets=2, replicas=1)
    prepare(cluster)
    before = (_owners(cluster), cluster.bucket.map.rev)
    with pytest.raises(ValueError, match=message):
        cluster.rebalance(remove)
    assert (_owners(cluster), cluster.bucket.map.rev) == before


def test_a_cluster_that_does_not_run() -> None:
    cluster = ProducerCluster(ClusterSettings(vbuckets=1))
    with pytest.raises(LocalProtocolError, match="does not run"):
        cluster.add_node()
    with pytest.raises(LocalProtocolError, match="does not run"):
        cluster.rebalance()


@pytest.mark.parametrize("hangs", [0, 1])
def test_a_rebalance_that_is_given_up(make_cluster: MakeCluster, hangs: int) -> None:
    """Every vbucket is active where it was; another one does it."""
    cluster = make_cluster(nodes=2, vbuckets=2, replicas=1)
    write_everything(cluster)
    cluster.hang_node(hangs)
    with pytest.raises(TimeoutError, match="rebalance: not done after"):
        cluster.rebalance(remove=0, timeout_seconds=0.2)
    cluster.restore_node(hangs)
    assert cluster.set(b"k", b"1").value == b"1"
    assert_replicas_are_equal(cluster)
    cluster.rebalance(remove=0)
    assert _owners(cluster) == [1, 1]


def test_a_stop_amid_a_rebalance(make_cluster: MakeCluster) -> None:
    """It is given up, and begun anew after the start."""
    cluster = make_cluster(nodes=2, vbuckets=2, replicas=1)
    write_everything(cluster)
    cluster.hang_node(1)
    given_up: list[BaseException] = []

    def rebalance() -> None:
        try:
            cluster.rebalance(remove=0)
        except CancelledError as error:
            given_up.append(error)

    thread = Thread(target=rebalance)
    thread.start()
    _wait_for_takeover(cluster)
    cluster.stop()
    thread.join()
    assert len(given_up) == 1
    cluster.start()
    assert_replicas_are_equal(cluster)
    cluster.rebalance(remove=0)
    assert _owners(cluster) == [1, 1]


def _wait_for_takeover(cluster: ProducerCluster) -> None:
    with cluster.bucket.table.replicas_moved:
        cluster.bucket.table.replicas_moved.wait_for(
            lambda: any(replica.is_taking_over for _, replica in cluster.bucket.replicas.of(0)),
            PATIENCE_SECONDS,
        )


def _begin_removal(cluster: ProducerCluster) -> tuple[Thread, list[str]]:
    """Let the first node give all away, in a thread that runs; return it, and what it met."""
    errors: list[str] = []

    def rebalance() -> None:
        try:
            cluster.rebalance(remove=0)
        except SourceError as error:
            errors.append(str(error))

    thread = Thread(target=rebalance)
    thread.start()
    _wait_for_takeover(cluster)
    return thread, errors


def test_a_rebalance_whose_active_node_is_lost(make_cluster: MakeCluster) -> None:
    """Every vbucket is where it was when the node is back."""
    cluster = make_cluster(nodes=2, vbuckets=2, replicas=1)
    cluster.hang_node(1)
    thread, failed = _begin_removal(cluster)
    cluster.kill_node(0)
    cluster.restore_node(1)
    thread.join()
    assert "rebalance: 1 vbuckets, the first is 0, did not get to node 2" in failed[0]
    assert cluster.rebalance_state == f"failed: {failed[0]}"
    cluster.restore_node(0)
    assert _owners(cluster) == [0, 1]
    cluster.rebalance(remove=0)
    assert _owners(cluster) == [1, 1]


def test_one_rebalance_at_a_time(
    make_cluster: MakeCluster, connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    """Orders that come in one turn: the first is carried out, the others are refused."""
    cluster = make_cluster(nodes=2, vbuckets=6)
    cluster.add_node()
    order = encode(m.IoctlSet(b"rebalance", b""), Opcode.IOCTL_SET)
    client = connect(cluster).log_in()
    client.send(order, order, order)
    first, *others = [client.answer() for _ in range(3)]
    assert first.status == Status.SUCCESS
    assert [each.status for each in others] == [Status.EINVAL] * 2
    assert all(b"found one that runs already" in each.value for each in others)
    assert _state_when_over(cluster) == "none"
    assert _owners(cluster) == [0, 0, 2, 1, 1, 2]
    assert caplog.records == []


def _state_when_over(cluster: ProducerCluster) -> str:
    with cluster.bucket.table.replicas_moved:
        is_over = cluster.bucket.table.replicas_moved.wait_for(
            lambda: cluster.rebalance_state != "running", PATIENCE_SECONDS
        )
    assert is_over
    return cluster.rebalance_state


def test_an_order_over_the_protocol_has_an_end(
    make_cluster: MakeCluster, connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    """A node hangs: it is given up, says so in one line, and another can be ordered."""
    cluster = make_cluster(nodes=2, vbuckets=2, replicas=1, rebalance_timeout_seconds=0.2)
    client = connect(cluster).log_in()
    cluster.hang_node(1)
    client.ok(m.IoctlSet(b"rebalance", b"1"), Opcode.IOCTL_SET)
    assert _state_when_over(cluster) == "failed: rebalance: not done after 0.2 seconds"
    assert _owners(cluster) == [0, 1]
    cluster.restore_node(1)
    cluster.rebalance(remove=0)
    assert _owners(cluster) == [1, 1]
    (said,) = caplog.records
    assert said.getMessage() == "rebalance: not done after 0.2 seconds"
    assert said.exc_info is None


@pytest.mark.parametrize("over_the_protocol", [False, True])
@pytest.mark.parametrize("failed", [0, 1, 2])
def test_a_failover_amid_a_rebalance(
    make_cluster: MakeCluster, connect: Connect, failed: int, over_the_protocol: bool
) -> None:
    """Of who gives, who takes, and who does neither: the rebalance is given up, and no more."""
    cluster = make_cluster(nodes=3, vbuckets=3, replicas=2)
    write_everything(cluster)
    client = connect(cluster, 0 if failed else 2).log_in()
    cluster.hang_node(1)
    thread, errors = _begin_removal(cluster)
    if over_the_protocol:
        client.ok(m.IoctlSet(b"node.failover", b"%d" % (failed + 1)), Opcode.IOCTL_SET)
    else:
        cluster.failover(failed)
        assert cluster.rebalance_state != "running"
    thread.join()
    name = cluster.bucket.map.name_of(failed)
    assert errors == [f"rebalance: given up: {name} was failed over"]
    assert cluster.rebalance_state == f"failed: {errors[0]}"
    assert failed not in _owners(cluster)
    cluster.restore_node(1)
    assert [each.state for each in cluster.bucket.vbuckets] == [VbucketState.ACTIVE] * 3
    cluster.rebalance(remove=0 if failed else None)
    assert_replicas_are_there(cluster)


def test_a_kill_amid_a_rebalance(make_cluster: MakeCluster) -> None:
    """Nothing comes to a node that is gone, though it had all but the last word."""
    cluster = make_cluster(nodes=2, vbuckets=2, replicas=1)
    cluster.hang_node(1)
    thread, errors = _begin_removal(cluster)
    with cluster.bucket.lock:
        cluster.bucket.map.down_nodes.add(1)
        cluster.nodes.loop.call_soon(
            cluster.nodes.at(1).awake.set
        )  # what was on its way arrives now
    thread.join()
    assert "did not get to node 2" in errors[0]
    assert _owners(cluster) == [0, 1]
    assert cluster.set(b"k", b"1").value == b"1"


@pytest.mark.parametrize(
    ("what", "order"),
    [
        ("move", lambda cluster: cluster.move_vbucket(0, 1)),
        ("change of state", lambda cluster: cluster.set_vbucket_state(0, VbucketState.DEAD)),
        ("start", lambda cluster: cluster.start_vbucket_at(0, 10)),
        ("versions", lambda cluster: cluster.take_versions(0, [])),
    ],
)
def test_a_vbucket_that_moves_takes_no_orders(
    make_cluster: MakeCluster, what: str, order: Callable[[ProducerCluster], None]
) -> None:
    cluster = make_cluster(nodes=2, vbuckets=2)
    with cluster.bucket.lock:
        cluster.bucket.table.set_moving({0})
    with pytest.raises(ValueError, match=f"{what} of vbucket 0: found a rebalance that moves it"):
        order(cluster)
    assert (cluster.high_seqno(0), _owners(cluster)) == (0, [0, 1])


@pytest.mark.parametrize("asked", [0, 2])
def test_orders_over_the_protocol(make_cluster: MakeCluster, asked: int) -> None:
    """Also to a node that goes by it."""
    cluster = make_cluster(nodes=2, vbuckets=6)
    cluster.add_node()
    seeds = [cluster.seeds[asked], cluster.seeds[1]]
    with AdminClient(seeds, "Administrator", "password", "default", 10.0) as admin:
        admin.rebalance()
        assert [node.vbuckets for node in admin.nodes()] == [2, 2, 2]
        assert admin.add_node() == NodeStatus(4, cluster.seeds[3], True, True, 0)
        admin.rebalance(remove=1)
        assert [node.vbuckets for node in admin.nodes()] == [0, 2, 2, 2]
        assert [node.member for node in admin.nodes()] == [False, True, True, True]
    with pytest.raises(NodeUnavailableError):
        AdminClient([cluster.seeds[0]], "Administrator", "password", "default", 10.0)


# --- the plan


@pytest.mark.parametrize(
    ("owner", "members", "count", "expected"),
    [
        (0, [True], 0, []),
        (0, [True, True, True], 1, [1]),
        (2, [True, True, True], 2, [0, 1]),
        (1, [True, True, False, True], 2, [3, 0]),
        (1, [True, True, False], 2, [0, ABSENT]),
    ],
)
def test_where_replicas_belong(
    owner: int, members: list[bool], count: int, expected: list[int]
) -> None:
    assert replicas_behind(owner, members, count) == expected


@given(
    st.lists(st.integers(0, 5), min_size=1, max_size=64),
    st.sets(st.integers(0, 5), min_size=1),
)
def test_shares_are_even(owners: list[int], nodes: set[int]) -> None:
    """And as few vbuckets move as that takes: what a node has too much, or is on no node."""
    found = even_owners(owners, sorted(nodes))
    shares = sorted((found.count(node) for node in nodes), reverse=True)
    least, more = divmod(len(owners), len(nodes))
    assert shares == [least + 1] * more + [least] * (len(nodes) - more)
    moved = sum(old != new for old, new in zip(owners, found, strict=True))
    held = sorted((owners.count(node) for node in nodes), reverse=True)
    assert moved == len(owners) - sum(map(min, held, shares))


def test_an_even_share_needs_nodes() -> None:
    with pytest.raises(ValueError, match="found no nodes"):
        even_owners([0], [])


def test_logs_stay_quiet(make_cluster: MakeCluster, caplog: pytest.LogCaptureFixture) -> None:
    """Moving vbuckets is nothing to warn of."""
    cluster = make_cluster(nodes=2, vbuckets=4, replicas=1)
    with caplog.at_level(logging.WARNING):
        write_everything(cluster)
        cluster.rebalance(remove=0)
        assert_survivors_hold_all(cluster)
    assert caplog.records == []


def assert_survivors_hold_all(cluster: ProducerCluster) -> None:
    """One node is left: it has no replicas, and all that there was."""
    cluster.wait_until_replicated()
    assert _owners(cluster) == [1] * 4
    assert cluster.bucket.replicas.of_node(1) == {}
