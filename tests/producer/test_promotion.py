"""Failovers onto copies: over sockets, and against a model that copies whole histories."""

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from dcp.producer.cluster import ProducerCluster
from dcp.producer.documents import DocumentError
from dcp.producer.settings import ClusterSettings
from dcp.wire import messages as m
from dcp.wire.vocabulary import EndReason, Status
from tests.producer.compared_copies import assert_copies_are_equal, frames_of, write_everything
from tests.producer.in_process_wire import InProcessWire
from tests.producer.raw_client import RawClient

Connect = Callable[..., RawClient]
MakeCluster = Callable[..., ProducerCluster]


@pytest.fixture
def trio(make_cluster: MakeCluster) -> ProducerCluster:
    """One vbucket: active on node 0, copied to the nodes 1 and 2."""
    return make_cluster(nodes=3, vbuckets=1, replicas=2)


def test_a_copy_goes_on(trio: ProducerCluster, connect: Connect) -> None:
    """With all that it had; its streams end, the other copy follows it."""
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
    assert [node for node, _ in trio.bucket.copies.of(0)] == [2]
    trio.restore_node(0)
    assert_copies_are_equal(trio)
    assert trio.bucket.map.replicas(0) == [2, 0]


def test_what_the_copy_had_not_is_lost(trio: ProducerCluster) -> None:
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
    """The copy that is left is what the vbucket is."""
    cluster.wait_until_replicated()
    ((_, copy),) = cluster.bucket.copies.of(0)
    assert frames_of(copy.vbucket) == frames_of(cluster.bucket.vbuckets[0])


def test_a_copy_that_was_ahead_goes_back(trio: ProducerCluster) -> None:
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


def test_the_next_living_node_with_a_copy(trio: ProducerCluster) -> None:
    trio.set(b"k", b"1")
    trio.wait_until_replicated()
    trio.kill_node(1)
    trio.failover(0)
    assert (trio.vbucket_owner(0), trio.high_seqno(0)) == (2, 1)


