"""Brings a replica table to a later round in one commit, usually a MERGE.

An apply is a deterministic function of ``changes``, so that repeating it after a crash is harmless.
The commit names the table version that it was made on. Every later apply finds a foreign write that
came right before it.
"""

from dataclasses import replace
from typing import Final

from dcp.errors import FencedError, LakeError
from dcp.lake.apply.merge_plan import MergePlan
from dcp.lake.apply.typed_plan import ColumnChange
from dcp.lake.change_log.applied import applied_of, conclusive_history
from dcp.lake.change_log.stop_points import reached
from dcp.lake.store.lake_store import Append
from dcp.lake.store.merge import LogRows
from dcp.lake.store.table import CommitConflictError, Table, apply_fence
from dcp.lake.tables.applied_version import AppliedVersion
from dcp.lake.tables.commit_history import CommitHistory
from dcp.lake.tables.history import LAKE, READ_VERSION, WRITER
from dcp.lake.tables.lake_tables import LakeTables
from dcp.lake.tables.schema import spark_type
from dcp.lake.tables.typed_columns import DOC, TypedColumns
from dcp.records import row_of

_ATTEMPTS: Final = 5
"""Maintenance may rewrite the table during each MERGE; after so many attempts the apply fails."""


def run_apply(lake: LakeTables, plan: MergePlan, writer_id: str) -> AppliedVersion:
    """Commit a plan and return its version.

    If maintenance (such as OPTIMIZE) rewrites the table during the MERGE, Delta writes nothing and
    the plan still holds: the function tries it again a few times.

    Raises:
        FencedError: another driver applied to the table after the plan was made.
        ForeignWriteError: somebody else changed the table after the plan was made. The function
            finds it before it writes, or right after a MERGE that met the change.
        LakeError: the table was restored to another version after the plan was made, or it was
            rewritten during every attempt; nothing was written.
    """
    failure: Exception | None = None
    if plan.typed.change is ColumnChange.ADD and (columns := plan.typed.columns) is not None:
        with lake.store.cached_reads.committing():
            if _checked_history(lake, plan).since() == -1:
                _add_columns(lake.table(plan.current.table), columns)
    first = first_rows(lake, plan)
    for _ in range(_ATTEMPTS):
        with lake.store.cached_reads.committing():
            commit_history = _checked_history(lake, plan)
            is_empty = plan.is_first and commit_history.since() == -1
            current = replace(plan.current, version=commit_history.newest)
            checked = replace(plan, current=current, is_first=is_empty)
            failure = _commit(lake, checked, writer_id, first if is_empty else None)
        made = _read_back(lake, plan, writer_id, failure)
        if made is not None:
            reached("apply.read_back")
            return made
    raise LakeError(
        f"{plan}: the table was rewritten during each of {_ATTEMPTS} attempts (by maintenance?); "
        "nothing was applied, run it again when that has ended"
    ) from failure


def _add_columns(table: Table, columns: TypedColumns) -> None:
    table.add_columns(columns.schema, {DOC: columns.fingerprint})
    found, expected = table.columns().field(DOC).type, columns.schema.field(DOC).type
    if spark_type(found) != spark_type(expected):
        raise FencedError(
            f"{table.where}: found {DOC} of {spark_type(found)} from another driver, expected "
            f"{spark_type(expected)}; nothing was applied, run it again"
        )


def first_rows(lake: LakeTables, plan: MergePlan) -> Append | None:
    """Return the append of a plan's rows to its empty table; None if the plan needs a MERGE.

    Spark selects the rows, and its tasks write the table's data files themselves. A plan whose few
    rows are in the driver is merged. So is one whose fields the table lacks, since adding files
    does not change columns.
    """
    changes_columns = plan.typed.change in (ColumnChange.EXTEND, ColumnChange.REWRITE)
    if not plan.is_first or not isinstance(plan.rows, LogRows) or changes_columns:
        return None
    return lake.store.first_rows(plan.current.table, plan.merge())


def _checked_history(lake: LakeTables, plan: MergePlan) -> CommitHistory:
    """Return the table's history, if its newest version has the rows that the plan was made on.

    A later apply passes this check: its transaction id keeps the plan from being published.
    """
    commit_history = conclusive_history(lake, plan.current.table)
    if not plan.log_slice.begins_anew:
        commit_history.refuse_defect(plan.current.table, lake.table_sql(plan.current.table))
    origin = commit_history.commit(commit_history.origin(commit_history.newest))
    is_applied_to = origin and origin.is_apply and origin.version > plan.current.version
    if not is_applied_to and not commit_history.have_same_rows(
        commit_history.newest, plan.current.version
    ):
        raise LakeError(
            f"{plan}: found other rows at version {commit_history.newest}, expected those of "
            f"version {plan.current.version}; nothing was applied, run it again"
        )
    return commit_history


def _commit(
    lake: LakeTables, plan: MergePlan, writer_id: str, append: Append | None
) -> Exception | None:
    """Commit, and return the error, if any. The commit may have succeeded in spite of an error."""
    metadata = row_of(plan.current.after(plan.log_slice))
    metadata |= {
        LAKE: lake.identity.lake_id,
        READ_VERSION: metadata.pop("version"),
        WRITER: writer_id,
    }
    fence = apply_fence(lake.identity.lake_id, plan.current.table, plan.since_version)
    try:
        if append is None:
            lake.table(plan.current.table).merge(plan.merge(), fence, metadata)
        else:
            append(lambda: plan.current.version, fence, metadata)
        reached("apply.committed")
    except Exception as error:  # Spark's own class, or the bridge's: `_read_back` decides
        return error
    return None


def _read_back(
    lake: LakeTables, plan: MergePlan, writer_id: str, failure: Exception | None
) -> AppliedVersion | None:
    """Return the version that the history shows for the MERGE; None if it may be tried again.

    Delta skips an outdated MERGE without an error, so only the history tells.
    """
    table_sql = lake.table_sql(plan.current.table)
    try:
        commit_history = conclusive_history(lake, plan.current.table)
    except Exception as error:
        raise failure or error from None
    later = (commit for commit in commit_history.commits if commit.version > plan.current.version)
    last = next((commit for commit in later if commit.is_apply), None)
    if last is not None or not plan.log_slice.begins_anew:
        commit_history.refuse_defect(plan.current.table, table_sql)
    if last is not None:
        made, from_round = applied_of(plan.current.table, last), plan.current.to_round
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
            f"{plan.since_version}; somebody else used a transaction id of this table. Restore "
            f"it to version {plan.since_version}, or delete its folder: the next run "
            "creates it again"
        )
    if not isinstance(failure, CommitConflictError):
        raise failure
    return None
