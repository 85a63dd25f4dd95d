"""The horizon against real Delta: log cleanup at checkpoints, VACUUM, and others' hands in the log.

Delta cuts its log at midnight, whatever the retention: no setting makes that finer. So a table that
stands still is made by setting the times of its log files back, which is all that Delta goes by.
"""

import logging
import os
import re
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Final

import pytest
from pyspark.errors import PySparkException

from dcp.errors import ConfigError, LakeError
from dcp.lake.adapters.spark_store import SparkStore
from dcp.lake.adapters.transaction import described
from dcp.lake.apply.merge_planner import plan_merge
from dcp.lake.change_log.applied import replica_status, unindexed_applied
from dcp.lake.change_log.round_queries import states_at
from dcp.lake.config.table_names import CHANGES_TABLE
from dcp.lake.maintain.horizon_guard import (
    HorizonGuard,
    beat,
    keep_retention,
    recorded_horizon,
    wrong_properties,
)
from dcp.lake.maintain.steps import run_steps, work_on
from dcp.lake.tables.applied_version import AppliedVersion
from dcp.lake.tables.history import history
from dcp.lake.tables.horizon import FILE_RETENTION, Horizon
from dcp.lake.tables.lake_tables import DOCS, LakeTables, cleaned_round, ensure_replicas, open_lake
from dcp.lake.tables.schema import ITEM_KINDS, RowKind, is_kind
from tests.lake.conftest import NewLake
from tests.lake.figures import figures_of
from tests.lake.log_model import (
    Documents,
    LogModel,
    apply_pending,
    documents_of,
    read_documents,
)
from tests.lake.memory_store import MemoryStore
from tests.lake.versions import version_in

pytestmark = pytest.mark.timeout(600)

DAY_SECONDS: Final = 86400
LISTING_TASKS: Final = "spark.sql.sources.parallelPartitionDiscovery.parallelism"


def stand_still(lake: LakeTables, table: str, days: int) -> None:
    """Make every version and every file of a table so much older."""
    for file in Path(lake.location.path(table)).rglob("*"):
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


def looked(guard: HorizonGuard, lake: LakeTables) -> list[str]:
    """Let a guard look as a driver that applies does; return the tables that got a beat."""
    tables = ("changes", "docs")
    before = {each: history(lake.table(each), 1)[0].version for each in tables}
    guard.check()
    guard.look_at(DOCS, lake)
    newest = {each: history(lake.table(each), 1)[0] for each in tables}
    return [
        table
        for table, commit in newest.items()
        if commit.is_heartbeat and commit.version > before[table]
    ]


def documents_at(lake: LakeTables, version: int) -> Documents:
    return read_documents(lake, f"SELECT * FROM {lake.table_sql('docs')} VERSION AS OF {version}")


@pytest.mark.slow
def test_properties_follow_the_setting_and_others_do_not_change_them(
    new_lake: NewLake, caplog: pytest.LogCaptureFixture
) -> None:
    lake, horizon = new_lake(1), Horizon(90)
    assert wrong_properties(lake, [DOCS], Horizon.of_hours(168)) == {}
    assert len(keep_retention(lake, [DOCS], horizon)) == 2
    assert recorded_horizon(lake) == horizon
    docs = lake.table("docs")
    docs.set_properties({FILE_RETENTION: "interval 1 hour", "delta.logRetentionDuration": None})
    guard = HorizonGuard(lake, horizon)
    with caplog.at_level(logging.WARNING, "dcp"):
        guard.check()
    record = caplog.records[-1]
    assert f"{FILE_RETENTION} interval 1 hour" in record.getMessage()
    assert "delta.logRetentionDuration not set" in record.getMessage()
    assert wrong_properties(lake, [DOCS], horizon) == {}
    versions = [history(lake.table(table), 1)[0] for table in ("changes", "docs")]
    assert looked(HorizonGuard(lake, horizon), lake) == []  # nothing to do, nothing is committed
    assert versions == [history(lake.table(table), 1)[0] for table in ("changes", "docs")]
    assert cleaned_round(lake) == cleaned_round(lake, DOCS) == 0

    # Two drivers that look at once: both are content, and no row is touched.
    lakes = [open_lake(SparkStore(cache(lake.spark.newSession), lake.location)) for _ in range(2)]
    with ThreadPoolExecutor(2) as pool:
        assert any(pool.map(lambda each: beat(each, DOCS), lakes))
    commit_history = replica_status(lake, DOCS).commit_history
    assert commit_history.commits[0].is_heartbeat
    assert commit_history.origin(commit_history.newest) == -1


