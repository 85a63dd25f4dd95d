"""The answers of a relay's node: asked as the active node of a cluster, it takes no writes."""

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from dcp.producer.cluster import ProducerCluster
from dcp.relay.commands import READ_ONLY
from dcp.relay.thread import Relay
from dcp.types import END_OF_TIME
from dcp.wire import messages as m
from dcp.wire.codec import decode
from dcp.wire.vocabulary import Opcode, Status, StreamFlag, VbucketState
from tests.client.drained import fill
from tests.producer.raw_client import RawClient
from tests.relay.following import wait_until_level

MakeCluster = Callable[..., ProducerCluster]
MakeRelay = Callable[..., Relay]
Connect = Callable[[Relay], RawClient]
NOW = 1_700_000_000.0


@pytest.fixture
def connect() -> Iterator[Connect]:
    with ExitStack() as stack:
        yield lambda relay: stack.enter_context(RawClient(relay.seeds[0])).log_in()


@pytest.fixture
def cluster(make_cluster: MakeCluster) -> ProducerCluster:
    return make_cluster(vbuckets=2, clock=lambda: NOW)


def _level(cluster: ProducerCluster, make_relay: MakeRelay) -> Relay:
    relay = make_relay(cluster)
    wait_until_level(cluster, relay)
    return relay


def test_the_map_is_of_one_node_with_the_clusters_uuid(
    cluster: ProducerCluster, make_relay: MakeRelay, connect: Connect
) -> None:
    relay = make_relay(cluster)
    told = connect(relay).call(m.GetClusterConfig(), Opcode.GET_CLUSTER_CONFIG).value
    tree = json.loads(told)
    assert tree["uuid"] == cluster.bucket.map.bucket_uuid
    assert tree["vBucketServerMap"]["vBucketMap"] == [[0], [0]]
    assert len(tree["nodesExt"]) == 1


def test_questions_about_seqnos_and_branches(
    cluster: ProducerCluster, make_relay: MakeRelay, connect: Connect
) -> None:
    fill(cluster, 50)
    client = connect(_level(cluster, make_relay))
    known = tuple((v, cluster.high_seqno(v)) for v in range(2))
    for state, expected in (
        (None, known),
        (VbucketState.ACTIVE, known),
        (VbucketState.REPLICA, ()),
    ):
        answer = client.ok(m.GetAllVbSeqnos(state), Opcode.GET_ALL_VB_SEQNOS)
        assert answer == m.AllVbSeqnos(expected)
    log = client.ok(m.Empty(), Opcode.GET_FAILOVER_LOG, vbucket=1)
    assert log == m.FailoverLogAnswer(cluster.failover_log(1).entries)
    assert client.statistics("vbucket") == {"vb_0": "active", "vb_1": "active"}
    assert client.statistics("vbucket-details 0")["vb_0"] == "active"
    assert client.statistics("checkpoint 0")["vb_0:state"] == "active"
    found = client.statistics("")
    assert (found["vb_active_num"], found["vb_replica_num"]) == ("2", "0")
    uuid = cluster.failover_log(0).current_uuid
    observed = client.ok(m.ObserveSeqno(uuid), Opcode.OBSERVE_SEQNO, vbucket=0)
    assert isinstance(observed, m.ObserveSeqnoAnswer)
    assert (observed.vb_uuid, observed.current) == (uuid, cluster.high_seqno(0))


def test_documents_can_be_read_and_not_written(
    cluster: ProducerCluster, make_relay: MakeRelay, connect: Connect
) -> None:
    written = cluster.set(b"k", b'{"a":1}')
    due = cluster.set(
        b"due", b"1", expiry=int(NOW) - 10_000_000
    )  # the relay's clock is the true one
    client = connect(_level(cluster, make_relay))
    vbucket = cluster.vbucket_of(b"k")
    answer = client.call(m.KeyOnly(b"\0k"), Opcode.GET, vbucket=vbucket)
    assert (answer.status, answer.value, answer.cas) == (0, b'{"a":1}', written.cas)
    for body, opcode in (
        (m.Store(b"\0k", b"2"), Opcode.SET),
        (m.Store(b"\0k", b"2"), Opcode.ADD),
        (m.Store(b"\0k", b"2"), Opcode.REPLACE),
        (m.KeyOnly(b"\0k"), Opcode.DELETE),
        (m.Touch(b"\0k", 1), Opcode.TOUCH),
    ):
        refused = client.call(body, opcode, vbucket=vbucket)
        assert refused.status == Status.EACCESS
        assert READ_ONLY in refused.value.decode()
    high = cluster.high_seqno(cluster.vbucket_of(b"due"))
    gone = client.call(m.KeyOnly(b"\0due"), Opcode.GET, vbucket=cluster.vbucket_of(b"due"))
    assert gone.status == Status.KEY_ENOENT
    found = client.ok(m.GetAllVbSeqnos(), Opcode.GET_ALL_VB_SEQNOS)
    assert isinstance(found, m.AllVbSeqnos)
    assert dict(found.seqnos)[cluster.vbucket_of(b"due")] == high >= due.seqno


