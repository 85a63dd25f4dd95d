"""The SQL of an apply: from a plan to one MERGE statement. No Spark."""

from typing import Final

from dcp.lake.apply_plan import ApplyPlan, Stretch
from dcp.lake.schema import ITEM_KINDS, REPLICA
from dcp.lake.sql import integer_list, quoted, string_list, u64

ITEM_KINDS_SQL: Final = string_list(ITEM_KINDS)

# The upper 48 bits of a CAS are nanoseconds since 1970 (kv_engine docs: hybrid logical clock).
MODIFIED_AT_SQL: Final = (
    "timestamp_micros((CAST(c.cas div 65536 AS DECIMAL(20,0)) * 65536) div 1000)"
)


def winners_sql(changes_sql: str, collection_id: int, stretch: Stretch) -> str:
    """Return the query for the newest row to publish of each key; narrow columns only."""
    return f"""
SELECT c.vbucket, c.key, max(struct(c.seqno, c.epoch, c.round)) AS newest
{published_sql(changes_sql, collection_id, stretch)}
GROUP BY c.vbucket, c.key"""


def published_sql(changes_sql: str, collection_id: int, stretch: Stretch) -> str:
    """Return the clauses that choose every row to publish, older ones of a key too."""
    values = ", ".join(
        f"({each.vbucket}, {each.epoch}, {u64(each.low)}, {u64(each.high)})"
        for each in stretch.ranges
    )
    vbuckets = integer_list(sorted({each.vbucket for each in stretch.ranges}))
    return f"""FROM {changes_sql} c
JOIN (VALUES {values}) AS b(vbucket, epoch, low, high)
  ON c.vbucket = b.vbucket AND c.epoch = b.epoch AND c.seqno > b.low AND c.seqno <= b.high
WHERE c.round BETWEEN {stretch.first_round} AND {stretch.to_round}
  AND c.kind IN ({ITEM_KINDS_SQL})
  AND c.collection_id = {collection_id} AND c.vbucket IN ({vbuckets})"""


def source_sql(changes_sql: str, plan: ApplyPlan) -> str:
    """Return the query for the rows to publish: the winners, with their documents joined on.

    Few winners are literals, so that no statement looks for them a second time.
    """
    columns = ", ".join(
        f"{MODIFIED_AT_SQL} AS modified_at" if name == "modified_at" else f"c.{quoted(name)}"
        for name in REPLICA.names
    )
    if plan.winners == ():
        return f"SELECT {columns}, false AS deleted FROM {changes_sql} c WHERE false"
    if plan.winners is None:
        hint, first, last = "", plan.stretch.first_round, plan.to_round
        newest = winners_sql(changes_sql, plan.collection_id, plan.stretch)
        winners = f"(SELECT vbucket, key, newest.* FROM ({newest})) w"
    else:
        hint = "/*+ BROADCAST(w) */ "
        first = min(each.round for each in plan.winners)
        last = max(each.round for each in plan.winners)
        values = ", ".join(
            f"({each.round}, {each.vbucket}, {each.epoch}, {each.seqno}BD)" for each in plan.winners
        )
        winners = f"(VALUES {values}) AS w(round, vbucket, epoch, seqno)"
    return f"""
SELECT {hint}{columns}, c.kind <> 'mutation' AS deleted
FROM {changes_sql} c JOIN {winners}
  ON c.round = w.round AND c.vbucket = w.vbucket AND c.epoch = w.epoch AND c.seqno = w.seqno
WHERE c.round BETWEEN {first} AND {last} AND c.kind IN ({ITEM_KINDS_SQL})
  AND c.collection_id = {plan.collection_id} AND c.vbucket IN ({integer_list(plan.vbuckets)})"""


def merge_sql(table_sql: str, changes_sql: str, plan: ApplyPlan) -> str:
    """Return the MERGE. Only literals prune the target, so vbuckets, and few keys, are literals.

    The first one only inserts: Delta then reads its source once, and shuffles it not at all for a
    join with a table that has no rows.
    """
    pruning = f"t.vbucket IN ({integer_list(plan.vbuckets)})"
    if plan.winners == ():
        pruning = "false"
    elif plan.winners is not None:
        pruning += f" AND t.key IN ({string_list(each.key for each in plan.winners)})"
    names = [quoted(name) for name in REPLICA.names]
    assignments = ", ".join(f"t.{name} = s.{name}" for name in names)
    matched = f"""
WHEN MATCHED AND s.deleted THEN DELETE
WHEN MATCHED THEN UPDATE SET {assignments}"""
    return f"""
MERGE INTO {table_sql} t USING ({source_sql(changes_sql, plan)}) s
ON t.vbucket = s.vbucket AND t.key = s.key AND {pruning}{"" if plan.is_first else matched}
WHEN NOT MATCHED AND NOT s.deleted THEN INSERT ({", ".join(names)})
  VALUES ({", ".join(f"s.{name}" for name in names)})"""
