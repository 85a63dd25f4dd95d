"""P2 on the real thing: seeded histories, a real producer, real drivers on Spark and Delta.

Versions are read by another engine, and compared with the producer's record of the branch.
"""

import random
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING

import pytest

from dcp.client.probe import ProbedCluster
from dcp.lake.adapters.opening import lake_location
from dcp.lake.adapters.spark_store import SparkStore
from dcp.lake.change_log.changes import latest_round
from dcp.lake.change_log.round_queries import states_at
from dcp.lake.receive.source_access import query_cluster, source_access
from dcp.lake.rounds.observer import Observer
from dcp.lake.run.driver import Driver
from dcp.lake.run.replicate import open_or_create
from tests.lake.receiving import settings_for
from tests.lake.replicas import require_every_version_exact, source_rows, table_rows
from tests.lake.rollback_history import Chances, History
from tests.seeds import seeds

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

QUICK = {"quiet_seconds": 0.2, "node_deadline_seconds": 10.0}
TROUBLE = Chances(
    round=0,
    cut_round=0,
    driver_killed=0,
    worker_killed=0,
    apply=0,
    restore=0,
    drop_table=0,
    clean=0,
)
"""What happens between two runs: to the producer alone."""


class SparkReplica:
    """Real rounds and applies, until what the cluster holds is in the table."""

    def __init__(self, history: History, folder: Path, spark: "SparkSession") -> None:
        self.history = history
        when = history.random.choice(("every_round", "pending_fraction"))
        settings = settings_for(
            history.cluster, folder, round=QUICK, apply={"when": when, "pending_fraction": 0.5}
        )
        self._access = source_access(settings)
        self.lake = open_or_create(
            SparkStore(lambda: spark, lake_location(settings)), settings, self._cluster()
        )
        self._driver = Driver(self.lake, settings, self._access, Observer())

    def _cluster(self) -> ProbedCluster:
        return query_cluster(self._access)

    def run_round(self) -> None:
        self._driver.once(self._cluster(), Event())

    def receive_only(self) -> None:
        raise AssertionError("killed drivers have tests of their own")

    def run_round_twice(self) -> None:
        raise AssertionError("killed workers have tests of their own")

    def apply(self, choice: random.Random) -> None:
        """A run has applied what was due."""

    def tamper(self, what: str, choice: random.Random) -> None:
        raise AssertionError("what others do has tests of its own")

    def require_exact(self) -> None:
        """Compare every version of ``docs``."""
        require_every_version_exact(self.lake, self.history.cluster)


@pytest.mark.parametrize("seed", seeds(1, first=1000, soak_count=15))
def test_every_version_is_exact(spark: "SparkSession", tmp_path: Path, seed: int) -> None:
    history = History(seed, TROUBLE)
    with history.cluster:
        replica = SparkReplica(history, tmp_path, spark)
        history.write(replica)
        replica.run_round()
        for _ in range(history.random.randint(4, 8)):
            history.step(replica)
        history.write(replica)
        replica.run_round()
        lake = replica.lake
        history.require_at_the_end(dict(states_at(lake, latest_round(lake))))
        replica.require_exact()
        high = {vb: history.cluster.high_seqno(vb) for vb in range(history.settings.vbuckets)}
        assert table_rows(lake, None) == source_rows(history.cluster, high)
