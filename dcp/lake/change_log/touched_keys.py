"""Reads rows of a slice of the change log: first keys in narrow columns, then documents by key."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from dcp.lake.adapters.apply_sql import (
    emptied,
    log_part,
    micros_of,
    newest_rows_sql,
    rows_sql,
    touched_sql,
)
from dcp.lake.store.log_slice import LogSlice, Role, RowRange
from dcp.lake.store.sql import integer_list, one_of, quoted, u64
from dcp.lake.store.table import Table
from dcp.lake.tables.schema import CHANGES, REPLICA, RowKind, is_kind
from dcp.records import read
from dcp.wire.vocabulary import REPEATING


@dataclass(frozen=True, slots=True)
class RowReference:
    """A row of one vbucket in the change log. Of a key's live rows, the highest seqno wins."""

    seqno: int
    epoch: int
    round: int


@dataclass(frozen=True, slots=True)
class Touched:
    """All keys that an apply touches."""

    newest: Mapping[tuple[int, str], RowReference | None] = field(default_factory=dict)
    """By vbucket and key: the newest live row in the slice.

    A key without such a row is *lost*. It gets its row from the version that its vbucket goes back
    to, or is deleted.
    """
    undone: frozenset[tuple[int, str]] = frozenset()
    """The keys, by vbucket and key, of which a published row is undone."""

    def __len__(self) -> int:
        return len(self.newest)

    def __str__(self) -> str:
        told = f"{len(self)} touched keys in {len(self.vbuckets)} vbuckets"
        return told + (f", {len(self.lost)} without a live row" if self.lost else "")

    @property
    def keys(self) -> list[str]:
        return [key for _, key in self.newest]

    @property
    def vbuckets(self) -> tuple[int, ...]:
        return tuple(sorted({vbucket for vbucket, _ in self.newest}))

    @property
    def rounds(self) -> frozenset[int]:
        """The rounds of the newest live rows."""
        return frozenset(row.round for row in self.newest.values() if row is not None)

    @property
    def lost(self) -> list[tuple[int, str]]:
        return [touched for touched, row in self.newest.items() if row is None]


MERGE_SOURCE: Final = REPLICA.append(pa.field("deleted", pa.bool_()))
"""The columns of a replica, and whether the apply deletes the key's row."""

_TOUCHED: Final = pa.schema(
    [
        *map(CHANGES.field, ("vbucket", "key")),
        *(CHANGES.field(each.name) for each in fields(RowReference)),
        ("is_touched", pa.bool_()),
        ("is_undone", pa.bool_()),
        ("row_count", pa.int64()),
    ]
)
_COUNT: Final = pa.schema([("found", pa.int64()), ("first", pa.int64())])
_MARKER: Final = pa.schema(
    [CHANGES.field(name) for name in ("vbucket", "epoch", "snap_end", "snap_flags")]
)
_MOST_MARKERS: Final = 100_000
"""If the slice has more markers, its snapshots are too small for `without_repeats`."""
_NEWEST: Final = MERGE_SOURCE.remove(MERGE_SOURCE.get_field_index("modified_at"))


def count_rows(changes: Table, collection_id: int, log_slice: LogSlice) -> tuple[int, int | None]:
    found = changes.query(
        lambda name, _: (
            "SELECT count(*) AS found, min(c.round) AS first "
            f"{rows_sql(name, collection_id, log_slice, log_slice.ranges)}"
        ),
        _COUNT,
    )
    [counted] = found.to_pylist()
    return counted["found"], counted["first"]


def few_touched(
    changes: Table, version: int, collection_id: int, log_slice: LogSlice, most: int
) -> Touched | None:
    """Return the keys that a slice touches, if the log has at most ``most`` such rows.

    None if it has more, or if rows of the table decide (`dcp.lake.adapters.apply_sql.table_parts`).
    The query reads narrow columns only, from a ``version`` of ``changes``.
    """
    if emptied(log_slice) or log_slice.revived:
        return None
    if not log_slice.ranges:
        return Touched()
    rows = log_part(collection_id, log_slice)
    # The query takes one row more than the limit, to see whether there are too many.
    found = changes.query(
        lambda name, text: touched_sql(f"{rows(name, text)} LIMIT {most + 1}"),
        _TOUCHED,
        version,
    )
    if (pc.sum(found["row_count"]).as_py() or 0) > most:
        return None
    keys = found.filter(found["is_touched"]).to_pylist()
    newest = {
        (key["vbucket"], key["key"]): None if key["seqno"] is None else read(RowReference, key)
        for key in keys
    }
    undone = frozenset((key["vbucket"], key["key"]) for key in keys if key["is_undone"])
    return Touched(dict(sorted(newest.items())), undone)


