"""Builds the SQL of an apply: from a plan to one MERGE statement. No Spark."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from dcp.lake.apply.apply_plan import ApplyPlan
from dcp.lake.apply.typed_plan import ColumnChange
from dcp.lake.log.log_slice import LogSlice, Role, RowRange
from dcp.lake.log.slice_sql import rows_sql, won_rows_sql
from dcp.lake.tables.applied_version import EMPTY_TABLE
from dcp.lake.tables.schema import REPLICA, TYPED, RowKind
from dcp.lake.tables.sql import integer_list, quoted, string, string_list

# The upper 48 bits of a CAS are nanoseconds since 1970 (kv_engine docs: hybrid logical clock). So
# h times 65,536 nanoseconds are h * 8192 / 125 microseconds, rounded down; each part of this is
# well below 2^63, and arithmetic of BIGINT costs a tenth of that of DECIMAL.
_HIGH_CAS: Final = "coalesce(shiftright(try_cast(c.cas AS BIGINT), 16), c.cas div 65536)"
MODIFIED_AT_SQL: Final = (
    f"timestamp_micros({_HIGH_CAS} div 125 * 8192 + {_HIGH_CAS} % 125 * 8192 div 125)"
)

_NAMES: Final = [quoted(name) for name in REPLICA.names]
_LOG_COLUMNS: Final = [
    f"{MODIFIED_AT_SQL} AS modified_at" if name == "modified_at" else f"c.{quoted(name)}"
    for name in REPLICA.names
]
_PLACE: Final = (quoted("vbucket"), quoted("key"))


def touched_sql(changes_sql: str, collection_id: int, log_slice: LogSlice) -> str:
    """Return the query for every key that an apply touches; narrow columns only.

    ``newest`` is its newest live row above the base, NULL without one.
    """
    if not log_slice.undone:
        newest, touched = "max(struct(c.seqno, c.epoch, c.round))", ""
    else:
        newest = (
            f"max(struct(c.seqno, c.epoch, c.round)) FILTER (WHERE b.role <> {string(Role.UNDONE)})"
        )
        touched = f"\nHAVING count_if(b.role <> {string(Role.KEPT)}) > 0"
    return f"""
SELECT c.vbucket, c.key, {newest} AS newest
{rows_sql(changes_sql, collection_id, log_slice, log_slice.ranges)}
GROUP BY c.vbucket, c.key{touched}"""


def merge_sql(table_sql: str, source: str, plan: ApplyPlan) -> str:
    """Return the MERGE of a source that has the typed columns as well.

    Only literals prune the target: its vbuckets, and its keys if that pays. The first MERGE only
    inserts. Delta then reads its source once, and does not shuffle it for a join with an empty
    table.
    """
    pruning = f"t.vbucket IN ({integer_list(plan.vbuckets)})" if plan.vbuckets else "false"
    if plan.keys and plan.names_keys:
        pruning += f" AND t.key IN ({string_list(plan.keys.names)})"
    names, evolution = _NAMES, ""
    if plan.typed.columns is not None:
        names = [*_NAMES, *TYPED.names]
        evolution = " WITH SCHEMA EVOLUTION" if plan.typed.change is ColumnChange.EXTEND else ""
    assignments = ", ".join(f"t.{name} = s.{name}" for name in names)
    matched = f"""
WHEN MATCHED AND s.deleted THEN DELETE
WHEN MATCHED THEN UPDATE SET {assignments}"""
    return f"""
