"""Reads epochs from the change log: recorded forks, and snapshot ends on the live history."""

from collections.abc import Collection, Mapping
from typing import Any, Final

import pyarrow as pa

from dcp.lake.log.epochs import Fork, live_up_to
from dcp.lake.store.sql import integer_list, u64
from dcp.lake.tables.schema import CHANGES, RowKind, is_kind
from dcp.lake.tables.tables import LakeTables
from dcp.lake.tables.vbucket_state import FIRST_EPOCH, VbucketProgress


def forks_between(
    lake: LakeTables, after_round: int, to_round: int, vbuckets: Collection[int]
) -> list[Fork]:
    """Return the forks of some vbuckets in the rounds after one, up to another; oldest first.

    A ``rollback`` row that starts an epoch carries that epoch and, as ``seqno``, its fork seqno. A
    row that only records the producer's order carries no seqno.
    """
    if not vbuckets or after_round >= to_round:
        return []
    rows = lake.changes.rows(
        "DISTINCT vbucket, epoch, seqno, round",
        f"{is_kind(RowKind.ROLLBACK)} AND seqno IS NOT NULL AND epoch > {FIRST_EPOCH} "
        f"AND round > {int(after_round)} AND round <= {int(to_round)} "
        f"AND vbucket IN ({integer_list(sorted(vbuckets))})",
    )
    forks = (Fork(row["vbucket"], row["epoch"], int(row["seqno"]), row["round"]) for row in rows)
    return sorted(forks, key=lambda fork: (fork.vbucket, fork.epoch))


def rollback_rows(lake: LakeTables) -> list[dict[str, Any]]:
    """Return all ``rollback`` rows, oldest first: orders, and begins of epochs."""
    return lake.changes.rows(
        "vbucket, epoch, round, seqno, detail, rollback",
        f"{is_kind(RowKind.ROLLBACK)} ORDER BY round",
    )


def count_orders(lake: LakeTables, after_round: int, to_round: int) -> int:
    [row] = lake.changes.rows(
        "count(*) AS orders",
        f"{is_kind(RowKind.ROLLBACK)} AND seqno IS NULL AND "
        f"round > {int(after_round)} AND round <= {int(to_round)}",
    )
    return int(row["orders"])


def live_complete_seqnos(
    lake: LakeTables, states: Collection[VbucketProgress], bounds: Mapping[int, int], to_round: int
) -> dict[int, int]:
    """Return each vbucket's newest snapshot end at or below its bound on its live history.

    Vbuckets without any are left out.
    """
    if not states:
        return {}
    forked = [state.vbucket for state in states if state.epoch > FIRST_EPOCH]
    forks = forks_between(lake, 0, to_round, forked)
    ranges = []
    for state in states:
        own = [fork for fork in forks if fork.vbucket == state.vbucket]
        for epoch in range(FIRST_EPOCH, state.epoch + 1):
            high = min(bounds[state.vbucket], live_up_to(epoch, state.epoch, own))
            if high:
                ranges.append(f"({state.vbucket}, {epoch}, {u64(high)})")
    if not ranges:
        return {}
    found = lake.changes.query(
        lambda name, _: (
            f"SELECT c.vbucket, max(c.seqno) AS seqno FROM {name} c "
            f"JOIN (VALUES {', '.join(ranges)}) AS b(vbucket, epoch, high) "
            "ON c.vbucket = b.vbucket AND c.epoch = b.epoch AND c.seqno <= b.high "
            f"WHERE c.{is_kind(RowKind.COMPLETE)} "
            f"AND c.vbucket IN ({integer_list(sorted(bounds))}) "
            "GROUP BY c.vbucket"
        ),
        _ENDS,
    )
    return {row["vbucket"]: int(row["seqno"]) for row in found.to_pylist()}


_ENDS: Final = pa.schema([CHANGES.field("vbucket"), CHANGES.field("seqno")])
