"""Rollback where the past is gone: vacuumed versions, a RESTORE, a cleaned log, a dropped table."""

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from deltalake import DeltaTable

from dcp.lake.apply.commit import run_apply
from dcp.lake.apply.merge_planner import plan_merge
from dcp.lake.change_log.applied import replica_status
from dcp.lake.change_log.changes import latest_round
from dcp.lake.config.settings import ApplySettings, ApplyWhen
from dcp.lake.maintain.steps import run_steps, work_on
from dcp.lake.run.replicate import run
from dcp.lake.store.log_slice import EMPTY_TABLE
from dcp.lake.tables.applied_version import AppliedVersion
from dcp.lake.tables.horizon import Horizon
from dcp.lake.tables.lake_tables import DOCS, LakeTables, cleaned_round
from dcp.producer.cluster import ProducerCluster
from dcp.producer.cluster_settings import ClusterSettings
from tests.lake.memory_store import MemoryStore
from tests.lake.receiving import lake_of, settings_for
from tests.lake.replicas import require_live_exact, source_rows, table_rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(600)

VBUCKETS = 3


def newest(lake: LakeTables) -> AppliedVersion:
    applied = replica_status(lake, DOCS).applied
    assert applied is not None
    return applied


def change(cluster: ProducerCluster, value: int) -> None:
    with cluster.batch():
        for number in range(0, 30, 1 + value % 3):
            cluster.set(b"key-%d" % number, b'{"n": %d}' % value)
        cluster.delete(b"key-%d" % (value % 3 * (1 + value % 3)))


def lose(cluster: ProducerCluster, seqnos: int) -> None:
    cluster.crash_restart(0, lost_seqnos=seqnos)


def take_files_of_old_versions(lake: LakeTables) -> None:
    if isinstance(lake.store, MemoryStore):
        kept = lake.store.table(DOCS.name).kept
        kept.unreadable |= set(range(kept.newest.number))
        return
    docs = lake.table_sql(DOCS.name)
    lake.spark.sql(f"OPTIMIZE {docs} FULL").collect()
    folder = lake.location.path(DOCS.name)
    newest = {Path(each).name for each in DeltaTable(folder).file_uris()}
    for file in Path(folder).glob("*.parquet"):
        if file.name not in newest:
            file.unlink()


def clean(lake: LakeTables) -> None:
    """Remove what only versions before the newest need, as if the horizon began now."""
    later = datetime.now(UTC) + timedelta(seconds=600)
    [cleaned] = run_steps(work_on(lake, Horizon(600), now=later), ["clean"])
    assert cleaned.done
    assert cleaned_round(lake, DOCS) > 0


@pytest.mark.usefixtures("lakes_in_memory")
def test_an_apply_finds_the_log_as_it_was_planned_on(tmp_path: Path) -> None:
    """A driver is stopped between plan and MERGE, and maintenance cleans what the MERGE needs.

    It makes a vbucket again from the log, for the version to go back to cannot be read.
    """
    with ProducerCluster(ClusterSettings(nodes=1, vbuckets=VBUCKETS, seed=22)) as cluster:
        settings = settings_for(cluster, tmp_path, round={"quiet_seconds": 0.2})
        for value in (0, 1):
            change(cluster, value)
            run(settings, once=True)
        lake = lake_of(settings)
        take_files_of_old_versions(lake)
        lose(cluster, 3)
        run(replace(settings, apply=ApplySettings(when=ApplyWhen.NEVER)), once=True)
        plan = plan_merge(lake, DOCS, latest_round(lake))
        assert plan is not None
        assert {undo.version for undo in plan.log_slice.undone} == {EMPTY_TABLE}
        clean(lake)
        run_apply(lake, plan, "writer")
        high = {vbucket: cluster.high_seqno(vbucket) for vbucket in range(VBUCKETS)}
        assert table_rows(lake, None) == source_rows(cluster, high)


class Followed:
    """A bucket and its lake, which is compared with it whenever it has followed."""

    def __init__(
        self, cluster: ProducerCluster, folder: Path, spark: "SparkSession | None" = None
    ) -> None:
        self.cluster = cluster
        self._settings = settings_for(cluster, folder, round={"quiet_seconds": 0.2})
        self._spark = spark

    def follow(self) -> AppliedVersion:
        """Replicate what there is; return the newest apply."""
        run(self._settings, once=True, spark=self._spark)
        high = {vbucket: self.cluster.high_seqno(vbucket) for vbucket in range(VBUCKETS)}
        assert table_rows(self.lake, None) == source_rows(self.cluster, high)
        return newest(self.lake)

    @property
    def lake(self) -> LakeTables:
        return lake_of(self._settings, self._spark)


def lose_a_version_and_its_files(followed: Followed) -> None:
    """Let the files of the version to go back to be gone: it is made again from the log."""
    for value in (0, 1):
        change(followed.cluster, value)
        followed.follow()
    take_files_of_old_versions(followed.lake)
    lose(followed.cluster, 3)
    assert {undo.version for undo in followed.follow().undone} == {0}


@pytest.mark.slow
def test_files_that_are_gone_are_made_up_for(spark: "SparkSession", tmp_path: Path) -> None:
    with ProducerCluster(ClusterSettings(nodes=1, vbuckets=VBUCKETS, seed=21)) as cluster:
        lose_a_version_and_its_files(Followed(cluster, tmp_path, spark))


@pytest.mark.slow
@pytest.mark.usefixtures("lakes_in_memory")
def test_a_past_that_is_gone_is_made_up_for(
    tmp_path: Path, view: Callable[[LakeTables], None]
) -> None:
    with ProducerCluster(ClusterSettings(nodes=1, vbuckets=VBUCKETS, seed=21)) as cluster:
        followed = Followed(cluster, tmp_path)
        lose_a_version_and_its_files(followed)
        store = followed.lake.store
        assert isinstance(store, MemoryStore)

        # Taken back by hand to a version that holds what was rolled back since.
        change(cluster, 2)
        phantoms = followed.follow().version
        lose(cluster, 3)
        change(cluster, 3)
        followed.follow()
        store.table(DOCS.name).restore(phantoms)
        assert followed.follow().undone

        # The log is cleaned and the table dropped: nothing but the cluster knows the rows.
        clean(followed.lake)
        change(cluster, 4)
        lose(cluster, 2)
        followed.follow()  # a rollback after a cleaning finds what it needs
        view(followed.lake)
        require_live_exact(followed.lake, cluster, latest_round(followed.lake))
        store.table(DOCS.name).drop()
        assert all(undo.is_replacement for undo in followed.follow().undone)
