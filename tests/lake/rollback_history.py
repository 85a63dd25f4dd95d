"""Seeded histories of a whole system: a producer of several nodes that writes, fails over, crashes
and purges; a consumer that is cut off and killed; applies at random rounds.

What can happen, and how often, is in `Chances`. The replica's side is behind `Replica`, so that the
same histories run on tables in memory and on real ones.
"""

import random
from contextlib import suppress
from dataclasses import dataclass, fields
from typing import Protocol

from dcp.lake.tables.vbucket_state import LakeVbucketState
from dcp.producer.cluster import ProducerCluster
from dcp.producer.cluster_settings import ClusterSettings
from dcp.server.model.refused_error import RefusedError
from tests.producer.conftest import Clock

Documents = dict[bytes, tuple[int, int, bytes]]
"""Key -> seqno, cas, value."""


@dataclass(frozen=True)
class Chances:
    """Weights of what happens in a step."""

    write: int = 10
    failover: int = 4
    crash: int = 3
    purge: int = 2
    flush: int = 1
    round: int = 12
    cut_round: int = 3
    driver_killed: int = 2
    worker_killed: int = 2
    pause_replication: int = 4
    resume_replication: int = 1
    apply: int = 7
    restore: int = 1
    drop_table: int = 1
    clean: int = 1


class Replica(Protocol):
    """The consumer's side of a history."""

    def run_round(self) -> None:
        """Plan, receive and commit a round, if there is anything to do."""

    def receive_only(self) -> None:
        """The same, but die before the commit."""

    def run_round_twice(self) -> None:
        """The same, but a task dies with half of its rows and is tried again."""

    def apply(self, choice: random.Random) -> None:
        """Bring the replica to one of the newest rounds."""

    def tamper(self, what: str, choice: random.Random) -> None:
        """Let somebody ``restore`` or ``drop_table``, or maintenance ``clean``."""

    def require_exact(self) -> None:
        """Compare the newest version with the producer's record."""


class History:
    """One seeded history over one cluster; `replica` is attached when it can connect."""

    def __init__(self, seed: int, chances: Chances | None = None) -> None:
        self.random = random.Random(seed)
        self.clock = Clock()
        self.settings = ClusterSettings(
            nodes=self.random.choice((2, 3)),
            vbuckets=self.random.choice((1, 3, 5)),
            seed=seed,
            clock=self.clock,
            checkpoint_items=self.random.choice((3, 20, 10_000)),
            replicas=1,
            unpersisted_seqnos=self.random.choice((0, 3)),
            rules=self.random.choice(("document", "server")),
        )
        self.cluster = ProducerCluster(self.settings)
        self.keys = [b"key-%d" % number for number in range(self.random.choice((4, 15, 40)))]
        self.steps: list[str] = []
        chances = chances or Chances()
        self._names = [field.name for field in fields(chances)]
        self._weights = [getattr(chances, name) for name in self._names]

    def step(self, replica: Replica) -> str:
        """Let one thing happen; return its name."""
        [name] = self.random.choices(self._names, self._weights)
        self.steps.append(name)
        getattr(self, "write" if name == "write" else f"_{name}")(replica)
        return name

    def write(self, _: Replica) -> None:
        """Write, delete and expire a few documents."""
        cluster = self.cluster
        with cluster.batch():
            for _number in range(self.random.randint(1, 25)):
                key, what = self.random.choice(self.keys), self.random.random()
                self.clock.now += self.random.random()
                if what < 0.6:
                    expiry = self.random.choice((0, 0, 0, 5))
                    cluster.set(key, b'{"n": %d}' % self.random.randrange(10**6), expiry)
                elif what < 0.9:
                    with suppress(RefusedError):  # it is not there
                        cluster.delete(key)
                else:
                    self.clock.now += 10
                    cluster.expire_due()

    def _failover(self, replica: Replica) -> None:
        """A node is lost, its vbuckets go to their copies; later it is back, with a share."""
        node = self.random.randrange(self.settings.nodes)
        self._let_replicas_follow()
        self.cluster.failover(node)
        if self.random.random() < 0.5:
            self.write(replica)
        self.cluster.restore_node(node)
        for vbucket in range(self.settings.vbuckets):
            if self.random.random() < 0.4:
                self.cluster.move_vbucket(vbucket, node)
        self.cluster.resume_replication()

    def _let_replicas_follow(self) -> None:
        """Where replication is not paused; so a seed is the same history each time."""
        if not self.cluster.bucket.replica_progress.is_paused:
            self.cluster.wait_until_replicated()

    def _crash(self, _: Replica) -> None:
        lost = self.random.choice((None, 0, 1, 4, 30))
        self.cluster.crash_restart(self.random.randrange(self.settings.nodes), lost)

    def _purge(self, _: Replica) -> None:
        vbucket = self.random.randrange(self.settings.vbuckets)
        up_to = self.random.choice((None, self.cluster.high_seqno(vbucket) // 2))
        self.cluster.purge_tombstones(vbucket, up_to)

    def _flush(self, _: Replica) -> None:
        """The collection is flushed: each vbucket tells it, and has no document below that."""
        self.cluster.flush_collection("_default", "_default")

    def _round(self, replica: Replica) -> None:
        replica.run_round()

    def _cut_round(self, replica: Replica) -> None:
        with self.cluster.batch():
            self.cluster.snapshot_cut_after(self.random.randint(1, 10))
        replica.run_round()
        with self.cluster.batch():
            self.cluster.faults.clear()

    def _driver_killed(self, replica: Replica) -> None:
        replica.receive_only()

    def _worker_killed(self, replica: Replica) -> None:
        replica.run_round_twice()

    def _pause_replication(self, _: Replica) -> None:
        self._let_replicas_follow()
        self.cluster.pause_replication()

    def _resume_replication(self, _: Replica) -> None:
        self.cluster.resume_replication()

    def _apply(self, replica: Replica) -> None:
        replica.apply(self.random)

    def _restore(self, replica: Replica) -> None:
        replica.tamper("restore", self.random)

    def _drop_table(self, replica: Replica) -> None:
        replica.tamper("drop_table", self.random)

    def _clean(self, replica: Replica) -> None:
        replica.tamper("clean", self.random)

    # --- what must be

    def documents(self, state: LakeVbucketState) -> Documents:
        """Return what the producer held at a state's complete seqno, on the branch of its data."""
        seqno = state.complete_seqno
        if seqno == 0:
            return {}
        assert state.failover_log is not None
        uuid = state.failover_log.uuid_at(seqno)
        held = self.cluster.state_at(state.vbucket, seqno, uuid)
        return {key: (each.seqno, each.cas, each.value) for key, each in held.items()}

    def require_at_the_end(self, states: dict[int, LakeVbucketState]) -> None:
        """Every vbucket is at the newest seqno of the branch that is written now."""
        for vbucket in range(self.settings.vbuckets):
            state, high = states.get(vbucket), self.cluster.high_seqno(vbucket)
            if state is None:
                assert high == 0
                continue
            assert state.complete_seqno == high, f"vbucket {vbucket}; steps: {self.steps}"
            now = self.cluster.state_at(vbucket, high)
            expected = {key: (each.seqno, each.cas, each.value) for key, each in now.items()}
            assert self.documents(state) == expected, f"vbucket {vbucket} is on a dead branch"
