"""Builds the SQL statement of an apply from the values of a merge. No Spark."""

from collections.abc import Iterable
from typing import Final

from dcp.lake.store.log_slice import EMPTY_TABLE, LogSlice, Role, RowRange
from dcp.lake.store.merge import LogRows, Merge
from dcp.lake.store.sql import at_version, i64, one_of, quoted, string, string_list, u64
from dcp.lake.store.table import Statement
from dcp.lake.tables.schema import ITEM_KINDS, REPLICA, RowKind, is_kind

# The upper 48 bits of a CAS are nanoseconds since 1970 (kv_engine docs: hybrid logical clock). If h
# is their number, the time is h * 65,536 ns, or h * 8192 / 125 microseconds, rounded down. Each
# part of this formula is far below 2^63, and BIGINT arithmetic costs a tenth of DECIMAL's.
_HIGH_CAS: Final = "coalesce(shiftright(try_cast(c.cas AS BIGINT), 16), c.cas div 65536)"
MODIFIED_AT_SQL: Final = (
    f"timestamp_micros({_HIGH_CAS} div 125 * 8192 + {_HIGH_CAS} % 125 * 8192 div 125)"
)

_NAMES: Final = [quoted(name) for name in REPLICA.names]
LOG_COLUMNS: Final = [
    f"{MODIFIED_AT_SQL} AS modified_at" if name == "modified_at" else f"c.{quoted(name)}"
    for name in REPLICA.names
]
"""The columns of a replica, computed from a row (``c``) of the log."""
REFERENCE_SQL: Final = "c.seqno, c.epoch, c.round"
"""A row's reference in the change log."""
_DELETED_SQL: Final = f"c.kind <> '{RowKind.MUTATION}' AS deleted"
_KEY: Final = (quoted("vbucket"), quoted("key"))


def micros_of(cas: int) -> int:
    """Return the microseconds since 1970 that `MODIFIED_AT_SQL` computes."""
    return (cas >> 16 << 16) // 1000


def rows_sql(
    changes_sql: str, collection_id: int, log_slice: LogSlice, ranges: Iterable[RowRange]
) -> str:
    """Return the clauses that select the document rows (c) of some ranges (b)."""
    chosen = list(ranges)
    # Comparing BIGINT is much faster than DECIMAL. A seqno beyond BIGINT becomes NULL, which no
    # range contains.
    fits = all(each.high < 2**63 for each in chosen)
    seqno, number = ("try_cast(c.seqno AS BIGINT)", i64) if fits else ("c.seqno", u64)
    values = ", ".join(
        f"({each.vbucket}, {each.epoch}, {number(each.low)}, {number(each.high)}, "
        f"{string(each.role)})"
        for each in chosen
    )
    is_changed = one_of("c.vbucket", (each.vbucket for each in chosen))
    if not chosen:
        # VALUES needs a row; no vbucket has this number.
        values = f"(-1, -1, {number(0)}, {number(0)}, '')"
    return f"""FROM {changes_sql} c
JOIN (VALUES {values}) AS b(vbucket, epoch, low, high, role)
  ON c.vbucket = b.vbucket AND c.epoch = b.epoch AND {seqno} > b.low AND {seqno} <= b.high
WHERE {_in_rounds(log_slice)}
  AND c.{is_kind(*ITEM_KINDS)}
  AND c.collection_id = {collection_id} AND {is_changed}"""


def _in_rounds(log_slice: LogSlice) -> str:
    return f"c.round BETWEEN {log_slice.first_round} AND {log_slice.to_round}"


def touched_sql(rows: str) -> str:
    """Return the relation of the keys in ``rows``, one row for each. Spark and DataFusion run it.

    ``rows`` is SQL for rows of ``vbucket``, ``key``, ``seqno``, ``epoch``, ``round`` and ``role``
    (`Role`). A row of the table has NULL in place of seqno, epoch and round. The result has:

    * ``seqno``, ``epoch``, ``round``: the reference of the key's newest live row in the log.
      NULL without one.
    * ``is_touched``: the apply touches the key. It does unless all rows are published and live.
    * ``is_undone``: the apply undoes a published row of the key, or a flush or drop that ended one.
    * ``row_count``
    """
    # The live row with the highest seqno also has the highest epoch and round: an epoch begins
    # above all live rows of older ones, and a position never goes back within an epoch.
    newest = ", ".join(
        f"max({name}) FILTER (WHERE role <> {string(Role.UNDONE)}) AS {name}"
        for name in ("seqno", "epoch", "round")
    )
    of_undone = string_list((Role.UNDONE, Role.REVIVED))
    return f"""
SELECT vbucket, key, {newest},
  count(*) FILTER (WHERE role <> {string(Role.KEPT)}) > 0 AS is_touched,
  count(*) FILTER (WHERE role IN ({of_undone})) > 0 AS is_undone, count(*) AS row_count
FROM ({rows}) GROUP BY vbucket, key"""