@pytest.mark.slow
@pytest.mark.parametrize("with_guard", [True, False])
def test_what_was_current_before_a_long_pause_outlives_log_cleanup(
    new_lake: NewLake, with_guard: bool
) -> None:
    lake, horizon = new_lake(1), Horizon(1000)
    model = LogModel(lake, 61)
    lake.table("docs").set_properties({"delta.checkpointInterval": "2"})
    keep_retention(lake, [DOCS], horizon)
    first = round_and_apply(lake, model)
    assert first.version == 3  # the next commit makes a checkpoint
    before = documents_of(version_in(lake, DOCS.name, first.version))
    for table in ("docs", "changes"):
        stand_still(lake, table, days=3)
    guard = HorizonGuard(lake, horizon)
    if with_guard:
        assert looked(guard, lake) == ["changes", "docs"]
        assert looked(guard, lake) == []
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
        # Its files, days old as well, count from their removal, which is now.
        [compacted, *_] = run_steps(work_on(lake, horizon), ["optimize", "vacuum"])
        assert compacted.done
        beat = first.version + 1
        assert documents_at(lake, beat) == before
        commit_history = replica_status(lake, DOCS).commit_history
        assert commit_history.defect(commit_history.newest) is None
    else:
        with pytest.raises(PySparkException, match=r"DELTA_(VERSION_NOT_FOUND|LOG_FILE_NOT_FOUND)"):
            documents_at(lake, first.version)


def require_exact_newest(lake: LakeTables, model: LogModel) -> None:
    found = documents_of(version_in(lake, DOCS.name))
    assert found == model.documents_at(model.complete[model.round])


@pytest.mark.slow
def test_maintenance_keeps_what_a_shorter_vacuum_takes(
    new_lake: NewLake, caplog: pytest.LogCaptureFixture
) -> None:
    # Longer than the other tests take: the empty lake may have been made before the first of them.
    lake, horizon = new_lake(1), Horizon(3599)
    docs = lake.table_sql("docs")
    keep_retention(lake, [DOCS], horizon)
    model = LogModel(lake, 62)
    first = round_and_apply(lake, model)
    before = documents_of(version_in(lake, DOCS.name, first.version))
    round_and_apply(lake, model, items=6)
    with pytest.raises(ConfigError, match=r"found 0\.1, .*horizon of 3599 seconds") as refusal:
        work_on(lake, horizon, retain_hours=0.1)
    assert "no version that there is now" in str(refusal.value)
    with pytest.raises(ConfigError, match=r"would remove [23] versions of docs .* rounds 1 to 1\)"):
        work_on(lake, horizon, retain_hours=0)

    dry_run = work_on(lake, horizon, dry_run=True)
    dry = [str(report) for report in run_steps(dry_run, ["clean", "optimize"])]
    assert "clean changes: nothing is removed: table docs has no version from before" in dry[0]
    assert history(lake.table("docs"), 1)[0].operation == "MERGE"
    reports = {(each.step, each.table): each for each in run_steps(work_on(lake, horizon))}
    assert reports["optimize", "docs"].done
    assert not reports["vacuum", "docs"].done
    made = history(lake.table("docs"), 3)
    assert [commit.operation for commit in made] == ["VACUUM END", "VACUUM START", "OPTIMIZE"]
    assert {commit.ours["maintenance"] for commit in made} == {"vacuum", "optimize"}
    assert documents_of(version_in(lake, DOCS.name, first.version)) == before
    require_exact_newest(lake, model)
    plan = plan_merge(lake, DOCS, model.round)
    assert plan is None, "maintenance moved the table"

    # What anybody can do who thinks that a table need not keep so much.
    for table in (lake.table("docs"), lake.changes):
        table.set_properties({FILE_RETENTION: "interval 1 second"})
    for report in run_steps(work_on(lake, horizon), ["vacuum"]):
        assert not report.done and "left alone" in report.summary
    time.sleep(1.2)
    with described(lake.spark, {}, {LISTING_TASKS: "2"}):
        lake.spark.sql(f"VACUUM {docs}").collect()
    with pytest.raises(Exception, match=r"No such file|not found"):
        version_in(lake, DOCS.name, first.version)
    with caplog.at_level(logging.WARNING, "dcp"):
        looked(HorizonGuard(lake, horizon), lake)
    assert "kept 1 seconds of the horizon's 3599 seconds" in caplog.text
    [warning] = figures_of(lake).warnings
    assert "table docs" in warning and "VACUUM START" in warning
    require_exact_newest(lake, model)


