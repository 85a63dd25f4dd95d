"""The audit of rollbacks: key by key what an apply took back, kept in the lake's table ``undone``.

It is the difference of two versions of the replica, the one before the apply and the apply's own,
written after it. A driver that dies between the two leaves no gap: the next one writes the audit of
the newest apply if it is missing, before it applies again; both versions are the newest then, so
they can be read. It is written once: its transaction id is (lake, ``undone`` and the table's own
id; version).
"""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from dcp.lake.applied import AppliedVersion, ReplicaStatus
from dcp.lake.schema import AUDIT, DOCUMENT_STATE
from dcp.lake.sql import integer_list, quoted, string, string_list, u64
from dcp.lake.stop_points import reached
from dcp.lake.stretch import REPLACED
from dcp.lake.tables import AUDIT_TABLE, LakeTables, ensure_audit
from dcp.lake.transaction import transaction


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
    ensure_audit(lake)
    # A table that was dropped and made again counts its versions anew, and is another one.
    detail = lake.spark.sql(f"DESCRIBE DETAIL {lake.table_sql(applied.table)}").collect()[0]
    app_id = f"{lake.identity.lake_id}:{AUDIT_TABLE}:{detail['id']}"
    metadata = {"lake": lake.identity.lake_id, "audit": applied.table, "version": applied.version}
    audited = Audited(applied, commit.time, int(commit.ours.get("first", 1)), keys)
    statement = audit_sql(
        lake.table_sql(AUDIT_TABLE), lake.table_sql(applied.table), lake.changes_sql, audited
    )
    with transaction(lake.spark, app_id, applied.version, metadata):
        lake.spark.sql(statement).collect()
        reached("audit.committed")


@dataclass(frozen=True, slots=True)
class Audited:
    """An apply and when it was made; the first round that it read; its keys, where they are few."""

    applied: AppliedVersion
    time: datetime
    first_round: int
    keys: Collection[str] | None = None


def audit_sql(audit_table_sql: str, table_sql: str, changes_sql: str, audited: Audited) -> str:
    """Return the INSERT of what an apply took back.

    A row of before was undone if it lies above the fork. A key that is only there afterwards was
    deleted on the dead branch if its row lies at or below the fork, or if the log has a deletion of
    it above the fork that was published.

    Where a vbucket was replaced as a whole nobody knows the fork. There a row was undone if its key
    has none any more, or an older one; and a key that is only there afterwards was deleted on the
    dead branch if its row lies at or below what had been read.
    """
    applied = audited.applied
    undone = ", ".join(
        f"({each.vbucket}, CAST({each.version} AS BIGINT), {u64(each.fork_seqno)})"
        for each in applied.undone
    )
    vbuckets = integer_list(each.vbucket for each in applied.undone)
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
    names = ", ".join(quoted(name) for name in ("vbucket", "key", "key_bytes", *_STATE_NAMES))
    chosen = f"vbucket IN ({vbuckets})"
    if audited.keys is not None:
        chosen += f" AND key IN ({string_list(audited.keys)})"
    before, after = (
        f"SELECT {names} FROM {table_sql} VERSION AS OF {version} WHERE {chosen}"
        for version in (applied.version - 1, applied.version)
    )
    # The undone deletions: published, on the branch that the table was on, and above the fork.
    deletions = (
        f"SELECT vbucket, epoch, key, seqno FROM {changes_sql} "
        f"WHERE round BETWEEN {audited.first_round} AND {applied.from_round} "
        f"AND kind IN ('deletion', 'expiration') AND {chosen}"
    )
    positions = (
        f"SELECT vbucket, epoch, position.complete_seqno AS high FROM {changes_sql} "
        f"WHERE round = {applied.from_round} AND kind = 'position'"
    )
    return f"""
INSERT INTO {audit_table_sql}
SELECT {columns}
FROM ({before}) b
FULL OUTER JOIN ({after}) a ON b.vbucket = a.vbucket AND b.key = a.key
JOIN (VALUES {undone}) AS u(vbucket, version, fork_seqno)
  ON u.vbucket = coalesce(b.vbucket, a.vbucket)
LEFT JOIN (SELECT DISTINCT c.vbucket, c.key
           FROM ({deletions}) c JOIN ({positions}) p
             ON p.vbucket = c.vbucket AND p.epoch = c.epoch AND c.seqno <= p.high
           JOIN (VALUES {undone}) AS v(vbucket, version, fork_seqno)
             ON v.vbucket = c.vbucket AND v.fork_seqno > 0 AND c.seqno > v.fork_seqno) d
  ON d.vbucket = a.vbucket AND d.key = a.key
LEFT JOIN ({positions}) h ON h.vbucket = a.vbucket
WHERE CASE WHEN u.version = {REPLACED}
  THEN a.key IS NULL OR a.seqno < b.seqno OR a.seqno = b.seqno AND a.cas <> b.cas
    OR b.key IS NULL AND a.seqno <= h.high
  ELSE b.seqno > u.fork_seqno AND (a.key IS NULL OR a.seqno <> b.seqno OR a.cas <> b.cas)
    OR b.key IS NULL AND (a.seqno <= u.fork_seqno OR d.key IS NOT NULL) END"""


_STATE_NAMES: Final = [field.name for field in DOCUMENT_STATE]


def _state(side: str) -> str:
    pairs = ", ".join(f"'{name}', {side}.{name}" for name in _STATE_NAMES)
    return f"IF({side}.key IS NULL, NULL, named_struct({pairs}))"