def newest_references_sql(touched: str) -> str:
    """Return the relation (vbucket, key, seqno, epoch, round) of the touched keys' newest rows."""
    return f"""
SELECT vbucket, key, seqno, epoch, round FROM ({touched}) WHERE is_touched AND seqno IS NOT NULL"""


def newest_rows_sql(
    changes_sql: str, collection_id: int, newest: str, columns: Iterable[str], condition: str
) -> str:
    """Return the query for the newest rows of keys, with their documents.

    ``newest`` is SQL for a relation ``w`` with round, vbucket, epoch and seqno. By ``condition``, a
    reader of the log (``c``) can skip files.
    """
    return f"""
SELECT {", ".join(columns)}, {_DELETED_SQL}
FROM {changes_sql} c JOIN {newest}
  ON c.round = w.round AND c.vbucket = w.vbucket AND c.epoch = w.epoch AND c.seqno = w.seqno
WHERE c.{is_kind(*ITEM_KINDS)} AND c.collection_id = {collection_id} AND {condition}"""


def log_part(collection_id: int, log_slice: LogSlice) -> Statement:
    """Return the query for the rows that `touched_sql` takes from the log."""
    return lambda name, _: (
        f"SELECT c.vbucket, c.key, {REFERENCE_SQL}, b.role "
        f"{rows_sql(name, collection_id, log_slice, log_slice.ranges)}"
    )


def table_parts(current_version: int, log_slice: LogSlice) -> dict[int, Statement]:
    """Return the queries for the rows that `touched_sql` takes from the table, by its version.

    In a vbucket that is cleared or replaced, the apply touches each key of the current version. The
    log gives some of them a new row. The others are lost, so `lost_rows_sql` deletes them. In a
    revived vbucket, it touches each key of the restored version, and `lost_rows_sql` returns them.
    """
    parts = {}
    if gone := emptied(log_slice):
        parts[current_version] = _table_part(Role.IN_TABLE, gone)
    for version, vbuckets in _by_version(log_slice, log_slice.revived).items():
        parts[version] = _table_part(Role.REVIVED, vbuckets)
    return parts


def emptied(log_slice: LogSlice) -> tuple[int, ...]:
    """Return the vbuckets that lose all their old rows."""
    return tuple(sorted({*log_slice.cleared, *log_slice.replaced}))


def _table_part(role: Role, vbuckets: Iterable[int]) -> Statement:
    return lambda name, _: (
        f"SELECT vbucket, key, NULL AS seqno, NULL AS epoch, NULL AS round, {string(role)} AS role "
        f"FROM {name} WHERE {one_of('vbucket', vbuckets)}"
    )


def slice_touched_sql(
    table_sql: str, current_version: int, changes_sql: str, collection_id: int, log_slice: LogSlice
) -> str:
    """Return `touched_sql` of the rows that a slice takes from log and table."""
    parts = [log_part(collection_id, log_slice)(changes_sql, string)]
    for version, part in table_parts(current_version, log_slice).items():
        parts.append(part(at_version(table_sql, version), string))
    return touched_sql("\nUNION ALL ".join(parts))


