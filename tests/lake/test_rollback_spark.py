"""P2 on the real thing: seeded histories, a real producer, real drivers on Spark and Delta.

Versions are read by another engine, and compared with the producer's record of the branch.
"""

import random
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from dcp.lake.applied import AppliedVersion, applied_of
from dcp.lake.changes import latest_round
from dcp.lake.history import WHOLE, history
from dcp.lake.round_record import positions_at, round_records
from dcp.lake.run import lake_location, run
from dcp.lake.tables import DOCS, LakeTables, open_lake
from tests.lake.receiving import settings_for
from tests.lake.replicas import rows_of, table_rows
from tests.lake.rollback_history import Chances, Documents, History
from tests.seeds import seeds

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

QUICK = {"quiet_seconds": 0.2, "node_deadline_seconds": 3.0}
TROUBLE = Chances(round=0, cut_round=0, driver_killed=0, worker_killed=0, apply=0)
"""What happens between two runs: to the producer alone."""
RUNS = 3


class SparkReplica:
    """Real runs: rounds and applies until what the cluster holds is in the table."""

    def __init__(self, history: History, folder: Path, spark: "SparkSession") -> None:
        self.history = history
        self.spark = spark
        when = history.random.choice(("every_round", "pending_fraction"))
        self.settings = settings_for(
            history.cluster, folder, round=QUICK, apply={"when": when, "pending_fraction": 0.5}
        )

    def lake(self) -> LakeTables:
        return open_lake(self.spark, lake_location(self.settings))

    def newest_round(self) -> int:
        return latest_round(self.lake())

    def run_round(self) -> None:
        run(self.settings, once=True, spark=self.spark)

    def receive_only(self) -> None:
        raise AssertionError("killed drivers have tests of their own")

    def run_round_twice(self) -> None:
        raise AssertionError("killed workers have tests of their own")

    def apply(self, choice: random.Random) -> None:
        """A run has applied what was due."""

    def versions(self) -> list[AppliedVersion]:
        lake = self.lake()
        commits = history(lake.spark, lake.table_sql(DOCS.name), WHOLE)
        return [applied_of(DOCS.name, commit) for commit in commits if commit.is_apply]

    def require_exact(self) -> None:
        """Compare every version of ``docs``."""
        lake, versions = self.lake(), self.versions()
        rounds = {each.to_round for each in versions}
        rounds |= {number for each in versions for _, number in each.stale}
        records = round_records(lake, rounds)
        for applied in versions:
            found = table_rows(lake, applied.version)
            for vbucket in range(self.history.settings.vbuckets):
                state = records[applied.held.round_of(vbucket)].states.get(vbucket)
                expected: Documents = {} if state is None else self.history.documents(state)
                assert found.get(vbucket, {}) == expected, f"{applied}: vbucket {vbucket} differs"


@pytest.mark.parametrize("seed", seeds(15, first=1000))
def test_every_version_is_exact(spark: "SparkSession", tmp_path: Path, seed: int) -> None:
    history = History(seed, TROUBLE)
    with history.cluster:
        replica = SparkReplica(history, tmp_path, spark)
        for _ in range(RUNS):
            for _ in range(history.random.randint(1, 4)):
                history.step(replica)
            history.write(replica)
            replica.run_round()
        lake = replica.lake()
        history.require_at_the_end(dict(positions_at(lake, latest_round(lake))))
        replica.require_exact()
        high = {vb: history.cluster.high_seqno(vb) for vb in range(history.settings.vbuckets)}
        now = rows_of(lake, lake.table_sql(DOCS.name))
        for vbucket, seqno in high.items():
            held = history.cluster.state_at(vbucket, seqno)
            expected = {key: (each.seqno, each.cas, each.value) for key, each in held.items()}
            assert now.get(vbucket, {}) == expected
