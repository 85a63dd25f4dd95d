"""The SQL of an apply: from a plan to one MERGE statement. No Spark."""

from collections.abc import Sequence
from typing import Final

from dcp.lake.apply_plan import ApplyPlan, PublishedRange
from dcp.lake.schema import ITEM_KINDS, REPLICA
from dcp.lake.sql import integer_list, quoted, string_list, u64

ITEM_KINDS_SQL: Final = string_list(ITEM_KINDS)

# The upper 48 bits of a CAS are nanoseconds since 1970 (kv_engine docs: hybrid logical clock).
MODIFIED_AT_SQL: Final = (
    "timestamp_micros((CAST(c.cas div 65536 AS DECIMAL(20,0)) * 65536) div 1000)"
)

BROADCAST_KEYS: Final = 10_000
"""Winners up to this number go to every task as they are."""


def winners_sql(
    changes_sql: str,
    collection_id: int,
    ranges: Sequence[PublishedRange],
    first_round: int,
    to_round: int,
) -> str:
    """Return the query for the newest row to publish of each key; narrow columns only."""
    published = published_sql(changes_sql, collection_id, ranges, first_round, to_round)
    return f"""
SELECT c.vbucket, c.key, max(struct(c.seqno, c.epoch, c.round)) AS newest, count(*) AS rows
{published}
GROUP BY c.vbucket, c.key"""


def published_sql(
    changes_sql: str,
    collection_id: int,
    ranges: Sequence[PublishedRange],
    first_round: int,
    to_round: int,
) -> str:
    """Return the clauses that choose every row to publish, older ones of a key too."""
    values = ", ".join(
        f"({each.vbucket}, {each.epoch}, {u64(each.low)}, {u64(each.high)})" for each in ranges
    )
    vbuckets = integer_list(sorted({each.vbucket for each in ranges}))
    return f"""FROM {changes_sql} c
JOIN (VALUES {values}) AS b(vbucket, epoch, low, high)
  ON c.vbucket = b.vbucket AND c.epoch = b.epoch AND c.seqno > b.low AND c.seqno <= b.high
WHERE c.round BETWEEN {first_round} AND {to_round} AND c.kind IN ({ITEM_KINDS_SQL})
  AND c.collection_id = {collection_id} AND c.vbucket IN ({vbuckets})"""


def source_sql(changes_sql: str, plan: ApplyPlan) -> str:
    """Return the query for the rows to publish: the winners, with their documents joined on.

    Where no key changed there are none; where no key has two rows, all rows are winners, and no
    document is shuffled to be picked.
    """
    rows = (changes_sql, plan.collection_id, plan.ranges, plan.first_round, plan.to_round)
    hint = "/*+ BROADCAST(w) */ " if plan.keys is not None else ""
    columns = ", ".join(
        f"{MODIFIED_AT_SQL} AS modified_at" if name == "modified_at" else f"c.{quoted(name)}"
        for name in REPLICA.names
    )
    if plan.keys == ():
        return f"SELECT {columns}, false AS deleted FROM {changes_sql} c WHERE false"
    if plan.each_key_once:
        return f"""
SELECT {columns}, c.kind <> 'mutation' AS deleted
{published_sql(*rows)}"""
    return f"""
SELECT {hint}{columns}, c.kind <> 'mutation' AS deleted
FROM {changes_sql} c JOIN ({winners_sql(*rows)}) w
  ON c.round = w.newest.round AND c.vbucket = w.vbucket AND c.epoch = w.newest.epoch
 AND c.seqno = w.newest.seqno AND c.key = w.key
WHERE c.round BETWEEN {plan.first_round} AND {plan.to_round} AND c.kind IN ({ITEM_KINDS_SQL})
  AND c.collection_id = {plan.collection_id} AND c.vbucket IN ({integer_list(plan.vbuckets)})"""


def merge_sql(table_sql: str, changes_sql: str, plan: ApplyPlan) -> str:
    """Return the MERGE. Only literals prune the target, so vbuckets, and few keys, are literals."""
    pruning = f"t.vbucket IN ({integer_list(plan.vbuckets)})"
    if plan.keys == ():
        pruning = "false"
    elif plan.keys is not None:
        pruning += f" AND t.key IN ({string_list(plan.keys)})"
    names = [quoted(name) for name in REPLICA.names]
    assignments = ", ".join(f"t.{name} = s.{name}" for name in names)
    return f"""
MERGE INTO {table_sql} t USING ({source_sql(changes_sql, plan)}) s
ON t.vbucket = s.vbucket AND t.key = s.key AND {pruning}
WHEN MATCHED AND s.deleted THEN DELETE
WHEN MATCHED THEN UPDATE SET {assignments}
WHEN NOT MATCHED AND NOT s.deleted THEN INSERT ({", ".join(names)})
  VALUES ({", ".join(f"s.{name}" for name in names)})"""
