"""Brings a replica table from the round it stands at to a later one, in one commit: a MERGE.

(The first one, into an empty table, inserts: `dcp.lake.apply.first_apply`. Where all rows get other
typed columns, the table is written anew.)

The fence is a Delta transaction id, (lake and table, the version that put the table where it stands
+ 1): a driver with a stale plan can never publish it, and a table that was restored to an older
apply goes on from there. Delta skips a stale MERGE silently, so the commit is read back. The commit
names the version it was made on, so that a foreign write right before it is found by every later
apply, not by this one alone.

An apply is a deterministic function of ``changes``: repeating it after a crash is harmless. It
reads the version of ``changes`` that it was planned on, so that a driver which is stopped between
plan and MERGE misses nothing of what maintenance cleans meanwhile.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Final

import pyarrow as pa

from dcp.errors import FencedError, LakeError
from dcp.lake.apply.apply_plan import (
    ROW_BUDGET,
    TABLE_BYTES_BY_NAMED_KEY,
    ApplyPlan,
    RowBudget,
)
from dcp.lake.apply.apply_rows import (
    LARGE_DOCUMENT_BYTES,
    deletions,
    old_rows,
    with_held_keys,
)
from dcp.lake.apply.apply_sql import merge_sql, source_sql, written_sql
from dcp.lake.apply.first_apply import first_rows
from dcp.lake.apply.replica_facts import LakeFacts
from dcp.lake.apply.slice_rules import slice_between
from dcp.lake.apply.typed_documents import see_documents
from dcp.lake.apply.typed_plan import ColumnChange, typed_plan, with_documents
from dcp.lake.apply.typed_rows import see_rows, typed_sql, typed_table
from dcp.lake.config.contracts import Contract, ContractMode
from dcp.lake.config.memory import DOCUMENT_BYTES, arrow_settings
from dcp.lake.log.applied import (
    ReplicaStatus,
    applied_of,
    replica_status,
    settled_lineage,
)
from dcp.lake.log.log_slice import LogSlice
from dcp.lake.log.round_records import largest_document_bytes
from dcp.lake.log.slice_keys import Keys
from dcp.lake.log.slice_rows import SOURCE, touched_keys, vbuckets_without_repeats, winning_rows
from dcp.lake.log.stop_points import reached
from dcp.lake.store.lake_store import NewRows
from dcp.lake.store.table import Transaction
from dcp.lake.tables.applied_version import AppliedVersion
from dcp.lake.tables.history import history
from dcp.lake.tables.lineage import Lineage
from dcp.lake.tables.records import plain
from dcp.lake.tables.schema import REPLICA_CLUSTERING
from dcp.lake.tables.tables import (
    MICROSECOND_TIMESTAMPS,
    LakeTables,
    ReplicaTable,
    has_deletion_vectors,
)
from dcp.lake.tables.transaction import (
    FEW_JOBS_TO_JOIN,
    is_conflict,
    memory_view,
    session_settings_for_a_while,
)
from dcp.lake.tables.typed_columns import DOC, TypedColumns

EMPTY_ROUNDS: Final = 100
"""After so many rounds without rows for a table, an apply without rows moves it on."""

_ATTEMPTS: Final = 5
"""A MERGE is tried so often while maintenance rewrites the table under it."""


def plan_apply(
    lake: LakeTables,
    replica: ReplicaTable,
    to_round: int,
    budget: RowBudget = ROW_BUDGET,
    contract: Contract | None = None,
) -> ApplyPlan | None:
    """Return the plan that brings ``replica`` to ``to_round``; None if nothing is to be done.

    The plan holds no more than ``budget``. A table whose typed columns differ from its ``contract``
    is written anew, at its present round if no later one brings it a row.

    Rounds without a row to publish need no commit, with three exceptions. One is a rollback of rows
    that the table holds. Another is a vbucket that becomes stale or is no longer stale. The third
    is every `EMPTY_ROUNDS` rounds, so that those are not searched again.

    Raises:
        ForeignWriteError: somebody else changed the table's rows, since our last apply or right
            before it.
        LakeError: the log contradicts itself (see `dcp.lake.apply.slice_rules.slice_between`).
    """
    status = replica_status(lake, replica)
    # Read before anything else of the log: a cleaning is noted before it is done, so that either
    # its note is seen, or the rows are in this version.
    log_version = history(lake.changes)[0].version
    found = _readable_slice(lake, replica, status, to_round, log_version, budget)
    if found is None or not found.log_slice.begins_anew:  # else no matter what rows there are
        status.lineage.refuse_defect(replica.name, lake.table_sql(replica.name))
    is_applied = status.applied is not None
    typed = typed_plan(lake.table(replica.name), contract, is_applied=is_applied)
    brings_rows = found is not None
    if found is None:
        if not typed.rewrites or status.applied is None:
            return None
        found = _Readable(_empty_slice(status.applied), Keys(), ())
    log_slice, keys = found.log_slice, found.keys
    # After a rollback it moves on at once: what it held is dead, and would be looked into for ever.
    stays = keys is not None and not keys and log_slice.stale == status.held.stale
    is_late = log_slice.undone or to_round - status.round >= EMPTY_ROUNDS
    brings_rows = brings_rows and (not stays or bool(is_late))
    if not brings_rows and not typed.rewrites:
        return None
    rows = _rows(lake, replica, found, log_version, budget.bytes)
    without_repeats: frozenset[int] = frozenset()
    if rows is None:
        without_repeats = vbuckets_without_repeats(lake.changes, log_version, log_slice)
    plan = ApplyPlan(
        held=status.held,
        collection_id=replica.collection_id,
        log_slice=log_slice,
        keys=keys,
        names_keys=keys is not None and _pays_to_name(lake, replica, keys),
        rows=rows,
        without_repeats=without_repeats,
        since_version=status.since_version,
        log_version=log_version,
        is_first=status.lineage.since() == -1,
        typed=typed,
        largest_bytes=DOCUMENT_BYTES
        if log_slice.restored or typed.rewrites
        else largest_document_bytes(lake, range(log_slice.first_round, to_round + 1)),
    )
    if contract is None or contract.mode is not ContractMode.EVOLVE:
        return plan
    plan = _with_documents(lake, plan)
    if plan.typed.rewrites and not typed.rewrites:  # a column widens: of all rows, then
        plan = replace(plan, largest_bytes=DOCUMENT_BYTES)
        plan = _with_documents(lake, plan)
    return plan if brings_rows or plan.typed.rewrites else None


def _with_documents(lake: LakeTables, plan: ApplyPlan) -> ApplyPlan:
    columns = plan.typed.columns
    if columns is None:
        return plan
    if plan.rows is not None and not plan.typed.rewrites:
        seen = see_documents(columns, plan.rows.to_batches())
    else:
        arrow = arrow_settings(plan.largest_bytes)
        with session_settings_for_a_while(lake.spark, arrow), plan_source(lake, plan) as source:
            rows = written_sql(source, plan, lake.table_sql(plan.held.table))
            seen = see_rows(lake.spark, rows, columns)
    return replace(plan, typed=with_documents(plan.typed, columns, seen))


def _empty_slice(applied: AppliedVersion) -> LogSlice:
    return LogSlice(
        ranges=(),
        first_round=applied.to_round,
        to_round=applied.to_round,
        log_from_round=applied.log_from_round,
        stale=applied.stale,
    )


def _pays_to_name(lake: LakeTables, replica: ReplicaTable, keys: Keys) -> bool:
    """Return whether a MERGE that names its keys costs less than one that joins their vbuckets."""
    if not keys:
        return False
    share = len(keys.vbuckets) / lake.identity.vbucket_count
    joined_bytes = lake.table(replica.name).size().bytes * share
    return len(keys) * TABLE_BYTES_BY_NAMED_KEY <= joined_bytes


@dataclass(frozen=True, slots=True)
class _Readable:
    """A slice of the log for an apply, with its keys if they are few, and old rows of lost keys."""

    log_slice: LogSlice
    keys: Keys | None
    olds: Sequence[pa.Table | None]


def _readable_slice(
    lake: LakeTables,
    replica: ReplicaTable,
    status: ReplicaStatus,
    to_round: int,
    log_version: int,
    budget: RowBudget,
) -> _Readable | None:
    """Return the slice that brings a replica to a round by old versions that can be read.

    Only the keys tell which old rows it needs; each failure rules a version out.
    """
    facts = LakeFacts(lake, replica, status)
    while True:
        log_slice = slice_to_publish(lake, replica, status, to_round, facts)
        if log_slice is None:
            return None
        known = [_keys(lake, replica, status.version, log_version, log_slice, budget.rows)]
        revived = {vb: log_slice.restored[vb] for vb in log_slice.revived}
        if not facts.try_to_read(revived, _held_keys_reader(lake, replica, known, budget.rows)):
            continue
        keys = known[-1]
        if keys is None:
            if facts.try_to_read(log_slice.restored, facts.read_keys):
                return _Readable(log_slice, None, ())
            continue
        olds: list[pa.Table | None] = []
        needed = {each.vbucket for each in keys.lost}
        restored = {vb: version for vb, version in log_slice.restored.items() if vb in needed}
        reader = _old_rows_reader(lake, replica, keys, olds, budget.bytes)
        if facts.try_to_read(restored, reader):
            return _Readable(log_slice, keys, olds)


def _keys(
    lake: LakeTables,
    replica: ReplicaTable,
    version: int,
    log_version: int,
    log_slice: LogSlice,
    most: int,
) -> Keys | None:
    """Return the keys that a slice may touch, without revived ones; None: too many.

    For an emptied vbucket these are all keys that the table has.
    """
    keys = touched_keys(lake.changes, log_version, replica.collection_id, log_slice, most)
    if keys is None:
        return None
    table = lake.table(replica.name)
    return with_held_keys(keys, table, version, log_slice.emptied, most)


def _held_keys_reader(
    lake: LakeTables, replica: ReplicaTable, known: list[Keys | None], most: int
) -> Callable[[int, Sequence[int]], None]:
    def read(version: int, vbuckets: Sequence[int]) -> None:
        if (keys := known[-1]) is not None:
            table = lake.table(replica.name)
            known.append(with_held_keys(keys, table, version, vbuckets, most))

    return read


def _old_rows_reader(
    lake: LakeTables,
    replica: ReplicaTable,
    keys: Keys,
    olds: list[pa.Table | None],
    most_bytes: int,
) -> Callable[[int, Sequence[int]], None]:
    def read(version: int, vbuckets: Sequence[int]) -> None:
        names = [each.key for each in keys.lost if each.vbucket in vbuckets]
        olds.append(old_rows(lake.table(replica.name), version, vbuckets, names, most_bytes))

    return read


def slice_to_publish(
    lake: LakeTables,
    replica: ReplicaTable,
    status: ReplicaStatus,
    to_round: int,
    facts: LakeFacts | None = None,
) -> LogSlice | None:
    """Return the slice that brings a replica to ``to_round``; None if nothing is to be done.

    Rows that waited at the last apply count: their snapshot may have ended since.
    """
    if status.round >= to_round:
        return None
    facts = facts or LakeFacts(lake, replica, status)
    log_slice = slice_between(status.held, to_round, facts)
    return log_slice if log_slice.has_work or log_slice.stale != status.held.stale else None


def run_apply(lake: LakeTables, plan: ApplyPlan, writer_id: str) -> AppliedVersion:
    """Commit a plan and return its version.

    If maintenance (OPTIMIZE, say) rewrites the table during the MERGE, nothing is written and the
    plan still holds: it is tried again, a few times.

    Raises:
        FencedError: another driver applied to the table since the plan was made.
        ForeignWriteError: somebody else changed the table since. Found before anything is written,
            or right after a MERGE that met the change.
        LakeError: the table was restored to another version since the plan was made, or it was
            rewritten during every attempt; nothing was written.
    """
    failure: Exception | None = None
    if plan.typed.change is ColumnChange.ADD and plan.typed.columns is not None:
        _add_columns(lake, plan, plan.typed.columns)
    first = first_rows(lake, plan)
    for _ in range(_ATTEMPTS):
        with lake.store.looks.committing():
            lineage = _checked_lineage(lake, plan)
            is_empty = plan.is_first and lineage.since() == -1
            held = replace(plan.held, version=lineage.newest)
            checked = replace(plan, held=held, is_first=is_empty)
            failure = _commit(lake, checked, writer_id, first if is_empty else None)
        made = _read_back(lake, plan, writer_id, failure)
        if made is not None:
            reached("apply.read_back")
            return made
    raise LakeError(
        f"{plan}: the table was rewritten in the moment of each of {_ATTEMPTS} attempts "
        "(maintenance?), nothing was applied; run it again when that has ended"
    ) from failure


def _add_columns(lake: LakeTables, plan: ApplyPlan, columns: TypedColumns) -> None:
    with lake.store.looks.committing():
        if _checked_lineage(lake, plan).since() == -1:
            lake.table(plan.held.table).add_columns(columns.schema, {DOC: columns.fingerprint})


def _checked_lineage(lake: LakeTables, plan: ApplyPlan) -> Lineage:
    """Return the table's history; its newest version has the rows that the plan was made on.

    A later apply passes: the fence keeps this one from being published on top of it.
    """
    lineage = settled_lineage(lake, plan.held.table)
    if not plan.log_slice.begins_anew:
        lineage.refuse_defect(plan.held.table, lake.table_sql(plan.held.table))
    elif plan.keys is None:  # all that the table has is replaced, whatever it is by then
        return lineage
    origin = lineage.commit(lineage.origin(lineage.newest))
    is_applied_to = origin and origin.is_apply and origin.version > plan.held.version
    if not is_applied_to and not lineage.have_same_rows(lineage.newest, plan.held.version):
        raise LakeError(
            f"{plan}: found other rows since, at version {lineage.newest}, expected those of "
            f"version {plan.held.version}; nothing was applied, run it again"
        )
    return lineage


def _rows(
    lake: LakeTables,
    replica: ReplicaTable,
    found: _Readable,
    log_version: int,
    most_bytes: int,
) -> pa.Table | None:
    """Return the rows that a plan merges; None if they are too many for this process."""
    keys = found.keys
    if keys is None or any(each is None for each in found.olds):
        return None
    rounds = {each.round for each in keys.winners}
    if rounds and largest_document_bytes(lake, rounds) > LARGE_DOCUMENT_BYTES:
        return None
    won = winning_rows(lake.changes, log_version, replica.collection_id, keys.winners, most_bytes)
    if won is None:
        return None
    olds = pa.concat_tables([SOURCE.empty_table(), *found.olds])
    places = list(zip(olds["vbucket"].to_pylist(), olds["key"].to_pylist(), strict=True))
    lost = {(each.vbucket, each.key): each for each in keys.lost}
    restored = olds.filter(pa.array([place in lost for place in places], pa.bool_()))
    there = set(places)
    gone = [each for place, each in lost.items() if place not in there]
    return pa.concat_tables([won, restored, deletions(gone)])


def _commit(
    lake: LakeTables, plan: ApplyPlan, writer_id: str, first: NewRows | None
) -> Exception | None:
    """Commit the rows of a first apply, or run the MERGE; return its failure.

    A failure does not say that it did not commit.
    """
    metadata = plain(plan.log_slice.applied_to(plan.held))
    metadata |= {
        "lake": lake.identity.lake_id,
        "base": metadata.pop("version"),
        "writer": writer_id,
    }
    transaction = f"{lake.identity.lake_id}:{plan.held.table}", plan.since_version + 1
    try:
        if plan.typed.rewrites:
            _rewrite(lake, plan, transaction, metadata)
        elif first is None:
            _merge(lake, plan, transaction, metadata)
        else:
            first.append(lambda: plan.held.version, transaction, metadata)
        reached("apply.committed")
    except Exception as error:  # Spark's own class, or the bridge's: the history decides
        return error
    return None


def _merge(
    lake: LakeTables, plan: ApplyPlan, transaction: Transaction, metadata: Mapping[str, Any]
) -> None:
    table, columns = lake.table(plan.held.table), plan.typed.columns

    def statement(source: str) -> str:
        return merge_sql(table.sql, source, plan)

    if plan.rows is None:
        with typed_source(lake, plan) as source:
            table.merge(source, statement, transaction, metadata, {})
    else:
        rows = plan.rows if columns is None else typed_table(plan.rows, columns)
        # Without deletion vectors it writes whole files anew: then one task is too few.
        settings = FEW_JOBS_TO_JOIN if has_deletion_vectors(table) else {}
        settings = arrow_settings(plan.largest_bytes) | settings
        table.merge(rows, statement, transaction, metadata, settings)


def _rewrite(
    lake: LakeTables, plan: ApplyPlan, transaction: Transaction, metadata: Mapping[str, Any]
) -> None:
    table, columns = lake.table(plan.held.table), plan.typed.columns
    with plan_source(lake, plan) as source:
        rows, comments = written_sql(source, plan, table.sql), {}
        if columns is not None:
            rows, comments = typed_sql(lake.spark, rows, columns), {DOC: columns.fingerprint}
        table.rewrite(
            f"SELECT * FROM {rows}",
            comments,
            REPLICA_CLUSTERING,
            MICROSECOND_TIMESTAMPS,
            transaction,
            metadata,
            arrow_settings(plan.largest_bytes),
        )


@contextmanager
def plan_source(lake: LakeTables, plan: ApplyPlan) -> Iterator[str]:
    """Give SQL for the rows that a plan merges (`SOURCE`): the name of a view, or a query."""
    if plan.rows is None:
        yield source_sql(lake.table_sql(plan.held.table), lake.changes_sql, plan)
        return
    with memory_view(lake.spark, f"dcplake_rows_of_{plan.held.table}", plan.rows) as view:
        yield view


@contextmanager
def typed_source(lake: LakeTables, plan: ApplyPlan) -> Iterator[str]:
    columns, arrow = plan.typed.columns, arrow_settings(plan.largest_bytes)
    if columns is not None and plan.rows is not None:
        plan, columns = replace(plan, rows=typed_table(plan.rows, columns)), None
    with session_settings_for_a_while(lake.spark, arrow), plan_source(lake, plan) as source:
        yield source if columns is None else typed_sql(lake.spark, source, columns)


def _read_back(
    lake: LakeTables, plan: ApplyPlan, writer_id: str, failure: Exception | None
) -> AppliedVersion | None:
    """Return the MERGE's result by the history; None if it may be tried again."""
    table_sql = lake.table_sql(plan.held.table)
    try:
        lineage = settled_lineage(lake, plan.held.table)
    except Exception as error:
        raise failure or error from None
    later = (commit for commit in lineage.commits if commit.version > plan.held.version)
    last = next((commit for commit in later if commit.is_apply), None)
    if last is not None or not plan.log_slice.begins_anew:
        lineage.refuse_defect(plan.held.table, table_sql)
    if last is not None:
        made, from_round = applied_of(plan.held.table, last), plan.held.to_round
        expected = writer_id, from_round, plan.to_round
        if (last.writer, made.from_round, made.to_round) == expected:
            return made
        raise FencedError(
            f"another driver applied to {made.table}: found {last}, round {made.from_round} -> "
            f"{made.to_round} by writer {last.writer}; expected it at round {from_round} "
            f"(our writer {writer_id}); this driver stops"
        ) from failure
    if failure is None:
        raise LakeError(
            f"{plan}: Delta skipped the commit, but the history shows no later apply than version "
            f"{plan.since_version}; somebody else used a transaction id of this table: restore "
            f"it to version {plan.since_version}, or delete its folder and run again, which makes "
            "it anew"
        )
    if not is_conflict(failure):
        raise failure
    return None