def test_orders_and_takeovers_are_refused(
    cluster: ProducerCluster, make_relay: MakeRelay, connect: Connect
) -> None:
    relay = make_relay(cluster)
    client = connect(relay)
    order = client.call(m.IoctlSet(b"scope.create", b"s"), Opcode.IOCTL_SET)
    assert order.status == Status.EACCESS
    client.open_dcp()
    assert client.request_stream(0, flags=StreamFlag.TAKEOVER).status == Status.EACCESS


def test_a_consumer_that_is_ahead_must_wait(
    cluster: ProducerCluster, make_relay: MakeRelay, connect: Connect
) -> None:
    """On the newest branch it is never sent back; on none that is known it is."""
    fill(cluster, 100)
    client = connect(_level(cluster, make_relay)).open_dcp()
    high, uuid = cluster.high_seqno(0), cluster.failover_log(0).current_uuid
    for start, snapshot, vb_uuid, status in (
        (high + 1, (high + 1, high + 1), uuid, Status.ETMPFAIL),
        (high - 1, (high - 2, high + 5), uuid, Status.ETMPFAIL),
        (high, (high, high), uuid + 1, Status.ROLLBACK),
        (high + 9, (high, high + 3), uuid, Status.ERANGE),
        (high, (high, high + 5), uuid, Status.SUCCESS),
    ):
        answer = client.request_stream(0, start, vb_uuid=vb_uuid, snapshot=snapshot)
        assert answer.status == status, (start, snapshot)


def test_what_is_not_known_is_asked_for_again(
    cluster: ProducerCluster, make_relay: MakeRelay, connect: Connect
) -> None:
    relay = make_relay(cluster)
    client = connect(relay).open_dcp()
    with relay.bucket.lock:
        relay.relay_bucket.replica(0).has_failover_log = False
    assert client.request_stream(0).status == Status.ETMPFAIL
    for opcode in (Opcode.GET_FAILOVER_LOG, Opcode.DCP_GET_FAILOVER_LOG):
        assert client.call(m.Empty(), opcode, vbucket=0).status == Status.ETMPFAIL
    observed = client.call(m.ObserveSeqno(1), Opcode.OBSERVE_SEQNO, vbucket=0)
    assert observed.status == Status.ETMPFAIL
    beyond = client.call(m.Empty(), Opcode.GET_FAILOVER_LOG, vbucket=9)
    assert beyond.status == Status.NOT_MY_VBUCKET


def test_a_failover_log_that_was_refused_is_asked_for_again(
    make_cluster: MakeCluster, make_relay: MakeRelay, connect: Connect
) -> None:
    cluster = make_cluster(vbuckets=2)
    for vbucket in range(2):
        cluster.refuse_stream(vbucket, Status.ETMPFAIL, times=3)
    fill(cluster, 20)
    _level(cluster, make_relay)


def test_streams_end_where_they_are_asked_to(
    cluster: ProducerCluster, make_relay: MakeRelay, connect: Connect
) -> None:
    fill(cluster, 100)
    client = connect(_level(cluster, make_relay)).open_dcp()
    assert client.request_stream(0, end=cluster.high_seqno(0)).status == Status.SUCCESS
    last = client.messages_until(lambda body: isinstance(body, m.StreamEnd))[-1]
    assert last == m.StreamEnd(0)
    asked = m.StreamRequest(int(StreamFlag.FROM_LATEST), 0, END_OF_TIME, 0, 0, 0)
    answer = client.call(asked, Opcode.DCP_STREAM_REQ, vbucket=1)
    assert isinstance(decode(answer), m.FailoverLogAnswer)
