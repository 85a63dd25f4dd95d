"""Applies against the model: every version exact, fenced, and repeatable after a crash."""

import itertools
import random
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from dcp.errors import FencedError, ForeignWriteError, LakeError
from dcp.lake.applied import AppliedVersion, applied_of, replica_status, unindexed_applied
from dcp.lake.apply import plan_apply, run_apply
from dcp.lake.apply_sql import merge_sql
from dcp.lake.history import WHOLE, history
from dcp.lake.tables import DOCS, LakeTables, ReplicaTable, ensure_replica
from dcp.lake.views import register_views
from tests.lake.conftest import NewLake
from tests.lake.log_model import LogModel, apply_pending, documents_of, read_documents
from tests.lake.versions import table_at
from tests.seeds import seeds

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

HIGH = {0: 2**63 - 3, 1: 2**64 - 500}
"""First seqnos that cross the signed range."""


def assert_every_version_exact(
    lake: LakeTables, model: LogModel, replica: ReplicaTable = DOCS
) -> int:
    """Compare every version of the replica with the model; return how many there are."""
    table = lake.table_sql(replica.name)
    checked = 0
    for commit in history(lake.spark, table, WHOLE):
        if not commit.is_apply:
            continue
        applied = applied_of(replica.name, commit)
        expected = model.documents_at(model.complete[applied.to_round], replica.collection_id)
        found = documents_of(table_at(lake.location.path(replica.name), commit.version))
        assert found == expected, f"{applied} differs"
        checked += 1
    return checked


@pytest.mark.parametrize("seed", seeds(1, first=11))
def test_every_version_and_docs_live_are_exact(new_lake: NewLake, seed: int) -> None:
    print(f"seed {seed}")
    lake = new_lake(4)
    model = LogModel(lake, seed, first_seqnos=HIGH)
    register_views(lake)
    choice = random.Random(seed)
    for _ in range(6):
        index = unindexed_applied(lake, [DOCS]) if choice.random() < 0.7 else ()
        model.commit(model.next_round(applied=index))
        live = model.documents_at(model.complete[model.round])
        assert read_documents(lake, "SELECT * FROM docs_live") == live
        if choice.random() < 0.6:
            to_round = choice.randint(max(1, model.round - 1), model.round)
            literals = choice.choice((10_000, 2))
            apply_pending(lake, [DOCS], to_round, "writer-1", key_literals=literals)
            assert read_documents(lake, "SELECT * FROM docs_live") == live
    apply_pending(lake, [DOCS], model.round, "writer-1")
    assert assert_every_version_exact(lake, model) >= 2
    live = model.documents_at(model.complete[model.round])
    assert read_documents(lake, f"SELECT * FROM {lake.table_sql('docs')}") == live


def test_all_columns_survive(new_lake: NewLake) -> None:
    lake = new_lake(1)
    model = LogModel(lake, 5, first_seqnos={0: 2**64 - 100})
    [vb] = model.vbuckets
    model.write_snapshot(vb, 12)
    rows = model.read(vb, 100, 1)
    model.commit(model.next_round(rows))
    apply_pending(lake, [DOCS], 1, "w")
    found = lake.spark.sql(f"SELECT * FROM {lake.table_sql('docs')}").toArrow().to_pylist()
    expected = {row["key"]: row for row in rows if row["kind"] == "mutation"}
    assert {row["key"] for row in found} == expected.keys()
    for row in found:
        for name in ("vbucket", "key_bytes", "seqno", "vb_uuid", "cas", "rev", "flags", "value"):
            assert row[name] == expected[row["key"]][name], name
        nanoseconds = expected[row["key"]]["cas"] // 65536 * 65536
        micros = row["modified_at"].timestamp()
        assert micros == pytest.approx(nanoseconds / 1e9, abs=0.001)


