"""P2, many times at once: failovers that lose tails which tables have published already.

One seeded run. Before each failover it is counted which vbuckets it takes published rows from, so
that a run in which nothing was lost cannot pass; each apply must take back exactly those. Each
version is compared with the producer's record of every vbucket's branch, row by row.
"""

import random
from contextlib import suppress
from pathlib import Path
from threading import Event
from typing import Final

import pytest

from dcp.client.probe import ProbedCluster
from dcp.lake.change_log.applied import replica_status
from dcp.lake.change_log.changes import latest_round
from dcp.lake.change_log.round_queries import states_at
from dcp.lake.receive.source_access import query_cluster, source_access
from dcp.lake.rounds.observer import Observer
from dcp.lake.run.driver import Driver
from dcp.lake.run.replicate import open_or_create
from dcp.lake.tables.lake_tables import DOCS, LakeTables
from dcp.producer.cluster import ProducerCluster
from dcp.producer.cluster_settings import ClusterSettings
from dcp.server.model.refused_error import RefusedError
from tests.lake.receiving import settings_for, store_without_spark
from tests.lake.replicas import (
    require_every_version_exact,
    require_no_row_twice,
    source_rows,
    table_rows,
)
from tests.seeds import seeds

pytestmark = pytest.mark.usefixtures("lakes_in_memory")

VBUCKETS: Final = 64
NODES: Final = 3
KEYS: Final = [b"key-%d" % number for number in range(160)]
ACTS: Final = 2
LEAST_LOST: Final = 60
"""Published tails that a run loses at least, over all vbuckets."""
LEAST_TWICE: Final = 3
"""Of those, vbuckets that fork twice before the consumer asks again."""


class Bucket:
    """The producer's side: writes on copied ground, tails that no copy has, failovers."""

    def __init__(self, cluster: ProducerCluster, seed: int) -> None:
        self.cluster = cluster
        self.random = random.Random(seed)

    def write(self, times: int) -> None:
        with self.cluster.batch():
            for _ in range(times):
                key = self.random.choice(KEYS)
                if self.random.random() < 0.75:
                    self.cluster.set(key, b'{"n": %d}' % self.random.randrange(10**6))
                else:
                    with suppress(RefusedError):  # it is not there
                        self.cluster.delete(key)

    def write_beyond_the_replicas(self) -> None:
        """Write what replicas get, then more that only the active vbuckets have."""
        self.cluster.resume_replication()
        self.write(self.random.randint(20, 100))
        self.cluster.wait_until_replicated()
        self.cluster.pause_replication()
        self.write(self.random.randint(150, 250))

    def fail_over(self, node: int) -> None:
        """Lose a node; it comes back empty and gets its share again."""
        cluster = self.cluster
        own = [vb for vb in range(VBUCKETS) if cluster.vbucket_owner(vb) == node]
        cluster.failover(node)
        cluster.restore_node(node)
        for vbucket in self.random.sample(own, len(own) // 2 + 1):
            cluster.move_vbucket(vbucket, node)


class Consumer:
    """The other side: rounds and applies, and what it has published."""

    def __init__(self, cluster: ProducerCluster, folder: Path) -> None:
        settings = settings_for(
            cluster, folder, round={"quiet_seconds": 0.2, "node_deadline_seconds": 60.0}
        )
        self._access = source_access(settings)
        self.lake: LakeTables = open_or_create(
            store_without_spark(settings), settings, self._look()
        )
        self._driver = Driver(self.lake, settings, self._access, Observer())
        self._known = 0

    def _look(self) -> ProbedCluster:
        return query_cluster(self._access)

    def follow(self) -> set[int]:
        """Run until what the cluster holds is published; return which vbuckets were taken back."""
        applied = self._driver.once(self._look(), Event()).applied  # all that it ever applied
        news, self._known = applied[self._known :], len(applied)
        return {undo.vbucket for each in news for undo in each.undone}

    def published_beyond(self, cluster: ProducerCluster, node: int) -> set[int]:
        """Return a node's vbuckets of which ``docs`` has rows that a failover of it will lose."""
        states = states_at(self.lake, replica_status(self.lake, DOCS).round)
        found = set()
        for vbucket in range(VBUCKETS):
            log = states[vbucket].failover_log
            if cluster.vbucket_owner(vbucket) != node or log is None:
                continue
            is_its_branch = log.entries[0] == cluster.failover_log(vbucket).entries[0]
            if is_its_branch and states[vbucket].complete_seqno > cluster.replica_seqno(vbucket):
                found.add(vbucket)
        return found


@pytest.mark.parametrize("seed", seeds(1, first=7000, soak_count=3))
def test_many_published_tails_are_lost(tmp_path: Path, seed: int) -> None:
    settings = ClusterSettings(
        nodes=NODES, vbuckets=VBUCKETS, replicas=2, seed=seed, checkpoint_items=20
    )
    with ProducerCluster(settings) as cluster:
        bucket, consumer = Bucket(cluster, seed), Consumer(cluster, tmp_path)
        lost_tails = forked_twice = 0
        for act in range(ACTS):
            bucket.write_beyond_the_replicas()
            taken_back = consumer.follow()
            assert not taken_back, f"act {act}: taken back without a failover"
            lost: set[int] = set()
            for node in bucket.random.sample(range(NODES), NODES - 1):
                tails = consumer.published_beyond(cluster, node)
                lost_tails += len(tails)
                before = {vb: cluster.failover_log(vb) for vb in lost}
                bucket.write(bucket.random.choice((0, 40)))  # read by nobody, and lost as well
                bucket.fail_over(node)
                forked_twice += sum(cluster.failover_log(vb) != log for vb, log in before.items())
                lost |= tails
                if bucket.random.random() < 0.7:
                    bucket.write(bucket.random.randint(1, 200))  # over the same seqnos
            assert consumer.follow() == lost, f"act {act}"
            high = {vb: cluster.high_seqno(vb) for vb in range(VBUCKETS)}
            assert table_rows(consumer.lake, None) == source_rows(cluster, high), f"act {act}"
        versions = require_every_version_exact(consumer.lake, cluster)
        require_no_row_twice(consumer.lake)
        print(
            f"seed {seed}: {lost_tails} published tails lost in {latest_round(consumer.lake)} "
            f"rounds, {forked_twice} of them forked again unread; {versions} versions exact"
        )
        assert lost_tails >= LEAST_LOST
        assert forked_twice >= LEAST_TWICE
