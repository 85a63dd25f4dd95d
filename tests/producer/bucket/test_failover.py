"""Failovers, crashes, purges and changes of state over sockets: what a client meets."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from dcp.errors import LocalProtocolError
from dcp.producer.cluster import ProducerCluster
from dcp.producer.cluster_settings import ClusterSettings
from dcp.server.model.refused_error import RefusedError
from dcp.types import FailoverEntry
from dcp.wire import messages as m
from dcp.wire.codec import decode
from dcp.wire.vocabulary import (
    EndReason,
    HelloFeature,
    Opcode,
    ServerOpcode,
    SnapshotFlag,
    Status,
    StreamFlag,
    VbucketState,
)
from tests.producer.raw_client import FEATURES, RawClient

Connect = Callable[..., RawClient]
MakeCluster = Callable[..., ProducerCluster]
PUSHES = (*FEATURES, HelloFeature.DUPLEX, HelloFeature.CLUSTERMAP_CHANGE_NOTIFICATION)


@pytest.fixture
def pair(make_cluster: MakeCluster) -> ProducerCluster:
    """Two vbuckets per node, and a replica of each at the other node."""
    return make_cluster(nodes=2, vbuckets=4, replicas=1)


def _keys_of(cluster: ProducerCluster, vbucket: int) -> Iterator[bytes]:
    return (k for n in range(10_000) if cluster.vbucket_of(k := b"k%d" % n) == vbucket)


def _rollback(answer: m.Body) -> int:
    assert isinstance(answer, m.RollbackAnswer)
    return answer.rollback_seqno


# --- failover


def test_a_failover_loses_the_tail_and_begins_a_branch(
    pair: ProducerCluster, connect: Connect
) -> None:
    keys = _keys_of(pair, 2)
    for number in range(7):
        if number == 5:
            pair.wait_until_replicated()
            pair.pause_replication()
        pair.set(next(keys), b'"old"')
    old_uuid = pair.failover_log(2).current_uuid
    doomed = connect(pair, 1).log_in().open_dcp()
    doomed.request_stream(2)
    doomed.messages_to(7)
    rev = _config(connect(pair, 0))["rev"]
    held = {seqno: pair.state_at(2, seqno) for seqno in range(8)}

    pair.failover(1)

    assert doomed.is_closed()
    with pytest.raises(ConnectionRefusedError):
        RawClient(pair.seeds[1])
    assert [pair.vbucket_owner(v) for v in range(4)] == [0, 0, 0, 0]
    uuid = pair.failover_log(2).current_uuid
    assert pair.failover_log(2).entries == (FailoverEntry(uuid, 5), FailoverEntry(old_uuid, 0))
    assert pair.high_seqno(2) == 5
    assert len(pair.failover_log(0).entries) == 1  # the other node's go on as they were
    config = _config(connect(pair, 0))
    assert config["rev"] > rev
    assert config["vBucketServerMap"]["serverList"] == [pair.seeds[0]]
    assert config["vBucketServerMap"]["vBucketMap"] == [[0, -1]] * 4

    key = next(keys)
    pair.set(key, b'"new"')
    assert pair.state_at(2, 6, uuid)[key].value == b'"new"'
    for seqno, documents in held.items():
        assert pair.state_at(2, seqno, old_uuid) == documents
        assert seqno > 5 or pair.state_at(2, seqno) == documents
    assert pair.branches(2) == (old_uuid, uuid)

    client = connect(pair, 0).log_in().open_dcp()
    assert _rollback(decode(client.request_stream(2, 7, vb_uuid=old_uuid))) == 5
    accepted = decode(client.request_stream(2, 5, vb_uuid=old_uuid))
    assert accepted == m.FailoverLogAnswer(pair.failover_log(2).entries)
    seqnos = [b.by_seqno for b in client.messages_to(6) if isinstance(b, m.Mutation)]
    assert seqnos == [6]


def _config(client: RawClient) -> dict[str, Any]:
    body = client.log_in().ok(m.GetClusterConfig(), Opcode.GET_CLUSTER_CONFIG)
    assert isinstance(body, m.Text)
    tree: dict[str, Any] = json.loads(body.value)
    return tree


def test_the_new_map_is_pushed(pair: ProducerCluster, connect: Connect) -> None:
    client = connect(pair, 0).log_in(PUSHES)
    pair.failover(1)
    push = client.next_frame()
    assert push.opcode == ServerOpcode.CLUSTERMAP_CHANGE_NOTIFICATION
    body = decode(push)
    assert isinstance(body, m.ClustermapNotification)
    tree = json.loads(body.config)
    assert [node["services"]["kv"] for node in tree["nodesExt"]] == [
        int(pair.seeds[0].rsplit(":", 1)[1])
    ]


def test_a_failed_over_node_comes_back_empty(pair: ProducerCluster, connect: Connect) -> None:
    pair.failover(0)
    assert [pair.vbucket_owner(v) for v in range(4)] == [1, 1, 1, 1]
    pair.restore_node(0)
    seqnos = connect(pair, 0).log_in().ok(m.GetAllVbSeqnos(1), Opcode.GET_ALL_VB_SEQNOS)
    assert seqnos == m.AllVbSeqnos(())
    pair.set(next(_keys_of(pair, 0)), b"1")
    log = pair.failover_log(0)
    pair.move_vbucket(0, 0)
    assert pair.failover_log(0) == log
    client = connect(pair, 0).log_in().open_dcp()
    assert client.request_stream(0).status == Status.SUCCESS
    assert isinstance(client.messages_to(1)[-1], m.Mutation)


def test_failovers_that_cannot_be(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(nodes=3, vbuckets=6, replicas=2)
    with pytest.raises(ValueError, match="node index 3: found none, expected 0 to 2"):
        cluster.failover(3)
    cluster.kill_node(0)
    cluster.failover(1)
    assert {cluster.vbucket_owner(v) for v in range(6)} == {0, 2}
    with pytest.raises(ValueError, match=r"node 2 of 3 \(127.0.0.1:\d+\): it was failed over"):
        cluster.failover(1)
    with pytest.raises(ValueError, match="no other running node"):
        cluster.failover(2)
    with pytest.raises(ValueError, match="no member"):
        cluster.move_vbucket(0, 1)
    cluster.restore_node(0)
    cluster.failover(2)
    assert {cluster.vbucket_owner(v) for v in range(6)} == {0}
    alone = make_cluster(nodes=2, vbuckets=2)
    with pytest.raises(
        ValueError, match="replica of vbucket 0; serve the bucket with 1 replica or"
    ):
        alone.failover(0)
    assert alone.vbucket_owner(0) == 0


def test_uuids_are_random_and_follow_the_seed() -> None:
    def uuids(seed: int | None) -> list[int]:
        cluster = ProducerCluster(ClusterSettings(vbuckets=64, seed=seed))
        cluster.crash_restart(0)
        return [uuid for v in range(64) for uuid in cluster.branches(v)]

    assert uuids(1) == uuids(1)
    assert uuids(None) != uuids(None)
    assert len(set(uuids(1))) == 128
    assert 0 not in uuids(1)
    assert 2**47 < max(uuids(1)) < 2**48


def test_without_a_record_no_past_is_known() -> None:
    cluster = ProducerCluster(ClusterSettings(vbuckets=1, record_branches=False))
    cluster.set(b"k", b"1")
    old = cluster.failover_log(0).current_uuid
    cluster.crash_restart(0, lost_seqnos=1)
    assert cluster.branches(0) == (old, cluster.failover_log(0).current_uuid)
    with pytest.raises(LocalProtocolError, match="vbucket 0: this cluster records no branches"):
        cluster.state_at(0, 1)


def test_a_branch_that_never_was(cluster: ProducerCluster) -> None:
    with pytest.raises(ValueError, match="vbucket 0: found branch 0x5, expected one of 0x"):
        cluster.state_at(0, 1, 5)


# --- crash and restart


def test_a_crash_loses_what_was_not_on_disk(make_cluster: MakeCluster, connect: Connect) -> None:
    cluster = make_cluster(vbuckets=1, unpersisted_seqnos=2)
    for number in range(5):
        cluster.set(b"k%d" % number, b"1")
    old = cluster.failover_log(0).current_uuid
    client = connect(cluster).log_in().open_dcp()
    assert client.ok(m.ObserveSeqno(old), Opcode.OBSERVE_SEQNO) == m.ObserveSeqnoAnswer(
        0, 0, old, 3, 5
    )
    for seqno, status in ((3, Status.SUCCESS), (4, Status.ETMPFAIL)):
        body = m.SeqnoPersistence(seqno)
        assert client.call(body, Opcode.SEQNO_PERSISTENCE).status == status
    client.request_stream(0, flags=int(StreamFlag.DISK_ONLY))
    messages = client.messages_until(lambda body: isinstance(body, m.StreamEnd))
    assert messages[0] == m.SnapshotMarker(0, 3, SnapshotFlag.DISK | SnapshotFlag.CHECKPOINT)
    assert [b.by_seqno for b in messages if isinstance(b, m.Mutation)] == [1, 2, 3]

    cluster.crash_restart(0)

    assert client.is_closed()
    new = cluster.failover_log(0).current_uuid
    assert cluster.failover_log(0).entries == (FailoverEntry(new, 3), FailoverEntry(old, 0))
    assert cluster.persisted_seqno(0) == cluster.high_seqno(0) == 3
    cluster.set(b"other", b"1")
    assert cluster.persisted_seqno(0) == 3  # what was read from disk is on disk
    again = connect(cluster).log_in().open_dcp(b"again")
    assert again.ok(m.ObserveSeqno(old), Opcode.OBSERVE_SEQNO) == m.ObserveSeqnoAnswer(
        1, 0, new, 3, 4, old, 3
    )
    assert _rollback(decode(again.request_stream(0, 5, vb_uuid=old))) == 3
    cluster.crash_restart(0, lost_seqnos=0)
    assert cluster.failover_log(0).entries[0].seqno == cluster.high_seqno(0) == 4
    with pytest.raises(ValueError, match="-1 lost seqnos"):
        cluster.crash_restart(0, lost_seqnos=-1)


# --- purging


def _with_tombstones(cluster: ProducerCluster) -> None:
    """Seqnos 1..6 are documents, 7..9 delete three of them, 10 is a document."""
    for number in range(6):
        cluster.set(b"k%d" % number, b"1")
    for number in range(3):
        cluster.delete(b"k%d" % number)
    cluster.set(b"last", b"1")


def test_purged_tombstones_are_not_shown(make_cluster: MakeCluster, connect: Connect) -> None:
    cluster = make_cluster(vbuckets=1, checkpoint_items=1)
    _with_tombstones(cluster)
    assert cluster.purge_tombstones(0, 8) == 2
    assert cluster.purge_tombstones(0, 8) == 0
    assert cluster.purge_seqno(0) == 8
    uuid = cluster.failover_log(0).current_uuid
    client = connect(cluster).log_in().open_dcp()
    client.request_stream(0)
    items = [b.by_seqno for b in client.messages_to(10)[1:] if hasattr(b, "by_seqno")]
    assert items == [4, 5, 6, 9, 10]
    other = connect(cluster).log_in().open_dcp(b"other")
    assert _rollback(decode(other.request_stream(0, 7, vb_uuid=uuid))) == 0
    known = other.request_stream(0, 7, vb_uuid=uuid, value=b'{"purge_seqno":"8"}')
    assert known.status == Status.SUCCESS


def test_only_what_is_on_disk_is_purged(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(vbuckets=1, unpersisted_seqnos=2)
    _with_tombstones(cluster)
    assert cluster.purge_tombstones(0) == 1  # 7: 8 is the newest item on disk, 9 is not there
    assert cluster.purge_seqno(0) == 7


def test_disk_markers_name_the_purge_seqno(make_cluster: MakeCluster, connect: Connect) -> None:
    cluster = make_cluster(vbuckets=1, checkpoint_items=0)
    _with_tombstones(cluster)
    cluster.purge_tombstones(0, 7)
    client = connect(cluster).log_in().open_dcp(max_marker_version="2.2")
    client.request_stream(0)
    marker = client.message()
    assert isinstance(marker, m.SnapshotMarker)
    assert marker.purge_seqno == 7


# --- states


@pytest.mark.parametrize(
    ("state", "plain", "active_only"),
    [
        (VbucketState.ACTIVE, Status.SUCCESS, Status.SUCCESS),
        (VbucketState.REPLICA, Status.SUCCESS, Status.NOT_MY_VBUCKET),
        (VbucketState.PENDING, Status.NOT_MY_VBUCKET, Status.NOT_MY_VBUCKET),
        (VbucketState.DEAD, Status.NOT_MY_VBUCKET, Status.NOT_MY_VBUCKET),
    ],
)
def test_which_states_are_streamed(
    cluster: ProducerCluster,
    connect: Connect,
    state: VbucketState,
    plain: Status,
    active_only: Status,
) -> None:
    cluster.set(b"a", b"1")
    cluster.set_vbucket_state(0, state)
    client = connect(cluster).log_in().open_dcp()
    flags = int(StreamFlag.ACTIVE_VB_ONLY)
    assert client.request_stream(0, flags=flags).status == active_only
    if active_only != Status.SUCCESS:
        assert client.request_stream(0).status == plain
    for asked in VbucketState:
        shown = {VbucketState.ALIVE: state is not VbucketState.DEAD}.get(asked, asked is state)
        answer = client.ok(m.GetAllVbSeqnos(int(asked)), Opcode.GET_ALL_VB_SEQNOS)
        assert answer == m.AllVbSeqnos(((0, 1),) if shown else ())
    if state is not VbucketState.ACTIVE:
        refused = client.call(m.KeyOnly(b"\0a"), Opcode.GET)
        assert refused.status == Status.NOT_MY_VBUCKET
        with pytest.raises(RefusedError, match=f"vbucket 0 is {state.name}"):
            cluster.set(b"a", b"2")


def test_a_change_of_state_ends_streams_and_activation_begins_a_branch(
    cluster: ProducerCluster, connect: Connect
) -> None:
    for number in range(5):
        cluster.set(b"a%d" % number, b"1")
    first = cluster.failover_log(0).current_uuid
    client = connect(cluster).log_in().open_dcp()
    uuids = [first]
    for state in (VbucketState.REPLICA, VbucketState.DEAD):
        client.request_stream(0)
        client.messages_to(5)
        cluster.set_vbucket_state(0, state)
        assert client.message() == m.StreamEnd(EndReason.STATE_CHANGED)
        assert len(cluster.failover_log(0).entries) == len(uuids)
        cluster.set_vbucket_state(0, VbucketState.ACTIVE)
        uuids.insert(0, cluster.failover_log(0).current_uuid)
        entries = [FailoverEntry(uuid, 0 if uuid == first else 5) for uuid in uuids]
        assert cluster.failover_log(0).entries == tuple(entries)
    cluster.set_vbucket_state(0, VbucketState.ACTIVE)
    assert len(cluster.failover_log(0).entries) == 3
    with pytest.raises(ValueError, match="found state ALIVE"):
        cluster.set_vbucket_state(0, VbucketState.ALIVE)
