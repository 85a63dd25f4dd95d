"""Replicas of vbuckets on other nodes, over real sockets: what they hold, say, and follow."""

import hashlib
import json
from collections.abc import Callable
from time import monotonic, sleep
from typing import Any

import pytest

from dcp.errors import ConfigError
from dcp.producer.cluster import ProducerCluster
from dcp.producer.cluster_settings import ClusterSettings
from dcp.protocol import credentials
from dcp.protocol.credentials import SCRAM_MECHANISMS, Credentials, Secret
from dcp.server.bucket import auth
from dcp.server.bucket.auth import REPLICATION_USER, Outcome, SaslConversation
from dcp.server.bucket.write_path import WritePath
from dcp.server.model.resume_rules import VbucketFacts
from dcp.server.model.versions import Content, SyncWrite, Version
from dcp.types import FailoverEntry, FailoverLog
from dcp.wire import messages as m
from dcp.wire.codec import decode, encode
from dcp.wire.vocabulary import Opcode, Status, VbucketState
from tests.client.drained import wait_for
from tests.producer.compared_replicas import (
    assert_replicas_are_equal,
    write_everything,
)
from tests.producer.raw_client import PATIENCE_SECONDS, RawClient

Connect = Callable[..., RawClient]
MakeCluster = Callable[..., ProducerCluster]


@pytest.fixture
def pair(make_cluster: MakeCluster) -> ProducerCluster:
    """Vbucket 0 is active on node 0 and copied to node 1, vbucket 1 the other way round."""
    return make_cluster(nodes=2, vbuckets=2, replicas=1)