def vbuckets_without_repeats(changes: Table, version: int, log_slice: LogSlice) -> frozenset[int]:
    """Read the markers of a slice, and return `without_repeats`."""
    if not (ranges := _single_ranges(log_slice)):
        return frozenset()
    markers = changes.query(
        lambda name, _: (
            f"SELECT {', '.join(_MARKER.names)} FROM {name} "
            f"WHERE {is_kind(RowKind.SNAPSHOT_MARKER)} "
            f"AND round BETWEEN {log_slice.first_round} AND {log_slice.to_round} "
            f"AND vbucket IN ({integer_list(ranges)}) LIMIT {_MOST_MARKERS}"
        ),
        _MARKER,
        version,
    )
    return without_repeats(log_slice, markers)


def _single_ranges(log_slice: LogSlice) -> dict[int, RowRange]:
    """Return the range of each vbucket, if the slice only adds rows, and each vbucket has one."""
    ranges = {each.vbucket: each for each in log_slice.ranges if each.role == Role.FRESH}
    only_adds = not (log_slice.undone or log_slice.cleared or log_slice.revived)
    return ranges if only_adds and len(ranges) == len(log_slice.ranges) else {}


def without_repeats(log_slice: LogSlice, markers: pa.Table) -> frozenset[int]:
    """Return the vbuckets that certainly have no key twice in a slice, given its markers.

    A snapshot holds each key once, unless its marker allows repeats (change streams). So a vbucket
    qualifies if all its rows belong to one snapshot, even if the snapshot came in parts. Each part
    begins with a marker, and all markers name the same end seqno. If a key of an earlier part had
    changed, its new row would lie beyond that seqno.

    The slice must lie on one branch. If a node's history differs below a snapshot's end, the node
    refuses to continue inside it (`dcp.protocol.position`), and another epoch begins.
    """
    if markers.num_rows == _MOST_MARKERS:
        return frozenset()
    ranges = _single_ranges(log_slice)
    snapshots: dict[int, set[tuple[int, int, bool]]] = {}
    for marker in markers.to_pylist():
        snapshot = marker["epoch"], int(marker["snap_end"]), bool(marker["snap_flags"] & REPEATING)
        snapshots.setdefault(marker["vbucket"], set()).add(snapshot)
    return frozenset(
        vbucket
        for vbucket, of_it in snapshots.items()
        if len(of_it) == 1
        and all(epoch == ranges[vbucket].epoch and not repeats for epoch, _, repeats in of_it)
    )


def newest_rows(
    changes: Table, version: int, collection_id: int, touched: Touched, most_bytes: int
) -> pa.Table | None:
    """Return the newest rows of touched keys, as `MERGE_SOURCE`; None if beyond ``most_bytes``."""
    rows = [(vb, row) for (vb, _), row in touched.newest.items() if row is not None]
    if not rows:
        return MERGE_SOURCE.empty_table()
    values = ", ".join(
        f"({row.round}, {vbucket}, {row.epoch}, {u64(row.seqno)})" for vbucket, row in rows
    )
    rounds = [row.round for _, row in rows]
    found = changes.bounded_query(
        lambda name, _: newest_rows_sql(
            name,
            collection_id,
            f"(VALUES {values}) AS w(round, vbucket, epoch, seqno)",
            [f"c.{quoted(name)}" for name in REPLICA.names if name != "modified_at"],
            f"c.round BETWEEN {min(rounds)} AND {max(rounds)} "
            f"AND {one_of('c.vbucket', {vbucket for vbucket, _ in rows})}",
        ),
        _NEWEST,
        version,
        most_bytes,
    )
    if found is None:
        return None
    times = [micros_of(int(cas)) for cas in found["cas"].to_pylist()]
    at = MERGE_SOURCE.get_field_index("modified_at")
    return found.add_column(
        at, MERGE_SOURCE.field(at), pa.array(times, MERGE_SOURCE.field(at).type)
    )
