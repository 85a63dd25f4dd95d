"""Reads the newest document changes of a lake, for ``dcplake tail``."""

import heapq
import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from dcp.lake.change_log.changes import latest_round
from dcp.lake.change_log.round_queries import newest_item_counts, take_items
from dcp.lake.tables.lake_tables import LakeTables
from dcp.records import read

_SHOWN_BYTES = 4096
_ORDER = attrgetter("round", "seqno", "vbucket")


@dataclass(frozen=True, slots=True)
class Change:
    round: int
    kind: str
    vbucket: int
    seqno: int
    cas: int
    key: str
    value_bytes: int
    value: bytes
    """At most its first 4 KiB."""


def newest_changes(lake: LakeTables, count: int) -> tuple[int, list[Change]]:
    """Return the newest round, and the last ``count`` changes up to it, oldest first.

    It takes two queries: one for the rounds' numbers of changes, one for the rows.
    """
    with lake.read_once():
        newest = latest_round(lake)
        per_round = newest_item_counts(lake, newest, count)
        if not per_round:
            return newest, []
        counts = itertools.accumulate(found for _, found in per_round)
        enough = sum(1 for rows in counts if rows < count)
        first, _ = per_round[min(enough, len(per_round) - 1)]
        return newest, _changes(lake, first, newest, count)


def changes_since(lake: LakeTables, round_number: int) -> tuple[int, Iterator[Change]]:
    with lake.read_once():
        newest = latest_round(lake)
        if newest == round_number:
            return newest, iter(())
        return newest, iter(_changes(lake, round_number + 1, newest, None))


def _changes(lake: LakeTables, first: int, last: int, count: int | None) -> list[Change]:
    def newest(rows: Iterable[Mapping[str, Any]]) -> list[Change]:
        changes = (
            read(Change, {**row, "value": value[:_SHOWN_BYTES], "value_bytes": len(value)})
            for row in rows
            for value in (row["value"] or b"",)
        )
        if count is None:
            return sorted(changes, key=_ORDER)
        return heapq.nlargest(count, changes, key=_ORDER)[::-1]

    return take_items(lake, first, last, newest)
