"""Writes the audit of rollbacks: the table ``undone`` lists each key that an apply took back.

The audit compares the replica's versions before and after the apply. If the driver dies after the
apply, the next driver writes the missing audit before it applies again.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Final

import pyarrow as pa

from dcp.lake.apply.merge_plan import ROW_BUDGET
from dcp.lake.change_log.applied import ReplicaStatus
from dcp.lake.change_log.round_queries import states_left
from dcp.lake.change_log.stop_points import reached
from dcp.lake.store.log_slice import REPLACED
from dcp.lake.store.sql import at_version, one_of, quoted, string, u64
from dcp.lake.store.table import CommitConflictError, MissingVersionError, Statement, Table
from dcp.lake.tables.applied_version import AppliedVersion
from dcp.lake.tables.lake_tables import AUDIT_TABLE, LakeTables, ensure_ledger
from dcp.lake.tables.schema import AUDIT, CHANGES, DOCUMENT_STATE, REPLICA, RowKind, is_kind
from dcp.lake.tables.vbucket_state import VbucketProgress


def write_audit(lake: LakeTables, status: ReplicaStatus, keys: Collection[str] = ()) -> None:
    """Write the audit of a table's newest apply, unless it exists or the apply took nothing back.

    ``keys``, if given, are all keys that the apply touched; the audit then reads no others.
    """
    applied = status.applied
    if applied is None or not applied.undone:
        return
    commit = status.commit_history.commit(applied.version)
    if commit is None:
        # The history has forgotten the commit. While it was the newest apply, a driver wrote its
        # audit: that always precedes the next apply.
        return
    # A table that is dropped and created again gets a new id and version 0. With the id in the
    # transaction's name, Delta skips only audits that exist.
    table_id = lake.table(applied.table).table_id()
    app_id = f"{lake.identity.lake_id}:{AUDIT_TABLE}:{table_id}"
    audit = lake.table(AUDIT_TABLE)
    written = audit.transaction_version(app_id) if audit.exists() else None
    if written is not None and written >= applied.version:
        return
    table = ensure_ledger(lake, AUDIT_TABLE)
    metadata = {"lake": lake.identity.lake_id, "audit": applied.table, "version": applied.version}
    states = states_left(lake, applied.from_round)
    for is_last in (False, True):
        try:
            relations = _relations(lake, applied, keys)
            views = _few_rows(relations, keys)
            names = {
                name: each.sql() if views is None else name for name, each in relations.items()
            }
            query = audit_sql(names, applied, commit.time, states)
            transaction = app_id, applied.version
            table.append_found(query, views or {}, transaction, metadata)
            reached("audit.committed")
        except MissingVersionError:
            if is_last:
                raise
            # VACUUM has deleted the version that an undone flush or drop went back to. Without it,
            # the audit lacks keys that the version held and that were written again at once.
            applied = replace(applied, revived=())
        except CommitConflictError:
            if is_last:
                raise
        else:
            return
        # Another driver committed in the same moment. If it wrote this audit, Delta skips the
        # retry.


@dataclass(frozen=True, slots=True)
class _Relation:
    """One side of the comparison: rows of some versions of a table."""

    table: Table
    columns: pa.Schema
    queries: Sequence[tuple[int | None, Statement]]
    """(version, query); None is the newest version."""

    def rows(self) -> pa.Table | None:
        found = [
            self.table.bounded_query(query, self.columns, version, ROW_BUDGET.bytes)
            for version, query in self.queries
        ]
        return None if any(each is None for each in found) else pa.concat_tables(found)

    def sql(self) -> str:
        table = self.table.sql
        found = (query(at_version(table, version), string) for version, query in self.queries)
        return f"({' UNION ALL '.join(found)})"


def _relations(
    lake: LakeTables, applied: AppliedVersion, keys: Collection[str]
) -> dict[str, _Relation]:
    """Return the relations that the audit compares, by the names of their views.

    They are the old and new rows of the undone vbuckets, and the published deletions of the rounds
    that the apply read. If the apply undid a flush or drop, the keys that it had ended come too.
    """
    table = lake.table(applied.table)
    chosen = one_of("vbucket", (each.vbucket for each in applied.undone))

    def of_keys(columns: pa.Schema, condition: str) -> Statement:
        return lambda name, text: (
            f"SELECT {', '.join(map(quoted, columns.names))} FROM {name} WHERE {condition}"
            + (f" AND key IN ({', '.join(map(text, keys))})" if keys else "")
        )

    deleted = (
        f"round BETWEEN {applied.first_round} AND {applied.from_round} "
        f"AND {is_kind(RowKind.DELETION, RowKind.EXPIRATION)} AND {chosen}"
    )
    relations = {
        _BEFORE: _Relation(table, _COMPARED, [(applied.version - 1, of_keys(_COMPARED, chosen))]),
        _AFTER: _Relation(table, _COMPARED, [(applied.version, of_keys(_COMPARED, chosen))]),
        _DELETIONS: _Relation(lake.changes, _DELETION, [(None, of_keys(_DELETION, deleted))]),
    }
    by_version: dict[int, list[int]] = {}
    for undo in sorted(applied.undone):
        if undo.vbucket in applied.revived:
            by_version.setdefault(undo.version, []).append(undo.vbucket)
    if by_version:
        revived = [
            (version, of_keys(_KEYS, one_of("vbucket", vbuckets)))
            for version, vbuckets in by_version.items()
        ]
        relations[_REVIVED] = _Relation(table, _KEYS, revived)
    return relations


def _few_rows(
    relations: Mapping[str, _Relation], keys: Collection[str]
) -> dict[str, pa.Table] | None:
    tables = (relations[name].table for name in (_BEFORE, _DELETIONS))
    # Without keys, the queries read whole tables, so their sizes decide first.
    if not keys and any(each.size().bytes > ROW_BUDGET.bytes for each in tables):
        return None
    found: dict[str, pa.Table] = {}
    for name, relation in relations.items():
        if (rows := relation.rows()) is None:
            return None
        found[name] = rows
    return found


def audit_sql(
    relations: Mapping[str, str],
    applied: AppliedVersion,
    time: datetime,
    states: Mapping[int, VbucketProgress],
) -> str:
    """Return the query for the keys that an apply took back, given SQL for each relation.

    ``time`` is the time of the apply. ``states`` are the vbuckets' states in the round that the
    table held before.

    An old row was undone if it lies above the fork. A key that only the new rows have was deleted
    on the dead branch in two cases: its row lies at or below the fork, or the log has a published
    deletion of the key above the fork.

    An undone flush or drop had ended the keys of the older version. If only the new rows have such
    a key, the apply brought it back.

    The fork of a replaced vbucket is unknown. There a row was undone if its key has no new row, or
    an older one. A key that only the new rows have was deleted on the dead branch if its row lies
    at or below the last read seqno.
    """
    undone = ", ".join(
        f"({each.vbucket}, CAST({each.version} AS BIGINT), {u64(each.fork_seqno)})"
        for each in applied.undone
    )
    positions = _positions_sql(states)
    joined_revived = is_revived = ""
    if _REVIVED in relations:
        revived = relations[_REVIVED]
        joined_revived = f"\nLEFT JOIN {revived} r ON r.vbucket = a.vbucket AND r.key = a.key"
        is_revived = " OR r.key IS NOT NULL"
    return f"""
