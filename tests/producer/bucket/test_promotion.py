"""Failovers onto copies: over sockets, and against a model that copies whole histories."""

from collections.abc import Callable
from contextlib import ExitStack

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dcp.producer.cluster import ProducerCluster
from dcp.wire import messages as m
from dcp.wire.vocabulary import EndReason, Status
from tests.producer.compared_replicas import assert_replicas_are_equal, frames_of, write_everything
from tests.producer.forking_replicas import STEPS, Failing, Step
from tests.producer.raw_client import RawClient

Connect = Callable[..., RawClient]
MakeCluster = Callable[..., ProducerCluster]


@pytest.fixture
def trio(make_cluster: MakeCluster) -> ProducerCluster:
    """One vbucket: active on node 0, copied to the nodes 1 and 2."""
    return make_cluster(nodes=3, vbuckets=1, replicas=2)


def test_a_replica_goes_on(trio: ProducerCluster, connect: Connect) -> None:
    """With all that it had; its streams end, the other replica follows it."""
    write_everything(trio)
    trio.wait_until_replicated()
    copied = frames_of(trio.bucket.vbuckets[0])
    log, high = trio.failover_log(0), trio.high_seqno(0)
    dcp = connect(trio, 1).log_in().open_dcp()
    dcp.request_stream(0)
    dcp.messages_to(high)
    trio.failover(0)
    assert dcp.message() == m.StreamEnd(EndReason.STATE_CHANGED)
    assert trio.vbucket_owner(0) == 1
    assert frames_of(trio.bucket.vbuckets[0]) == copied
    newest, *older = trio.failover_log(0).entries
    assert (newest.seqno, tuple(older)) == (high, log.entries)
    trio.set(b"after", b"1")
    answer = dcp.request_stream(0, high, vb_uuid=log.current_uuid)
    assert answer.status == Status.SUCCESS
    dcp.messages_to(high + 1)
    trio.wait_until_replicated()
    assert [node for node, _ in trio.bucket.replicas.of(0)] == [2]
    trio.restore_node(0)
    assert_replicas_are_equal(trio)
    assert trio.bucket.map.replica_nodes(0) == [2, 0]


def test_what_the_replica_had_not_is_lost(trio: ProducerCluster) -> None:
    trio.set(b"k", b"1")
    trio.wait_until_replicated()
    trio.pause_replication()
    old_uuid = trio.failover_log(0).current_uuid
    trio.set(b"k", b"2")
    lost = trio.set(b"l", b"2")
    trio.failover(0)
    assert trio.high_seqno(0) == 1
    assert trio.state_at(0, 9, old_uuid)[b"l"] == lost
    again = trio.set(b"l", b"2")
    assert (again.seqno, again.cas > lost.cas) == (2, True)
    trio.resume_replication()
    assert_survivor_is_equal(trio)


def assert_survivor_is_equal(cluster: ProducerCluster) -> None:
    """The replica that is left is what the vbucket is."""
    cluster.wait_until_replicated()
    ((_, replica),) = cluster.bucket.replicas.of(0)
    assert frames_of(replica.vbucket) == frames_of(cluster.bucket.vbuckets[0])


def test_a_replica_that_was_ahead_goes_back(trio: ProducerCluster) -> None:
    """Node 1 missed what node 2 has, and is the one that is promoted."""
    trio.set(b"k", b"1")
    trio.wait_until_replicated()
    trio.kill_node(1)
    for number in range(9):
        trio.set(b"k%d" % number, b"2")
    trio.wait_until_replicated()
    trio.kill_node(0)
    trio.restore_node(1)
    trio.failover(0)
    assert (trio.vbucket_owner(0), trio.high_seqno(0)) == (1, 1)
    trio.set(b"k", b"3")
    assert_survivor_is_equal(trio)


def test_the_next_running_node_with_a_replica(trio: ProducerCluster) -> None:
    trio.set(b"k", b"1")
    trio.wait_until_replicated()
    trio.kill_node(1)
    trio.failover(0)
    assert (trio.vbucket_owner(0), trio.high_seqno(0)) == (2, 1)


def test_without_a_replica_on_a_running_node_nothing_is_done(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(nodes=3, vbuckets=3, replicas=1)
    cluster.kill_node(1)
    before, rev = cluster.failover_log(0), cluster.bucket.map.rev
    with pytest.raises(ValueError, match="no running node with a replica of vbucket 0"):
        cluster.failover(0)
    assert (cluster.failover_log(0), cluster.bucket.map.rev) == (before, rev)
    assert cluster.set(b"k", b"1").value == b"1"


def test_collections_after_a_failover(trio: ProducerCluster) -> None:
    """A replica that lacks events of the manifest emits them anew; one that has them does not."""
    trio.create_collection("_default", "a")
    trio.set(b"k", b"1", collection="_default.a")
    trio.flush_collection("_default", "a")
    trio.set(b"k", b"2", collection="_default.a")
    trio.wait_until_replicated()
    trio.failover(0)
    assert trio.high_seqno(0) == 4
    assert trio.get(b"k", collection="_default.a").value == b"2"
    trio.pause_replication()
    trio.create_collection("_default", "b")
    trio.failover(1)
    assert trio.bucket.vbuckets[0].documents.collections.manifest == trio.manifest
    assert trio.high_seqno(0) == 5


@settings(max_examples=60)
@given(st.lists(STEPS, max_size=40))
def test_histories_that_fork_on_replicas(steps: list[Step]) -> None:
    """Every branch that there ever was is told as it was, and all replicas get what there is."""
    with ExitStack() as stack:
        failing = Failing(stack)
        for step in steps:
            failing.do(step)
        failing.check_all_branches()
        failing.check()
