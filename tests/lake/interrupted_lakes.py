"""Lakes on which a driver is stopped or killed, and what must be true of them afterwards.

One bucket, and copies of two lakes of it: in one a rollback was received and not applied yet; the
other stood still for longer than its horizon, so that each step of maintenance has work.
"""

import shutil
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Final

from dcp.lake.change_log.changes import latest_round
from dcp.lake.config.settings import ApplyWhen, Settings
from dcp.lake.maintain.steps import run_steps, work_on
from dcp.lake.run.replicate import run
from dcp.lake.tables.horizon import Horizon
from dcp.lake.tables.lake_tables import LakeTables
from dcp.producer.cluster import ProducerCluster
from tests.lake.aging import age
from tests.lake.receiving import lake_of, overrides_of, settings_for
from tests.lake.replicas import (
    complete_seqnos,
    require_every_version_exact,
    require_no_row_twice,
    source_rows,
    table_rows,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DAY_SECONDS: Final = 86400
IDLE_SECONDS: Final = 40.0
"""After so long the nodes of the bucket close a connection that answers no NOOP."""
ORPHAN: Final = "part-00000-of-an-aborted-write.snappy.parquet"


class InterruptedLakes:
    """The bucket, its lakes, and the driver that takes over: this process."""

    def __init__(
        self, cluster: ProducerCluster, spark: "SparkSession", folder: Path, seed: int
    ) -> None:
        self.cluster = cluster
        self.spark = spark
        self.random = Random(seed)
        self._folder = folder
        self._copies = 0
        base = settings_for(
            cluster,
            folder,
            lake={"root": str(folder / "old"), "lock": False},
            round={"quiet_seconds": 0.2},
        )
        self._old = base
        for _ in range(2):
            self.write()
            run(base, once=True, spark=spark)
        self._pending = replace(base, lake=replace(base.lake, root=str(folder / "pending")))
        shutil.copytree(folder / "old", folder / "pending")
        self.lose(3)
        self.write()
        received = replace(self._pending, apply=replace(base.apply, when=ApplyWhen.NEVER))
        run(received, once=True, spark=spark)
        self._age(folder / "old")

    @property
    def vbuckets(self) -> int:
        return self.cluster.settings.vbuckets

    def write(self, times: int = 40) -> None:
        """Change some documents; each gets a snapshot of its own, so that a crash loses few."""
        for _ in range(times):
            key = b"key-%d" % self.random.randrange(80)
            self.cluster.set(key, b'{"n": %d}' % self.random.randrange(10**6))

    def lose(self, seqnos: int) -> None:
        """Let both nodes lose the newest seqnos of each vbucket."""
        for node in range(self.cluster.settings.nodes):
            self.cluster.crash_restart(node, lost_seqnos=seqnos)

    def pending(self) -> Settings:
        """Return a new lake that has received a rollback, and more, and did not apply it."""
        return self.copy(self._pending)

    def old(self) -> Settings:
        """Return a new lake that stood still, with wrong properties and a file nobody needs."""
        return self.copy(self._old)

    def copy(self, settings: Settings) -> Settings:
        """Return a new lake that is as this one is now."""
        self._copies += 1
        root = self._folder / f"lake-{self._copies}"
        shutil.copytree(settings.lake.root, root)
        return replace(settings, lake=replace(settings.lake, root=str(root)))

    def take_over(self, settings: Settings) -> None:
        """Be the other driver: the bucket moves on, and is replicated."""
        self.write(20)
        run(settings, once=True, spark=self.spark)

    def maintain(self, settings: Settings, steps: Sequence[str]) -> None:
        """Do steps of maintenance as if the horizon began now: they clean more than who came
        before.
        """
        lake, horizon = self.lake(settings), Horizon.of_hours(settings.lake.horizon_hours)
        later = datetime.now(UTC) + timedelta(seconds=horizon.seconds)
        for report in run_steps(work_on(lake, horizon, now=later), steps):
            assert report.done or report.step != "clean", report

    def lake(self, settings: Settings) -> LakeTables:
        return lake_of(settings, self.spark)

    def require_exact(self, settings: Settings) -> None:
        """Every version is exact, no row is doubled, and the newest is what the bucket holds."""
        require_every_version_exact(self.lake(settings), self.cluster)
        self.require_newest_exact(settings)

    def require_newest_exact(self, settings: Settings) -> None:
        """The same of the newest version alone: cleaning takes what tells of the others."""
        lake = self.lake(settings)
        require_no_row_twice(lake)
        high = {vb: self.cluster.high_seqno(vb) for vb in range(self.vbuckets)}
        assert complete_seqnos(lake, latest_round(lake)) == high
        assert table_rows(lake, None) == source_rows(self.cluster, high)

    def words(self, command: str, settings: Settings, *more: str) -> list[str]:
        """Return the command line for a lake."""
        return [command, *more, *overrides_of(settings)]

    def _age(self, root: Path) -> None:
        """Make the lake older than its horizon; leave something for each step to do."""
        lake = self.lake(self._old)
        for table in ("changes", "docs"):
            unset = "UNSET TBLPROPERTIES ('delta.logRetentionDuration')"
            self.spark.sql(f"ALTER TABLE {lake.table_sql(table)} {unset}").collect()
            shutil.copy(next((root / table).glob("*.parquet")), root / table / ORPHAN)
            age(root / table, 30 * DAY_SECONDS)


def commits_in(root: str, table: str) -> int:
    """Return how many versions a table of a lake has, as its folder shows."""
    return len(list((Path(root) / table / "_delta_log").glob("[0-9]*.json")))


def data_files_in(root: str, table: str) -> int:
    """Return how many data files there are in a table's folder, committed or not."""
    return len(list((Path(root) / table).rglob("*.parquet")))
