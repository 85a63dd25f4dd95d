"""The rows of a merge, for a table in memory, chosen of the change log one by one."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pyarrow as pa

from dcp.lake.log.slice_rows import SOURCE
from dcp.lake.store.log_slice import EMPTY_TABLE, LogSlice, Role
from dcp.lake.store.merge import LogRows, MadeColumns
from dcp.lake.tables.schema import ITEM_KINDS, REPLICA, RowKind

Row = dict[str, Any]
Place = tuple[int, str]
"""A vbucket and a key."""


def log_rows(
    changes: pa.Table, rows: LogRows, held_version: int, table: Callable[[int], pa.Table]
) -> pa.Table:
    """Return what a query of the log finds (`LogRows`); ``table`` gives a version's rows."""
    log_slice, old = rows.log_slice, dict[int, Mapping[Place, Row]]()

    def at(version: int) -> Mapping[Place, Row]:
        if version == EMPTY_TABLE:
            return {}
        if version not in old:
            found = table(version).select(REPLICA.names).to_pylist()
            old[version] = {place_of(row): row for row in found}
        return old[version]

    touched = _touched(changes, rows)
    made = [_written(row) for row in touched.values() if row is not None]
    restored, revived = log_slice.restored, set(log_slice.revived)
    for place, newest in touched.items():
        if newest is None and place[0] in restored:
            made.append(at(restored[place[0]]).get(place) or _gone(place))
    for vbucket in revived:
        base = at(restored[vbucket])
        made += (row for place, row in base.items() if place[0] == vbucket and place not in touched)
    emptied = set(log_slice.emptied)
    if emptied:
        there = [place for place in at(held_version) if place[0] in emptied]
        made += (_gone(place) for place in there if place not in touched)
    return pa.Table.from_pylist([{"deleted": False, **row} for row in made], SOURCE)


def place_of(row: Row) -> Place:
    return row["vbucket"], row["key"]


def with_made(rows: pa.Table, made: MadeColumns | None) -> pa.Table:
    """Return rows with the columns that are made of them."""
    return rows if made is None else made.added_to_table(rows)


def _touched(changes: pa.Table, rows: LogRows) -> dict[Place, Row | None]:
    """Return every touched key with its newest live row, None without one."""
    found: dict[Place, list[tuple[Role, Row]]] = {}
    for row in changes.to_pylist():
        for role in _roles(row, rows.log_slice, rows.collection_id):
            found.setdefault(place_of(row), []).append((role, row))
    return {
        place: max(
            (row for role, row in each if role is not Role.UNDONE),
            key=lambda row: (row["seqno"], row["epoch"], row["round"]),
            default=None,
        )
        for place, each in found.items()
        if any(role is not Role.KEPT for role, _ in each)
    }


def _roles(row: Row, log_slice: LogSlice, collection_id: int) -> Iterator[Role]:
    is_item = row["kind"] in ITEM_KINDS and row["collection_id"] == collection_id
    if is_item and log_slice.first_round <= row["round"] <= log_slice.to_round:
        for each in log_slice.ranges:
            is_there = (row["vbucket"], row["epoch"]) == (each.vbucket, each.epoch)
            if is_there and each.low < row["seqno"] <= each.high:
                yield each.role


def _written(row: Row) -> Row:
    made: Row = {name: row.get(name) for name in REPLICA.names}
    made["modified_at"] = (int(row["cas"]) >> 16 << 16) // 1000
    return {**made, "deleted": row["kind"] != RowKind.MUTATION}


def _gone(place: Place) -> Row:
    return {"vbucket": place[0], "key": place[1], "deleted": True}
