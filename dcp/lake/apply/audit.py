"""Writes the audit of rollbacks: the table ``undone`` lists each key that an apply took back.

An apply takes a key back if it undoes a published row of it (`touched_sql`), and the key's rows
before and after the apply differ. If the driver dies after the apply, the next driver decides the
apply's slice again, and writes the missing audit before it applies again.
"""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Final

import pyarrow as pa

from dcp.lake.adapters.apply_sql import log_part, table_parts, touched_sql
from dcp.lake.apply.merge_plan import ROW_BUDGET, MergePlan
from dcp.lake.apply.slice_reader import SliceReader
from dcp.lake.change_log.applied import ReplicaStatus
from dcp.lake.change_log.round_queries import states_left
from dcp.lake.change_log.stop_points import reached
from dcp.lake.change_log.touched_keys import Touched, few_touched
from dcp.lake.config.table_names import AUDIT_TABLE
from dcp.lake.store.log_slice import LogSlice, Role, Undo
from dcp.lake.store.merge import LogRows
from dcp.lake.store.sql import at_version, one_of, quoted, string, u64
from dcp.lake.store.table import (
    CommitConflictError,
    MissingVersionError,
    Statement,
    Table,
    Transaction,
    audit_fence,
)
from dcp.lake.tables.applied_version import AppliedVersion
from dcp.lake.tables.history import LAKE, history
from dcp.lake.tables.lake_tables import LakeTables, ReplicaTable, ensure_ledger
from dcp.lake.tables.schema import AUDIT, DOCUMENT_STATE, REPLICA
from dcp.lake.tables.vbucket_state import state_of
from dcp.types import U64_MAX

_LOGGER = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Decided:
    """The decisions of an apply, from its plan or from a driver that decides it again."""

    current: AppliedVersion
    """The version that it was made on."""
    log_slice: LogSlice
    touched: Touched | None
    """Its keys if they are few."""
    touched_sql: str = ""
    """Its plan's relation of the keys (`LogRows.touched_sql`); empty: the audit computes it."""


def write_audit(
    lake: LakeTables, replica: ReplicaTable, status: ReplicaStatus, plan: MergePlan | None = None
) -> None:
    """Write the audit of a table's newest apply, unless it exists or the apply took nothing back.

    ``plan`` is the plan of that apply, if this driver made it. If the rows before the apply are
    gone, a warning tells that there is no audit.
    """
    applied = status.applied
    if applied is None or not applied.undone:
        return
    commit = status.commit_history.commit(applied.version)
    if commit is None:
        # The history has forgotten the commit. While it was the newest apply, a driver wrote its
        # audit: that always precedes the next apply.
        return
    table_id = lake.table(applied.table).table_id()
    fence = audit_fence(lake.identity.lake_id, AUDIT_TABLE, table_id, applied.version)
    audit, (app_id, _) = lake.table(AUDIT_TABLE), fence
    written = audit.transaction_version(app_id) if audit.exists() else None
    if written is not None and written >= applied.version:
        return
    try:
        if plan is None or not _made(plan, applied):
            current, log_slice = SliceReader(lake, replica, status).slice_again(applied)
            log_version, most = history(lake.changes, 1)[0].version, ROW_BUDGET.rows
            collection_id = replica.collection_id
            touched = few_touched(lake.changes, log_version, collection_id, log_slice, most)
            decided = _Decided(current, log_slice, touched)
        else:
            has_relation = plan.touched is None and isinstance(plan.rows, LogRows)
            touched_sql = plan.rows.touched_sql if has_relation else ""
            decided = _Decided(plan.current, plan.log_slice, plan.touched, touched_sql)
        _append(lake, replica, applied, commit.time, fence, decided)
    except MissingVersionError as missing:
        _LOGGER.warning(
            "%s: table %s may lack keys that version %d of %s took back: %s",
            *(lake.location, AUDIT_TABLE, applied.version, applied.table, missing),
        )


def _made(plan: MergePlan, applied: AppliedVersion) -> bool:
    """Return whether an apply is that of a plan; another driver may have applied after it."""
    planned = plan.current.to_round, plan.log_slice.to_round
    return planned == (applied.from_round, applied.to_round)


