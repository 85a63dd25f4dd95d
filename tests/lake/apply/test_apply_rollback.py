"""Rollback on real tables: undone exactly, in one commit, from the version that fits."""

import random
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from dcp.lake.adapters.apply_sql import emptied, merge_source_sql
from dcp.lake.apply import audit
from dcp.lake.apply.audit import write_audit
from dcp.lake.apply.commit import run_apply
from dcp.lake.apply.merge_plan import RowBudget
from dcp.lake.apply.merge_planner import plan_merge
from dcp.lake.change_log.applied import (
    applied_of,
    applied_to_batch,
    replica_status,
    unindexed_applied,
)
from dcp.lake.config.contracts import Contract, ContractMode
from dcp.lake.config.table_names import AUDIT_TABLE
from dcp.lake.store.log_slice import LogSlice
from dcp.lake.store.merge import LogRows
from dcp.lake.tables.history import WHOLE, history
from dcp.lake.tables.lake_tables import DOCS, LakeTables
from dcp.lake.tables.schema import CHANGES, ITEM_KINDS
from tests.lake.apply.test_audit import NO_ROWS
from tests.lake.conftest import NewLake
from tests.lake.document_types import document_type
from tests.lake.forking_log import ForkingLog
from tests.lake.log_model import commit_rows, status_row
from tests.lake.memory_merge import log_rows
from tests.lake.memory_table import MemoryTable
from tests.lake.model_applies import name_keys
from tests.lake.replicas import asked
from tests.lake.taken_back import taken_back
from tests.lake.versions import table_at
from tests.lake.watched_lake import Place, Row
from tests.seeds import seeds

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

ROUNDS = 3
SEED = 60
"""In so few rounds it undoes, clears and revives, and leaves a vbucket stale."""

Found = dict[Place, int]
"""(vbucket, key) -> cas."""


def commit_round(lake: LakeTables, log: ForkingLog, *, fork_chance: float, index: bool) -> None:
    """Commit the log's next round to the real log, too; with the index of applies or without."""
    log.commit_round(fork_chance=fork_chance, index=index)
    number = log.lake.round
    rows = [row for row in log.lake.rows if row["round"] == number and row["kind"] != "applied"]
    rows.append(status_row(number))
    listed = unindexed_applied(lake, [DOCS]) if index else ()
    table = pa.Table.from_batches(
        [pa.RecordBatch.from_pylist(rows, schema=CHANGES), applied_to_batch(listed, number)]
    )
    commit_rows(lake, table, number, "w", verify=False)


def found_in(table: pa.Table) -> Found:
    rows = table.select(["vbucket", "key", "cas"]).to_pylist()
    found = {(row["vbucket"], row["key"]): int(row["cas"]) for row in rows}
    assert len(found) == len(rows), "a key is there twice"
    return found


def live(log: ForkingLog) -> Found:
    """What ``docs_live`` must show: the newest complete state, or the table where it goes back."""
    current = log.lake.versions[-1].current
    log_slice = log.log_slice(log.lake.round)
    going_back = {*log_slice.restored_versions, *log_slice.replaced, *current.stale}
    shown = {p: r["cas"] for p, r in log.lake.versions[-1].rows.items() if p[0] in going_back}
    for vb in log.vbuckets:
        documents = log.truth[log.lake.round, vb.vbucket]
        if vb.vbucket not in going_back and documents is not None:
            shown |= {(vb.vbucket, key): cas for key, cas in documents.items()}
    return shown


def cleared_by(log: ForkingLog, item: Row) -> int | None:
    """Return the seqno at which a live flush ended a live row."""
    [vb] = [vb for vb in log.vbuckets if vb.vbucket == item["vbucket"]]
    later = (each for each in vb.items if each["seqno"] > item["seqno"])
    return next((each["seqno"] for each in later if each["kind"] == "system_event"), None)


