"""Writes the audit of rollbacks: key by key what an apply undid, in the lake's table ``undone``.

It is the difference of two versions of the replica, the one before the apply and the apply's own,
written after it. A driver that dies between the two leaves no gap: the next one writes the audit of
the newest apply if it is missing, before it applies again; both versions are the newest then, so
they can be read. Where a flush or drop was undone it reads the version gone back to as well, which
may be gone by then: without it, a key that it had and that was written anew at once is not listed.
It is written once: its transaction id is (lake, ``undone`` and the table's own
id; version).
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

import pyarrow as pa

from dcp.lake.apply.apply_plan import ROW_BUDGET
from dcp.lake.apply.apply_rows import old_rows
from dcp.lake.apply.replica_facts import is_missing_version
from dcp.lake.log.applied import AppliedVersion, ReplicaStatus
from dcp.lake.log.log_slice import REPLACED
from dcp.lake.log.round_records import states_left
from dcp.lake.log.slice_rows import deletions_between
from dcp.lake.log.slice_sql import deletions_sql
from dcp.lake.log.stop_points import reached
from dcp.lake.tables.memory_views import memory_view
from dcp.lake.tables.schema import AUDIT, DOCUMENT_STATE, REPLICA
from dcp.lake.tables.sql import integer_list, quoted, string, u64
from dcp.lake.tables.tables import AUDIT_TABLE, LakeTables, ensure_audit
from dcp.lake.tables.transaction import FEW_JOBS_TO_JOIN, FEW_ROWS, is_conflict, transaction
from dcp.lake.tables.vbucket_state import VbucketProgress


def write_audit(
    lake: LakeTables, status: ReplicaStatus, keys: Collection[str] | None = None
) -> None:
    """Write what a table's newest apply took back, unless that is nothing or written already.

    ``keys`` are those that the apply touched, where they are few: then no others are read.
    """
    applied = status.applied
    if applied is None or not applied.undone:
        return
    commit = status.lineage.commit(applied.version)
    if commit is None:
        return  # older than the history: it was the newest one then, and written before the next
    # A table that was dropped and made again counts its versions anew, and is another one.
    table_id = lake.table(applied.table).table_id()
    app_id = f"{lake.identity.lake_id}:{AUDIT_TABLE}:{table_id}"
    written = lake.table(AUDIT_TABLE).transaction_version(app_id)
    if written is not None and written >= applied.version:
        return
    ensure_audit(lake)
    metadata = {"lake": lake.identity.lake_id, "audit": applied.table, "version": applied.version}
    audited = Audited(
        applied,
        commit.time,
        int(commit.ours.get("first", 1)),
        states_left(lake, applied.from_round),
        keys,
    )
    for is_last in (False, True):
        try:
            with (
                _sources(lake, audited) as (sources, settings),
                transaction(lake.spark, app_id, applied.version, metadata, settings),
            ):
                statement = audit_sql(
                    lake.table_sql(AUDIT_TABLE), lake.table_sql(applied.table), sources, audited
                )
                lake.spark.sql(statement).collect()
                reached("audit.committed")
        except Exception as error:  # Spark's own class, or the bridge's
            if is_last or not (is_conflict(error) or is_missing_version(error)):
                raise
            if is_missing_version(error):
                audited = replace(audited, applied=replace(applied, revived=()))
        else:
            return
        # Another driver wrote in the same moment: if it was this audit, Delta skips the next try.


@dataclass(frozen=True, slots=True)
class Audited:
    """An apply to audit: its time, the first round that it read, and its keys where they are few.

    ``states`` are the vbuckets' in the round that the table held before.
    """

    applied: AppliedVersion
    time: datetime
    first_round: int
    states: Mapping[int, VbucketProgress]
    keys: Collection[str] | None = None


@dataclass(frozen=True, slots=True)
class AuditSources:
    """The states and deletions that an audit compares: queries in brackets, or names of views.

    ``before`` and ``after`` are the rows of the vbuckets that were taken back, ``deletions`` are
    theirs in the rounds that the apply read and had published before.
    """

    before: str
    after: str
    deletions: str


@contextmanager
def _sources(
    lake: LakeTables, audited: Audited
) -> Iterator[tuple[AuditSources, Mapping[str, str]]]:
    """Give what an audit compares: in memory where that is little, else as queries.

    With the settings that such a statement takes (`dcp.lake.tables.transaction`).
    """
    tables = _few_rows(lake, audited)
    if tables is None:
        versions = (audited.applied.version - 1, audited.applied.version)
        before, after = (
            f"(SELECT {', '.join(map(quoted, _COMPARED.names))} "
            f"FROM {lake.table_sql(audited.applied.table)} VERSION AS OF {version} "
            f"WHERE {_chosen(audited, string)})"
            for version in versions
        )
        deleted = deletions_sql(
            lake.changes_sql, *_deletion_rounds(audited), _chosen(audited, string)
        )
        yield (
            AuditSources(before, after, f"({deleted})"),
            {},
        )
        return
    with ExitStack() as stack:
        views = [
            stack.enter_context(memory_view(lake.spark, f"dcplake_audit_{number}", table))
            for number, table in enumerate(tables)
        ]
        yield AuditSources(*views), FEW_JOBS_TO_JOIN | FEW_ROWS


def _few_rows(lake: LakeTables, audited: Audited) -> list[pa.Table] | None:
    """Return what an audit of few keys compares; None where they are many, or too large."""
    if not audited.keys:
        return None
    table, version = lake.table(audited.applied.table), audited.applied.version
    vbuckets = [each.vbucket for each in audited.applied.undone]
    found = [
        old_rows(table, each, vbuckets, audited.keys, ROW_BUDGET.bytes)
        for each in (version - 1, version)
    ]
    if any(each is None for each in found):
        return None
    return [
        *(each.select(_COMPARED.names) for each in found if each is not None),
        deletions_between(
            lake.changes, *_deletion_rounds(audited), lambda text: _chosen(audited, text)
        ),
    ]


def _deletion_rounds(audited: Audited) -> tuple[int, int]:
    return audited.first_round, audited.applied.from_round


def _chosen(audited: Audited, text: Callable[[str], str]) -> str:
    chosen = f"vbucket IN ({integer_list(each.vbucket for each in audited.applied.undone)})"
    if not audited.keys:
        return chosen
    return f"{chosen} AND key IN ({', '.join(map(text, audited.keys))})"


def audit_sql(audit_table_sql: str, table_sql: str, sources: AuditSources, audited: Audited) -> str:
    """Return the INSERT of what an apply took back.

    A row of before was undone if it lies above the fork. A key that is only there afterwards was
    deleted on the dead branch if its row lies at or below the fork, or if the log has a deletion of
    it above the fork that was published.

    Where a flush or drop was undone, it had ended the keys that the version gone back to has: one
    of them that is only there afterwards is back by that, whatever its row is.

    Where a vbucket was replaced as a whole the fork is unknown. There a row was undone if its key
    has none any more, or an older one; and a key that is only there afterwards was deleted on the
    dead branch if its row lies at or below what had been read.
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
    micros = int(audited.time.timestamp() * 1_000_000)
    values = {
        "table": string(applied.table),
        "version": f"CAST({applied.version} AS BIGINT)",
        "restored_version": "u.version",
        "round": f"CAST({applied.to_round} AS BIGINT)",
        "time": f"timestamp_micros({micros})",
        "vbucket": "u.vbucket",
        "fork_seqno": "u.fork_seqno",
        "key": "coalesce(b.key, a.key)",
        "key_bytes": "coalesce(b.key_bytes, a.key_bytes)",
        "before": _state("b"),
        "after": _state("a"),
    }
    columns = ", ".join(f"{values[name]} AS {quoted(name)}" for name in AUDIT.names)
    joined_revived, is_revived = _revived(table_sql, applied)
    return f"""
INSERT INTO {audit_table_sql}
SELECT {columns}
FROM {sources.before} b
FULL OUTER JOIN {sources.after} a ON b.vbucket = a.vbucket AND b.key = a.key
JOIN (VALUES {undone}) AS u(vbucket, version, fork_seqno)
  ON u.vbucket = coalesce(b.vbucket, a.vbucket)
LEFT JOIN (SELECT DISTINCT c.vbucket, c.key
           FROM {sources.deletions} c JOIN (VALUES {positions}) AS p(vbucket, epoch, high)
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


def _revived(table_sql: str, applied: AppliedVersion) -> tuple[str, str]:
    """Return the join with the keys that an undone flush or drop had ended, and its condition."""
    if not applied.revived:
        return "", ""
    by_version: dict[int, list[int]] = {}
    for undo in applied.undone:
        if undo.vbucket in applied.revived:
            by_version.setdefault(undo.version, []).append(undo.vbucket)
    keys = " UNION ALL ".join(
        f"SELECT vbucket, key FROM {table_sql} VERSION AS OF {version} "
        f"WHERE vbucket IN ({integer_list(vbuckets)})"
        for version, vbuckets in sorted(by_version.items())
    )
    joined = f"\nLEFT JOIN ({keys}) r ON r.vbucket = a.vbucket AND r.key = a.key"
    return joined, " OR r.key IS NOT NULL"


_STATE_NAMES: Final = [field.name for field in DOCUMENT_STATE]

_COMPARED: Final = pa.schema(
    [REPLICA.field(name) for name in ("vbucket", "key", "key_bytes", *_STATE_NAMES)]
)


def _state(side: str) -> str:
    pairs = ", ".join(f"'{name}', {side}.{name}" for name in _STATE_NAMES)
    return f"IF({side}.key IS NULL, NULL, named_struct({pairs}))"
