"""The SQL of an apply: from a plan to one MERGE statement. No Spark."""

from collections.abc import Iterable
from typing import Final

from dcp.lake.apply_plan import ApplyPlan, Keys
from dcp.lake.schema import ITEM_KINDS, REPLICA
from dcp.lake.sql import integer_list, quoted, string, string_list, u64
from dcp.lake.stretch import EMPTY_TABLE, Role, RowRange, Stretch

ITEM_KINDS_SQL: Final = string_list(ITEM_KINDS)

# The upper 48 bits of a CAS are nanoseconds since 1970 (kv_engine docs: hybrid logical clock).
MODIFIED_AT_SQL: Final = (
    "timestamp_micros((CAST(c.cas div 65536 AS DECIMAL(20,0)) * 65536) div 1000)"
)

_NAMES: Final = [quoted(name) for name in REPLICA.names]


def touched_sql(changes_sql: str, collection_id: int, stretch: Stretch) -> str:
    """Return the query for every key that an apply touches; narrow columns only.

    ``newest`` is its newest live row above the base, NULL where it has none.
    """
    if not stretch.undone:
        newest, touched = "max(struct(c.seqno, c.epoch, c.round))", ""
    else:
        newest = (
            f"max(struct(c.seqno, c.epoch, c.round)) FILTER (WHERE b.role <> {string(Role.UNDONE)})"
        )
        touched = f"\nHAVING count_if(b.role <> {string(Role.KEPT)}) > 0"
    return f"""
SELECT c.vbucket, c.key, {newest} AS newest
{rows_sql(changes_sql, collection_id, stretch, stretch.ranges)}
GROUP BY c.vbucket, c.key{touched}"""


def rows_sql(
    changes_sql: str, collection_id: int, stretch: Stretch, ranges: Iterable[RowRange]
) -> str:
    """Return the clauses that choose the document rows of some ranges (c, with the range b)."""
    chosen = list(ranges)
    values = ", ".join(
        f"({each.vbucket}, {each.epoch}, {u64(each.low)}, {u64(each.high)}, {string(each.role)})"
        for each in chosen
    )
    vbuckets = integer_list(sorted({each.vbucket for each in chosen}))
    if not chosen:
        values, vbuckets = f"(-1, -1, {u64(0)}, {u64(0)}, '')", "-1"
    return f"""FROM {changes_sql} c
JOIN (VALUES {values}) AS b(vbucket, epoch, low, high, role)
  ON c.vbucket = b.vbucket AND c.epoch = b.epoch AND c.seqno > b.low AND c.seqno <= b.high
WHERE c.round BETWEEN {stretch.first_round} AND {stretch.to_round}
  AND c.kind IN ({ITEM_KINDS_SQL})
  AND c.collection_id = {collection_id} AND c.vbucket IN ({vbuckets})"""


def source_sql(table_sql: str, changes_sql: str, plan: ApplyPlan) -> str:
    """Return the query for the rows to merge: each touched key once, with what becomes of it."""
    if plan.keys is not None and not plan.keys:
        columns = ", ".join(_log_columns())
        return f"SELECT {columns}, false AS deleted FROM {changes_sql} c WHERE false"
    if plan.keys is not None:
        parts = _few_keys(table_sql, changes_sql, plan, plan.keys)
    else:
        parts = _many_keys(table_sql, changes_sql, plan)
    return "\nUNION ALL".join(parts)


def merge_sql(table_sql: str, changes_sql: str, plan: ApplyPlan) -> str:
    """Return the MERGE. Only literals prune the target, so vbuckets, and few keys, are literals.

    The first one only inserts: Delta then reads its source once, and shuffles it not at all for a
    join with a table that has no rows.
    """
    pruning = f"t.vbucket IN ({integer_list(plan.vbuckets)})" if plan.vbuckets else "false"
    if plan.keys:
        pruning += f" AND t.key IN ({string_list(plan.keys.names)})"
    assignments = ", ".join(f"t.{name} = s.{name}" for name in _NAMES)
    matched = f"""
WHEN MATCHED AND s.deleted THEN DELETE
WHEN MATCHED THEN UPDATE SET {assignments}"""
    return f"""
MERGE INTO {table_sql} t USING ({source_sql(table_sql, changes_sql, plan)}) s
ON t.vbucket = s.vbucket AND t.key = s.key AND {pruning}{"" if plan.is_first else matched}
WHEN NOT MATCHED AND NOT s.deleted THEN INSERT ({", ".join(_NAMES)})
  VALUES ({", ".join(f"s.{name}" for name in _NAMES)})"""


