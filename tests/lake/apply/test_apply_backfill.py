"""Applies of more keys than the driver may hold."""

from contextlib import ExitStack

from dcp.lake.apply.commit import run_apply
from dcp.lake.apply.merge_plan import MergePlan, RowBudget
from dcp.lake.apply.merge_planner import plan_merge
from dcp.lake.store.merge import LogRows
from dcp.lake.tables.lake_tables import DOCS
from tests.lake.conftest import NewLake
from tests.lake.log_model import LogModel, documents_of
from tests.lake.versions import version_in


def test_keys_that_overwrite_each_other_and_what_stays_out(new_lake: NewLake) -> None:
    """All filters hold without the join: seqno ranges, rounds, vbuckets, collections."""
    lake = new_lake(2)
    model = LogModel(lake, seed=6)
    first, second = model.vbuckets

    computed = []

    def apply_to(number: int) -> MergePlan:
        with ExitStack() as until_applied:
            plan = plan_merge(lake, DOCS, number, RowBudget(rows=0), until_applied=until_applied)
            assert plan is not None and isinstance(plan.rows, LogRows)
            if plan.rows.touched_sql:
                computed.append(lake.spark.sql(plan.rows.touched_sql))
            run_apply(lake, plan, "writer-1")
        found = documents_of(version_in(lake, DOCS.name))
        assert found and found == model.documents_at(model.complete[number])
        return plan

    for vb in model.vbuckets:
        model.write_snapshot(vb, 25)
    model.commit(model.next_round([*model.read(first, 100, 1), *model.read(second, 5, 1)]))
    model.commit(model.next_round(model.read(second, 3, 2)))
    assert apply_to(1).vbuckets == (first.vbucket,), "the second one's snapshot goes on"

    model.write_snapshot(first, 25)
    model.commit(model.next_round([*model.read(second, 100, 3), *model.read(first, 100, 3)]))
    for vb in model.vbuckets:
        model.write_snapshot(vb, 25)
    model.commit(model.next_round([*model.read(first, 100, 4), *model.read(second, 5, 4)]))
    assert apply_to(4).method == "hash join"
    assert computed and not any(each.inputFiles() for each in computed), "it reads the log again"
    views = lake.spark.sql("SHOW VIEWS").collect()
    assert not [each for each in views if each.viewName.startswith("dcplake_computed")]
    kept = lake.spark.sparkContext._jsc.getPersistentRDDs().values()
    assert not [each for each in kept if each.isCheckpointed()], "its rows are still on the disk"
