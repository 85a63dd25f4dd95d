"""Reads the rows of a slice of the change log: keys in narrow columns, and documents by key."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from dcp.lake.adapters.apply_sql import rows_sql, won_rows_sql
from dcp.lake.store.log_slice import LogSlice, Role
from dcp.lake.store.sql import integer_list, quoted, u64
from dcp.lake.store.table import Table
from dcp.lake.tables.schema import CHANGES, REPLICA, RowKind, is_kind
from dcp.wire.vocabulary import REPEATING


@dataclass(frozen=True, slots=True)
class Winner:
    """The newest live row of one key: its place in the log."""

    key: str
    round: int
    vbucket: int
    epoch: int
    seqno: int


@dataclass(frozen=True, slots=True)
class LostKey:
    """A key without a live row in the slice: it gets its state of the base version."""

    key: str
    vbucket: int


@dataclass(frozen=True, slots=True)
class Keys:
    """Every key that an apply touches: with a newest live row, or without."""

    winners: tuple[Winner, ...] = ()
    lost: tuple[LostKey, ...] = ()

    def __len__(self) -> int:
        return len(self.winners) + len(self.lost)

    @property
    def names(self) -> list[str]:
        return [*(each.key for each in self.winners), *(each.key for each in self.lost)]

    @property
    def vbuckets(self) -> tuple[int, ...]:
        won = {each.vbucket for each in self.winners}
        return tuple(sorted(won | {each.vbucket for each in self.lost}))


def keys_of(rows: Iterable[Mapping[str, Any]]) -> Keys:
    """Return each key's fate, from its rows of a slice and their roles (`Role`).

    A key is touched unless all its rows are published and live. Its newest live row wins; without
    one it is lost. `dcp.lake.adapters.apply_sql.touched_sql` finds the same for many keys.
    """
    newest: dict[tuple[int, str], tuple[int, int, int]] = {}
    touched: set[tuple[int, str]] = set()
    for row in rows:
        place = row["vbucket"], row["key"]
        if row["role"] != Role.KEPT:
            touched.add(place)
        if row["role"] != Role.UNDONE:
            this = int(row["seqno"]), row["epoch"], row["round"]
            newest[place] = max(this, newest.get(place, this))
    winners, lost = [], []
    for vbucket, key in sorted(touched):
        if (found := newest.get((vbucket, key))) is None:
            lost.append(LostKey(key, vbucket))
        else:
            seqno, epoch, number = found
            winners.append(Winner(key, number, vbucket, epoch, seqno))
    return Keys(tuple(winners), tuple(lost))


SOURCE: Final = REPLICA.append(pa.field("deleted", pa.bool_()))
"""The columns of a replica, and whether its row of that key goes."""

_NARROW: Final = pa.schema(
    [
        *map(CHANGES.field, ("vbucket", "key", "round", "epoch", "seqno")),
        ("role", pa.string()),
    ]
)
_COUNT: Final = pa.schema([("found", pa.int64()), ("first", pa.int64())])
_MARKER: Final = pa.schema(
    [CHANGES.field(name) for name in ("vbucket", "epoch", "snap_end", "snap_flags")]
)
_MOST_MARKERS: Final = 100_000
"""With more markers, snapshots are too small for this look to pay."""
_WON: Final = SOURCE.remove(SOURCE.get_field_index("modified_at"))


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


def touched_keys(
    changes: Table, version: int, collection_id: int, log_slice: LogSlice, most: int
) -> Keys | None:
    """Return the keys that the log names in a slice; None if they are too many.

    Reads narrow columns only, of a ``version`` of ``changes``.
    """
    if not log_slice.ranges:
        return Keys()
    columns = ", ".join(f"b.{name}" if name == "role" else f"c.{name}" for name in _NARROW.names)
    found = changes.query(
        lambda name, _: (
            f"SELECT {columns} {rows_sql(name, collection_id, log_slice, log_slice.ranges)} "
            f"LIMIT {most + 1}"
        ),
        _NARROW,
        version,
    )
    return None if found.num_rows > most else keys_of(found.to_pylist())


def vbuckets_without_repeats(changes: Table, version: int, log_slice: LogSlice) -> frozenset[int]:
    """Return the vbuckets in which no key has two rows in a slice, as far as that is known.

    A snapshot holds each key once, unless its marker says otherwise (change streams). So a vbucket
    qualifies if all its rows are of one snapshot, also one that came in parts. Each part begins
    with its own marker, and all end at the same seqno. Had a key of an earlier part changed since,
    its row would lie beyond that seqno.

    This holds on one branch, and here is only one. If a node's history differs below a snapshot's
    end, the node refuses to go on inside it (`dcp.protocol.position`), and another epoch begins.
    """
    ranges = {each.vbucket: each for each in log_slice.ranges if each.role == Role.FRESH}
    only_adds = not (log_slice.undone or log_slice.emptied or log_slice.revived)
    if not only_adds or len(ranges) != len(log_slice.ranges):
        return frozenset()
    found = changes.query(
        lambda name, _: (
            f"SELECT {', '.join(_MARKER.names)} FROM {name} "
            f"WHERE {is_kind(RowKind.SNAPSHOT_MARKER)} "
            f"AND round BETWEEN {log_slice.first_round} AND {log_slice.to_round} "
            f"AND vbucket IN ({integer_list(ranges)}) LIMIT {_MOST_MARKERS}"
        ),
        _MARKER,
        version,
    )
    if found.num_rows == _MOST_MARKERS:
        return frozenset()
    snapshots: dict[int, set[tuple[int, int, bool]]] = {}
    for marker in found.to_pylist():
        snapshot = marker["epoch"], int(marker["snap_end"]), bool(marker["snap_flags"] & REPEATING)
        snapshots.setdefault(marker["vbucket"], set()).add(snapshot)
    return frozenset(
        vbucket
        for vbucket, of_it in snapshots.items()
        if len(of_it) == 1
        and all(epoch == ranges[vbucket].epoch and not repeats for epoch, _, repeats in of_it)
    )


def winning_rows(
    changes: Table,
    version: int,
    collection_id: int,
    winners: Collection[Winner],
    most_bytes: int,
) -> pa.Table | None:
    """Return the rows of the log that win, as `SOURCE`; None: more than ``most_bytes``."""
    if not winners:
        return SOURCE.empty_table()
    values = ", ".join(
        f"({each.round}, {each.vbucket}, {each.epoch}, {u64(each.seqno)})" for each in winners
    )
    found = changes.bounded_query(
        lambda name, _: won_rows_sql(
            name,
            collection_id,
            f"(VALUES {values}) AS w(round, vbucket, epoch, seqno)",
            [f"c.{quoted(name)}" for name in REPLICA.names if name != "modified_at"],
            rounds=(min(each.round for each in winners), max(each.round for each in winners)),
            vbuckets=(each.vbucket for each in winners),
        ),
        _WON,
        version,
        most_bytes,
    )
    if found is None:
        return None
    # As `dcp.lake.adapters.apply_sql.MODIFIED_AT_SQL` does.
    times = [(int(cas) >> 16 << 16) // 1000 for cas in found["cas"].to_pylist()]
    at = SOURCE.get_field_index("modified_at")
    return found.add_column(at, SOURCE.field(at), pa.array(times, SOURCE.field(at).type))
