"""Applies against the model: each version of a replica is exact, whatever a round holds.

Fences, foreign writes and rollback are tried in the files ``test_apply_*.py``.
"""

import random
from collections.abc import Callable

import pytest

from dcp.lake.apply.commit import run_apply
from dcp.lake.apply.merge_plan import RowBudget
from dcp.lake.apply.merge_planner import plan_merge
from dcp.lake.change_log.applied import replica_status, unindexed_applied
from dcp.lake.change_log.touched_keys import Touched
from dcp.lake.store.merge import LogRows
from dcp.lake.tables.lake_tables import DOCS, LakeTables, ReplicaTable, ensure_replicas
from tests.lake.conftest import NewLake
from tests.lake.log_model import LogModel, apply_pending, documents_of, read_documents
from tests.lake.model_applies import assert_every_version_exact, name_keys
from tests.lake.replicas import asked
from tests.lake.versions import version_in
from tests.seeds import seeds

pytestmark = pytest.mark.timeout(900)

HIGH = {0: 2**63 - 3, 1: 2**64 - 500}
"""First seqnos that cross the signed range."""


@pytest.mark.parametrize("seed", seeds(1, first=11))
@pytest.mark.slow
def test_docs_live_is_exact_whatever_is_applied(
    new_lake_in_memory: NewLake, view: Callable[[LakeTables], None], seed: int
) -> None:
    lake = new_lake_in_memory(4)
    view(lake)
    model = LogModel(lake, seed, first_seqnos=HIGH)
    choice = random.Random(seed)
    for _ in range(4):
        index = unindexed_applied(lake, [DOCS]) if choice.random() < 0.7 else ()
        model.commit(model.next_round(applied=index))
        if choice.random() < 0.6:
            to_round = choice.randint(max(1, model.round - 1), model.round)
            apply_pending(lake, [DOCS], to_round, "writer-1")
        live = model.documents_at(model.complete[model.round])
        assert documents_of(asked(lake, "SELECT * FROM docs_live")) == live


