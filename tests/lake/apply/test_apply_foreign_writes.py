"""Changes by others to a replica: foreign writes, RESTORE, a drop.

A foreign write stops every apply until a RESTORE takes it back; a dropped replica is created again
from the log.
"""

import re
from collections.abc import Callable
from typing import Any

import pytest

from dcp.errors import ForeignWriteError
from dcp.lake.adapters.apply_sql import merge_sql
from dcp.lake.apply.commit import run_apply
from dcp.lake.apply.merge_planner import plan_merge
from dcp.lake.change_log.applied import replica_status, unindexed_applied
from dcp.lake.tables.lake_tables import DOCS, LakeTables, ensure_replicas
from dcp.lake.tables.schema import REPLICA
from tests.lake.commits_by_hand import put_rows
from tests.lake.conftest import NewLake
from tests.lake.log_model import LogModel, apply_pending, documents_of
from tests.lake.memory_store import MemoryStore
from tests.lake.memory_table import MemoryTable
from tests.lake.model_applies import (
    applies,
    assert_every_version_exact,
    next_plan,
    require_exact,
)
from tests.lake.replicas import asked
from tests.lake.versions import version_in

pytestmark = pytest.mark.timeout(900)


def test_a_foreign_write_stops_the_apply_before_anything_is_written(
    new_lake_in_memory: NewLake,
) -> None:
    lake = new_lake_in_memory(2)
    model, docs = LogModel(lake, 51), lake.table("docs")
    plan = next_plan(lake, model)
    run_apply(lake, plan, "w")
    plan = next_plan(lake, model)
    docs.optimize({}, 0)
    docs.set_properties({"note": "x"})
    run_apply(lake, plan, "w")  # maintenance changes no row
    plan = next_plan(lake, model)
    assert docs.delete(None, {}) > 0
    version = replica_status(lake, DOCS).version
    with pytest.raises(ForeignWriteError, match=rf"docs: found version {version} \(DELETE, 20"):
        run_apply(lake, plan, "w")
    with pytest.raises(ForeignWriteError, match=r"expected no change of its rows"):
        plan_merge(lake, DOCS, model.round)
    assert replica_status(lake, DOCS).version == version


@pytest.mark.slow
def test_a_foreign_write_right_before_the_merge_is_found_by_every_apply_until_restored(
    new_lake: NewLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = new_lake(2)
    model = LogModel(lake, 52)
    [second] = applies(lake, model, 1)
    plan = next_plan(lake, model)

    def write_first(*arguments: Any) -> str:
        rows = version_in(lake, "docs").cast(REPLICA)
        put_rows(lake.location.path("docs"), rows.slice(1))
        return merge_sql(*arguments)

    monkeypatch.setattr("dcp.lake.adapters.spark_table.merge_sql", write_first)
    culprit = rf"docs: found version {second.version + 1} \(WRITE"
    with pytest.raises(ForeignWriteError, match=culprit):
        run_apply(lake, plan, "w")
    monkeypatch.undo()
    assert replica_status(lake, DOCS).version == second.version + 2  # it came to be all the same
    model.commit(model.next_round())
    with pytest.raises(ForeignWriteError, match=culprit) as refusal:
        plan_merge(lake, DOCS, model.round)
    lake.spark.sql(remedy(refusal.value, lake, second.version))
    applies(lake, model, 1)
    assert documents_of(version_in(lake, "docs")) == model.documents_at(model.complete[model.round])


def remedy(refusal: BaseException, lake: LakeTables, version: int) -> str:
    """Return the statement that a refusal names: it takes the table back to ``version``."""
    [found] = re.findall(r"RESTORE TABLE .* TO VERSION AS OF \d+", str(refusal))
    assert found == f"RESTORE TABLE {lake.table_sql('docs')} TO VERSION AS OF {version}"
    return str(found)


@pytest.mark.slow
def test_a_table_that_was_taken_back_to_an_older_apply_gets_the_later_ones_again(
    new_lake_in_memory: NewLake, view: Callable[[LakeTables], None]
) -> None:
    lake = new_lake_in_memory(2)
    model, docs = LogModel(lake, 52), lake.table("docs")
    view(lake)
    first, second = applies(lake, model, 2)
    docs.delete("vbucket = 0", {})
    for _ in range(3):
        model.commit(model.next_round())
        with pytest.raises(ForeignWriteError, match=r"\(DELETE") as refusal:
            plan_merge(lake, DOCS, model.round)
        remedy(refusal.value, lake, second.version)
    assert isinstance(docs, MemoryTable)
    docs.restore(second.version)
    applies(lake, model, 1)
    require_exact(lake, model)
    model.commit(model.next_round(applied=unindexed_applied(lake, [DOCS])))
    # An older version of ours does as well: the applies after it are made again.
    docs.restore(first.version)
    status = replica_status(lake, DOCS)
    assert (status.round, status.since_version) == (first.to_round, status.version)
    model.commit(model.next_round(applied=unindexed_applied(lake, [DOCS])))
    live = model.documents_at(model.complete[model.round])
    assert documents_of(asked(lake, "SELECT * FROM docs_live")) == live
    [again] = apply_pending(lake, [DOCS], second.to_round, "w")
    assert (again.from_round, again.to_round) == (first.to_round, second.to_round)
    apply_pending(lake, [DOCS], model.round, "w")
    require_exact(lake, model)


def test_a_dropped_replica_is_made_again_from_the_log(new_lake_in_memory: NewLake) -> None:
    lake = new_lake_in_memory(2)
    model = LogModel(lake, 53)
    applies(lake, model, 2)
    assert isinstance(lake.store, MemoryStore)
    lake.store.table("docs").drop()
    ensure_replicas(lake, [DOCS])
    plan = plan_merge(lake, DOCS, model.round)
    assert plan is not None and plan.current.to_round == 0
    run_apply(lake, plan, "w")
    model.commit(model.next_round(applied=unindexed_applied(lake, [DOCS])))
    apply_pending(lake, [DOCS], model.round, "w")
    assert assert_every_version_exact(lake, model) >= 1
    assert replica_status(lake, DOCS).round == model.round
