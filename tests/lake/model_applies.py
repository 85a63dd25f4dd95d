"""Applies the rounds of the model to its lake, and compares the replicas with the model."""

import pytest

from dcp.lake.apply.merge_plan import TABLE_BYTES_BY_NAMED_KEY, MergePlan
from dcp.lake.apply.merge_planner import plan_merge
from dcp.lake.change_log.applied import applied_of, unindexed_applied
from dcp.lake.tables.applied_version import AppliedVersion
from dcp.lake.tables.history import WHOLE, history
from dcp.lake.tables.lake_tables import DOCS, LakeTables, ReplicaTable
from tests.lake.log_model import LogModel, apply_pending, documents_of, read_documents
from tests.lake.replicas import asked
from tests.lake.versions import version_in


def applies(lake: LakeTables, model: LogModel, count: int) -> list[AppliedVersion]:
    """Commit rounds until so many applies were made."""
    made: list[AppliedVersion] = []
    while len(made) < count:
        model.commit(model.next_round(applied=unindexed_applied(lake, [DOCS])))
        if model.round:
            made += apply_pending(lake, [DOCS], model.round, "w")
    return made


def next_plan(lake: LakeTables, model: LogModel) -> MergePlan:
    """Commit rounds until one of them brings ``docs`` something to apply; return that plan."""
    while (plan := plan_merge(lake, DOCS, model.round)) is None:
        model.commit(model.next_round())
    return plan


def name_keys(monkeypatch: pytest.MonkeyPatch, *, always: bool) -> None:
    """Let MERGEs name their keys from now on, or as it pays: in tables this small hardly ever."""
    table_bytes = 0 if always else TABLE_BYTES_BY_NAMED_KEY
    monkeypatch.setattr("dcp.lake.apply.merge_plan.TABLE_BYTES_BY_NAMED_KEY", table_bytes)


def assert_every_version_exact(
    lake: LakeTables, model: LogModel, replica: ReplicaTable = DOCS
) -> int:
    """Compare every version of the replica with the model; return how many there are."""
    checked = 0
    for commit in history(lake.table(replica.name), WHOLE):
        if not commit.is_apply:
            continue
        applied = applied_of(replica.name, commit)
        expected = model.documents_at(model.complete[applied.to_round], replica.collection_id)
        found = documents_of(version_in(lake, replica.name, commit.version))
        assert found == expected, f"{applied} differs"
        checked += 1
    return checked


def require_exact(lake: LakeTables, model: LogModel) -> None:
    """Compare ``docs`` and ``docs_live`` with the model at the newest round."""
    live = model.documents_at(model.complete[model.round])
    assert read_documents(lake, f"SELECT * FROM {lake.table_sql('docs')}") == live
    assert documents_of(asked(lake, "SELECT * FROM docs_live")) == live
