"""Reads document changes from the change log, in the order in which they became durable."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from dcp.lake.tables.schema import ITEM_KINDS, is_kind
from dcp.lake.tables.tables import LakeTables

_Found = TypeVar("_Found")


def newest_item_counts(lake: LakeTables, to_round: int, count: int) -> list[tuple[int, int]]:
    """Return the newest ``count`` rounds with document rows up to a round, and each one's number of
    rows.

    The newest comes first.
    """
    rows = lake.changes.rows(
        "round, count(*) AS found",
        f"round <= {int(to_round)} AND {is_kind(*ITEM_KINDS)} "
        f"GROUP BY round ORDER BY round DESC LIMIT {int(count)}",
    )
    return [(row["round"], row["found"]) for row in rows]


def take_items(
    lake: LakeTables,
    first_round: int,
    last_round: int,
    take: Callable[[Iterable[Mapping[str, Any]]], _Found],
) -> _Found:
    """Return ``take``'s result on the document rows of some rounds; see `Table.take_rows`."""
    return lake.changes.take_rows(
        "round, kind, vbucket, seqno, cas, key, value",
        f"round BETWEEN {int(first_round)} AND {int(last_round)} AND {is_kind(*ITEM_KINDS)}",
        take,
    )
