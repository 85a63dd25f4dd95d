"""Plans an apply: reads facts, and lets pure functions decide by them, in turn.

1. Which rows are due, and from which version on: `dcp.lake.apply.slice_rules` (its result:
   `LogSlice`).
2. Which columns: `typed_plan`; with `evolve`, documents may add some (`TypedPlan`).
3. Whether the table gets a commit: `commit_reason`.
4. Who reads the rows, this process or Spark: `row_reader`. If their bytes prove too many for this
   process, Spark does.
5. In which vbuckets Spark need not pick the newest row of each key: `without_repeats`. Of the
   others, Spark computes the relation of the touched keys.
6. Whether the MERGE names its keys: `pays_to_name`.
7. How much memory a document may take: `reads_table`.

At level DEBUG, the driver logs the plan, with each decision, as JSON. For a table that needs no
commit it logs the columns and the reason.
"""

import json
import logging
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Final

import pyarrow as pa

from dcp.errors import FencedError
from dcp.lake.adapters.apply_sql import slice_touched_sql
from dcp.lake.apply.merge_plan import (
    ROW_BUDGET,
    CommitReason,
    MergePlan,
    RowBudget,
    RowReader,
    commit_reason,
    pays_to_name,
    reads_table,
    row_reader,
)
from dcp.lake.apply.slice_reader import SliceReader
from dcp.lake.apply.slice_rules import oldest_incomplete_round
from dcp.lake.apply.typed_documents import see_documents, see_written
from dcp.lake.apply.typed_plan import typed_plan, with_documents
from dcp.lake.change_log.applied import ReplicaStatus, replica_status
from dcp.lake.change_log.erase_request import Erasure
from dcp.lake.change_log.round_queries import largest_document_bytes, states_at
from dcp.lake.change_log.touched_keys import (
    MERGE_SOURCE,
    Touched,
    few_touched,
    newest_rows,
    vbuckets_without_repeats,
)
from dcp.lake.config.contracts import Contract, ContractMode
from dcp.lake.config.memory import DOCUMENT_BYTES
from dcp.lake.store.log_slice import LogSlice
from dcp.lake.store.merge import LogRows
from dcp.lake.store.sql import at_version
from dcp.lake.store.table import Table
from dcp.lake.tables.history import history
from dcp.lake.tables.lake_tables import LakeTables, ReplicaTable
from dcp.lake.tables.schema import REPLICA

_LOGGER: Final = logging.getLogger(__name__)


def plan_merge(
    lake: LakeTables,
    replica: ReplicaTable,
    to_round: int,
    budget: RowBudget = ROW_BUDGET,
    contract: Contract | None = None,
    until_applied: ExitStack | None = None,
) -> MergePlan | None:
    """Return the plan that brings ``replica`` to ``to_round``; None if it waits (`commit_reason`).

    The plan holds at most ``budget``. If the touched keys are many, Spark computes their relation
    once, and keeps it until ``until_applied`` closes. Without ``until_applied``, each statement
    computes the relation again. A table whose typed columns differ from ``contract`` is rewritten,
    at its present round if no later one brings a row.

    Raises:
        ForeignWriteError: somebody else changed the table's rows after our last apply, or right
            before it.
        LakeError: the log contradicts itself (see `SliceReader.slice_between`).
    """
    status = replica_status(lake, replica)
    # Before any other read of the log. A cleaning notes its round, then deletes rows. So either
    # `_rows_due` sees the note, or this version still has the rows.
    log_version = history(lake.changes)[0].version
    log_slice, touched, olds = _rows_due(lake, replica, status, to_round, log_version, budget)
    # A slice that begins anew replaces all rows, so a foreign write does not matter.
    if not log_slice.begins_anew:
        status.commit_history.refuse_defect(replica.name, lake.table_sql(replica.name))
    is_applied = status.applied is not None
    columns = lake.table(replica.name).columns()
    typed = typed_plan(columns, contract, is_applied=is_applied)
    reason = commit_reason(status.current, log_slice, touched, typed, is_applied=is_applied)
    if reason is CommitReason.NONE:
        _LOGGER.debug("%s: %s; %s; %s; %s", replica.name, log_slice, touched, typed, reason)
        return None
    reader = row_reader(touched, olds, partial(_largest_touched_bytes, lake))
    rows: pa.Table | LogRows | None = None
    if touched is not None and reader is RowReader.DRIVER:
        rows = _rows_in_driver(lake, replica, touched, olds, log_version, budget.bytes)
        if rows is None:
            reader = RowReader.SPARK_FOR_BYTES
    if rows is None:
        rows = _log_rows(
            lake, replica, status.current.version, log_version, log_slice, until_applied
        )
    rounds = range(log_slice.first_round, log_slice.to_round + 1)
    largest = None if reads_table(log_slice, typed) else largest_document_bytes(lake, rounds)
    plan = MergePlan(
        current=status.current,
        log_slice=log_slice,
        touched=touched,
        reason=reason,
        reader=reader,
        names_keys=_names_keys(lake, replica, touched),
        rows=rows,
        since_version=status.since_version,
        is_first=status.commit_history.since() == -1,
        typed=typed,
        largest_bytes=DOCUMENT_BYTES if largest is None else largest,
    )
    if contract is not None and contract.mode is ContractMode.EVOLVE:
        plan = _with_columns(lake, plan)
    if reason is CommitReason.COLUMNS and not plan.typed.rewrites:
        _LOGGER.debug("%s: %s; %s", replica.name, plan.typed, CommitReason.NONE)
        return None
    if _LOGGER.isEnabledFor(logging.DEBUG):
        _LOGGER.debug("%s", json.dumps(plan.to_json()))
    return plan


