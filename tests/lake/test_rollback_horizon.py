"""The horizon against real Delta: log cleanup at checkpoints, VACUUM, and others' hands in the log.

Delta cuts its log at midnight, whatever the retention: no setting makes that finer. So a table that
stands still is made by setting the times of its log files back, which is all that Delta goes by.
"""

import logging
import os
from pathlib import Path
from typing import Final

import pytest
from pyspark.errors import PySparkException

from dcp.lake.applied import AppliedVersion, replica_status, unindexed_applied
from dcp.lake.history import history
from dcp.lake.horizon import FILE_RETENTION, Horizon
from dcp.lake.horizon_guard import HorizonGuard
from dcp.lake.retention import keep_retention, recorded_horizon, wrong_properties
from dcp.lake.tables import DOCS, LakeTables, cleaned_round
from tests.lake.conftest import NewLake
from tests.lake.log_model import Documents, LogModel, apply_pending, read_documents

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

DAY_SECONDS: Final = 86400


def stand_still(lake: LakeTables, table: str, days: int) -> None:
    """Make every version of a table so much older."""
    for file in (Path(lake.location.path(table)) / "_delta_log").iterdir():
        then = file.stat().st_mtime - days * DAY_SECONDS
        os.utime(file, (then, then))


def round_and_apply(lake: LakeTables, model: LogModel, items: int = 4) -> AppliedVersion:
    """Commit one round with a whole snapshot of each vbucket, and apply it."""
    rows = []
    for vb in model.vbuckets:
        model.write_snapshot(vb, items)
        rows += model.read(vb, items, model.round + 1)
    model.commit(model.next_round(rows, applied=unindexed_applied(lake, [DOCS])))
    [made] = apply_pending(lake, [DOCS], model.round, "w")
    return made


def log_versions(lake: LakeTables, table: str) -> list[int]:
    folder = Path(lake.location.path(table)) / "_delta_log"
    return sorted(int(file.stem) for file in folder.glob("*.json") if file.stem.isdigit())


def documents_at(lake: LakeTables, version: int) -> Documents:
    return read_documents(lake, f"SELECT * FROM {lake.table_sql('docs')} VERSION AS OF {version}")


def test_properties_follow_the_setting_and_others_do_not_change_them(
    new_lake: NewLake, caplog: pytest.LogCaptureFixture
) -> None:
    lake, horizon = new_lake(1), Horizon(90)
    assert wrong_properties(lake, [DOCS], Horizon.of_hours(168)) == {}
    assert len(keep_retention(lake, [DOCS], horizon)) == 2
    assert recorded_horizon(lake) == horizon
    docs = lake.table_sql("docs")
    lake.spark.sql(f"ALTER TABLE {docs} SET TBLPROPERTIES ('{FILE_RETENTION}' = 'interval 1 hour')")
    lake.spark.sql(f"ALTER TABLE {docs} UNSET TBLPROPERTIES ('delta.logRetentionDuration')")
    guard = HorizonGuard(lake, horizon)
    with caplog.at_level(logging.WARNING, "dcp"):
        assert guard.look() == ()
    record = caplog.records[-1]
    assert f"{FILE_RETENTION} interval 1 hour" in record.getMessage()
    assert "delta.logRetentionDuration not set" in record.getMessage()
    assert wrong_properties(lake, [DOCS], horizon) == {}
    versions = [history(lake.spark, lake.table_sql(table), 1)[0] for table in ("changes", "docs")]
    assert HorizonGuard(lake, horizon).look([DOCS]) == ()  # nothing to do, nothing is committed
    assert versions == [
        history(lake.spark, lake.table_sql(table), 1)[0] for table in ("changes", "docs")
    ]
    assert cleaned_round(lake) == cleaned_round(lake, DOCS) == 0


@pytest.mark.parametrize("with_guard", [True, False])
def test_what_was_current_before_a_long_pause_outlives_log_cleanup(
    new_lake: NewLake, with_guard: bool
) -> None:
    lake, horizon = new_lake(1), Horizon(1000)
    docs = lake.table_sql("docs")
    model = LogModel(lake, 61)
    lake.spark.sql(f"ALTER TABLE {docs} SET TBLPROPERTIES ('delta.checkpointInterval' = '2')")
    keep_retention(lake, [DOCS], horizon)
    first = round_and_apply(lake, model)
    assert first.version == 3  # the next commit makes a checkpoint
    before = documents_at(lake, first.version)
    for table in ("docs", "changes"):
        stand_still(lake, table, days=3)
    guard = HorizonGuard(lake, horizon)
    if with_guard:
        assert guard.look([DOCS]) == ("changes", "docs")
        assert guard.look([DOCS]) == ()
        assert first.version not in log_versions(lake, "docs")  # its commit is gone, not its rows
        status = replica_status(lake, DOCS)
        assert status.applied == first
        assert status.since_version == first.version
        assert unindexed_applied(lake, [DOCS]) in ((), (first,))
    second = round_and_apply(lake, model)
    assert second.from_round == first.to_round
    assert min(log_versions(lake, "docs")) > first.version
    require_exact_newest(lake, model)
    if with_guard:
        beat = first.version + 1
        assert documents_at(lake, beat) == before
        lineage = replica_status(lake, DOCS).lineage
        assert lineage.newest_with_rows_of(first.version) == beat
        assert lineage.defect(lineage.newest) is None
    else:
        with pytest.raises(PySparkException, match=r"DELTA_(VERSION_NOT_FOUND|LOG_FILE_NOT_FOUND)"):
            documents_at(lake, first.version)


def require_exact_newest(lake: LakeTables, model: LogModel) -> None:
    found = read_documents(lake, f"SELECT * FROM {lake.table_sql('docs')}")
    assert found == model.documents_at(model.complete[model.round])