def _append(
    lake: LakeTables,
    replica: ReplicaTable,
    applied: AppliedVersion,
    time: datetime,
    transaction: Transaction,
    decided: _Decided,
) -> None:
    log_slice, touched, touched_sql = decided.log_slice, decided.touched, decided.touched_sql
    read_seqnos = _read_seqnos(lake, decided.current, log_slice.replaced)
    table = ensure_ledger(lake, AUDIT_TABLE, AUDIT)
    metadata = {LAKE: lake.identity.lake_id, "audit": applied.table, "version": applied.version}
    for is_last in (False, True):
        try:
            relations = _relations(lake, replica, applied, log_slice, touched)
            views = {} if touched_sql else _memory_views(relations, touched)
            names = {name: name if views else each.sql() for name, each in relations.items()}
            keys_sql = touched_sql or _keys_sql(names[_ROWS])
            query = audit_sql(keys_sql, names, applied, time, read_seqnos)
            table.append_found(query, views, transaction, metadata)
            reached("audit.committed")
        except MissingVersionError:
            if is_last or not log_slice.revived:
                raise
            # VACUUM has deleted the version that an undone flush or drop went back to. The version
            # after the apply has its keys, and keys that are new.
            undone = [Undo(vbucket, applied.version, 0) for vbucket in log_slice.revived]
            undone += [each for each in log_slice.undone if each.is_replacement]
            log_slice, touched_sql = replace(log_slice, undone=tuple(undone)), ""
        except CommitConflictError:
            if is_last:
                raise
        else:
            return
        # Another driver committed in the same moment. If it wrote this audit, Delta skips the
        # retry.


def _read_seqnos(
    lake: LakeTables, current: AppliedVersion, replaced: Iterable[int]
) -> dict[int, int]:
    """By replaced vbucket, return the seqno up to which the older version has its history."""
    rounds = {vbucket: current.round_of(vbucket) for vbucket in replaced}
    states = {number: states_left(lake, number) for number in set(rounds.values())}
    return {
        vbucket: state_of(states[number], vbucket).complete_seqno
        for vbucket, number in rounds.items()
    }


@dataclass(frozen=True, slots=True)
class _Relation:
    """Rows of some versions of tables."""

    columns: pa.Schema
    queries: Sequence[tuple[Table, int | None, Statement]]
    """(table, version, query); None is the newest version."""

    def rows(self) -> pa.Table | None:
        found = [
            table.bounded_query(query, self.columns, version, ROW_BUDGET.bytes)
            for table, version, query in self.queries
        ]
        return None if any(each is None for each in found) else pa.concat_tables(found)

    def sql(self) -> str:
        found = (
            query(at_version(table.sql, version), string) for table, version, query in self.queries
        )
        return f"({' UNION ALL '.join(found)})"


def _relations(
    lake: LakeTables,
    replica: ReplicaTable,
    applied: AppliedVersion,
    log_slice: LogSlice,
    touched: Touched | None,
) -> dict[str, _Relation]:
    """Return the relations of the audit, by the names of their views.

    They are the rows that touch keys of the undone vbuckets, and the table before and after.
    """
    table, before = lake.table(applied.table), applied.version - 1
    vbuckets = {each.vbucket for each in applied.undone}
    ranges = tuple(each for each in log_slice.ranges if each.vbucket in vbuckets)
    log_slice = replace(log_slice, ranges=ranges, cleared=())

    def side(name: str, text: Callable[[str], str]) -> str:
        of_keys = ""
        if touched is not None:
            keys = [text(key) for _, key in touched.undone]
            of_keys = f" AND key IN ({', '.join(keys) or 'NULL'})"
        columns = ", ".join(map(quoted, _COMPARED.names))
        return f"SELECT {columns} FROM {name} WHERE {one_of('vbucket', vbuckets)}{of_keys}"

    in_table = table_parts(before, log_slice).items()
    rows = [
        (lake.changes, None, log_part(replica.collection_id, log_slice)),
        *((table, version, part) for version, part in in_table),
    ]
    return {
        _ROWS: _Relation(_TOUCHING, rows),
        _BEFORE: _Relation(_COMPARED, [(table, before, side)]),
        _AFTER: _Relation(_COMPARED, [(table, applied.version, side)]),
    }