def test_cleaning_leaves_what_the_version_at_the_horizon_needs(new_lake_in_memory: NewLake) -> None:
    lake, horizon = new_lake_in_memory(2), Horizon(600)
    model = LogModel(lake, 63)
    round_and_apply(lake, model)
    model.write_snapshot(model.vbuckets[0], 4)
    waiting = model.read(model.vbuckets[0], 2, 2)  # inside a snapshot
    model.write_snapshot(model.vbuckets[1], 4)
    model.commit(model.next_round([*waiting, *model.read(model.vbuckets[1], 4, 2)]))
    [kept] = apply_pending(lake, [DOCS], 2, "w")
    moment = history(lake.table("docs"), 1)[0].time
    model.commit(model.next_round(model.read(model.vbuckets[0], 100, 3)))
    apply_pending(lake, [DOCS], 3, "w")
    before = set(item_seqnos(lake))
    then = moment + timedelta(seconds=horizon.seconds)  # when `kept` is the version at the horizon

    early = work_on(lake, horizon, now=moment)
    assert [str(report) for report in run_steps(early, ["clean"])] == [
        "clean changes: nothing is removed: table docs has no version from before "
        f"{horizon.start(moment):%F %T} UTC"
    ]
    [report] = run_steps(work_on(lake, horizon, now=then), ["clean"])
    assert report.done and report.figures["to_round"] == kept.to_round == 2
    assert cleaned_round(lake) == cleaned_round(lake, DOCS) == 2
    complete = model.complete[2]
    gone = before - set(item_seqnos(lake))
    assert gone == {(vbucket, seqno) for vbucket, seqno in before if seqno <= complete[vbucket]}
    assert len(gone) == 12 and len(before) == 16
    assert states_at(lake, kept.to_round).keys() == {0, 1}
    [again] = run_steps(work_on(lake, horizon, now=then), ["clean"])
    assert again.figures["rows"] == 0 and not again.done
    # What was removed is in the table: the next round and its apply are exact.
    commits = history(lake.changes, 1)
    assert commits[0].is_cleaning
    round_and_apply(lake, model)
    require_exact_newest(lake, model)
    looked(HorizonGuard(lake, horizon), lake)
    # A table that lacks what was cleaned is not filled with the rest of it, but streamed again.
    assert isinstance(lake.store, MemoryStore)
    lake.store.table("docs").drop()
    ensure_replicas(lake, [DOCS])
    plan = plan_merge(lake, DOCS, model.round)
    assert plan is not None
    assert plan.log_slice.stale == {0: 0, 1: 0}
    assert not plan.log_slice.has_work


def item_seqnos(lake: LakeTables) -> list[tuple[int, int]]:
    rows = lake.changes.rows("vbucket, seqno", is_kind(*ITEM_KINDS))
    return [(row["vbucket"], int(row["seqno"])) for row in rows]


def test_hands_in_the_log_stop_the_next_run_until_they_are_taken_back(
    new_lake_in_memory: NewLake,
) -> None:
    lake, horizon = new_lake_in_memory(1), Horizon.of_hours(168)
    assert isinstance(lake.store, MemoryStore)
    changes = lake.store.table(CHANGES_TABLE)
    model = LogModel(lake, 64)
    round_and_apply(lake, model)
    copied = [*changes.kept.versions]
    round_and_apply(lake, model)
    changes.delete(is_kind(RowKind.MUTATION), {})
    culprit = history(lake.changes, 1)[0].version
    found = rf"changes: version {culprit} \(DELETE, .* dcplake resync"
    with pytest.raises(LakeError, match=found) as refusal:
        looked(HorizonGuard(lake, horizon), lake)
    table = model.next_round()
    with pytest.raises(LakeError, match=found):
        model.commit(table)
    with pytest.raises(LakeError, match=found):
        list(run_steps(work_on(lake, horizon), []))
    assert any("dcplake resync" in warning for warning in figures_of(lake).warnings)
    [remedy] = re.findall(r"RESTORE TABLE changes TO VERSION AS OF (\d+)", str(refusal.value))
    changes.restore(int(remedy))
    model.commit(table)
    changes.restore(culprit - 1)
    with pytest.raises(LakeError, match=rf"\(RESTORE, .* took it back to version {culprit - 1}"):
        looked(HorizonGuard(lake, horizon), lake)

    # The log alone put back from a copy: its history knows nothing of it.
    changes.kept.versions[:] = copied
    older = open_lake(lake.store.opened())
    message = r"found round 1 as the newest of changes, but table docs at round 2"
    with pytest.raises(LakeError, match=message):
        looked(HorizonGuard(older, horizon), older)
