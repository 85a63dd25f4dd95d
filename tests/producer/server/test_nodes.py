"""Several nodes, their faults, and faults ordered inside streams; asserted by the counters."""

import json
import socket
import threading
from collections.abc import Callable

import pytest

from dcp.errors import LocalProtocolError, SetupError
from dcp.producer.bucket import ProducerBucket
from dcp.producer.cluster import ProducerCluster
from dcp.producer.cluster_settings import ClusterSettings
from dcp.producer.faults import Corruption
from dcp.server.model.versions import Content, Flavour, Version
from dcp.wire import messages as m
from dcp.wire.codec import decode, encode
from dcp.wire.vocabulary import EndReason, Opcode, Status, VbucketState
from tests.producer.raw_client import PATIENCE_SECONDS, RawClient

Connect = Callable[..., RawClient]
MakeCluster = Callable[..., ProducerCluster]


@pytest.fixture
def pair(make_cluster: MakeCluster) -> ProducerCluster:
    """Two nodes: vbuckets 0 and 1 on the first, 2 and 3 on the second."""
    return make_cluster(nodes=2, vbuckets=4)


def _keys_of(cluster: ProducerCluster, vbucket: int, count: int) -> list[bytes]:
    keys = (b"k%d" % number for number in range(10_000))
    return [key for key in keys if cluster.vbucket_of(key) == vbucket][:count]


def test_each_node_serves_its_own_vbuckets(pair: ProducerCluster, connect: Connect) -> None:
    second = connect(pair, 1).log_in()
    assert [pair.vbucket_owner(v) for v in range(4)] == [0, 0, 1, 1]
    seqnos = second.ok(m.GetAllVbSeqnos(), Opcode.GET_ALL_VB_SEQNOS)
    assert seqnos == m.AllVbSeqnos(((2, 0), (3, 0)))
    key = _keys_of(pair, 0, 1)[0]
    refused = second.call(m.Store(b"\0" + key, b"1"), Opcode.SET, vbucket=0)
    assert refused.status == Status.NOT_MY_VBUCKET
    tree = json.loads(refused.value)
    assert tree["vBucketServerMap"]["serverList"] == pair.seeds
    assert [node.get("thisNode") for node in tree["nodesExt"]] == [None, True]


def test_a_name_belongs_to_one_node(pair: ProducerCluster, connect: Connect) -> None:
    """A client may open the same name at every node, as gocbcore does, and is listed there."""
    clients = [connect(pair, node).log_in().open_dcp(name=b"same") for node in (0, 1)]
    assert clients[0].request_stream(0).status == Status.SUCCESS
    assert clients[1].request_stream(2).status == Status.SUCCESS
    assert list(pair.counters().connections) == [(0, "same"), (1, "same")]
    for node in (0, 1):
        other = connect(pair, node).log_in()
        assert other.statistics("dcp")["ep_dcp_producer_count"] == "1"


def test_a_moved_vbucket_goes_on_at_the_other_node(pair: ProducerCluster, connect: Connect) -> None:
    keys = _keys_of(pair, 0, 3)
    for key in keys[:2]:
        pair.set(key, b"{}")
    old = connect(pair, 0).log_in().open_dcp()
    old.request_stream(0)
    old.messages_to(2)
    pair.move_vbucket(0, 1)
    assert old.message() == m.StreamEnd(EndReason.STATE_CHANGED)
    assert old.request_stream(0).status == Status.NOT_MY_VBUCKET
    uuid = pair.failover_log(0).current_uuid
    new = connect(pair, 1).log_in().open_dcp(name=b"new")
    assert new.request_stream(0, 2, vb_uuid=uuid).status == Status.SUCCESS
    pair.set(keys[2], b"{}")
    assert isinstance(new.messages_to(3)[-1], m.Mutation)
    assert pair.counters().seqnos_sent == {0: [1, 2, 3]}


def test_a_dead_node_refuses_until_it_is_restored(pair: ProducerCluster, connect: Connect) -> None:
    client = connect(pair, 1).log_in()
    pair.kill_node(1)
    assert client.is_closed()
    with pytest.raises(ConnectionRefusedError):
        RawClient(pair.seeds[1])
    assert connect(pair, 0).log_in().call(m.Empty(), Opcode.NOOP).status == Status.SUCCESS
    seeds = pair.seeds
    with socket.socket() as other, pytest.raises(OSError, match="in use"):
        other.bind(("127.0.0.1", int(seeds[1].rpartition(":")[2])))  # its port stays its own
    pair.restore_node(1)
    assert pair.seeds == seeds
    assert connect(pair, 1).log_in().call(m.Empty(), Opcode.NOOP).status == Status.SUCCESS


def test_a_refusing_node_keeps_its_connections(pair: ProducerCluster, connect: Connect) -> None:
    client = connect(pair, 1).log_in()
    pair.refuse_node(1)
    with pytest.raises(ConnectionRefusedError):
        RawClient(pair.seeds[1])
    assert client.call(m.Empty(), Opcode.NOOP).status == Status.SUCCESS


