"""Counts the Spark jobs and commits of a driver that has run before.

Times belong to ``benchmarks/rounds``; these numbers do not depend on the machine.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any, Final, TypeVar

import pytest
from pyspark.sql import SparkSession

from dcp.lake.adapters.opening import lake_location
from dcp.lake.adapters.spark_store import SparkStore
from dcp.lake.adapters.transaction import session_settings_for_a_while
from dcp.lake.config.settings import Settings
from dcp.lake.quality.check import check_replica
from dcp.lake.quality.report import write_results
from dcp.lake.receive.source_access import query_cluster, source_access
from dcp.lake.rounds.observer import Observer
from dcp.lake.rounds.round_plan import Idle, RoundPlan
from dcp.lake.rounds.round_report import RoundReport
from dcp.lake.run.driver import Driver
from dcp.lake.run.replicate import open_or_create
from dcp.lake.tables.history import history
from dcp.lake.tables.quality_check import CheckScope
from dcp.producer.cluster import ProducerCluster
from dcp.producer.cluster_settings import ClusterSettings
from tests.lake.receiving import settings_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

DOCUMENTS: Final = 3000
CHANGES: Final = 1000

ROUND_JOBS: Final = 2  # the state of the log, for the fence; the append
APPLY_JOBS: Final = 7  # the state of the table; the files; three joins, two for deletion vectors
AUDIT_JOBS: Final = 2  # the state of the table, for the fence; the append
CREATE_JOBS: Final = 1  # of its table, once in a lake's life
CHECK_JOBS: Final = 28  # of a table's files and the rows, twice; Great Expectations', by stages

_Found = TypeVar("_Found")


@dataclass
class WarmDriver:
    """A driver that has committed a round and an apply, and a count of what it does."""

    driver: Driver
    settings: Settings
    cluster: ProducerCluster
    spark: SparkSession

    def counted(self, step: Callable[[], _Found]) -> tuple[_Found, int, int]:
        """Return what a step returns, its Spark jobs, and its commits."""
        jobs, versions = self._jobs(), self._versions()
        found = step()
        return found, self._jobs() - jobs, self._versions() - versions

    def plan(self) -> RoundPlan | Idle:
        return self.driver.prepare_round(query_cluster(source_access(self.settings)))

    def round(self) -> RoundReport:
        plan = self.plan()
        assert isinstance(plan, RoundPlan)
        return self.driver.round(plan)

    def change(self, documents: int, seed: int) -> None:
        """Write so many changes, each of another document."""
        for number in Random(seed).sample(range(DOCUMENTS), documents):
            self.cluster.set(b"key-%d" % number, b'{"seed": %d}' % seed)

    def _jobs(self) -> int:
        context: Any = self.spark.sparkContext
        return int(context._jsc.sc().dagScheduler().numTotalJobs())

    def _versions(self) -> int:
        tables = [self.driver.lake.table(name) for name in ("changes", "docs", "undone")]
        return sum(history(table, 1)[0].version + 1 for table in tables if table.exists())


def warm_driver(spark: SparkSession, folder: Path, lake: Mapping[str, Any]) -> Iterator[WarmDriver]:
    with ProducerCluster(ClusterSettings(nodes=2, vbuckets=4, seed=4)) as cluster:
        for number in range(DOCUMENTS):
            cluster.set(b"key-%d" % number, b"1")
        settings = settings_for(cluster, folder)
        settings = replace(settings, lake=replace(settings.lake, **lake))
        access = source_access(settings)
        opened = open_or_create(
            SparkStore(lambda: spark, lake_location(settings)), settings, query_cluster(access)
        )
        made = WarmDriver(Driver(opened, settings, access, Observer()), settings, cluster, spark)
        # As Spark has it by itself: tests' sessions save the jobs that this one must not need.
        with session_settings_for_a_while(spark, {"spark.sql.adaptive.enabled": "true"}):
            made.driver.apply(made.round().round, force=False)
            made.change(100, seed=1)
            made.driver.apply(made.round().round, force=False)
            yield made


@pytest.fixture(scope="module")
def warm(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[WarmDriver]:
    yield from warm_driver(spark, tmp_path_factory.mktemp("counts"), {})


@pytest.fixture(scope="module")
def warm_in_catalog(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[WarmDriver]:
    schema = {"schema": "spark_catalog.counted"}
    yield from warm_driver(spark, tmp_path_factory.mktemp("catalog"), schema)
    spark.sql("DROP SCHEMA spark_catalog.counted CASCADE")


def require_idle_looks_without_jobs(warm: WarmDriver) -> None:
    idle, jobs, commits = warm.counted(warm.plan)
    assert isinstance(idle, Idle)
    assert (jobs, commits) == (0, 0)
    applied, jobs, commits = warm.counted(lambda: warm.driver.apply(idle.latest_round, force=False))
    assert (applied, jobs, commits) == ([], 0, 0)


def require_few_jobs(warm: WarmDriver) -> None:
    """Of a round of a thousand changes, and its apply."""
    warm.change(CHANGES, seed=3)
    report, jobs, commits = warm.counted(warm.round)
    assert report.rows == CHANGES
    assert jobs <= ROUND_JOBS
    assert commits == 1
    [applied], jobs, commits = warm.counted(lambda: warm.driver.apply(report.round, force=False))
    assert applied.updated == CHANGES
    assert jobs <= APPLY_JOBS
    assert commits == 1


def test_an_idle_look_asks_nothing_of_spark(warm: WarmDriver) -> None:
    require_idle_looks_without_jobs(warm)


def test_a_lake_in_a_catalog_costs_what_one_in_a_folder_costs(
    warm_in_catalog: WarmDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The catalog is asked where the log is before files are put there."""
    warm = warm_in_catalog
    statements: list[str] = []
    run_sql = SparkSession.sql

    def noted(session: SparkSession, text: str, *arguments: Any, **named: Any) -> Any:
        statements.append(text)
        return run_sql(session, text, *arguments, **named)

    def looked_up() -> list[str]:
        """Return the statements that asked for tables that are there."""
        absent = [
            f"SHOW TABLE EXTENDED IN {schema} LIKE '{name}'" for name in ("control", "undone")
        ]
        return [each for each in statements if each not in absent]

    schema = "`spark_catalog`.`counted`"
    monkeypatch.setattr(SparkSession, "sql", noted)
    require_idle_looks_without_jobs(warm)
    assert looked_up() == []
    require_few_jobs(warm)
    shown, merge = looked_up()
    assert shown == f"SHOW TABLE EXTENDED IN {schema} LIKE 'changes'"
    assert merge.startswith("\nMERGE INTO")


def test_a_round_of_a_thousand_changes_its_apply_its_check_and_what_takes_some_back(
    warm: WarmDriver,
) -> None:
    lake = warm.driver.lake
    write_results(lake, check_replica(lake))
    require_few_jobs(warm)
    report, jobs, commits = warm.counted(lambda: check_replica(lake))
    assert (report.check.scope, report.check.checked_rows, report.failed) == (
        CheckScope.CHANGED,
        CHANGES,
        (),
    )
    assert jobs <= CHECK_JOBS
    assert commits == 0

    for node in range(2):
        warm.cluster.crash_restart(node, lost_seqnos=25)
    warm.change(1, seed=5)
    ordered, begun = warm.round(), warm.round()
    assert warm.driver.apply(ordered.round, force=False) == []
    applied, jobs, commits = warm.counted(lambda: warm.driver.apply(begun.round, force=False))
    [version] = applied
    assert len(version.undone) == 4
    assert version.updated + version.deleted >= 100
    assert jobs <= APPLY_JOBS + AUDIT_JOBS + CREATE_JOBS
    assert commits == 3, "the apply, and the audit's table with its first rows"
