"""Plans an apply in four steps.

1. `merge_input` selects the log rows to publish, and the versions that give lost rows back.
2. `typed_plan` finds the typed columns of the contract; with `evolve`, documents may add some.
3. `commit_reason` decides whether the table gets a commit.
4. `_merged_rows` decides whether this process holds the rows, or Spark reads them.
"""

from dataclasses import replace
from enum import StrEnum
from typing import Final

import pyarrow as pa

from dcp.lake.apply.merge_input import (
    LARGE_DOCUMENT_BYTES,
    MergeInput,
    merge_input,
)
from dcp.lake.apply.merge_plan import ROW_BUDGET, TABLE_BYTES_BY_NAMED_KEY, MergePlan, RowBudget
from dcp.lake.apply.slice_rules import oldest_pending_round
from dcp.lake.apply.typed_documents import see_documents, see_written
from dcp.lake.apply.typed_plan import TypedPlan, typed_plan, with_documents
from dcp.lake.change_log.applied import ReplicaStatus, replica_status
from dcp.lake.change_log.erase_request import Erasure
from dcp.lake.change_log.round_queries import largest_document_bytes, states_at
from dcp.lake.change_log.touched_keys import (
    MERGE_SOURCE,
    Touched,
    newest_rows,
    vbuckets_without_repeats,
)
from dcp.lake.config.contracts import Contract, ContractMode
from dcp.lake.config.memory import DOCUMENT_BYTES
from dcp.lake.store.log_slice import LogSlice
from dcp.lake.store.table import Table
from dcp.lake.tables.applied_version import AppliedVersion
from dcp.lake.tables.history import history
from dcp.lake.tables.lake_tables import LakeTables, ReplicaTable
from dcp.lake.tables.schema import REPLICA

EMPTY_ROUNDS: Final = 100
"""After so many rounds without rows for a table, a commit without rows moves its round on."""


class CommitReason(StrEnum):
    ROWS = "it gets rows, loses some, or a vbucket becomes stale or is stale no longer"
    MOVE = "its round moves on without rows, so that the log before it is not searched again"
    COLUMNS = "its typed columns differ from its contract"


def plan_merge(
    lake: LakeTables,
    replica: ReplicaTable,
    to_round: int,
    budget: RowBudget = ROW_BUDGET,
    contract: Contract | None = None,
) -> MergePlan | None:
    """Return the plan that brings ``replica`` to ``to_round``; None if it waits (`commit_reason`).

    The plan holds at most ``budget``. A table whose typed columns differ from ``contract`` is
    rewritten, at its present round if no later one brings a row.

    Raises:
        ForeignWriteError: somebody else changed the table's rows after our last apply, or right
            before it.
        LakeError: the log contradicts itself (see `dcp.lake.apply.slice_rules.slice_between`).
    """
    status = replica_status(lake, replica)
    # Before any other read of the log. A cleaning notes its round, then deletes rows. So either
    # `merge_input` sees the note, or this version still has the rows.
    log_version = history(lake.changes)[0].version
    found = merge_input(lake, replica, status, to_round, log_version, budget)
    # A slice that begins anew replaces all rows, so a foreign write does not matter.
    if found is None or not found.log_slice.begins_anew:
        status.commit_history.refuse_defect(replica.name, lake.table_sql(replica.name))
    is_applied = status.applied is not None
    typed = typed_plan(lake.table(replica.name), contract, is_applied=is_applied)
    due = commit_reason(status.held, found, typed, is_applied=is_applied)
    if due is None:
        return None
    if found is None:
        held = status.held
        nothing = LogSlice((), held.to_round, held.to_round, held.log_from_round, stale=held.stale)
        found = MergeInput(nothing, Touched(), ())
    plan = _with_rows(lake, replica, status, found, typed, log_version, budget)
    if contract is not None and contract.mode is ContractMode.EVOLVE:
        plan = _with_columns(lake, plan)
    return None if due is CommitReason.COLUMNS and not plan.typed.rewrites else plan


def plan_erasure(
    lake: LakeTables,
    replica: ReplicaTable,
    to_round: int,
    erasure: Erasure,
    contract: Contract | None = None,
) -> MergePlan:
    """Return the plan that takes documents, or their values, out of a table.

    The table has all that is published up to ``to_round``. It gets a version even if it has no such
    document: older versions may have.

    Raises:
        ForeignWriteError: as of `plan_merge`.
    """
    status = replica_status(lake, replica)
    status.commit_history.refuse_defect(replica.name, lake.table_sql(replica.name))
    log_version = history(lake.changes)[0].version
    rows = _rows_to_erase(lake.table(replica.name), erasure)
    keys = zip(rows["vbucket"].to_pylist(), rows["key"].to_pylist(), strict=True)
    pending_from = oldest_pending_round(states_at(lake, to_round).values(), to_round)
    is_applied = status.applied is not None
    plan = MergePlan(
        held=status.held,
        collection_id=replica.collection_id,
        log_slice=LogSlice((), to_round, to_round, pending_from),
        touched=Touched(dict.fromkeys(sorted(keys))),
        rows=rows,
        since_version=status.since_version,
        log_version=log_version,
        is_first=status.commit_history.since() == -1,
        typed=typed_plan(lake.table(replica.name), contract, is_applied=is_applied),
    )
    is_growing = contract is not None and contract.mode is ContractMode.EVOLVE
    return _with_columns(lake, plan) if is_growing else plan


