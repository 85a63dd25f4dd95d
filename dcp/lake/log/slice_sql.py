"""Builds the SQL that chooses rows of a slice of the change log, for Spark and for DataFusion."""

from collections.abc import Collection, Iterable
from typing import Final

from dcp.lake.log.log_slice import LogSlice, RowRange
from dcp.lake.log.slice_keys import Winner
from dcp.lake.tables.schema import ITEM_KINDS, REPLICA, RowKind, is_kind
from dcp.lake.tables.sql import i64, integer_list, quoted, string, u64

DELETION_COLUMNS: Final = ("vbucket", "epoch", "key", "seqno")


def rows_sql(
    changes_sql: str, collection_id: int, log_slice: LogSlice, ranges: Iterable[RowRange]
) -> str:
    """Return the clauses that choose the document rows of some ranges (c, with the range b)."""
    chosen = list(ranges)
    # BIGINT is compared in a fraction of the time of DECIMAL. A seqno beyond it is above them all.
    fits = all(each.high < 2**63 for each in chosen)
    seqno, number = ("try_cast(c.seqno AS BIGINT)", i64) if fits else ("c.seqno", u64)
    values = ", ".join(
        f"({each.vbucket}, {each.epoch}, {number(each.low)}, {number(each.high)}, "
        f"{string(each.role)})"
        for each in chosen
    )
    vbuckets = integer_list(sorted({each.vbucket for each in chosen}))
    if not chosen:
        values, vbuckets = f"(-1, -1, {number(0)}, {number(0)}, '')", "-1"
    return f"""FROM {changes_sql} c
JOIN (VALUES {values}) AS b(vbucket, epoch, low, high, role)
  ON c.vbucket = b.vbucket AND c.epoch = b.epoch AND {seqno} > b.low AND {seqno} <= b.high
WHERE c.round BETWEEN {log_slice.first_round} AND {log_slice.to_round}
  AND c.{is_kind(*ITEM_KINDS)}
  AND c.collection_id = {collection_id} AND c.vbucket IN ({vbuckets})"""


def winners_sql(changes_sql: str, collection_id: int, winners: Collection[Winner]) -> str:
    values = ", ".join(
        f"({each.round}, {each.vbucket}, {each.epoch}, {u64(each.seqno)})" for each in winners
    )
    return won_rows_sql(
        changes_sql,
        collection_id,
        f"(VALUES {values}) AS w(round, vbucket, epoch, seqno)",
        [f"c.{quoted(name)}" for name in REPLICA.names if name != "modified_at"],
        rounds=(min(each.round for each in winners), max(each.round for each in winners)),
        vbuckets=(each.vbucket for each in winners),
    )


def won_rows_sql(
    changes_sql: str,
    collection_id: int,
    winners: str,
    columns: Iterable[str],
    *,
    rounds: tuple[int, int],
    vbuckets: Iterable[int],
) -> str:
    """Return the query for the rows of ``winners``, joined with their documents.

    ``winners`` is SQL for a relation ``w`` of round, vbucket, epoch and seqno.
    """
    return f"""
SELECT {", ".join(columns)}, c.kind <> '{RowKind.MUTATION}' AS deleted
FROM {changes_sql} c JOIN {winners}
  ON c.round = w.round AND c.vbucket = w.vbucket AND c.epoch = w.epoch AND c.seqno = w.seqno
WHERE c.round BETWEEN {rounds[0]} AND {rounds[1]} AND c.{is_kind(*ITEM_KINDS)}
  AND c.collection_id = {collection_id} AND c.vbucket IN ({integer_list(sorted(set(vbuckets)))})"""


def deletions_sql(changes_sql: str, first_round: int, last_round: int, condition: str) -> str:
    return (
        f"SELECT {', '.join(DELETION_COLUMNS)} FROM {changes_sql} "
        f"WHERE round BETWEEN {int(first_round)} AND {int(last_round)} "
        f"AND {is_kind(RowKind.DELETION, RowKind.EXPIRATION)} AND {condition}"
    )