SELECT {_columns_sql(applied, time)}
FROM {relations[_BEFORE]} b
FULL OUTER JOIN {relations[_AFTER]} a ON b.vbucket = a.vbucket AND b.key = a.key
JOIN (VALUES {undone}) AS u(vbucket, version, fork_seqno)
  ON u.vbucket = coalesce(b.vbucket, a.vbucket)
LEFT JOIN (SELECT DISTINCT c.vbucket, c.key
           FROM {relations[_DELETIONS]} c JOIN (VALUES {positions}) AS p(vbucket, epoch, high)
             ON p.vbucket = c.vbucket AND p.epoch = c.epoch AND c.seqno <= p.high
           JOIN (VALUES {undone}) AS v(vbucket, version, fork_seqno)
             ON v.vbucket = c.vbucket AND v.fork_seqno > 0 AND c.seqno > v.fork_seqno) d
  ON d.vbucket = a.vbucket AND d.key = a.key
LEFT JOIN (VALUES {positions}) AS h(vbucket, epoch, high) ON h.vbucket = a.vbucket{joined_revived}
WHERE CASE WHEN u.version = {REPLACED}
  THEN a.key IS NULL OR a.seqno < b.seqno OR a.seqno = b.seqno AND a.cas <> b.cas
    OR b.key IS NULL AND a.seqno <= h.high
  ELSE b.seqno > u.fork_seqno AND (a.key IS NULL OR a.seqno <> b.seqno OR a.cas <> b.cas)
    OR b.key IS NULL AND (a.seqno <= u.fork_seqno OR d.key IS NOT NULL{is_revived}) END"""


def _positions_sql(states: Mapping[int, VbucketProgress]) -> str:
    """Return VALUES of vbucket, epoch and complete seqno."""
    positions = ", ".join(
        f"({vbucket}, {state.epoch}, {u64(state.complete_seqno)})"
        for vbucket, state in sorted(states.items())
    )
    # VALUES needs a row; no vbucket has this number.
    return positions or f"(-1, -1, {u64(0)})"


def _columns_sql(applied: AppliedVersion, time: datetime) -> str:
    """Return the columns of `AUDIT`, from the relations b (before), a (after) and u (undone)."""
    values = {
        "table": string(applied.table),
        "version": f"CAST({applied.version} AS BIGINT)",
        "restored_version": "u.version",
        "round": f"CAST({applied.to_round} AS BIGINT)",
        "time": f"TIMESTAMP '{time.astimezone(UTC):%Y-%m-%d %H:%M:%S.%f}Z'",
        "vbucket": "u.vbucket",
        "fork_seqno": "u.fork_seqno",
        "key": "coalesce(b.key, a.key)",
        "key_bytes": "coalesce(b.key_bytes, a.key_bytes)",
        "before": _state("b"),
        "after": _state("a"),
    }
    return ", ".join(f"{values[name]} AS {quoted(name)}" for name in AUDIT.names)


_STATE_NAMES: Final = [field.name for field in DOCUMENT_STATE]

_COMPARED: Final = pa.schema(
    [REPLICA.field(name) for name in ("vbucket", "key", "key_bytes", *_STATE_NAMES)]
)

_DELETION: Final = pa.schema([CHANGES.field(name) for name in ("vbucket", "epoch", "key", "seqno")])
_KEYS: Final = pa.schema([REPLICA.field(name) for name in ("vbucket", "key")])
_BEFORE, _AFTER, _DELETIONS, _REVIVED = (
    f"dcplake_audit_{what}" for what in ("before", "after", "deletions", "revived")
)


def _state(side: str) -> str:
    pairs = ", ".join(f"'{name}', {side}.{name}" for name in _STATE_NAMES)
    return f"CASE WHEN {side}.key IS NOT NULL THEN named_struct({pairs}) END"
