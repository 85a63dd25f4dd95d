"""The audit of rollbacks: key by key what an apply took back, kept in the lake's table ``undone``.

It is the difference of two versions of the replica, the one before the apply and the apply's own,
written after it. A driver that dies between the two leaves no gap: the next one writes the audit of
the newest apply if it is missing, before it applies again; both versions are the newest then, so
they can be read. Transaction id: (lake, ``undone`` and table; version), so it is written once.
"""

from collections.abc import Collection
from datetime import datetime
from typing import Final

from dcp.lake.applied import AppliedVersion, ReplicaStatus
from dcp.lake.schema import AUDIT, DOCUMENT_STATE
from dcp.lake.sql import integer_list, quoted, string, string_list, u64
from dcp.lake.stop_points import reached
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
    app_id = f"{lake.identity.lake_id}:{AUDIT_TABLE}:{applied.table}"
    metadata = {"lake": lake.identity.lake_id, "audit": applied.table, "version": applied.version}
    statement = audit_sql(
        lake.table_sql(AUDIT_TABLE), lake.table_sql(applied.table), applied, commit.time, keys
    )
    with transaction(lake.spark, app_id, applied.version, metadata):
        lake.spark.sql(statement).collect()
        reached("audit.committed")


def audit_sql(
    audit_table_sql: str,
    table_sql: str,
    applied: AppliedVersion,
    time: datetime,
    keys: Collection[str] | None,
) -> str:
    """Return the INSERT of what ``applied`` took back, of these keys or of all.

    A row of before was undone if it lies above the fork; a key that is only there afterwards was
    deleted on the dead branch if its row lies at or below the fork.
    """
    undone = ", ".join(
        f"({each.vbucket}, CAST({each.version} AS BIGINT), {u64(each.fork_seqno)})"
        for each in applied.undone
    )
    vbuckets = integer_list(each.vbucket for each in applied.undone)
    micros = int(time.timestamp() * 1_000_000)
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
    named = "" if keys is None else f" AND key IN ({string_list(keys)})"
    before, after = (
        f"SELECT {names} FROM {table_sql} VERSION AS OF {version} "
        f"WHERE vbucket IN ({vbuckets}){named}"
        for version in (applied.version - 1, applied.version)
    )
    return f"""
INSERT INTO {audit_table_sql}
SELECT {columns}
FROM ({before}) b
FULL OUTER JOIN ({after}) a ON b.vbucket = a.vbucket AND b.key = a.key
JOIN (VALUES {undone}) AS u(vbucket, version, fork_seqno)
  ON u.vbucket = coalesce(b.vbucket, a.vbucket)
WHERE b.seqno > u.fork_seqno AND (a.key IS NULL OR a.seqno <> b.seqno OR a.cas <> b.cas)
   OR b.key IS NULL AND a.seqno <= u.fork_seqno"""


_STATE_NAMES: Final = [field.name for field in DOCUMENT_STATE]


def _state(side: str) -> str:
    pairs = ", ".join(f"'{name}', {side}.{name}" for name in _STATE_NAMES)
    return f"IF({side}.key IS NULL, NULL, named_struct({pairs}))"