@pytest.mark.parametrize("seed", seeds(1, first=SEED))
def test_every_version_and_docs_live_are_exact_over_forks(
    new_lake: NewLake,
    view: Callable[[LakeTables], None],
    monkeypatch: pytest.MonkeyPatch,
    seed: int,
) -> None:
    """Spark applies the same log to a lake on disk, and reads the views of the one in memory.

    Its audits read no rows in the driver.
    """
    monkeypatch.setattr(audit, "ROW_BUDGET", NO_ROWS)
    lake = new_lake(6)
    log = ForkingLog(seed, vbuckets=6, flush_chance=0.1)
    view(log.tables)
    choice = random.Random(seed)
    document = document_type({"$.cas": "decimal(20,0)"})
    contract = Contract("_default._default", ContractMode.QUARANTINE, document, "this test")
    for number in range(1, ROUNDS + 1):
        commit_round(lake, log, fork_chance=0.3, index=choice.random() < 0.8)
        if number == ROUNDS or choice.random() < 0.7:
            if number == ROUNDS:
                chosen = require_spark_chooses_the_same(log)
                all_parts = (
                    chosen and chosen.restored_versions and chosen.revived and emptied(chosen)
                )
                assert all_parts or seed != SEED, "the query lacks a part"
            in_memory = log.apply(number)
            name_keys(monkeypatch, always=choice.random() < 0.5)
            plan = plan_merge(lake, DOCS, number, contract=contract)
            assert (plan is None) == (in_memory is None)
            if plan is not None:
                run_apply(lake, plan, "w")
                own = plan if number % 2 else None
                write_audit(lake, DOCS, replica_status(lake, DOCS), own)
                write_audit(lake, DOCS, replica_status(lake, DOCS))  # once only
        assert found_in(asked(log.tables, "SELECT * FROM docs_live")) == live(log)
    log.require_exact()
    require_told(log)
    undone = table_at(lake.location.path(AUDIT_TABLE)).to_pylist()
    assert sorted((row["round"], row["vbucket"], row["key"]) for row in undone) == sorted(
        taken_back(log)
    )
    applied = [
        applied_of(DOCS.name, commit)
        for commit in reversed(history(lake.table(DOCS.name), WHOLE))
        if commit.is_apply
    ]
    assert [each.to_round for each in applied] == [
        version.current.to_round for version in log.lake.versions[1:]
    ]
    for each, version in zip(applied, log.lake.versions[1:], strict=True):
        table = table_at(lake.location.path(DOCS.name), each.version)
        assert found_in(table) == {p: r["cas"] for p, r in version.rows.items()}, str(each)
        typed = [(row["doc"]["cas"], row["violations"]) for row in table.to_pylist()]
        assert typed == [(cas, None) for cas in table["cas"].to_pylist()], str(each)
    if seed == SEED:
        assert any(each.undone for each in applied), "this seed undid nothing"
        assert any(each.cleared for each in applied), "this seed cleared nothing"
        assert any(each.revived for each in applied), "this seed revived nothing"


def require_spark_chooses_the_same(log: ForkingLog) -> LogSlice | None:
    """What Spark's tasks would read for the next apply equals what a lake in memory merges.

    A MERGE of such rows on Delta is tried in ``test_apply_backfill.py``.
    """
    plan = plan_merge(log.tables, DOCS, log.lake.round, RowBudget(rows=0))
    if plan is None:
        return None
    rows = plan.rows
    assert isinstance(rows, LogRows)
    docs = log.tables.store.table(DOCS.name)
    assert isinstance(docs, MemoryTable)
    query = merge_source_sql(docs.sql, rows)
    by_spark = log.tables.spark.sql(f"SELECT * FROM {query}").toArrow()
    by_datafusion = log_rows(docs.sql, rows, plan.current.version, docs.store.run_at)
    assert in_order(by_spark) == in_order(by_datafusion)
    return plan.log_slice


def in_order(rows: pa.Table) -> list[tuple[Any, ...]]:
    names = ("vbucket", "key", "deleted", "seqno", "cas", "value", "modified_at")
    found = [
        tuple(row[name] for name in (names[:3] if row["deleted"] else names))
        for row in rows.to_pylist()
    ]
    return sorted(found, key=lambda row: row[:2])


def require_told(log: ForkingLog) -> None:
    """Audit, epochs and row history say what the log's truth says."""
    rows = told(log, "SELECT round, vbucket, key FROM rollbacks")
    assert set(rows) == taken_back(log)
    assert len(rows) == len(taken_back(log))
    forks = [row for row in log.lake.rows if row["kind"] == "rollback"]
    rows = told(log, "SELECT vbucket, epoch, CAST(fork_seqno AS BIGINT) AS seqno FROM epochs")
    assert sorted(rows) == sorted((row["vbucket"], row["epoch"], row["seqno"]) for row in forks)
    rows = told(
        log,
        "SELECT is_live, vbucket, epoch, CAST(seqno AS BIGINT) AS seqno, "
        "CAST(cleared_at_seqno AS BIGINT) AS cleared FROM row_history",
    )
    alive = {
        (vb.vbucket, item["epoch"], item["seqno"], cleared_by(log, item))
        for vb in log.vbuckets
        for item in vb.items
        if item["kind"] in ITEM_KINDS
    }
    assert {tuple(row) for is_live, *row in rows if is_live} == alive
    assert len(rows) == sum(row["kind"] in ITEM_KINDS for row in log.lake.rows)
    rows = told(log, "SELECT vbucket, round FROM stale_vbuckets")
    assert dict(rows) == log.lake.versions[-1].current.stale


def told(log: ForkingLog, query: str) -> list[tuple[Any, ...]]:
    return [tuple(row.values()) for row in asked(log.tables, query).to_pylist()]