def _row(client: RawClient) -> Any:
    answer = client.call(m.GetClusterConfig(), Opcode.GET_CLUSTER_CONFIG)
    return json.loads(answer.value)["vBucketServerMap"]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"nodes": 9, "replicas": 4},
            "replicas .*: found 4 .int., expected an integer from 0 to 3",
        ),
        ({"nodes": 2, "replicas": -1}, "replicas .*: found -1"),
    ],
)
def test_settings_that_cannot_be(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ClusterSettings(**settings)


@pytest.mark.parametrize("replicas", [1, 2, 3])
def test_replicas_are_equal(make_cluster: MakeCluster, replicas: int) -> None:
    cluster = make_cluster(nodes=4, vbuckets=4, replicas=replicas)
    write_everything(cluster)
    assert_replicas_are_equal(cluster)


def test_replicas_of_what_was_there_before(make_cluster: MakeCluster) -> None:
    """They come from disk, in parts, with a window that is smaller than all of it."""
    cluster = make_cluster(nodes=2, vbuckets=1, replicas=1)
    cluster.pause_replication()
    with cluster.batch():
        for number in range(3000):
            cluster.set(b"%d" % number, b"x" * 3000)
    write_everything(cluster)
    cluster.bucket.vbuckets[0].data.checkpoints.close_open()
    cluster.bucket.vbuckets[0].data.checkpoints.remove_closed()
    cluster.resume_replication()
    assert_replicas_are_equal(cluster)
    (_, replica), *_ = cluster.bucket.replicas.of(0)
    assert replica.vbucket.data.checkpoints.memory_bytes == 0


def test_sync_writes_are_copied(pair: ProducerCluster) -> None:
    """Prepares and aborts, and what was committed with its own CAS."""
    prepare = Content(b"1", opcode=Opcode.DCP_PREPARE, sync=SyncWrite(level=1))
    contents = [
        (b"a", prepare),
        (b"a", Content(b"1", sync=SyncWrite(1))),
        (b"b", prepare),
        (b"b", Content(opcode=Opcode.DCP_ABORT, sync=SyncWrite(3))),
        (b"c", prepare),
    ]
    pair.take_versions(
        0,
        [
            Version(0, key, content, seqno=seqno, rev=seqno, cas=seqno)
            for seqno, (key, content) in enumerate(contents, 1)
        ],
    )
    assert_replicas_are_equal(pair)


def test_seqnos_that_begin_high(pair: ProducerCluster) -> None:
    begin = 2**63 + 5
    pair.start_vbucket_at(0, begin, cas=2**63)
    pair.wait_until_replicated()
    key = next(b"k%d" % n for n in range(99) if pair.vbucket_of(b"k%d" % n) == 0)
    assert pair.set(key, b"1").seqno == begin + 1
    assert_replicas_are_equal(pair)


def test_a_vbucket_that_was_replaced(pair: ProducerCluster) -> None:
    """The replica's branch is not known any more: it goes back to nothing and begins anew."""
    write_everything(pair)
    pair.wait_until_replicated()
    log = FailoverLog((FailoverEntry(77, 3), FailoverEntry(76, 0)))
    versions = [Version(0, b"k%d" % n, Content(b"1"), seqno=n, rev=1, cas=n) for n in range(1, 6)]
    pair.set_up_vbucket(0, VbucketFacts(log, 5), versions)
    assert_replicas_are_equal(pair)
    (_, replica), *_ = pair.bucket.replicas.of(0)
    assert (replica.vbucket.failover_log, replica.high_seqno) == (log, 5)


def test_what_the_map_says(make_cluster: MakeCluster, connect: Connect) -> None:
    cluster = make_cluster(nodes=3, vbuckets=3, replicas=2)
    found = _row(connect(cluster).log_in())
    assert (found["numReplicas"], found["vBucketMap"]) == (2, [[0, 1, 2], [1, 2, 0], [2, 0, 1]])
    cluster.move_vbucket(0, 1)
    assert _row(connect(cluster).log_in())["vBucketMap"][0] == [1, 0, 2]
    assert_replicas_are_equal(cluster)


def _one_document(cluster: ProducerCluster) -> bytes:
    """Write to vbucket 0 until it has seqno 1."""
    key = next(b"k%d" % n for n in range(99) if cluster.vbucket_of(b"k%d" % n) == 0)
    cluster.set(key, b"1")
    cluster.wait_until_replicated()
    return key


def test_a_replica_answers_questions(pair: ProducerCluster, connect: Connect) -> None:
    """The node that has a replica speaks for it; it takes no KV command on it."""
    key = _one_document(pair)
    vb_uuid = pair.failover_log(0).current_uuid
    client = connect(pair, 1).log_in()
    log = client.ok(m.Empty(), Opcode.GET_FAILOVER_LOG, vbucket=0)
    assert log == m.FailoverLogAnswer(pair.failover_log(0).entries)
    observed = client.ok(m.ObserveSeqno(vb_uuid), Opcode.OBSERVE_SEQNO, vbucket=0)
    assert observed == m.ObserveSeqnoAnswer(0, 0, vb_uuid, 1, 1)
    for state, expected in (
        (None, ((0, 1), (1, 0))),
        (VbucketState.ACTIVE, ((1, 0),)),
        (VbucketState.REPLICA, ((0, 1),)),
    ):
        answer = client.ok(m.GetAllVbSeqnos(state), Opcode.GET_ALL_VB_SEQNOS)
        assert answer == m.AllVbSeqnos(expected)
    refused = client.call(m.KeyOnly(b"\0" + key), Opcode.GET, vbucket=0)
    assert refused.status == Status.NOT_MY_VBUCKET


def _statistics(client: RawClient, group: bytes) -> dict[bytes, bytes]:
    client.send(encode(m.Stat(group), Opcode.STAT))
    found: dict[bytes, bytes] = {}
    while True:
        answer = decode(client.answer())
        assert isinstance(answer, m.StatAnswer)
        if not answer.key:
            return found
        found[answer.key] = answer.value


def test_statistics_tell_of_replicas(pair: ProducerCluster, connect: Connect) -> None:
    _one_document(pair)
    client = connect(pair, 1).log_in()
    vb_uuid = b"%d" % pair.failover_log(0).current_uuid
    assert _statistics(client, b"")[b"vb_replica_num"] == b"1"
    assert _statistics(client, b"vbucket") == {b"vb_0": b"replica", b"vb_1": b"active"}
    seqnos = _statistics(client, b"vbucket-seqno")
    assert (seqnos[b"vb_0:high_seqno"], seqnos[b"vb_0:uuid"]) == (b"1", vb_uuid)
    assert _statistics(client, b"failovers")[b"vb_0:0:id"] == vb_uuid


def test_a_replica_is_fed_by_one_connection(pair: ProducerCluster) -> None:
    """With flow control, whatever people order to be wrong with their own connections."""
    pair.wait_until_replicated()
    pair.snapshot_cut_after(1)
    for number in range(100):
        pair.set(b"k%d" % number, b"1")
    assert_replicas_are_equal(pair)
    assert pair.faults.most_items == 1  # it waits for a connection of people
    connections = pair.counters().connections
    assert set(connections) == {
        (0, "replication:node1->node2:default"),
        (1, "replication:node2->node1:default"),
    }
    assert all(each.window_bytes for each in connections.values())
    assert pair.faults.cuts_done == 0


def test_replicas_stand_still_while_paused(pair: ProducerCluster) -> None:
    _one_document(pair)
    pair.pause_replication()
    for number in range(20):
        pair.set(b"p%d" % number, b"1")
    with pytest.raises(TimeoutError, match=r"holds seqno 1 .* expected"):
        pair.wait_until_replicated(0.3)
    assert pair.replica_seqno(0) == 1
    pair.resume_replication()
    assert_replicas_are_equal(pair)
    assert pair.replica_seqno(0) == pair.high_seqno(0)


@pytest.mark.parametrize("node", [0, 1])
def test_a_node_that_is_away_for_a_while(pair: ProducerCluster, node: int) -> None:
    _one_document(pair)
    pair.kill_node(node)
    write_everything(pair)
    pair.wait_until_replicated()  # of those on running nodes
    replica = pair.bucket.replicas.at(node, 1 - node)
    assert replica is not None
    assert replica.high_seqno < pair.high_seqno(1 - node)
    pair.restore_node(node)
    assert_replicas_are_equal(pair)


def test_lost_connections_are_made_again(pair: ProducerCluster) -> None:
    """One in each direction, again after each loss."""
    for round_ in range(5):
        deadline = monotonic() + PATIENCE_SECONDS
        while (opened := pair.counters().dcp_connections_opened) < 2 * (round_ + 1):
            assert monotonic() < deadline, f"round {round_}: {opened} connections were opened"
            sleep(0.01)
        pair.set(b"k%d" % round_, b"1")
        pair.drop_connections()
    assert_replicas_are_equal(pair)


def test_a_node_that_hangs(pair: ProducerCluster) -> None:
    pair.wait_until_replicated()
    pair.hang_node(1)
    write_everything(pair)
    with pytest.raises(TimeoutError, match="the replica of vbucket 0 on node 2"):
        pair.wait_until_replicated(0.3)
    replica = pair.bucket.replicas.at(1, 0)
    assert replica is not None
    assert replica.high_seqno < pair.high_seqno(0)  # nothing gets there
    pair.restore_node(1)
    assert_replicas_are_equal(pair)


def test_replicas_go_back_after_a_crash(pair: ProducerCluster) -> None:
    """What the active lost is lost on its replicas too."""
    for number in range(100):
        pair.set(b"k%d" % number, b"%d" % number)
    pair.wait_until_replicated()
    before = pair.high_seqno(0)
    pair.crash_restart(0, lost_seqnos=5)
    assert pair.high_seqno(0) == before - 5
    assert_replicas_are_equal(pair)
    pair.set(b"after", b"1")
    assert_replicas_are_equal(pair)


def test_replicas_after_a_stop(pair: ProducerCluster) -> None:
    write_everything(pair)
    pair.stop()
    pair.set(b"meanwhile", b"1")
    pair.start()
    assert_replicas_are_equal(pair)


def test_a_user_may_not_be_the_cluster(pair: ProducerCluster, connect: Connect) -> None:
    client = connect(pair)
    for password in ("password", pair.bucket.users.node_credentials.password.reveal()):
        payload = f"\0@replication\0{password}".encode()  # nodes never say it, nor hear it
        assert client.call(m.Sasl(b"PLAIN", payload), Opcode.SASL_AUTH).status == Status.AUTH_ERROR
    answer = client.scram(b"SCRAM-SHA512", "SCRAM-SHA-512", "@replication", "password")
    assert answer.status == Status.AUTH_ERROR


def test_nodes_sign_in_by_scram(make_cluster: MakeCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each connection with a nonce of its own, all with one derivation of the password."""
    said: list[tuple[bytes, bytes]] = []
    derived: list[bytes] = []
    start, derive = SaslConversation.start, hashlib.pbkdf2_hmac

    def started(self: SaslConversation, mechanism: bytes, payload: bytes) -> Outcome:
        said.append((mechanism, payload))
        return start(self, mechanism, payload)

    def derives(name: str, password: bytes, salt: bytes, iterations: int) -> bytes:
        derived.append(password)
        return derive(name, password, salt, iterations)

    monkeypatch.setattr(SaslConversation, "start", started)
    monkeypatch.setattr(hashlib, "pbkdf2_hmac", derives)
    monkeypatch.setattr(credentials, "pbkdf2_hmac", derives)
    fresh = Credentials(REPLICATION_USER, Secret("fresh"), SCRAM_MECHANISMS[:1])
    monkeypatch.setattr(auth, "_node_credentials", lambda: fresh)
    cluster = make_cluster(nodes=3, vbuckets=3, replicas=2)
    cluster.wait_until_replicated()
    password = cluster.bucket.users.node_credentials.password.reveal().encode()
    assert len(said) == len(set(said)) == 6
    assert {mechanism for mechanism, _ in said} == {b"SCRAM-SHA512"}
    assert not any(password in payload for _, payload in said)
    assert derived.count(password) == 2  # to know it, and to prove it


def test_a_disk_that_refuses_what_a_replica_received_is_told(
    make_cluster: MakeCluster,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It is no lost connection, though it is connected again."""
    cluster = make_cluster(nodes=2, vbuckets=1, replicas=1)
    cluster.wait_until_replicated()
    failures, received = [OSError("disk full")], WritePath.received

    def refused(writes: WritePath, node: int, vbucket: int) -> None:
        if failures:
            raise failures.pop()
        received(writes, node, vbucket)

    monkeypatch.setattr(WritePath, "received", refused)
    cluster.set(b"k", b"1")
    cluster.wait_until_replicated(60.0)
    assert not failures
    # What was received stays: the replica may be whole before.
    wait_for("the warning", lambda: "disk full; connecting again" in caplog.text)


def test_connections_between_nodes_share_windows(
    make_cluster: Callable[..., ProducerCluster],
) -> None:
    """Two have 4 MiB each; more than eight share 32 MiB, and those that remain are told."""
    cluster = make_cluster(nodes=2, vbuckets=20, replicas=3)

    def windows() -> set[int]:
        with cluster.bucket.lock:
            connections = cluster.bucket.dcp_connections.items()
            return {
                each.flow.window_bytes for (_, name), each in connections if name[:4] == b"repl"
            }

    def wait_for_windows(expected: int) -> None:
        until = monotonic() + PATIENCE_SECONDS
        while windows() != {expected}:
            assert monotonic() < until, windows()
            sleep(0.01)

    mebibyte = 1024 * 1024
    wait_for_windows(4 * mebibyte)
    for _ in range(3):
        cluster.add_node()
    cluster.rebalance()
    cluster.set(b"k", b"1")
    cluster.wait_until_replicated()
    with cluster.bucket.lock:
        count = len(cluster.bucket.dcp_connections)
    assert count > 8
    wait_for_windows(32 * mebibyte // count)
    assert_replicas_are_equal(cluster)