def test_a_hanging_node_answers_after_it_is_restored(
    pair: ProducerCluster, connect: Connect
) -> None:
    client = connect(pair, 1).log_in()
    pair.hang_node(1)
    client.socket.settimeout(0.2)
    with pytest.raises(TimeoutError):
        client.call(m.Empty(), Opcode.NOOP)
    client.socket.settimeout(PATIENCE_SECONDS)
    pair.restore_node(1)
    assert client.answer().status == Status.SUCCESS


def test_dropped_connections(pair: ProducerCluster, connect: Connect) -> None:
    first, second = (connect(pair, node).log_in().open_dcp() for node in (0, 1))
    assert len(pair.counters().connections) == 2
    pair.drop_connections(0)
    assert first.is_closed()
    assert second.call(m.Empty(), Opcode.NOOP).status == Status.SUCCESS
    pair.drop_connections()
    assert second.is_closed()
    assert pair.counters().connections == {}


@pytest.mark.parametrize("items", [1, 3, 9])
def test_a_connection_is_cut_inside_a_snapshot(
    cluster: ProducerCluster, connect: Connect, items: int
) -> None:
    with cluster.batch():
        for number in range(10):
            cluster.set(b"k%d" % number, b"1")
    cluster.snapshot_cut_after(items)
    dcp = connect(cluster).log_in().open_dcp()
    dcp.request_stream(0)
    assert len(dcp.messages_to(items)) == items + 1
    assert dcp.is_closed()
    assert cluster.counters().seqnos_sent == {0: list(range(1, items + 1))}


def test_a_cut_waits_for_a_place_inside_a_snapshot(
    cluster: ProducerCluster, connect: Connect
) -> None:
    cluster.set(b"a", b"1")
    cluster.snapshot_cut_after(1)
    dcp = connect(cluster).log_in().open_dcp()
    dcp.request_stream(0)
    dcp.messages_to(1)
    assert dcp.is_quiet()
    with cluster.batch():
        cluster.set(b"b", b"1")
        cluster.set(b"c", b"1")
    dcp.messages_to(2)
    assert dcp.is_closed()


def test_streams_are_refused_as_ordered(cluster: ProducerCluster, connect: Connect) -> None:
    dcp = connect(cluster).log_in().open_dcp()
    cluster.refuse_stream(0, Status.ETMPFAIL, times=2)
    statuses = [dcp.request_stream(0).status for _ in range(3)]
    assert statuses == [Status.ETMPFAIL, Status.ETMPFAIL, Status.SUCCESS]
    counters = cluster.counters()
    assert (counters.streams_opened, counters.streams_refused) == ({0: 1}, {0: 2})


@pytest.mark.parametrize("corruption", list(Corruption))
def test_one_item_is_corrupted(
    cluster: ProducerCluster, connect: Connect, corruption: Corruption
) -> None:
    def received() -> bytes:
        """All to the STREAM_END, or to the end of the connection."""
        dcp = connect(cluster).log_in().open_dcp()
        body = m.StreamRequest(0, 0, 2, 0, 0, 0)
        dcp.send(encode(body, Opcode.DCP_STREAM_REQ, opaque=5))
        data, last = b"", encode(m.StreamEnd(0), Opcode.DCP_STREAM_END, opaque=5).to_bytes()
        while not data.endswith(last) and (chunk := dcp.socket.recv(1 << 20)):
            data += chunk
        assert len(last) == 28
        return data

    cluster.set(b"a", b"{}")
    cluster.set(b"b", b"{}")
    good = received()
    item = Version(0, b"a", Content(b"{}"), seqno=1, rev=1, cas=0)
    item_bytes = sum(map(len, item.wire(int(Flavour.COLLECTIONS))))
    item_at = len(good) - 28 - 2 * item_bytes  # behind it the other item and the STREAM_END
    cluster.corrupt(corruption)
    bad = received()
    assert bad[:item_at] == good[:item_at]
    if corruption is Corruption.TRUNCATED:
        assert bad == good[: item_at + item_bytes - 1]
    elif corruption is Corruption.DUPLICATE:
        assert bad[item_at + item_bytes :] == good[item_at:]
    else:
        assert bad[item_at : item_at + item_bytes] != good[item_at : item_at + item_bytes]
        assert bad[item_at + item_bytes :] == good[item_at + item_bytes :]
    assert received() == good


