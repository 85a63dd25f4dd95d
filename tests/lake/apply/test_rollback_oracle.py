"""P2: after every commit each vbucket equals the producer's own record of that branch there.

The product's driver over tables in memory; streams from a real producer over sockets.
"""

import random
from pathlib import Path

import pytest

from dcp.lake.maintain.cleaning import clean
from dcp.lake.maintain.work import MaintenanceWork
from dcp.lake.tables.applied_version import AppliedVersion
from dcp.lake.tables.horizon import Horizon
from dcp.lake.tables.lake_tables import DOCS
from dcp.producer.cluster import ProducerCluster
from dcp.producer.cluster_settings import ClusterSettings
from tests.lake.memory_rounds import MemoryRounds
from tests.lake.receiving import SMALL_FLOW, settings_for
from tests.lake.rollback_history import Documents, History
from tests.seeds import seeds

QUICK = {"quiet_seconds": 0.05, "node_deadline_seconds": 10.0}
STEPS = 20


class MemoryReplica:
    """A replica in memory, at the other end of real streams."""

    def __init__(self, history: History, folder: Path) -> None:
        self.history = history
        self.rounds = MemoryRounds(
            settings_for(
                history.cluster,
                folder,
                round=QUICK,
                flow_control={"batch_seconds": 0.01},
            )
        )
        self.lake = self.rounds.lake

    def run_round(self) -> None:
        self.rounds.with_budget(self.history.random.choice((300, 10**6, 10**6)))
        self.rounds.run()

    def receive_only(self) -> None:
        if (plan := self.rounds.plan()) is not None:
            self.rounds.received(plan)

    def run_round_twice(self) -> None:
        if (plan := self.rounds.plan()) is not None:
            self.rounds.received(plan)
            self.rounds.run(plan)

    def apply(self, choice: random.Random) -> None:
        first = max(0, self.lake.round - 1)
        to_round = choice.randint(first, self.lake.round) if first else self.lake.round
        if self.rounds.apply(to_round) is not None:
            self.require_exact()

    def come_to_the_end(self) -> None:
        """Run rounds and apply them until neither finds anything to do."""
        for _ in range(20):
            before = self.lake.round, len(self.lake.versions)
            self.run_round()
            self.rounds.apply()
            if before == (self.lake.round, len(self.lake.versions)):
                return
        raise AssertionError(f"found work after 20 rounds; steps: {self.history.steps}")

    def tamper(self, what: str, choice: random.Random) -> None:
        lake = self.lake
        if not lake.docs.exists():
            return
        if what == "drop_table":
            lake.docs.drop()
            self.rounds.restart()
            self.rounds.prepare_round()
            return
        old = [each for each in range(1, len(lake.versions)) if each not in lake.unreadable]
        if not old:
            return
        version = choice.choice(old)
        if what == "restore":
            lake.docs.restore(version)
        else:
            self._clean(version)

    def _clean(self, version: int) -> None:
        """Do what `maintain` does while ``version`` is the one at the horizon."""
        lake, now = self.rounds.driver.lake, self.lake.now()
        age = now - self.lake.versions[version].commit.time
        kept = Horizon(max(age.total_seconds(), 1e-3))
        list(clean(MaintenanceWork(lake, (DOCS,), kept, kept, now)))
        self.lake.unreadable.update(range(version))

    def require_exact(self) -> None:
        """Compare the newest version; what is stale must be as the version before had it."""
        version = self.lake.versions[-1]
        for vbucket in range(self.history.settings.vbuckets):
            found: Documents = {
                row["key"].encode(): (int(row["seqno"]), int(row["cas"]), row["value"])
                for (place, _), row in version.rows.items()
                if place == vbucket
            }
            assert found == self._expected(version.current, vbucket), (
                f"vbucket {vbucket} of {version.current} differs; steps: {self.history.steps}"
            )

    def _expected(self, current: AppliedVersion, vbucket: int) -> Documents:
        state = self.lake.states_at[current.round_of(vbucket)].get(vbucket)
        return {} if state is None else self.history.documents(state)


@pytest.mark.parametrize("seed", seeds(24, soak_count=300))
def test_every_commit_is_exact(seed: int, tmp_path: Path) -> None:
    history = History(seed)
    with history.cluster:
        replica = MemoryReplica(history, tmp_path)
        for _ in range(STEPS):
            history.step(replica)
        replica.come_to_the_end()
        replica.require_exact()
        history.require_at_the_end(dict(replica.lake.states))
        assert not replica.lake.versions[-1].current.stale


def test_a_first_snapshot_larger_than_a_round_comes_to_its_end_although_the_node_purged(
    tmp_path: Path,
) -> None:
    """Such a node orders back to 0 whoever resumes inside: again and again, by the budget alone."""
    settings = ClusterSettings(vbuckets=1, seed=3, rules="document")
    with ProducerCluster(settings) as cluster:
        with cluster.batch():
            for number in range(60):
                cluster.set(b"key-%d" % number, b"v" * 400)
            cluster.delete(b"key-7")
            cluster.set(b"key-8", b"{}")
        flow = SMALL_FLOW | {"batch_seconds": 0.01}
        rounds = MemoryRounds(settings_for(cluster, tmp_path, round=QUICK, flow_control=flow))
        rounds.with_budget(300)
        rounds.run()
        assert cluster.purge_tombstones(0)
        rounds.until_idle()
        orders = [row for row in rounds.lake.rows if row["kind"] == "rollback"]
        assert orders, "the node never ordered a rollback"
        assert rounds.apply() is not None
        found = {key.encode() for _, key in rounds.lake.versions[-1].rows}
        assert found == set(cluster.state_at(0, cluster.high_seqno(0)))
