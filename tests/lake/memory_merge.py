"""The rows of a merge, for a table in memory, chosen of the change log one by one."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pyarrow as pa

from dcp.lake.change_log.touched_keys import MERGE_SOURCE, RowPlace, touched_by
from dcp.lake.store.log_slice import EMPTY_TABLE, Role
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

    found = list(_rows_with_roles(changes, rows))
    held = [(vbucket, held_version) for vbucket in log_slice.emptied]
    held += ((vbucket, log_slice.restored[vbucket]) for vbucket in log_slice.revived)
    for vbucket, version in held:
        there = (row for place, row in at(version).items() if place[0] == vbucket)
        found += ({**row, "role": Role.HELD} for row in there)
    by_place = {
        (row["vbucket"], RowPlace(int(row["seqno"]), row["epoch"], row["round"])): row
        for row in found
        if row["role"] is not Role.HELD
    }
    made = []
    for place, newest in touched_by(found).newest.items():
        if newest is not None:
            made.append(_written(by_place[place[0], newest]))
        else:
            base = at(log_slice.restored.get(place[0], EMPTY_TABLE))
            made.append(base.get(place) or _gone(place))
    return pa.Table.from_pylist([{"deleted": False, **row} for row in made], MERGE_SOURCE)


def place_of(row: Row) -> Place:
    return row["vbucket"], row["key"]


def with_made(rows: pa.Table, made: MadeColumns | None) -> pa.Table:
    """Return rows with the columns that are made of them."""
    return rows if made is None else made.added_to_table(rows)


def _rows_with_roles(changes: pa.Table, rows: LogRows) -> Iterator[Row]:
    log_slice = rows.log_slice
    for row in changes.to_pylist():
        is_item = row["kind"] in ITEM_KINDS and row["collection_id"] == rows.collection_id
        if is_item and log_slice.first_round <= row["round"] <= log_slice.to_round:
            for each in log_slice.ranges:
                is_there = (row["vbucket"], row["epoch"]) == (each.vbucket, each.epoch)
                if is_there and each.low < row["seqno"] <= each.high:
                    yield {**row, "role": each.role}


def _written(row: Row) -> Row:
    made: Row = {name: row.get(name) for name in REPLICA.names}
    made["modified_at"] = (int(row["cas"]) >> 16 << 16) // 1000
    return {**made, "deleted": row["kind"] != RowKind.MUTATION}


def _gone(place: Place) -> Row:
    return {"vbucket": place[0], "key": place[1], "deleted": True}
