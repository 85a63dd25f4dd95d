"""The newest document changes of a lake, as they become durable."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

from dcp.lake.changes import latest_round
from dcp.lake.schema import ITEM_KINDS
from dcp.lake.sql import string_list
from dcp.lake.tables import LakeTables

_SHOWN_BYTES = 4096


@dataclass(frozen=True, slots=True)
class Change:
    """One row of the log; ``value`` holds at most its first 4 KiB."""

    round: int
    kind: str
    vbucket: int
    seqno: int
    cas: int
    key: str
    value_bytes: int
    value: bytes


def newest_changes(lake: LakeTables, count: int) -> tuple[int, list[Change]]:
    """Return the latest round, and the last ``count`` changes up to it, oldest first.

    Two queries, however many rounds it takes: how many changes the rounds brought, then the rows.
    """
    newest = latest_round(lake)
    per_round = lake.spark.sql(
        f"SELECT round, count(*) AS rows FROM {lake.changes_sql} "
        f"WHERE round <= {newest} AND kind IN ({string_list(ITEM_KINDS)}) "
        f"GROUP BY round ORDER BY round DESC LIMIT {int(count)}"
    ).collect()
    if not per_round:
        return newest, []
    counts = itertools.accumulate(row["rows"] for row in per_round)
    enough = sum(1 for rows in counts if rows < count)
    first = per_round[min(enough, len(per_round) - 1)]["round"]
    return newest, _changes(lake, first, newest, count)


def changes_since(lake: LakeTables, round_number: int) -> tuple[int, Iterator[Change]]:
    """Return the latest round and the changes of the rounds after ``round_number``."""
    newest = latest_round(lake)
    if newest == round_number:
        return newest, iter(())
    return newest, iter(_changes(lake, round_number + 1, newest, None))


def _changes(lake: LakeTables, first: int, last: int, count: int | None) -> list[Change]:
    limit = "" if count is None else f" LIMIT {count}"
    rows = lake.spark.sql(
        "SELECT round, kind, vbucket, seqno, cas, key, octet_length(value) AS value_bytes, "
        f"substr(value, 1, {_SHOWN_BYTES}) AS value FROM {lake.changes_sql} "
        f"WHERE round BETWEEN {first} AND {last} AND kind IN ({string_list(ITEM_KINDS)}) "
        f"ORDER BY round DESC, seqno DESC, vbucket DESC{limit}"
    ).collect()
    return [
        Change(
            round=row["round"],
            kind=row["kind"],
            vbucket=row["vbucket"],
            seqno=int(row["seqno"]),
            cas=int(row["cas"]),
            key=row["key"],
            value_bytes=row["value_bytes"] or 0,
            value=bytes(row["value"] or b""),
        )
        for row in reversed(rows)
    ]