def _memory_views(
    relations: Mapping[str, _Relation], touched: Touched | None
) -> dict[str, pa.Table]:
    """Return the relations' rows; none if Spark reads them, as they may be large."""
    found: dict[str, pa.Table] = {}
    if touched is not None:
        undone = [
            {"vbucket": vbucket, "key": key, "role": Role.UNDONE}
            for vbucket, key in sorted(touched.undone)
        ]
        found[_ROWS] = pa.Table.from_pylist(undone, _TOUCHING)
    else:
        # Without keys, the queries read whole tables, so their sizes decide first.
        tables = (relations[name].queries[0][0] for name in (_ROWS, _BEFORE))
        if any(each.size().bytes > ROW_BUDGET.bytes for each in tables):
            return {}
    for name, relation in relations.items():
        if name not in found:
            if (rows := relation.rows()) is None:
                return {}
            found[name] = rows
    return found


def _keys_sql(rows: str) -> str:
    no_reference = ", ".join(
        f"CAST(NULL AS BIGINT) AS {name}" for name in ("seqno", "epoch", "round")
    )
    return touched_sql(f"SELECT vbucket, key, {no_reference}, role FROM {rows}")


def audit_sql(
    keys_sql: str,
    relations: Mapping[str, str],
    applied: AppliedVersion,
    time: datetime,
    read_seqnos: Mapping[int, int],
) -> str:
    """Return the query for the keys that an apply took back, given SQL for each relation.

    ``keys_sql`` is `touched_sql` of at least the undone vbuckets, ``time`` the time of the apply.

    Nobody knows where a replaced vbucket forked. A key of it counts as taken back if it has no row
    after the apply. A key also counts if its row after the apply has a seqno that the older version
    had read (``read_seqnos``, or its own row's). A higher seqno is an ordinary change.
    """
    undone = ", ".join(
        f"({each.vbucket}, CAST({each.version} AS BIGINT), {u64(each.fork_seqno)}, "
        f"{u64(read_seqnos.get(each.vbucket, U64_MAX))})"
        for each in applied.undone
    )
    replaced = (each.vbucket for each in applied.undone if each.is_replacement)
    return f"""
SELECT {_columns_sql(applied, time)}
FROM (SELECT vbucket, key FROM ({keys_sql})
      WHERE is_undone OR {one_of("vbucket", replaced)}) t
JOIN (VALUES {undone}) AS u(vbucket, version, fork_seqno, read_seqno) ON u.vbucket = t.vbucket
LEFT JOIN {relations[_BEFORE]} b ON b.vbucket = t.vbucket AND b.key = t.key
LEFT JOIN {relations[_AFTER]} a ON a.vbucket = t.vbucket AND a.key = t.key
WHERE ((b.seqno IS DISTINCT FROM a.seqno) OR (b.cas IS DISTINCT FROM a.cas))
  AND coalesce(a.seqno <= greatest(b.seqno, u.read_seqno), true)"""


def _columns_sql(applied: AppliedVersion, time: datetime) -> str:
    """Return the columns of `AUDIT`, from the relations t (touched), b, a and u (undone)."""
    values = {
        "table": string(applied.table),
        "version": f"CAST({applied.version} AS BIGINT)",
        "restored_version": "u.version",
        "round": f"CAST({applied.to_round} AS BIGINT)",
        "time": f"TIMESTAMP '{time.astimezone(UTC):%Y-%m-%d %H:%M:%S.%f}Z'",
        "vbucket": "t.vbucket",
        "fork_seqno": "u.fork_seqno",
        "key": "t.key",
        "key_bytes": "coalesce(b.key_bytes, a.key_bytes)",
        "before": _state("b"),
        "after": _state("a"),
    }
    return ", ".join(f"{values[name]} AS {quoted(name)}" for name in AUDIT.names)


_STATE_NAMES: Final = [field.name for field in DOCUMENT_STATE]
_COMPARED: Final = pa.schema(
    [REPLICA.field(name) for name in ("vbucket", "key", "key_bytes", *_STATE_NAMES)]
)
_TOUCHING: Final = pa.schema([*map(REPLICA.field, ("vbucket", "key")), ("role", pa.string())])
_ROWS, _BEFORE, _AFTER = (f"dcplake_audit_{what}" for what in ("rows", "before", "after"))


def _state(side: str) -> str:
    pairs = ", ".join(f"'{name}', {side}.{name}" for name in _STATE_NAMES)
    return f"CASE WHEN {side}.key IS NOT NULL THEN named_struct({pairs}) END"
