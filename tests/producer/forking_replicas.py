"""A cluster of three nodes with two replicas of one vbucket, and a model of all its branches."""

from contextlib import ExitStack
from typing import Any

from hypothesis import event
from hypothesis import strategies as st

from dcp.producer.cluster import ProducerCluster
from dcp.producer.cluster_settings import ClusterSettings
from dcp.server.model.refused_error import RefusedError
from tests.producer.compared_replicas import frames_of
from tests.producer.in_process_wire import InProcessWire

Step = tuple[object, ...]
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

    def __init__(self, stack: ExitStack, **chosen: Any) -> None:
        self._stack = stack
        self._chosen = chosen
        self.open()
        self.model = Model(self.uuid)

    def open(self) -> None:
        asked = {"nodes": 3, "vbuckets": 1, "replicas": 2, "seed": 1, "checkpoint_items": 4}
        self.cluster = ProducerCluster(ClusterSettings(**{**asked, **self._chosen}))
        self._stack.callback(self.cluster.stop)
        self.bucket = self.cluster.bucket
        self.wires: dict[int, InProcessWire] = {}

    @property
    def uuid(self) -> int:
        return self.cluster.failover_log(0).current_uuid

    def write(self, keys: list[bytes], *, deletes: bool) -> None:
        with self.cluster.batch():
            for key in keys:
                try:
                    document = self.cluster.delete(key) if deletes else self.cluster.set(key, b"1")
                except RefusedError:
                    continue
                cas = None if deletes else document.cas
                self.model.branches[self.model.current].append((document.seqno, key, cas))

    def feed(self, node: int, rounds: int) -> None:
        """Let a replica receive something, if the node has one; a few frames a round."""
        owner = self.cluster.vbucket_owner(0)
        if self.bucket.replicas.at(node, 0) is None:
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
        heir = self.bucket.replicas.at(self.bucket.map.replica_nodes(0)[0], 0)
        assert heir is not None
        event("inside a snapshot" if heir.high_seqno > heir.complete_seqno else "whole")
        log, cut = heir.vbucket.failover_log, heir.complete_seqno
        parent = log.current_uuid if heir.has_failover_log else self.uuid
        self.hang_up()
        self.cluster.failover(owner)
        self.model.fork(self.uuid, cut, parent)
        assert self.cluster.failover_log(0).entries[0].seqno == cut == self.cluster.high_seqno(0)
        self.cluster.restore_node(owner)
        self.bucket.replicas.follow(self.bucket.map)

    def check_all_branches(self) -> None:
        for uuid, history in self.model.branches.items():
            for seqno in range(len(history) + 2):
                held = self.cluster.state_at(0, seqno, uuid)
                found = {key: document.cas for key, document in held.items()}
                assert found == self.model.state(uuid, seqno)

    def check(self) -> None:
        """What there is now is what the model says, and every replica gets it."""
        expected = self.model.state(self.model.current, 1 << 60)
        data = self.bucket.vbuckets[0].data
        newest = {v.key: v.cas for v in data.newest.versions if v.is_mutation}
        assert newest == expected
        self.hang_up()
        for node in self.bucket.map.replica_nodes(0):
            self.feed(node, 1 << 20)
            replica = self.bucket.replicas.at(node, 0)
            assert replica is not None
            assert frames_of(replica.vbucket) == frames_of(self.bucket.vbuckets[0])

    def do(self, step: Step) -> None:
        """Do one of ``STEPS``."""
        match step:
            case ("set" | "delete" as kind, list(keys)):
                self.write(keys, deletes=kind == "delete")
            case ("feed", int(node), int(rounds)):
                self.feed(node, rounds)
            case ("crash", int(lost)):
                self.crash(lost)
            case ("fail over",):
                self.fail_over()
            case _:
                self.hang_up()


STEPS = st.one_of(
    st.tuples(st.just("set"), st.lists(st.sampled_from(KEYS), min_size=1, max_size=4)),
    st.tuples(st.just("delete"), st.lists(st.sampled_from(KEYS), min_size=1, max_size=2)),
    st.tuples(st.just("feed"), st.integers(0, 2), st.integers(1, 40)),
    st.tuples(st.just("crash"), st.integers(0, 6)),
    st.tuples(st.just("fail over")),
    st.tuples(st.just("hang up")),
)
