"""Reads the rows of a small apply to the driver, so that its MERGE scans no log files.

A MERGE evaluates its source three times. Of few changes the source is a table in memory: for each
key that the apply touches its newest live row in the log, or its row in the old version of the
table that its vbucket goes back to, or nothing, which deletes it.
"""

from collections import Counter
from collections.abc import Collection, Iterable
from typing import Final

import pyarrow as pa

from dcp.errors import LakeError
from dcp.lake.config.memory import MEBIBYTE
from dcp.lake.log.slice_keys import Keys, LostKey
from dcp.lake.log.slice_rows import SOURCE
from dcp.lake.store.sql import one_of, quoted
from dcp.lake.store.table import Table
from dcp.lake.tables.schema import REPLICA

LARGE_DOCUMENT_BYTES: Final = MEBIBYTE
"""Spark also takes documents of rounds with a larger one: thousands are decoded at once."""

_PLACE: Final = pa.schema([REPLICA.field(name) for name in ("vbucket", "key")])


def with_held_keys(
    keys: Keys, table: Table, version: int, vbuckets: Collection[int], most: int
) -> Keys | None:
    """Add the other keys that some vbuckets hold in a version; None: too many.

    The vbuckets are emptied ones, in the present table, or revived ones, in the version that they
    go back to. Keys that the log does not name are lost: an emptied vbucket's are deleted, a
    revived one's get their old rows.

    Raises:
        LakeError: the table has a key twice, which only others can have written.
    """
    if not vbuckets:
        return keys
    most -= len(keys)
    found = table.query(
        lambda name, _: (
            f"SELECT vbucket, key FROM {name} WHERE {one_of('vbucket', vbuckets)} LIMIT {most + 1}"
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


def old_rows(
    table: Table,
    version: int,
    vbuckets: Iterable[int],
    keys: Collection[str],
    most_bytes: int,
) -> pa.Table | None:
    """Return an old version's rows of some keys, as `SOURCE`; None: too much."""
    found = table.bounded_query(
        lambda name, text: (
            f"SELECT {', '.join(map(quoted, REPLICA.names))} FROM {name} "
            f"WHERE {one_of('vbucket', vbuckets)} AND key IN ({', '.join(map(text, keys))})"
        ),
        REPLICA,
        version,
        most_bytes,
    )
    if found is None:
        return None
    return found.append_column(SOURCE.field("deleted"), pa.repeat(False, found.num_rows))


def deletions(lost: Iterable[LostKey]) -> pa.Table:
    rows = [{"vbucket": each.vbucket, "key": each.key, "deleted": True} for each in lost]
    return pa.Table.from_pylist(rows, schema=SOURCE)
