"""The first apply of a replica, whose rows tasks write as files: exact, and fenced."""

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from dcp.errors import FencedError, ForeignWriteError, LakeError
from dcp.lake.adapters import task_files
from dcp.lake.adapters.spark_store import SparkStore
from dcp.lake.apply.commit import run_apply
from dcp.lake.apply.merge_plan import MergePlan, RowBudget
from dcp.lake.apply.merge_planner import plan_merge
from dcp.lake.store.file_commit import commit_files
from dcp.lake.store.merge import LogRows
from dcp.lake.tables.history import history
from dcp.lake.tables.lake_tables import DOCS, LakeTables, open_lake
from dcp.lake.tables.schema import REPLICA
from tests.lake.conftest import NewLake
from tests.lake.log_model import LogModel
from tests.lake.model_applies import assert_every_version_exact, next_plan
from tests.lake.tables_at import no_spark
from tests.lake.versions import version_in

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

NOTHING = RowBudget(rows=0, bytes=0)
"""So that even few rows are too many for the driver to hold."""

FEATURE = "'delta.enableInCommitTimestamps' = 'true'"


def first_plan(lake: LakeTables, model: LogModel) -> MergePlan:
    """Commit some rounds, and plan the first apply of what they brought."""
    next_plan(lake, model)
    for _ in range(2):
        model.commit(model.next_round())
    plan = plan_merge(lake, DOCS, model.round, NOTHING)
    assert plan is not None and plan.is_first and isinstance(plan.rows, LogRows)
    return plan


def do_before_the_commit(patch: pytest.MonkeyPatch, do: Callable[[], object]) -> list[str]:
    """Let something happen between writing the files and the first commit; return a log."""
    attempts: list[str] = []

    def commit(*arguments: object, **named: object) -> None:
        attempts.append("commit")
        if len(attempts) == 1:
            do()
        commit_files(*arguments, **named)  # type: ignore[arg-type]  # as they come

    patch.setattr(task_files, "commit_files", commit)
    return attempts


def another_process(lake: LakeTables) -> LakeTables:
    """Return the lake as another process opens it, without Spark."""
    return open_lake(SparkStore(no_spark, lake.location))


def data_files(lake: LakeTables) -> int:
    return len(list(Path(lake.location.path("docs")).glob("*.parquet")))


def test_it_is_exact_and_merges_go_on_from_it(new_lake: NewLake) -> None:
    lake = new_lake(3)
    model = LogModel(lake, 80, keys=9)
    made = run_apply(lake, first_plan(lake, model), "w")
    [newest] = history(lake.table("docs"), 1)
    rows = version_in(lake, "docs").num_rows
    assert (newest.version, newest.operation, made.inserted) == (made.version, "MERGE", rows)
    merged = run_apply(lake, next_plan(lake, model), "w")
    assert merged.inserted and merged.updated and merged.deleted, "in its files"
    lake.spark.sql(f"OPTIMIZE {lake.table_sql('docs')} FULL")
    run_apply(lake, next_plan(lake, model), "w")
    assert assert_every_version_exact(lake, model) == 3


def test_rows_are_sorted_within_a_file(new_lake: NewLake) -> None:
    lake = new_lake(3)
    model = LogModel(lake, 72)
    run_apply(lake, first_plan(lake, model), "w")
    rows = lake.spark.sql(
        f"SELECT input_file_name() AS file, vbucket, key FROM {lake.table_sql('docs')}"
    ).toArrow()
    by_file: dict[str, list[tuple[int, str]]] = {}
    for row in rows.to_pylist():
        by_file.setdefault(row["file"], []).append((row["vbucket"], row["key"]))
    assert by_file
    assert all(places == sorted(places) for places in by_file.values())


def test_maintenance_in_the_moment_costs_an_attempt_and_no_second_set_of_files(
    new_lake: NewLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = new_lake(2)
    model = LogModel(lake, 73)
    plan = first_plan(lake, model)
    attempts = do_before_the_commit(
        monkeypatch, lambda: another_process(lake).table("docs").set_properties({"note": "x"})
    )
    made = run_apply(lake, plan, "w")
    assert len(attempts) == 2
    files = lake.table("docs").size().files
    assert (made.version, files) == (plan.current.version + 2, data_files(lake))
    assert_every_version_exact(lake, model)


def test_rows_of_others_in_the_moment_are_found_and_nothing_is_added(
    new_lake: NewLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = new_lake(2)
    plan = first_plan(lake, LogModel(lake, 74))
    theirs = pa.Table.from_pylist([{"vbucket": 0, "key": "theirs"}], REPLICA)
    do_before_the_commit(
        monkeypatch, lambda: another_process(lake).table("docs").append(theirs, {})
    )
    with pytest.raises(ForeignWriteError, match=r"expected no change of its rows"):
        run_apply(lake, plan, "w")
    assert lake.table("docs").rows("key", "true") == [{"key": "theirs"}]


def test_a_driver_that_another_one_overtook_is_fenced(
    new_lake: NewLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = new_lake(2)
    model = LogModel(lake, 75)
    plan = first_plan(lake, model)
    do_before_the_commit(monkeypatch, lambda: run_apply(lake, plan, "writer-2"))
    with pytest.raises(FencedError, match=r"writer writer-2.*this driver stops"):
        run_apply(lake, plan, "writer-1")
    assert assert_every_version_exact(lake, model) == 1


def test_a_table_that_got_features_meanwhile_is_left_to_the_next_run_and_a_merge(
    new_lake: NewLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = new_lake(2)
    model = LogModel(lake, 76)
    plan = first_plan(lake, model)
    docs = lake.table_sql("docs")
    alter = f"ALTER TABLE {docs} SET TBLPROPERTIES ({FEATURE})"
    do_before_the_commit(monkeypatch, lambda: lake.spark.newSession().sql(alter))
    with pytest.raises(
        LakeError, match=r"found the Delta features inCommitTimestamp.*run it again"
    ):
        run_apply(lake, plan, "w")
    assert lake.table("docs").rows("key", "true") == []
    again = plan_merge(lake, DOCS, model.round, NOTHING)
    assert again is not None
    run_apply(lake, again, "w")
    assert assert_every_version_exact(lake, model) == 1