def test_pending_rows_of_old_rounds_are_published_when_their_snapshot_ends(
    new_lake: NewLake,
) -> None:
    lake = new_lake(1)
    model = LogModel(lake, 3)
    [vb] = model.vbuckets
    model.write_snapshot(vb, 9)
    for number in (1, 2):
        model.commit(model.next_round(model.read(vb, 3, number)))
        assert plan_apply(lake, DOCS, number) is None
    model.commit(model.next_round(model.read(vb, 3, 3)))
    plan = plan_apply(lake, DOCS, 3)
    assert plan is not None and plan.stretch.first_round == 1
    run_apply(lake, plan, "w")
    assert_every_version_exact(lake, model)


def test_key_literals_and_hash_join_publish_the_same(new_lake: NewLake) -> None:
    lake = new_lake(2)
    model = LogModel(lake, 21)
    other = ReplicaTable("docs_joined", 0)
    ensure_replica(lake, other)
    for _ in range(3):
        model.commit(model.next_round())
        few, many = (
            plan_apply(lake, DOCS, model.round),
            plan_apply(lake, other, model.round, key_literals=0),
        )
        assert (few is None) == (many is None)
        if few is not None and many is not None:
            assert (few.method, many.method) == ("key literals", "hash join")
            run_apply(lake, few, "w")
            run_apply(lake, many, "w")
    assert_every_version_exact(lake, model)
    expected = model.documents_at(model.complete[model.round])
    assert (
        expected and read_documents(lake, f"SELECT * FROM {lake.table_sql(other.name)}") == expected
    )


def test_more_keys_than_literals_can_hold(new_lake: NewLake) -> None:
    lake = new_lake(1)
    model = LogModel(lake, 8, keys=12_000)
    [vb] = model.vbuckets
    for number, (items, method) in enumerate([(11_000, "hash join"), (5_000, "key literals")], 1):
        model.write_snapshot(vb, items)
        model.commit(model.next_round(model.read(vb, items, number)))
        plan = plan_apply(lake, DOCS, number)
        assert plan is not None and plan.method == method
        run_apply(lake, plan, "w")
    assert_every_version_exact(lake, model)


def test_collections_have_their_own_tables(new_lake: NewLake) -> None:
    lake = new_lake(1)
    model = LogModel(lake, 9)
    beer = ReplicaTable("docs__brewery__beer", 8)
    ensure_replica(lake, beer)
    [vb] = model.vbuckets
    for number, collection in enumerate((0, 8, 0, 8), 1):
        model.write_snapshot(vb, 5, collection)
        model.commit(model.next_round(model.read(vb, 5, number)))
    made = apply_pending(lake, [DOCS, beer], 4, "w")
    assert [each.table for each in made] == [DOCS.name, beer.name]
    assert_every_version_exact(lake, model)
    assert_every_version_exact(lake, model, beer)


def test_nothing_between_makes_no_commit_and_an_effect_free_merge_makes_one(
    new_lake: NewLake,
) -> None:
    lake = new_lake(1)
    model = LogModel(lake, 4)
    [vb] = model.vbuckets
    model.commit(model.next_round([]))
    assert plan_apply(lake, DOCS, 1) is None
    assert replica_status(lake, DOCS).version == 0
    model.write_snapshot(vb, 3)
    rows = [row | {"kind": "deletion", "value": None} for row in model.read(vb, 3, 2)]
    model.commit(model.next_round(rows))
    plan = plan_apply(lake, DOCS, 2)
    assert plan is not None
    applied = run_apply(lake, plan, "w")  # deletes what was never there
    assert (applied.version, applied.inserted, applied.deleted) == (1, 0, 0)
    assert plan_apply(lake, DOCS, 2) is None
    assert replica_status(lake, DOCS).round == 2


def test_a_stale_plan_is_fenced_whatever_its_target(new_lake: NewLake) -> None:
    lake = new_lake(2)
    model = LogModel(lake, 31)
    while (paused := plan_apply(lake, DOCS, model.round)) is None:
        model.commit(model.next_round())
    for _ in range(3):
        model.commit(model.next_round())
    ahead = plan_apply(lake, DOCS, model.round)
    assert ahead is not None and paused.from_round == ahead.from_round == 0
    run_apply(lake, ahead, "writer-2")
    with pytest.raises(FencedError, match=r"writer writer-2.*this driver stops"):
        run_apply(lake, paused, "writer-1")
    late = plan_apply(lake, DOCS, model.round)
    assert late is None
    assert assert_every_version_exact(lake, model) == 1
    assert lake.spark.conf.get("spark.databricks.delta.write.txnAppId", None) is None