def _rows_to_erase(table: Table, erasure: Erasure) -> pa.Table:
    found = table.found_by_spark(_METADATA, erasure.condition_sql())
    without = {"datatype": 0, "xattrs": None, "value": b"", "deleted": not erasure.keeps_out}
    rows = [{**row, **without} for row in found.to_pylist()]
    return pa.Table.from_pylist(rows, MERGE_SOURCE)


_METADATA: Final = pa.schema(
    [each for each in REPLICA if each.name not in ("datatype", "xattrs", "value")]
)


def commit_reason(
    held: AppliedVersion, found: MergeInput | None, typed: TypedPlan, *, is_applied: bool
) -> CommitReason | None:
    """Return why a table gets a commit; None if it waits for further rounds.

    ``found`` is None if the log has nothing for the table. ``is_applied``: it has had an apply.
    """
    if found is not None:
        log_slice, touched = found.log_slice, found.touched
        if touched is None or touched or log_slice.stale != held.stale:
            return CommitReason.ROWS
        # Without a commit, every round would search the dead branch of a rollback again.
        if log_slice.undone or log_slice.to_round - held.to_round >= EMPTY_ROUNDS:
            return CommitReason.MOVE
    has_rows = found is not None or is_applied
    return CommitReason.COLUMNS if typed.rewrites and has_rows else None


def _with_rows(
    lake: LakeTables,
    replica: ReplicaTable,
    status: ReplicaStatus,
    found: MergeInput,
    typed: TypedPlan,
    log_version: int,
    budget: RowBudget,
) -> MergePlan:
    log_slice, touched = found.log_slice, found.touched
    rows = _merged_rows(lake, replica, found, log_version, budget.bytes)
    without_repeats: frozenset[int] = frozenset()
    if rows is None:
        without_repeats = vbuckets_without_repeats(lake.changes, log_version, log_slice)
    rounds = range(log_slice.first_round, log_slice.to_round + 1)
    # The log has the sizes of its own documents, but not of those in older table versions.
    reads_table = log_slice.restored or typed.rewrites
    return MergePlan(
        held=status.held,
        collection_id=replica.collection_id,
        log_slice=log_slice,
        touched=touched,
        names_keys=touched is not None and _pays_to_name(lake, replica, touched),
        rows=rows,
        without_repeats=without_repeats,
        since_version=status.since_version,
        log_version=log_version,
        is_first=status.commit_history.since() == -1,
        typed=typed,
        largest_bytes=DOCUMENT_BYTES if reads_table else largest_document_bytes(lake, rounds),
    )


def _with_columns(lake: LakeTables, plan: MergePlan) -> MergePlan:
    """Let the typed columns grow by the plan's documents.

    If a column widens, all rows are rewritten, so all of the table's documents count.
    """
    columns = plan.typed.columns
    if columns is None:
        return plan
    if plan.rows is not None and not plan.typed.rewrites:
        seen = see_documents(columns, plan.rows.to_batches())
    else:
        merge = replace(plan.merge(lake.changes_sql), made=None)
        seen = see_written(lake.store, plan.held.table, merge, columns)
    wider = replace(plan, typed=with_documents(plan.typed, columns, seen))
    if wider.typed.rewrites and not plan.typed.rewrites:
        return _with_columns(lake, replace(wider, largest_bytes=DOCUMENT_BYTES))
    return wider


def _pays_to_name(lake: LakeTables, replica: ReplicaTable, touched: Touched) -> bool:
    if not touched:
        return False
    share = len(touched.vbuckets) / lake.identity.vbucket_count
    joined_bytes = lake.table(replica.name).size().bytes * share
    return len(touched) * TABLE_BYTES_BY_NAMED_KEY <= joined_bytes


def _merged_rows(
    lake: LakeTables,
    replica: ReplicaTable,
    found: MergeInput,
    log_version: int,
    most_bytes: int,
) -> pa.Table | None:
    touched = found.touched
    if touched is None or any(each is None for each in found.olds):
        return None
    rounds = {place.round for place in touched.newest.values() if place is not None}
    if rounds and largest_document_bytes(lake, rounds) > LARGE_DOCUMENT_BYTES:
        return None
    newest = newest_rows(lake.changes, log_version, replica.collection_id, touched, most_bytes)
    if newest is None:
        return None
    olds = pa.concat_tables([MERGE_SOURCE.empty_table(), *found.olds])
    keys = list(zip(olds["vbucket"].to_pylist(), olds["key"].to_pylist(), strict=True))
    lost = set(touched.lost)
    restored = olds.filter(pa.array([key in lost for key in keys], pa.bool_()))
    # A lost key that the older version lacks as well is deleted.
    gone = [
        {"vbucket": vbucket, "key": key, "deleted": True}
        for vbucket, key in sorted(lost.difference(keys))
    ]
    return pa.concat_tables([newest, restored, pa.Table.from_pylist(gone, MERGE_SOURCE)])