@pytest.mark.parametrize("seed", seeds(1, first=11))
@pytest.mark.slow
def test_every_version_is_exact(
    new_lake: NewLake, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    lake = new_lake(4)
    model = LogModel(lake, seed, first_seqnos=HIGH)
    choice = random.Random(seed)
    for _ in range(4):
        model.commit(model.next_round())
        if choice.random() < 0.6:
            to_round = choice.randint(max(1, model.round - 1), model.round)
            budget = RowBudget(rows=choice.choice((10_000, 2)))
            name_keys(monkeypatch, always=choice.random() < 0.5)
            apply_pending(lake, [DOCS], to_round, "writer-1", budget=budget)
    apply_pending(lake, [DOCS], model.round, "writer-1")
    assert assert_every_version_exact(lake, model) >= 2
    live = model.documents_at(model.complete[model.round])
    assert read_documents(lake, f"SELECT * FROM {lake.table_sql('docs')}") == live


@pytest.mark.slow
def test_all_columns_survive(new_lake: NewLake) -> None:
    lake = new_lake(1)
    model = LogModel(lake, 5, first_seqnos={0: 2**64 - 100})
    [vb] = model.vbuckets
    model.write_snapshot(vb, 12)
    rows = model.read(vb, 100, 1)
    model.commit(model.next_round(rows))
    apply_pending(lake, [DOCS], 1, "w")
    found = version_in(lake, "docs").to_pylist()
    expected = {row["key"]: row for row in rows if row["kind"] == "mutation"}
    assert {row["key"] for row in found} == expected.keys()
    for row in found:
        for name in ("vbucket", "key_bytes", "seqno", "vb_uuid", "cas", "rev", "flags", "value"):
            assert row[name] == expected[row["key"]][name], name
        nanoseconds = expected[row["key"]]["cas"] // 65536 * 65536
        micros = row["modified_at"].timestamp()
        assert micros == pytest.approx(nanoseconds / 1e9, abs=0.001)


def test_pending_rows_of_old_rounds_are_published_when_their_snapshot_ends(
    new_lake_in_memory: NewLake,
) -> None:
    lake = new_lake_in_memory(1)
    model = LogModel(lake, 3)
    [vb] = model.vbuckets
    model.write_snapshot(vb, 9)
    for number in (1, 2):
        model.commit(model.next_round(model.read(vb, 3, number)))
        assert plan_merge(lake, DOCS, number) is None
    model.commit(model.next_round(model.read(vb, 3, 3)))
    plan = plan_merge(lake, DOCS, 3)
    assert plan is not None and plan.log_slice.first_round == 1
    run_apply(lake, plan, "w")
    assert_every_version_exact(lake, model)


@pytest.mark.slow
def test_every_way_to_apply_publishes_the_same(
    new_lake: NewLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keys named in the MERGE or not, rows held by the driver or read by Spark's tasks."""
    lake = new_lake(2)
    model = LogModel(lake, 21)
    none, no_rows = RowBudget(rows=0), RowBudget(bytes=0)
    ways = [(RowBudget(), True), (RowBudget(), False), (no_rows, True), (none, False)]
    tables = [ReplicaTable(f"docs_{number}", 0) for number in range(len(ways))]
    for table in tables:
        ensure_replicas(lake, [table])
    for _ in range(2):
        model.commit(model.next_round())
        for table, (budget, names) in zip(tables, ways, strict=True):
            name_keys(monkeypatch, always=names)
            plan = plan_merge(lake, table, model.round, budget)
            if plan is None:
                continue
            assert plan.method == ("key literals" if names else "hash join")
            assert isinstance(plan.rows, LogRows) == (budget != RowBudget())
            run_apply(lake, plan, "w")
    apply_pending(lake, [DOCS], model.round, "w")
    assert_every_version_exact(lake, model)
    expected = model.documents_at(model.complete[model.round])
    assert expected
    for table in tables:
        assert documents_of(version_in(lake, table.name)) == expected


def test_keys_are_named_where_the_table_is_large(new_lake_in_memory: NewLake) -> None:
    lake = new_lake_in_memory(1)
    model = LogModel(lake, 8, keys=1_200)
    [vb] = model.vbuckets
    for number, (items, method) in enumerate([(1_100, "hash join"), (3, "key literals")], 1):
        model.write_snapshot(vb, items)
        model.commit(model.next_round(model.read(vb, items, number)))
        plan = plan_merge(lake, DOCS, number)
        assert plan is not None and plan.method == method
        run_apply(lake, plan, "w")
    assert_every_version_exact(lake, model)


def test_collections_have_their_own_tables(new_lake_in_memory: NewLake) -> None:
    lake = new_lake_in_memory(1)
    model = LogModel(lake, 9)
    beer = ReplicaTable("docs__brewery__beer", 8)
    ensure_replicas(lake, [beer])
    [vb] = model.vbuckets
    for number, collection in enumerate((0, 8, 0, 8), 1):
        model.write_snapshot(vb, 5, collection)
        model.commit(model.next_round(model.read(vb, 5, number)))
    made = apply_pending(lake, [DOCS, beer], 4, "w")
    assert [each.table for each in made] == [DOCS.name, beer.name]
    assert_every_version_exact(lake, model)
    assert_every_version_exact(lake, model, beer)


@pytest.mark.slow
def test_nothing_between_makes_no_commit_and_an_effect_free_merge_makes_one(
    new_lake: NewLake,
) -> None:
    lake = new_lake(1)
    model = LogModel(lake, 4)
    [vb] = model.vbuckets
    model.commit(model.next_round([]))
    assert plan_merge(lake, DOCS, 1) is None
    assert replica_status(lake, DOCS).version == 0
    model.write_snapshot(vb, 3)
    rows = [row | {"kind": "deletion", "value": None} for row in model.read(vb, 3, 2)]
    model.commit(model.next_round(rows))
    plan = plan_merge(lake, DOCS, 2)
    assert plan is not None
    applied = run_apply(lake, plan, "w")  # deletes what was never there
    assert (applied.version, applied.inserted, applied.deleted) == (1, 0, 0)
    assert plan_merge(lake, DOCS, 2) is None
    assert replica_status(lake, DOCS).round == 2


def test_a_collection_without_rows_is_not_searched_from_the_beginning_for_ever(
    new_lake_in_memory: NewLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dcp.lake.apply.merge_plan.EMPTY_ROUNDS", 3)
    lake = new_lake_in_memory(1)
    model = LogModel(lake, 56)
    empty = ReplicaTable("docs__s__c__8", 8)
    ensure_replicas(lake, [empty])
    [vb] = model.vbuckets
    for number in (1, 2, 3):
        assert plan_merge(lake, empty, model.round) is None
        model.write_snapshot(vb, 3)
        model.commit(model.next_round(model.read(vb, 3, number)))
    plan = plan_merge(lake, empty, 3)
    assert plan is not None and plan.touched == Touched()
    made = run_apply(lake, plan, "w")
    assert (made.to_round, made.inserted) == (3, 0)
    assert plan_merge(lake, empty, 3) is None
    model.write_snapshot(vb, 3, collection_id=8)
    model.commit(model.next_round(model.read(vb, 3, 4)))
    plan = plan_merge(lake, empty, 4)
    assert plan is not None and plan.log_slice.first_round == 4
    run_apply(lake, plan, "w")
    assert assert_every_version_exact(lake, model, empty) == 2
