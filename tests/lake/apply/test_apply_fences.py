"""Each apply takes effect once: fences against stale plans; crashes and conflicts do no harm."""

import itertools
from pathlib import Path
from typing import Any

import pytest

from dcp.errors import FencedError, LakeError
from dcp.lake.adapters.spark_store import SparkStore
from dcp.lake.apply.commit import run_apply
from dcp.lake.apply.merge_planner import plan_merge
from dcp.lake.change_log.applied import replica_status, unindexed_applied
from dcp.lake.tables.lake_tables import DOCS, open_lake
from tests.lake.conftest import NewLake
from tests.lake.log_model import LogModel
from tests.lake.model_applies import applies, assert_every_version_exact, next_plan
from tests.lake.tables_at import no_spark

pytestmark = pytest.mark.timeout(900)


@pytest.mark.slow
def test_a_stale_plan_is_fenced_whatever_its_target(new_lake: NewLake) -> None:
    lake = new_lake(2)
    model = LogModel(lake, 31)
    paused = next_plan(lake, model)
    for _ in range(3):
        model.commit(model.next_round())
    ahead = plan_merge(lake, DOCS, model.round)
    assert ahead is not None and paused.current.to_round == ahead.current.to_round == 0
    run_apply(lake, ahead, "writer-2")
    with pytest.raises(FencedError, match=r"writer writer-2.*this driver stops"):
        run_apply(lake, paused, "writer-1")
    late = plan_merge(lake, DOCS, model.round)
    assert late is None
    assert assert_every_version_exact(lake, model) == 1
    assert lake.spark.conf.get("spark.databricks.delta.write.txnAppId", None) is None


def test_a_crash_between_the_merge_and_knowing_it(new_lake_in_memory: NewLake) -> None:
    lake = new_lake_in_memory(2)
    model = LogModel(lake, 41)
    plan = next_plan(lake, model)
    made = run_apply(lake, plan, "writer-1")
    assert run_apply(lake, plan, "writer-1") == made  # the same driver asks again
    assert plan_merge(lake, DOCS, model.round) is None  # a new driver
    assert unindexed_applied(lake, [DOCS]) == (made,)
    model.commit(model.next_round(applied=(made,)))
    assert unindexed_applied(lake, [DOCS]) == ()
    assert assert_every_version_exact(lake, model) == 1


def test_a_commit_that_reported_failure_through_the_bridge_is_read_back(
    new_lake_in_memory: NewLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = new_lake_in_memory(2)
    model = LogModel(lake, 55)

    def fail_after(name: str) -> None:
        if name.endswith(".committed"):
            raise RuntimeError(f"no PySparkException at {name}")

    monkeypatch.setattr("dcp.lake.apply.commit.reached", fail_after)
    monkeypatch.setattr("dcp.lake.change_log.changes.reached", fail_after)
    assert model.commit(model.next_round()).round == 1
    [made] = applies(lake, model, 1)
    assert replica_status(lake, DOCS).applied == made


@pytest.mark.slow
def test_maintenance_in_the_moment_of_the_merge_costs_an_attempt(
    new_lake: NewLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = new_lake(2)
    model = LogModel(lake, 54)
    applies(lake, model, 1)
    plan = next_plan(lake, model)
    conflicts = itertools.count(1)

    def conflict(*_: Any) -> str:
        theirs = open_lake(SparkStore(no_spark, lake.location))
        theirs.table("docs").set_properties({"note": str(next(conflicts))})
        return "SELECT raise_error('[DELTA_CONCURRENT_DELETE_READ] as Delta says it')"

    with monkeypatch.context() as patch:
        patch.setattr("dcp.lake.adapters.spark_table.merge_sql", conflict)
        with pytest.raises(LakeError, match=r"each of 5 attempts"):
            run_apply(lake, plan, "w")
    assert next(conflicts) == 6
    made = run_apply(lake, plan, "w")
    assert made.to_round == plan.to_round
    assert plan_merge(lake, DOCS, plan.to_round) is None
    assert_every_version_exact(lake, model)


@pytest.mark.slow
def test_the_index_stands_in_for_a_cleaned_history(new_lake: NewLake, tmp_path: Path) -> None:
    lake = new_lake(2)
    model = LogModel(lake, 61)
    plan = next_plan(lake, model)
    made = run_apply(lake, plan, "w")
    model.commit(model.next_round(applied=(made,)))
    for number in range(11):  # there is a checkpoint every ten commits
        lake.table("docs").set_properties({"note": str(number)})
    log = Path(lake.location.path("docs")) / "_delta_log"
    for version in range(made.version + 1):
        (log / f"{version:020d}.json").unlink()
    assert replica_status(lake, DOCS).applied == made
    plan = next_plan(lake, model)
    assert plan.current.to_round == made.to_round
