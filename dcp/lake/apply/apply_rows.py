"""Reads the rows of a small apply to the driver, so that its MERGE scans no log files.

A MERGE evaluates its source three times. Of few changes the source is a table in memory: for each
key that the apply touches its newest live row in the log, or its row in the old version of the
table that its vbucket goes back to, or nothing, which deletes it.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final

import pyarrow as pa

from dcp.errors import LakeError
from dcp.lake.apply.apply_plan import Keys, LostKey, Winner
from dcp.lake.apply.apply_sql import rows_sql, winners_sql
from dcp.lake.config.memory import MEBIBYTE
from dcp.lake.log.log_slice import LogSlice, Role
from dcp.lake.tables.lake_table import LakeTable
from dcp.lake.tables.schema import CHANGES, REPLICA, RowKind, is_kind
from dcp.lake.tables.sql import integer_list, quoted
from dcp.wire.vocabulary import REPEATING

SOURCE: Final = REPLICA.append(pa.field("deleted", pa.bool_()))
"""The columns of a replica, and whether its row of that key goes."""

LARGE_DOCUMENT_BYTES: Final = MEBIBYTE
"""Documents of rounds that hold a larger one are left to Spark, too: thousands are decoded at once.
"""

_NARROW: Final = pa.schema(
    [
        ("vbucket", pa.int32()),
        ("key", pa.string()),
        ("round", pa.int64()),
        ("epoch", pa.int32()),
        ("seqno", REPLICA.field("seqno").type),
        ("role", pa.string()),
    ]
)
_PLACE: Final = pa.schema([_NARROW.field(name) for name in ("vbucket", "key")])
_MARKER: Final = pa.schema(
    [CHANGES.field(name) for name in ("vbucket", "epoch", "snap_end", "snap_flags")]
)
_MOST_MARKERS: Final = 100_000
"""With more of them, snapshots are too small to be worth it."""
_WON: Final = SOURCE.remove(SOURCE.get_field_index("modified_at"))


def touched_keys(
    changes: LakeTable, version: int, collection_id: int, log_slice: LogSlice, most: int
) -> Keys | None:
    """Return the keys that the log names in a slice; None where they are too many.

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


def with_held_keys(
    keys: Keys, table: LakeTable, version: int, vbuckets: Collection[int], most: int
) -> Keys | None:
    """Return the keys and what else some vbuckets hold in a version; None: too many.

    These are emptied ones, in the table as it is, and revived ones in the version that they go back
    to. What the log does not name is lost: of emptied ones it is deleted, of revived ones it gets
    its old row.

    Raises:
        LakeError: the table has a key twice, which nobody but others can have written.

    """
    if not vbuckets:
        return keys
    most -= len(keys)
    found = table.query(
        lambda name, _: (
            f"SELECT vbucket, key FROM {name} WHERE vbucket IN ({integer_list(vbuckets)}) "
            f"LIMIT {most + 1}"
        ),
        _PLACE,
        version,
    )
    if found.num_rows > most:
        return None
    touched = {(each.vbucket, each.key) for each in keys.winners}
    touched |= {(each.vbucket, each.key) for each in keys.lost}
    places = list(zip(found["vbucket"].to_pylist(), found["key"].to_pylist(), strict=True))
    if len(set(places)) < len(places):
        twice = next(key for (_, key), times in Counter(places).items() if times > 1)
        raise LakeError(
            f"{table.where}: found key {twice!r} twice, expected each once; others wrote "
            "that: drop the table, or delete its folder, and run again: it is made from the log"
        )
    gone = sorted(place for place in places if place not in touched)
    return Keys(keys.winners, (*keys.lost, *(LostKey(key, vbucket) for vbucket, key in gone)))


def keys_of(rows: Iterable[Mapping[str, Any]]) -> Keys:
    """Return what becomes of each key, from its rows of a slice and the role of each (`Role`).

    A key is touched unless all its rows are published and live. Its newest live row wins; without
    one it is lost. Of many keys `dcp.lake.apply.apply_sql.touched_sql` finds the same.
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


def vbuckets_without_repeats(
    changes: LakeTable, version: int, log_slice: LogSlice
) -> frozenset[int]:
    """Return the vbuckets of which no key has two rows in a slice, as far as that is known.

    A snapshot holds each key once, unless its marker says otherwise (change streams). So it is
    where all rows of a vbucket are of one snapshot, also one that was received in parts. Each part
    begins with a marker of its own, and all of them end at the same seqno: had a key of an earlier
    part changed since, then its row would lie beyond it. That is so on one branch, and it is one:
    where a node's history differs below a snapshot's end, it refuses to go on inside of it
    (`dcp.protocol.position`), and another epoch begins.
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
    changes: LakeTable,
    version: int,
    collection_id: int,
    winners: Collection[Winner],
    most_bytes: int,
) -> pa.Table | None:
    """Return the rows of the log that win, as `SOURCE`; None: more than ``most_bytes``."""
    if not winners:
        return SOURCE.empty_table()
    found = changes.bounded_query(
        lambda name, _: winners_sql(name, collection_id, winners), _WON, version, most_bytes
    )
    if found is None:
        return None
    times = [_modified_at_micros(cas) for cas in found["cas"].to_pylist()]
    at = SOURCE.get_field_index("modified_at")
    return found.add_column(at, SOURCE.field(at), pa.array(times, SOURCE.field(at).type))


def old_rows(
    table: LakeTable,
    version: int,
    vbuckets: Iterable[int],
    keys: Collection[str],
    most_bytes: int,
) -> pa.Table | None:
    """Return what an old version of a replica has of some keys, as `SOURCE`; None: too much."""
    found = table.bounded_query(
        lambda name, text: (
            f"SELECT {', '.join(map(quoted, REPLICA.names))} FROM {name} "
            f"WHERE vbucket IN ({integer_list(vbuckets)}) AND key IN ({', '.join(map(text, keys))})"
        ),
        REPLICA,
        version,
        most_bytes,
    )
    if found is None:
        return None
    return found.append_column(SOURCE.field("deleted"), pa.repeat(False, found.num_rows))


def deletions(lost: Iterable[LostKey]) -> pa.Table:
    """Return the rows that take keys away, as `SOURCE`."""
    rows = [{"vbucket": each.vbucket, "key": each.key, "deleted": True} for each in lost]
    return pa.Table.from_pylist(rows, schema=SOURCE)


def _modified_at_micros(cas: Any) -> int:
    """Return the time in a CAS: its upper 48 bits, in nanoseconds (`apply_sql.MODIFIED_AT_SQL`)."""
    return (int(cas) >> 16 << 16) // 1000