def _few_keys(table_sql: str, changes_sql: str, plan: ApplyPlan, keys: Keys) -> list[str]:
    """Return the parts of the source with the keys as literals: none is looked for again."""
    parts = []
    if keys.winners:
        values = ", ".join(
            f"({each.round}, {each.vbucket}, {each.epoch}, {each.seqno}BD)" for each in keys.winners
        )
        parts.append(
            _winners_part(
                changes_sql,
                plan,
                f"(VALUES {values}) AS w(round, vbucket, epoch, seqno)",
                hint="/*+ BROADCAST(w) */ ",
                rounds=(
                    min(each.round for each in keys.winners),
                    max(each.round for each in keys.winners),
                ),
                vbuckets=(each.vbucket for each in keys.winners),
            )
        )
    if keys.lost:
        values = ", ".join(f"({each.vbucket}, {string(each.key)})" for each in keys.lost)
        names = f"AND key IN ({string_list(each.key for each in keys.lost)})"
        lost = f"(VALUES {values}) AS w(vbucket, key)"
        parts.append(_lost_part(table_sql, plan, lost, names, {e.vbucket for e in keys.lost}))
    return parts


def _many_keys(table_sql: str, changes_sql: str, plan: ApplyPlan) -> list[str]:
    """Return the parts of the source with the touched keys as a subquery."""
    stretch = plan.stretch
    touched = touched_sql(changes_sql, plan.collection_id, stretch)
    parts = [
        _winners_part(
            changes_sql,
            plan,
            f"(SELECT vbucket, key, newest.* FROM ({touched}) WHERE newest IS NOT NULL) w",
            rounds=(stretch.first_round, stretch.to_round),
            vbuckets=stretch.vbuckets,
        )
    ]
    if stretch.restored:
        lost = f"(SELECT vbucket, key FROM ({touched}) WHERE newest IS NULL) w"
        parts.append(_lost_part(table_sql, plan, lost, "", set(stretch.restored)))
    if stretch.replaced:
        parts.append(_gone_part(table_sql, plan, touched))
    return parts


def _winners_part(
    changes_sql: str,
    plan: ApplyPlan,
    winners: str,
    *,
    rounds: tuple[int, int],
    vbuckets: Iterable[int],
    hint: str = "",
) -> str:
    """Return the newest live rows, with their documents joined on."""
    return f"""
SELECT {hint}{", ".join(_log_columns())}, c.kind <> 'mutation' AS deleted
FROM {changes_sql} c JOIN {winners}
  ON c.round = w.round AND c.vbucket = w.vbucket AND c.epoch = w.epoch AND c.seqno = w.seqno
WHERE c.round BETWEEN {rounds[0]} AND {rounds[1]} AND c.kind IN ({ITEM_KINDS_SQL})
  AND c.collection_id = {plan.collection_id} AND c.vbucket IN ({_listed(vbuckets)})"""


def _lost_part(table_sql: str, plan: ApplyPlan, lost: str, named: str, vbuckets: set[int]) -> str:
    """Return the keys without a live row, each with its row in the base version, or deleted."""
    by_version: dict[int, list[int]] = {}
    for vbucket in vbuckets:
        version = plan.stretch.restored[vbucket]
        if version != EMPTY_TABLE:
            by_version.setdefault(version, []).append(vbucket)
    olds = [
        f"SELECT {', '.join(_NAMES)} FROM {table_sql} VERSION AS OF {version} "
        f"WHERE vbucket IN ({_listed(some)}) {named}"
        for version, some in sorted(by_version.items())
    ]
    old = " UNION ALL ".join(olds)
    if not olds:
        old = f"SELECT {', '.join(_NAMES)} FROM {table_sql} WHERE false"
    columns = ", ".join(
        f"w.{name}" if name in ("`vbucket`", "`key`") else f"o.{name}" for name in _NAMES
    )
    return f"""
SELECT {columns}, o.key IS NULL AS deleted
FROM {lost} LEFT JOIN ({old}) o ON w.vbucket = o.vbucket AND w.key = o.key"""


def _gone_part(table_sql: str, plan: ApplyPlan, touched: str) -> str:
    """Return the keys of replaced vbuckets that the new history does not know."""
    vbuckets = _listed(plan.stretch.replaced)
    columns = ", ".join(f"o.{name}" for name in _NAMES)
    return f"""
SELECT {columns}, true AS deleted
FROM (SELECT * FROM {table_sql} VERSION AS OF {plan.base_version} WHERE vbucket IN ({vbuckets})) o
LEFT ANTI JOIN ({touched}) w ON w.vbucket = o.vbucket AND w.key = o.key"""


def _log_columns() -> list[str]:
    return [
        f"{MODIFIED_AT_SQL} AS modified_at" if name == "modified_at" else f"c.{quoted(name)}"
        for name in REPLICA.names
    ]


def _listed(vbuckets: Iterable[int]) -> str:
    return integer_list(sorted(set(vbuckets)))