def test_a_crash_between_the_merge_and_knowing_it(new_lake: NewLake) -> None:
    lake = new_lake(2)
    model = LogModel(lake, 41)
    while (plan := plan_apply(lake, DOCS, model.round)) is None:
        model.commit(model.next_round())
    made = run_apply(lake, plan, "writer-1")
    assert run_apply(lake, plan, "writer-1") == made  # the same driver asks again
    assert plan_apply(lake, DOCS, model.round) is None  # a new driver
    assert unindexed_applied(lake, [DOCS]) == (made,)
    model.commit(model.next_round(applied=(made,)))
    assert unindexed_applied(lake, [DOCS]) == ()
    assert assert_every_version_exact(lake, model) == 1


def test_a_foreign_write_stops_the_apply_before_anything_is_written(new_lake: NewLake) -> None:
    lake = new_lake(2)
    model = LogModel(lake, 51)
    while (plan := plan_apply(lake, DOCS, model.round)) is None:
        model.commit(model.next_round())
    run_apply(lake, plan, "w")
    while (plan := plan_apply(lake, DOCS, model.round)) is None:
        model.commit(model.next_round())
    docs = lake.table_sql("docs")
    lake.spark.sql(f"OPTIMIZE {docs}").collect()
    lake.spark.sql(f"ALTER TABLE {docs} SET TBLPROPERTIES ('note' = 'x')")
    run_apply(lake, plan, "w")  # maintenance changes no row
    while (plan := plan_apply(lake, DOCS, model.round)) is None:
        model.commit(model.next_round())
    lake.spark.sql(f"UPDATE {docs} SET rev = rev + 1")
    version = replica_status(lake, DOCS).version
    with pytest.raises(ForeignWriteError, match=rf"docs: found version {version} \(UPDATE, 20"):
        run_apply(lake, plan, "w")
    with pytest.raises(ForeignWriteError, match=r"expected no change of its rows"):
        plan_apply(lake, DOCS, model.round)
    assert replica_status(lake, DOCS).version == version


def applies(lake: LakeTables, model: LogModel, count: int) -> list[AppliedVersion]:
    """Commit rounds until so many applies were made."""
    made: list[AppliedVersion] = []
    while len(made) < count:
        model.commit(model.next_round(applied=unindexed_applied(lake, [DOCS])))
        if model.round:
            made += apply_pending(lake, [DOCS], model.round, "w")
    return made


def require_exact(lake: LakeTables, model: LogModel) -> None:
    """Compare ``docs`` and ``docs_live`` with the model at the newest round."""
    live = model.documents_at(model.complete[model.round])
    assert read_documents(lake, f"SELECT * FROM {lake.table_sql('docs')}") == live
    assert read_documents(lake, "SELECT * FROM docs_live") == live