MERGE{evolution} INTO {table_sql} t USING {source} s
ON t.vbucket = s.vbucket AND t.key = s.key AND {pruning}{"" if plan.is_first else matched}
WHEN NOT MATCHED AND NOT s.deleted THEN INSERT ({", ".join(names)})
  VALUES ({", ".join(f"s.{name}" for name in names)})"""


def written_sql(source: str, plan: ApplyPlan, table_sql: str) -> str:
    """Return the query for the rows that an apply inserts and updates.

    If the table is written anew, these are all its rows.
    """
    names = ", ".join(f"s.{name}" for name in _NAMES)
    rows = f"SELECT {names} FROM {source} s WHERE NOT s.deleted"
    if not plan.typed.rewrites:
        return f"({rows})"
    kept = ", ".join(f"t.{name}" for name in _NAMES)
    return f"""(
SELECT {kept} FROM {table_sql} VERSION AS OF {plan.held.version} t
LEFT ANTI JOIN {source} s ON t.vbucket = s.vbucket AND t.key = s.key
UNION ALL {rows})"""


def source_sql(table_sql: str, changes_sql: str, plan: ApplyPlan) -> str:
    """Return the query for the rows to merge: each touched key once, with its fate.

    ``changes_sql`` names the change log, which is read at the plan's version.
    """
    changes_sql = f"{changes_sql} VERSION AS OF {plan.log_version}"
    single = [each for each in plan.log_slice.ranges if each.vbucket in plan.without_repeats]
    parts = [_single_rows(changes_sql, plan, single)] if single else []
    rest = tuple(each for each in plan.log_slice.ranges if each.vbucket not in plan.without_repeats)
    if rest or not single:
        parts += _newest_parts(table_sql, changes_sql, plan, replace(plan.log_slice, ranges=rest))
    return "(" + "\nUNION ALL".join(parts) + ")"


def _newest_parts(
    table_sql: str, changes_sql: str, plan: ApplyPlan, log_slice: LogSlice
) -> list[str]:
    touched = touched_sql(changes_sql, plan.collection_id, log_slice)
    parts = [
        won_rows_sql(
            changes_sql,
            plan.collection_id,
            f"(SELECT vbucket, key, newest.* FROM ({touched}) WHERE newest IS NOT NULL) w",
            _LOG_COLUMNS,
            rounds=(log_slice.first_round, log_slice.to_round),
            vbuckets=log_slice.vbuckets,
        )
    ]
    if log_slice.restored:
        lost = f"(SELECT vbucket, key FROM ({touched}) WHERE newest IS NULL) w"
        parts.append(_lost_part(table_sql, plan, lost))
    if log_slice.revived:
        parts.append(_revived_part(table_sql, plan, touched))
    if log_slice.emptied:
        parts.append(_gone_part(table_sql, plan, touched))
    return parts


def _single_rows(changes_sql: str, plan: ApplyPlan, ranges: Iterable[RowRange]) -> str:
    rows = rows_sql(changes_sql, plan.collection_id, plan.log_slice, ranges)
    return f"SELECT {', '.join(_LOG_COLUMNS)}, c.kind <> '{RowKind.MUTATION}' AS deleted {rows}"


def _lost_part(table_sql: str, plan: ApplyPlan, lost: str) -> str:
    """Return the keys without a live row, each with its row in the base version, or deleted."""
    old = _old_rows(table_sql, plan, plan.log_slice.restored)
    columns = ", ".join(f"w.{name}" if name in _PLACE else f"o.{name}" for name in _NAMES)
    return f"""
SELECT {columns}, o.key IS NULL AS deleted
FROM {lost} LEFT JOIN ({old}) o ON w.vbucket = o.vbucket AND w.key = o.key"""


def _revived_part(table_sql: str, plan: ApplyPlan, touched: str) -> str:
    """Return the base version's rows that a flush or drop took, and the log does not touch."""
    columns = ", ".join(f"o.{name}" for name in _NAMES)
    return f"""
SELECT {columns}, false AS deleted
FROM ({_old_rows(table_sql, plan, plan.log_slice.revived)}) o
LEFT ANTI JOIN ({touched}) w ON w.vbucket = o.vbucket AND w.key = o.key"""


def _old_rows(table_sql: str, plan: ApplyPlan, vbuckets: Iterable[int]) -> str:
    by_version: dict[int, list[int]] = {}
    for vbucket in vbuckets:
        version = plan.log_slice.restored[vbucket]
        if version != EMPTY_TABLE:
            by_version.setdefault(version, []).append(vbucket)
    olds = [
        f"SELECT {', '.join(_NAMES)} FROM {table_sql} VERSION AS OF {version} "
        f"WHERE vbucket IN ({_listed(some)})"
        for version, some in sorted(by_version.items())
    ]
    if not olds:
        return f"SELECT {', '.join(_NAMES)} FROM {table_sql} WHERE false"
    return " UNION ALL ".join(olds)


def _gone_part(table_sql: str, plan: ApplyPlan, touched: str) -> str:
    """Return the keys of emptied vbuckets that get no row."""
    vbuckets = _listed(plan.log_slice.emptied)
    # They only leave: of a whole table that is flushed no document is read.
    columns = ", ".join(f"o.{name}" if name in _PLACE else f"NULL AS {name}" for name in _NAMES)
    held = f"{table_sql} VERSION AS OF {plan.held.version}"
    return f"""
SELECT {columns}, true AS deleted
FROM (SELECT DISTINCT vbucket, key FROM {held} WHERE vbucket IN ({vbuckets})) o
LEFT ANTI JOIN ({touched}) w ON w.vbucket = o.vbucket AND w.key = o.key"""


def _listed(vbuckets: Iterable[int]) -> str:
    return integer_list(sorted(set(vbuckets)))