def test_without_a_living_copy_nothing_is_done(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(nodes=3, vbuckets=3, replicas=1)
    cluster.kill_node(1)
    before, rev = cluster.failover_log(0), cluster.bucket.map.rev
    with pytest.raises(ValueError, match="no living node with a copy of vbucket 0"):
        cluster.failover(0)
    assert (cluster.failover_log(0), cluster.bucket.map.rev) == (before, rev)
    assert cluster.set(b"k", b"1").value == b"1"


def test_copies_are_no_heirs_of_a_folder(make_cluster: MakeCluster, tmp_path: Path) -> None:
    """They are fed as ever, and anew after a restart."""
    settings = {"nodes": 2, "vbuckets": 2, "replicas": 1, "data_folder": tmp_path}
    cluster = make_cluster(**settings)
    write_everything(cluster)
    assert_copies_are_equal(cluster)
    with pytest.raises(ValueError, match="found a bucket in a data folder"):
        cluster.failover(0)
    cluster.stop()
    assert_copies_are_equal(make_cluster(**settings))


def test_collections_after_a_failover(trio: ProducerCluster) -> None:
    """A copy that lacks events of the manifest emits them anew; one that has them does not."""
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


# --- against a model

KEYS = [b"a", b"b", b"c"]
History = list[tuple[int, bytes, int | None]]
"""Seqno, key and CAS; None where it was deleted."""


class Model:
    """All branches by uuid as all that was ever written on or before them."""

    def __init__(self, uuid: int) -> None:
        self.branches: dict[int, History] = {uuid: []}
        self.current = uuid

    def fork(self, uuid: int, cut: int, parent: int) -> None:
        self.branches[uuid] = [each for each in self.branches[parent] if each[0] <= cut]
        self.current = uuid

    def state(self, uuid: int, seqno: int) -> dict[bytes, int]:
        held: dict[bytes, int] = {}
        for at, key, cas in self.branches[uuid]:
            if at <= seqno:
                held.pop(key, None)
                if cas is not None:
                    held[key] = cas
        return held


class Failing:
    """A cluster of three nodes that does not run: bytes move as the test says."""

    def __init__(self, stack: ExitStack) -> None:
        chosen = ClusterSettings(nodes=3, vbuckets=1, replicas=2, seed=1, checkpoint_items=4)
        self.cluster = ProducerCluster(chosen)
        stack.callback(self.cluster.stop)
        self.bucket = self.cluster.bucket
        self.model = Model(self.uuid)
        self.wires: dict[int, InProcessWire] = {}

    @property
    def uuid(self) -> int:
        return self.cluster.failover_log(0).current_uuid

    def write(self, keys: list[bytes], *, deletes: bool) -> None:
        with self.cluster.batch():
            for key in keys:
                try:
                    document = self.cluster.delete(key) if deletes else self.cluster.set(key, b"1")
                except DocumentError:
                    continue
                cas = None if deletes else document.cas
                self.model.branches[self.model.current].append((document.seqno, key, cas))

    def feed(self, node: int, rounds: int) -> None:
        """Let a copy receive something, if the node has one; a few frames a round."""
        owner = self.cluster.vbucket_owner(0)
        if self.bucket.copies.at(node, 0) is None:
            return
        if node not in self.wires:
            self.wires[node] = InProcessWire(self.bucket, owner, node)
        self.wires[node].pump(rounds, most_bytes=100)

    def hang_up(self) -> None:
        for wire in self.wires.values():
            wire.close()
        self.wires.clear()

    def crash(self, lost_seqnos: int) -> None:
        parent = self.uuid
        self.hang_up()
        self.cluster.crash_restart(self.cluster.vbucket_owner(0), lost_seqnos)
        self.model.fork(self.uuid, self.cluster.high_seqno(0), parent)

    def fail_over(self) -> None:
        owner = self.cluster.vbucket_owner(0)
        heir = self.bucket.copies.at(self.bucket.map.replicas(0)[0], 0)
        assert heir is not None
        event("inside a snapshot" if heir.high_seqno > heir.consistent_seqno else "whole")
        log, cut = heir.vbucket.failover_log, heir.consistent_seqno
        parent = log.current_uuid if heir.has_history else self.uuid
        self.hang_up()
        self.cluster.failover(owner)
        self.model.fork(self.uuid, cut, parent)
        assert self.cluster.failover_log(0).entries[0].seqno == cut == self.cluster.high_seqno(0)
        self.cluster.restore_node(owner)
        self.bucket.copies.follow(self.bucket.map)

    def check(self) -> None:
        for uuid, history in self.model.branches.items():
            for seqno in range(len(history) + 2):
                held = self.cluster.state_at(0, seqno, uuid)
                found = {key: document.cas for key, document in held.items()}
                assert found == self.model.state(uuid, seqno)
        expected = self.model.state(self.model.current, 1 << 60)
        data = self.bucket.vbuckets[0].data
        newest = {v.key: v.cas for v in data.newest_versions() if v.is_live}
        assert newest == expected
        self.hang_up()
        for node in self.bucket.map.replicas(0):
            self.feed(node, 1 << 20)
            copy = self.bucket.copies.at(node, 0)
            assert copy is not None
            assert frames_of(copy.vbucket) == frames_of(self.bucket.vbuckets[0])


STEPS = st.one_of(
    st.tuples(st.just("set"), st.lists(st.sampled_from(KEYS), min_size=1, max_size=4)),
    st.tuples(st.just("delete"), st.lists(st.sampled_from(KEYS), min_size=1, max_size=2)),
    st.tuples(st.just("feed"), st.integers(0, 2), st.integers(1, 40)),
    st.tuples(st.just("crash"), st.integers(0, 6)),
    st.tuples(st.just("fail over")),
    st.tuples(st.just("hang up")),
)


@settings(max_examples=60)
@given(st.lists(STEPS, max_size=40))
def test_histories_that_fork_on_copies(steps: list[tuple[object, ...]]) -> None:
    """Every branch that there ever was is told as it was, and all copies get what there is."""
    with ExitStack() as stack:
        failing = Failing(stack)
        for step in steps:
            match step:
                case ("set" | "delete" as kind, list(keys)):
                    failing.write(keys, deletes=kind == "delete")
                case ("feed", int(node), int(rounds)):
                    failing.feed(node, rounds)
                case ("crash", int(lost)):
                    failing.crash(lost)
                case ("fail over",):
                    failing.fail_over()
                case _:
                    failing.hang_up()
        failing.check()
