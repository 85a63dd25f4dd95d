"""Applies of more keys than the driver may hold."""

from dcp.lake.apply.apply import run_apply
from dcp.lake.apply.apply_plan import RowBudget
from dcp.lake.apply.planning import plan_apply
from dcp.lake.tables.tables import DOCS
from tests.lake.conftest import NewLake
from tests.lake.log_model import LogModel, documents_of
from tests.lake.versions import version_in


def test_a_backfill_and_then_keys_that_overwrite_each_other(new_lake: NewLake) -> None:
    lake = new_lake(2)
    model = LogModel(lake, seed=5)
    for snapshots in (1, 2):
        for _ in range(snapshots):
            number = model.round + 1
            rows = []
            for vb in model.vbuckets:
                model.write_snapshot(vb, 25)
                rows += model.read(vb, 100, number)
            model.commit(model.next_round(rows))
        plan = plan_apply(lake, DOCS, model.round, RowBudget(rows=0))
        assert plan is not None
        assert plan.method == "hash join"
        run_apply(lake, plan, "writer-1")
        found = documents_of(version_in(lake, DOCS.name))
        assert found == model.documents_at(model.complete[model.round])
        assert found


def test_rows_of_other_rounds_and_unfinished_snapshots_stay_out(new_lake: NewLake) -> None:
    """All filters hold without the join: seqno ranges, rounds, vbuckets, collections."""
    lake = new_lake(2)
    model = LogModel(lake, seed=6)
    first, second = model.vbuckets
    model.write_snapshot(first, 12)
    model.write_snapshot(second, 12)
    model.commit(model.next_round([*model.read(first, 100, 1), *model.read(second, 5, 1)]))
    model.commit(model.next_round(model.read(second, 3, 2)))
    plan = plan_apply(lake, DOCS, 1, RowBudget(rows=0))
    assert plan is not None
    assert plan.vbuckets == (first.vbucket,)
    run_apply(lake, plan, "writer-1")
    assert documents_of(version_in(lake, DOCS.name)) == model.documents_at(model.complete[1])
    model.commit(model.next_round(model.read(second, 100, 3)))
    plan = plan_apply(lake, DOCS, 3, RowBudget(rows=0))
    assert plan is not None
    run_apply(lake, plan, "writer-1")
    assert documents_of(version_in(lake, DOCS.name)) == model.documents_at(model.complete[3])