def _rows_due(
    lake: LakeTables,
    replica: ReplicaTable,
    status: ReplicaStatus,
    to_round: int,
    log_version: int,
    budget: RowBudget,
) -> tuple[LogSlice, Touched | None, Sequence[pa.Table | None]]:
    """Return the slice that is due, its keys, and the rows of older versions (`old_rows`).

    Which old rows it needs depends on the keys. Each failed read rules a version out, so that the
    rules decide again.
    """
    reader = SliceReader(lake, replica, status)
    # The loop ends: each turn without a result marks at least one version as unreadable.
    while True:
        log_slice = reader.slice_to_publish(to_round)
        touched = few_touched(
            lake.changes, log_version, replica.collection_id, log_slice, budget.rows
        )
        olds = reader.old_rows(log_slice, touched, budget.bytes)
        if olds is not None:
            return log_slice, touched, olds


def _largest_touched_bytes(lake: LakeTables, touched: Touched) -> int:
    rounds = touched.rounds
    return largest_document_bytes(lake, rounds) if rounds else 0


def _rows_in_driver(
    lake: LakeTables,
    replica: ReplicaTable,
    touched: Touched,
    olds: Sequence[pa.Table | None],
    log_version: int,
    most_bytes: int,
) -> pa.Table | None:
    """Read a row for each touched key; None if they have more than ``most_bytes``."""
    newest = newest_rows(lake.changes, log_version, replica.collection_id, touched, most_bytes)
    return None if newest is None else pa.concat_tables([newest, *olds])


def _log_rows(
    lake: LakeTables,
    replica: ReplicaTable,
    current_version: int,
    log_version: int,
    log_slice: LogSlice,
    until_applied: ExitStack | None,
) -> LogRows:
    once = vbuckets_without_repeats(lake.changes, log_version, log_slice)
    rest, collection_id, touched_sql = log_slice.without(once), replica.collection_id, ""
    # A slice with such vbuckets only adds rows: without ranges nothing is left.
    if rest.ranges or not once:
        changes_sql = at_version(lake.changes_sql, log_version)
        touched_sql = slice_touched_sql(
            lake.table_sql(replica.name), current_version, changes_sql, collection_id, rest
        )
        if until_applied is not None:
            with lake.store.pool("apply"):
                touched_sql = until_applied.enter_context(lake.store.computed(touched_sql))
    return LogRows(lake.changes_sql, log_version, collection_id, log_slice, touched_sql, once)


def _names_keys(lake: LakeTables, replica: ReplicaTable, touched: Touched | None) -> bool:
    if not touched:  # saves a read of the table's size
        return False
    table_bytes = lake.table(replica.name).size().bytes
    return pays_to_name(touched, table_bytes, lake.identity.vbucket_count)


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
        FencedError: another driver has applied a later round, so the table holds its rows.
        ForeignWriteError: as of `plan_merge`.
    """
    status = replica_status(lake, replica)
    status.commit_history.refuse_defect(replica.name, lake.table_sql(replica.name))
    table = lake.table(replica.name)
    if status.round > to_round:
        raise FencedError(
            f"{table.where}: another driver applied: found round {status.round}, expected at most "
            f"{to_round}; this driver stops"
        )
    rows = _rows_to_erase(table, erasure)
    keys = zip(rows["vbucket"].to_pylist(), rows["key"].to_pylist(), strict=True)
    log_from_round = oldest_incomplete_round(states_at(lake, to_round).values(), to_round)
    is_applied = status.applied is not None
    plan = MergePlan(
        current=status.current,
        log_slice=LogSlice((), to_round, to_round, log_from_round),
        touched=Touched(dict.fromkeys(sorted(keys))),
        rows=rows,
        since_version=status.since_version,
        is_first=status.commit_history.since() == -1,
        typed=typed_plan(table.columns(), contract, is_applied=is_applied),
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


def _with_columns(lake: LakeTables, plan: MergePlan) -> MergePlan:
    """Let the typed columns grow by the plan's documents.

    If a column widens, all rows are rewritten, so all of the table's documents count.
    """
    columns = plan.typed.columns
    if columns is None:
        return plan
    if isinstance(plan.rows, pa.Table) and not plan.typed.rewrites:
        seen = see_documents(columns, plan.rows.to_batches())
    else:
        merge = replace(plan.merge(), made=None)
        seen = see_written(lake.store, plan.current.table, merge, columns)
    wider = replace(plan, typed=with_documents(plan.typed, columns, seen))
    if wider.typed.rewrites and not plan.typed.rewrites:
        return _with_columns(lake, replace(wider, largest_bytes=DOCUMENT_BYTES))
    return wider
