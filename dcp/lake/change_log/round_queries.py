"""Reads the records of committed rounds.

A committed round never changes, so that an open lake keeps the newest records that it has read.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Final, TypeVar

from dcp.errors import REREAD_COMMAND, LakeError
from dcp.lake.config.memory import DOCUMENT_BYTES
from dcp.lake.store.sql import integer_list
from dcp.lake.tables.lake_tables import LakeTables
from dcp.lake.tables.round_record import (
    BEFORE_THE_FIRST,
    RoundRecord,
    VbucketReport,
    states_from_rows,
)
from dcp.lake.tables.schema import ITEM_KINDS, RowKind, is_kind
from dcp.lake.tables.vbucket_state import LakeVbucketState

_Found = TypeVar("_Found")

REMEMBERED_ROUNDS: Final = 8
"""Enough for the newest round, and for the newest applies of the tables in work at once."""


def round_records(lake: LakeTables, rounds: Collection[int]) -> dict[int, RoundRecord]:
    """Return the records of rounds, by number. One query reads all that are not in memory.

    Raises:
        LakeError: a round is missing, or lacks the position of a vbucket.
    """
    remembered = lake.remembered_rounds
    known = {0: BEFORE_THE_FIRST, **remembered}
    if missing := sorted({number for number in rounds if number not in known}):
        read = _read(lake, missing)
        known |= read
        _remember(lake, read)
    return {number: known[number] for number in rounds}


def round_record(lake: LakeTables, round_number: int) -> RoundRecord:
    return round_records(lake, [round_number])[round_number]


def states_at(lake: LakeTables, round_number: int) -> Mapping[int, LakeVbucketState]:
    return round_record(lake, round_number).states


def largest_document_bytes(lake: LakeTables, rounds: Collection[int]) -> int:
    """Return the size of the largest document in rounds; the upper limit if it is unknown."""
    known = {**lake.remembered_rounds}
    if all(number in known for number in rounds):
        return max(known[number].largest_bytes for number in rounds)
    told = lake.changes.rows(
        "vbucket, detail", f"{is_kind(RowKind.STATUS)} AND round IN ({integer_list(rounds)})"
    )
    reports = (VbucketReport.parse(row["vbucket"], row["detail"]) for row in told)
    return max((each.largest_bytes for each in reports), default=DOCUMENT_BYTES)


def count_changes(lake: LakeTables, condition: str) -> int:
    [row] = lake.changes.rows("count(*) AS found", condition)
    return int(row["found"])


def rounds_left(lake: LakeTables, rounds: Collection[int]) -> frozenset[int]:
    rows = lake.changes.rows(
        "DISTINCT round",
        f"{is_kind(RowKind.POSITION)} AND round IN ({integer_list(sorted(rounds))})",
    )
    return frozenset(row["round"] for row in rows)


def oldest_round_left(lake: LakeTables) -> int:
    [row] = lake.changes.rows("min(round) AS oldest", is_kind(RowKind.POSITION))
    return int(row["oldest"])


def states_left(lake: LakeTables, round_number: int) -> Mapping[int, LakeVbucketState]:
    condition = f"{is_kind(RowKind.POSITION)} AND round = {int(round_number)}"
    return states_from_rows(lake.changes.rows("vbucket, epoch, position", condition))


def reports_since(
    lake: LakeTables, first_round: int, remember: Collection[int] = ()
) -> dict[int, Sequence[VbucketReport]]:
    """Return the reports of ``first_round`` and all later rounds, by round.

    The same query reads the records of the rounds to ``remember``, for later calls of
    `round_records`. It raises like `round_records`.
    """
    told = f"({is_kind(RowKind.STATUS)} AND round >= {int(first_round)})"
    missing = {number for number in remember if number and number not in lake.remembered_rounds}
    if missing:
        told += f" OR ({_of_records(missing)})"
    read: dict[int, list[VbucketReport]] = {}
    rows: dict[int, list[dict[str, Any]]] = {number: [] for number in missing}
    for row in lake.changes.rows(_RECORD_COLUMNS if missing else _REPORT_COLUMNS, told):
        if (number := row["round"]) in missing:
            rows[number].append(row)
        else:
            report = VbucketReport.parse(row["vbucket"], row["detail"])
            read.setdefault(number, []).append(report)
    records = {number: _record(lake, number, found) for number, found in rows.items()}
    _remember(lake, records)
    known = {number: each.reports for number, each in records.items() if number >= first_round}
    return {**read, **known}


def newest_item_counts(lake: LakeTables, to_round: int, count: int) -> list[tuple[int, int]]:
    """Return the newest ``count`` rounds with document rows up to a round, newest first.

    Each comes with its number of document rows.
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
    return lake.changes.take_rows(
        "round, kind, vbucket, seqno, cas, key, value",
        f"round BETWEEN {int(first_round)} AND {int(last_round)} AND {is_kind(*ITEM_KINDS)}",
        take,
    )


def _remember(lake: LakeTables, records: Mapping[int, RoundRecord]) -> None:
    lake.remembered_rounds.update(records)
    for number in sorted([*lake.remembered_rounds])[:-REMEMBERED_ROUNDS]:
        lake.remembered_rounds.pop(number, None)  # another thread may have removed it


_REPORT_COLUMNS: Final = "round, kind, vbucket, detail"
_RECORD_COLUMNS: Final = "round, kind, vbucket, epoch, position, detail"


def _of_records(rounds: Collection[int]) -> str:
    kinds = is_kind(RowKind.POSITION, RowKind.STATUS)
    return f"round IN ({integer_list(sorted(rounds))}) AND {kinds}"


def _read(lake: LakeTables, rounds: Collection[int]) -> dict[int, RoundRecord]:
    rows = lake.changes.rows(_RECORD_COLUMNS, _of_records(rounds))
    by_round: dict[int, list[dict[str, Any]]] = {number: [] for number in rounds}
    for row in rows:
        by_round[row["round"]].append(row)
    return {number: _record(lake, number, found) for number, found in by_round.items()}


def _record(lake: LakeTables, number: int, rows: list[dict[str, Any]]) -> RoundRecord:
    states = states_from_rows(row for row in rows if row["kind"] == RowKind.POSITION)
    expected = lake.identity.vbucket_count
    if len(states) != expected:
        raise LakeError(
            f"{lake.location}: found {len(states)} positions in round {number} of changes, "
            f"expected one for each of the {expected} vbuckets: they were cleaned, or somebody "
            f"changed the table; {REREAD_COMMAND} reads the bucket again"
        )
    statuses = sorted(
        (row["vbucket"], row["detail"]) for row in rows if row["kind"] == RowKind.STATUS
    )
    return RoundRecord(
        states, tuple(VbucketReport.parse(vbucket, detail) for vbucket, detail in statuses)
    )