def test_a_foreign_write_right_before_the_merge_is_found_by_every_apply_until_restored(
    new_lake: NewLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = new_lake(2)
    model = LogModel(lake, 52)
    register_views(lake)
    docs = lake.table_sql("docs")
    first, second, third = applies(lake, model, 3)
    while (plan := plan_apply(lake, DOCS, model.round)) is None:
        model.commit(model.next_round())

    def write_first(*arguments: Any) -> str:
        lake.spark.newSession().sql(f"UPDATE {docs} SET rev = rev + 1")
        return merge_sql(*arguments)

    monkeypatch.setattr("dcp.lake.apply.merge_sql", write_first)
    culprit = rf"docs: found version {third.version + 1} \(UPDATE"
    with pytest.raises(ForeignWriteError, match=culprit):
        run_apply(lake, plan, "w")
    monkeypatch.undo()
    assert replica_status(lake, DOCS).version == third.version + 2  # it came to be all the same
    for _ in range(2):
        model.commit(model.next_round())
        with pytest.raises(ForeignWriteError, match=culprit):
            plan_apply(lake, DOCS, model.round)
    with pytest.raises(ForeignWriteError) as refusal:
        plan_apply(lake, DOCS, model.round)
    [remedy] = re.findall(r"RESTORE TABLE .* TO VERSION AS OF \d+", str(refusal.value))
    assert remedy == f"RESTORE TABLE {docs} TO VERSION AS OF {third.version}"
    lake.spark.sql(remedy)
    applies(lake, model, 1)
    require_exact(lake, model)
    model.commit(model.next_round(applied=unindexed_applied(lake, [DOCS])))
    # An older version of ours does as well: the applies after it are made again.
    lake.spark.sql(f"RESTORE TABLE {docs} TO VERSION AS OF {first.version}")
    status = replica_status(lake, DOCS)
    assert (status.round, status.since_version) == (first.to_round, status.version)
    model.commit(model.next_round(applied=unindexed_applied(lake, [DOCS])))
    live = model.documents_at(model.complete[model.round])
    assert read_documents(lake, "SELECT * FROM docs_live") == live
    [again] = apply_pending(lake, [DOCS], second.to_round, "w")
    assert (again.from_round, again.to_round) == (first.to_round, second.to_round)
    apply_pending(lake, [DOCS], model.round, "w")
    require_exact(lake, model)


def test_a_collection_without_rows_is_not_searched_from_the_beginning_for_ever(
    new_lake: NewLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dcp.lake.apply.EMPTY_ROUNDS", 3)
    lake = new_lake(1)
    model = LogModel(lake, 56)
    empty = ReplicaTable("docs__s__c__8", 8)
    ensure_replica(lake, empty)
    [vb] = model.vbuckets
    for number in (1, 2, 3):
        assert plan_apply(lake, empty, model.round) is None
        model.write_snapshot(vb, 3)
        model.commit(model.next_round(model.read(vb, 3, number)))
    plan = plan_apply(lake, empty, 3)
    assert plan is not None and plan.winners == ()
    made = run_apply(lake, plan, "w")
    assert (made.to_round, made.inserted) == (3, 0)
    assert plan_apply(lake, empty, 3) is None
    model.write_snapshot(vb, 3, collection_id=8)
    model.commit(model.next_round(model.read(vb, 3, 4)))
    plan = plan_apply(lake, empty, 4)
    assert plan is not None and plan.stretch.first_round == 4
    run_apply(lake, plan, "w")
    assert assert_every_version_exact(lake, model, empty) == 2


def test_a_dropped_replica_is_made_again_from_the_log(new_lake: NewLake) -> None:
    lake = new_lake(2)
    model = LogModel(lake, 53)
    register_views(lake)
    applies(lake, model, 2)
    shutil.rmtree(lake.location.path("docs"))
    ensure_replica(lake, DOCS)
    plan = plan_apply(lake, DOCS, model.round)
    assert plan is not None and plan.from_round == 0
    run_apply(lake, plan, "w")
    model.commit(model.next_round(applied=unindexed_applied(lake, [DOCS])))
    apply_pending(lake, [DOCS], model.round, "w")
    require_exact(lake, model)


def test_maintenance_in_the_moment_of_the_merge_costs_an_attempt(
    new_lake: NewLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = new_lake(2)
    model = LogModel(lake, 54)
    docs = lake.table_sql("docs")
    applies(lake, model, 2)
    while (plan := plan_apply(lake, DOCS, model.round)) is None:
        model.commit(model.next_round())
    conflicts = itertools.count(1)

    def conflict(*_: Any) -> str:
        lake.spark.newSession().sql(f"OPTIMIZE {docs} FULL")
        next(conflicts)
        return "SELECT raise_error('[DELTA_CONCURRENT_DELETE_READ] as Delta says it')"

    with monkeypatch.context() as patch:
        patch.setattr("dcp.lake.apply.merge_sql", conflict)
        with pytest.raises(LakeError, match=r"each of 5 attempts"):
            run_apply(lake, plan, "w")
    assert next(conflicts) == 6
    made = run_apply(lake, plan, "w")
    assert made.to_round == plan.to_round
    assert plan_apply(lake, DOCS, plan.to_round) is None
    assert_every_version_exact(lake, model)


def test_a_commit_that_reported_failure_through_the_bridge_is_read_back(
    new_lake: NewLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = new_lake(2)
    model = LogModel(lake, 55)

    def fail_after(name: str) -> None:
        if name.endswith(".committed"):
            raise RuntimeError(f"no PySparkException at {name}")

    monkeypatch.setattr("dcp.lake.apply.reached", fail_after)
    monkeypatch.setattr("dcp.lake.changes.reached", fail_after)
    assert model.commit(model.next_round()).round == 1
    [made] = applies(lake, model, 1)
    assert replica_status(lake, DOCS).applied == made


def test_the_index_stands_in_for_a_cleaned_history(new_lake: NewLake, tmp_path: Path) -> None:
    lake = new_lake(2)
    model = LogModel(lake, 61)
    while (plan := plan_apply(lake, DOCS, model.round)) is None:
        model.commit(model.next_round())
    made = run_apply(lake, plan, "w")
    model.commit(model.next_round(applied=(made,)))
    docs = lake.table_sql("docs")
    for number in range(11):  # Delta writes a checkpoint every ten commits
        lake.spark.sql(f"ALTER TABLE {docs} SET TBLPROPERTIES ('note' = '{number}')")
    log = Path(lake.location.path("docs")) / "_delta_log"
    for version in range(made.version + 1):
        (log / f"{version:020d}.json").unlink()
    assert replica_status(lake, DOCS).applied == made
    while (plan := plan_apply(lake, DOCS, model.round)) is None:
        model.commit(model.next_round())
    assert plan.from_round == made.to_round


def test_a_rollback_of_published_rows_is_refused(new_lake: NewLake) -> None:
    lake = new_lake(1)
    model = LogModel(lake, 71)
    [vb] = model.vbuckets
    model.write_snapshot(vb, 5)
    model.commit(model.next_round(model.read(vb, 5, 1)))
    apply_pending(lake, [DOCS], 1, "w")
    published = model.documents_at(model.complete[1])
    roll_back(model, vb.items[1].seqno, round_number=2)
    with pytest.raises(LakeError, match=r"below the published seqno .* not yet supported"):
        plan_apply(lake, DOCS, 2)
    assert replica_status(lake, DOCS).round == 1
    assert read_documents(lake, f"SELECT * FROM {lake.table_sql('docs')}") == published


def test_a_dead_branch_is_never_published(new_lake: NewLake) -> None:
    lake = new_lake(1)
    model = LogModel(lake, 81)
    [vb] = model.vbuckets
    register_views(lake)
    model.write_snapshot(vb, 5)
    model.commit(model.next_round(model.read(vb, 5, 1)))
    apply_pending(lake, [DOCS], 1, "w")
    fork = vb.items[-1].seqno
    model.write_snapshot(vb, 7)
    model.commit(model.next_round(model.read(vb, 7, 2)))  # complete, not applied, then lost
    roll_back(model, fork, round_number=3)
    live = model.documents_at(model.complete[3])
    assert read_documents(lake, "SELECT * FROM docs_live") == live
    apply_pending(lake, [DOCS], 3, "w")
    assert replica_status(lake, DOCS).round == 3
    assert read_documents(lake, f"SELECT * FROM {lake.table_sql('docs')}") == live


def roll_back(model: LogModel, fork: int, round_number: int) -> None:
    """Commit a round in which the only vbucket starts a new epoch at ``fork`` and goes on."""
    from dataclasses import replace

    from dcp.protocol.position import Position

    [vb] = model.vbuckets
    vb.items = [item for item in vb.items if item.seqno <= fork]
    vb.state = replace(
        vb.state,
        epoch=vb.state.epoch + 1,
        position=Position.complete_at(vb.uuid, fork),
        first_pending_round=None,
    )
    model.write_snapshot(vb, 3)
    rows = model.read(vb, 3, round_number)
    order = {
        "round": round_number,
        "epoch": vb.state.epoch,
        "vbucket": vb.vbucket,
        "kind": "rollback",
        "seqno": fork,
    }
    model.commit(model.next_round([order, *rows]))