def merge_sql(table_sql: str, merge_source: str, merge: Merge) -> str:
    # Delta skips files of the target only by literals: its vbuckets, and its keys if that pays.
    pruning = one_of("t.vbucket", merge.vbuckets)
    if merge.keys:
        pruning += f" AND t.key IN ({string_list(merge.keys)})"
    given = REPLICA.names if isinstance(merge.rows, LogRows) else merge.rows.column_names
    made = merge.made.schema.names if merge.made else ()
    names = [quoted(name) for name in (*given, *made) if name != "deleted"]
    assignments = ", ".join(f"t.{name} = s.{name}" for name in names)
    matched = f"""
WHEN MATCHED AND s.deleted THEN DELETE
WHEN MATCHED THEN UPDATE SET {assignments}"""
    # A MERGE that only inserts reads its source once, without a shuffle for a join with the table.
    return f"""
MERGE{" WITH SCHEMA EVOLUTION" if merge.extends else ""} INTO {table_sql} t USING {merge_source} s
ON t.vbucket = s.vbucket AND t.key = s.key AND {pruning}{"" if merge.only_inserts else matched}
WHEN NOT MATCHED AND NOT s.deleted THEN INSERT ({", ".join(names)})
  VALUES ({", ".join(f"s.{name}" for name in names)})"""


def rewritten_sql(current_sql: str, merge_source: str) -> str:
    kept, written = (", ".join(f"{side}.{name}" for name in _NAMES) for side in "ts")
    return f"""(
SELECT {kept} FROM {current_sql} t
LEFT ANTI JOIN {merge_source} s ON t.vbucket = s.vbucket AND t.key = s.key
UNION ALL SELECT {written} FROM {merge_source} s WHERE NOT s.deleted)"""


def merge_source_sql(table_sql: str, rows: LogRows) -> str:
    """Return the query for the rows to merge: each touched key once, with its row or deletion."""
    changes_sql, ranges = at_version(rows.changes_sql, rows.log_version), rows.log_slice.ranges
    single = [each for each in ranges if each.vbucket in rows.without_repeats]
    parts = [_single_rows(changes_sql, rows, single)] if single else []
    if rows.touched_sql:
        parts += _touched_parts(table_sql, changes_sql, rows)
    return "(" + "\nUNION ALL".join(parts) + ")"


def _touched_parts(table_sql: str, changes_sql: str, rows: LogRows) -> list[str]:
    log_slice = rows.rest
    won = f"({newest_references_sql(rows.touched_sql)}) w"
    chosen = f"{_in_rounds(log_slice)} AND {one_of('c.vbucket', log_slice.vbuckets)}"
    parts = [newest_rows_sql(changes_sql, rows.collection_id, won, LOG_COLUMNS, chosen)]
    if log_slice.restored_versions or emptied(log_slice):
        touched = f"SELECT vbucket, key FROM ({rows.touched_sql})"
        lost = f"({touched} WHERE is_touched AND seqno IS NULL) w"
        parts.append(lost_rows_sql(lost, _old_rows(table_sql, log_slice)))
    return parts


def _single_rows(changes_sql: str, rows: LogRows, ranges: Iterable[RowRange]) -> str:
    chosen = rows_sql(changes_sql, rows.collection_id, rows.log_slice, ranges)
    return f"SELECT {', '.join(LOG_COLUMNS)}, {_DELETED_SQL} {chosen}"


def lost_rows_sql(lost: str, old: str) -> str:
    """Return the query for the rows of lost keys, which have no live row in the log.

    A lost key gets its row of the restored version. If that version has none, the key is deleted.
    ``lost`` is SQL for a relation ``w`` of vbuckets and keys, ``old`` for rows of old versions.
    Spark and DataFusion run it.
    """
    columns = ", ".join(f"w.{name}" if name in _KEY else f"o.{name}" for name in _NAMES)
    return f"""
SELECT {columns}, o.key IS NULL AS deleted
FROM {lost} LEFT JOIN ({old}) o ON w.vbucket = o.vbucket AND w.key = o.key"""


def _old_rows(table_sql: str, log_slice: LogSlice) -> str:
    olds = [
        f"SELECT {', '.join(_NAMES)} FROM {at_version(table_sql, version)} "
        f"WHERE {one_of('vbucket', some)}"
        for version, some in _by_version(log_slice, log_slice.restored_versions).items()
    ]
    if not olds:
        return f"SELECT {', '.join(_NAMES)} FROM {table_sql} WHERE false"
    return " UNION ALL ".join(olds)


def _by_version(log_slice: LogSlice, vbuckets: Iterable[int]) -> dict[int, list[int]]:
    """Return vbuckets by the version that has their lost rows, without the empty table."""
    found: dict[int, list[int]] = {}
    for vbucket in vbuckets:
        found.setdefault(log_slice.restored_versions[vbucket], []).append(vbucket)
    found.pop(EMPTY_TABLE, None)
    return dict(sorted(found.items()))