def test_writes_from_many_threads_lose_nothing(cluster: ProducerCluster, connect: Connect) -> None:
    dcp = connect(cluster).log_in().open_dcp()
    dcp.request_stream(0)

    def write(thread: int) -> None:
        for number in range(100):
            cluster.set(b"%d-%d" % (thread, number), b"{}")

    threads = [threading.Thread(target=write, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    messages = dcp.messages_to(400)
    for thread in threads:
        thread.join()
    keys = {body.key for body in messages if isinstance(body, m.Mutation)}
    assert len(keys) == 400
    assert set(cluster.state_at(0, 400)) == {key[1:] for key in keys}


def test_noops_keep_coming_and_a_silent_client_is_closed(
    make_cluster: MakeCluster, connect: Connect
) -> None:
    cluster = make_cluster(vbuckets=1, idle_timeout_seconds=5.0)
    dcp = connect(cluster).log_in().open_dcp(set_noop_interval="0.1", window=1)
    cluster.set(b"k", b"1")
    dcp.request_stream(0)
    assert isinstance(decode(dcp.next_frame()), m.SnapshotMarker)  # the window is full now
    first = dcp.next_frame()
    assert (first.opcode, first.opaque) == (Opcode.DCP_NOOP, 10_000_001)
    assert dcp.is_closed()
    assert cluster.counters().noops_sent == 1


def test_start_and_stop(make_cluster: MakeCluster) -> None:
    cluster = make_cluster()
    with pytest.raises(LocalProtocolError):
        cluster.start()
    port = int(cluster.seeds[0].rsplit(":", 1)[1])
    with pytest.raises(SetupError, match="cannot listen"):
        ProducerCluster(ClusterSettings(port=port)).start()
    cluster.set(b"k", b"1")
    cluster.stop()
    cluster.stop()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), 1.0)
    cluster.start()
    assert cluster.seeds == [f"127.0.0.1:{port}"]
    assert cluster.get(b"k").value == b"1"


def test_passwords_stay_out_of_reprs(cluster: ProducerCluster) -> None:
    assert "password" not in repr(cluster.settings)
    assert "password" not in repr(cluster.bucket.users)


@pytest.mark.parametrize("node", [-1, 2])
@pytest.mark.parametrize(
    "order",
    [
        ProducerCluster.drop_connections,
        ProducerCluster.kill_node,
        ProducerCluster.refuse_node,
        ProducerCluster.hang_node,
        ProducerCluster.restore_node,
        ProducerCluster.failover,
        ProducerCluster.crash_restart,
        lambda cluster, node: cluster.move_vbucket(0, node),
        lambda cluster, node: cluster.set_vbucket_state(0, VbucketState.DEAD, node),
    ],
)
def test_nodes_that_there_are_not(
    make_cluster: MakeCluster, order: Callable[[ProducerCluster, int], None], node: int
) -> None:
    cluster = make_cluster(nodes=2)
    with pytest.raises(ValueError, match=f"node index {node}: found none, expected 0 to 1"):
        order(cluster, node)
    assert cluster.bucket.map.down_nodes == set()


@pytest.mark.parametrize("vbucket", [-1, 4])
@pytest.mark.parametrize(
    "question",
    [
        lambda cluster, vbucket: cluster.state_at(vbucket, 0),
        ProducerCluster.branches,
        ProducerCluster.persisted_seqno,
        ProducerCluster.purge_seqno,
        ProducerCluster.replica_seqno,
        ProducerCluster.high_seqno,
        ProducerCluster.failover_log,
        ProducerCluster.vbucket_owner,
        ProducerCluster.purge_tombstones,
        ProducerCluster.start_vbucket_at,
        lambda cluster, vbucket: cluster.move_vbucket(vbucket, 0),
        lambda cluster, vbucket: cluster.set_vbucket_state(vbucket, VbucketState.DEAD),
        lambda cluster, vbucket: cluster.set_vbucket_state(vbucket, VbucketState.DEAD, 0),
        lambda cluster, vbucket: cluster.take_versions(vbucket, []),
        lambda cluster, vbucket: cluster.refuse_stream(vbucket, Status.ENOMEM),
    ],
)
def test_vbuckets_that_there_are_not(
    question: Callable[[ProducerCluster, int], object], vbucket: int
) -> None:
    cluster = ProducerCluster(ClusterSettings(vbuckets=4))
    expected = f"vbucket {vbucket}: found none of that number, expected 0 to 3"
    with pytest.raises(ValueError, match=expected):
        question(cluster, vbucket)


def test_the_last_running_node_is_not_killed_over_the_protocol(
    make_cluster: MakeCluster, connect: Connect
) -> None:
    """Nobody could say that it is to be restored."""
    cluster = make_cluster(nodes=2)
    cluster.kill_node(0)
    client = connect(cluster, 1).log_in()
    refused = client.call(m.IoctlSet(b"node.kill", b"2"), Opcode.IOCTL_SET)
    assert refused.status == Status.EINVAL
    assert b"found no other running node" in refused.value
    client.ok(m.IoctlSet(b"node.restore", b"1"), Opcode.IOCTL_SET)
    client.ok(m.IoctlSet(b"node.kill", b"2"), Opcode.IOCTL_SET)
    assert client.is_closed()


def test_questions_about_replicas_leave_nothing_behind() -> None:
    """Numbers of vbuckets are the clients'."""
    replicas = ProducerBucket(ClusterSettings(vbuckets=1)).replicas
    for vbucket in range(100):
        assert replicas.at(0, vbucket) is None
        assert list(replicas.of(vbucket)) == []
    assert len(replicas._of) == 0
