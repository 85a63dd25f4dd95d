"""Writes the audit of rollbacks: key by key what an apply undid, in the lake's table ``undone``.

It is the difference of two versions of the replica, the one before the apply and the apply's own,
written after it. A driver that dies between the two leaves no gap: the next one writes the audit of
the newest apply if it is missing, before it applies again; both versions are the newest then, so
they can be read. Where a flush or drop was undone it reads the version gone back to as well, which
may be gone by then: without it, a key that it had and that was written anew at once is not listed.
It is written once: its transaction id is (lake, ``undone`` and the table's own
id; version).
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


def write_audit(
    lake: LakeTables, status: ReplicaStatus, keys: Collection[str] | None = None
) -> None:
    """Write the keys that a table's newest apply took back, unless there are none or it is done.

    ``keys``, if given, are all that the apply touched: then no others are read.
    """
    applied = status.applied
    if applied is None or not applied.undone:
        return
    commit = status.commit_history.commit(applied.version)
    if commit is None:
        return  # older than the history: it was the newest one then, and written before the next
    # A table that was dropped and made again counts its versions anew, and is another one.
    table_id = lake.table(applied.table).table_id()
    app_id = f"{lake.identity.lake_id}:{AUDIT_TABLE}:{table_id}"
    audit = lake.table(AUDIT_TABLE)
    written = audit.transaction_version(app_id) if audit.exists() else None
    if written is not None and written >= applied.version:
        return
    table = ensure_ledger(lake, AUDIT_TABLE)
    metadata = {"lake": lake.identity.lake_id, "audit": applied.table, "version": applied.version}
    audited = Audited(applied, commit.time, states_left(lake, applied.from_round), keys)
    for is_last in (False, True):
        try:
            relations = _relations(lake, audited)
            views = _few_rows(relations, audited)
            names = {
                name: each.sql() if views is None else name for name, each in relations.items()
            }
            transaction = app_id, applied.version
            table.append_found(audit_sql(names, audited), views or {}, transaction, metadata)
            reached("audit.committed")
        except MissingVersionError:
            if is_last:
                raise
            audited = replace(audited, applied=replace(applied, revived=()))
        except CommitConflictError:
            if is_last:
                raise
        else:
            return
        # Another driver wrote in the same moment: if it was this audit, Delta skips the next try.


@dataclass(frozen=True, slots=True)
class Audited:
    applied: AppliedVersion
    time: datetime
    states: Mapping[int, VbucketProgress]
    """The vbuckets' states in the round that the table held before."""
    keys: Collection[str] | None = None
    """Its keys, if they are few."""


@dataclass(frozen=True, slots=True)
class _Relation:
    """One of the relations that an audit compares: rows of some versions of a table."""

    table: Table
    columns: pa.Schema
    queries: Sequence[tuple[int | None, Statement]]
    """By version; None: the newest one."""

    def rows(self) -> pa.Table | None:
        """Return the rows; None if they are more than an apply holds in memory."""
        found = [
            self.table.bounded_query(query, self.columns, version, ROW_BUDGET.bytes)
            for version, query in self.queries
        ]
        return None if any(each is None for each in found) else pa.concat_tables(found)

    def sql(self) -> str:
        table = self.table.sql
        found = (query(at_version(table, version), string) for version, query in self.queries)
        return f"({' UNION ALL '.join(found)})"


def _relations(lake: LakeTables, audited: Audited) -> dict[str, _Relation]:
    """Return the relations of an audit by the names of their views.

    The old rows of the vbuckets that were taken back, their new rows, and their published deletions
    in the rounds that the apply read. If a flush or drop was undone, the keys that it had ended.
    """
    applied = audited.applied
    table = lake.table(applied.table)
    chosen = one_of("vbucket", (each.vbucket for each in applied.undone))

    def of_keys(columns: pa.Schema, condition: str) -> Statement:
        keys = audited.keys or ()
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


def _few_rows(relations: Mapping[str, _Relation], audited: Audited) -> dict[str, pa.Table] | None:
    """Return the rows of an audit's relations; None if they are too many for this process."""
    tables = (relations[name].table for name in (_BEFORE, _DELETIONS))
    if not audited.keys and any(each.size().bytes > ROW_BUDGET.bytes for each in tables):
        return None
    found: dict[str, pa.Table] = {}
    for name, relation in relations.items():
        if (rows := relation.rows()) is None:
            return None
        found[name] = rows
    return found


def audit_sql(relations: Mapping[str, str], audited: Audited) -> str:
    """Return the query for the keys that an apply took back, from SQL for its relations.

    An old row was undone if it lies above the fork. A key that only the new rows have was deleted
    on the dead branch in two cases. Its row lies at or below the fork, or the log has a published
    deletion of it above the fork.

    An undone flush or drop had ended the keys of the older version. If only the new rows have such
    a key, the undoing brought it back, whatever its row is.

    The fork of a replaced vbucket is unknown. There a row was undone if its key has no row, or an
    older one. A key that only the new rows have was deleted on the dead branch if its row lies at
    or below the last read seqno.
    """
    applied = audited.applied
    undone = ", ".join(
        f"({each.vbucket}, CAST({each.version} AS BIGINT), {u64(each.fork_seqno)})"
        for each in applied.undone
    )
    positions = ", ".join(
        f"({vbucket}, {state.epoch}, {u64(state.complete_seqno)})"
        for vbucket, state in sorted(audited.states.items())
    )
    positions = positions or f"(-1, -1, {u64(0)})"
    time = audited.time.astimezone(UTC)
    values = {
        "table": string(applied.table),
        "version": f"CAST({applied.version} AS BIGINT)",
        "restored_version": "u.version",
        "round": f"CAST({applied.to_round} AS BIGINT)",
        "time": f"TIMESTAMP '{time:%Y-%m-%d %H:%M:%S.%f}Z'",
        "vbucket": "u.vbucket",
        "fork_seqno": "u.fork_seqno",
        "key": "coalesce(b.key, a.key)",
        "key_bytes": "coalesce(b.key_bytes, a.key_bytes)",
        "before": _state("b"),
        "after": _state("a"),
    }
    columns = ", ".join(f"{values[name]} AS {quoted(name)}" for name in AUDIT.names)
    joined_revived = is_revived = ""
    if _REVIVED in relations:
        revived = relations[_REVIVED]
        joined_revived = f"\nLEFT JOIN {revived} r ON r.vbucket = a.vbucket AND r.key = a.key"
        is_revived = " OR r.key IS NOT NULL"
    return f"""
SELECT {columns}
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
