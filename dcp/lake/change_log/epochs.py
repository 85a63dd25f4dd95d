"""Defines the live history and the dead branches of a vbucket, by its epochs. No Spark.

Each restart of a vbucket (`RestartReason`) begins a new epoch at a fork seqno.
A row at (epoch g, seqno s) is *live* if s <= the fork seqno of every later epoch. All other rows
are on dead branches.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from operator import attrgetter, itemgetter
from typing import Final

import pyarrow as pa

from dcp.lake.store.sql import integer_list, string, u64
from dcp.lake.tables.lake_tables import LakeTables
from dcp.lake.tables.schema import CHANGES, ITEM_KINDS, RowKind, columns_of, is_kind
from dcp.lake.tables.vbucket_state import FIRST_EPOCH, LakeVbucketState, RestartReason
from dcp.records import Record, read
from dcp.types import U64_MAX


@dataclass(frozen=True, slots=True)
class Fork:
    """The start of a vbucket's epoch: rows of earlier epochs above ``seqno`` are dead."""

    epoch: int
    seqno: int
    round: int
    is_backfill: bool = False

    def __post_init__(self) -> None:
        if self.epoch <= FIRST_EPOCH:
            raise ValueError(f"fork: found epoch {self.epoch}, expected one after {FIRST_EPOCH}")


def live_up_to(epoch: int, forks: Iterable[Fork]) -> int:
    """Return the newest live seqno of ``epoch``.

    Give only one vbucket's forks up to the state that decides: each of them counts.
    """
    return min((fork.seqno for fork in forks if fork.epoch > epoch), default=U64_MAX)


def newest_beginning(forks: Iterable[Fork]) -> Fork | None:
    """Return the newest fork at 0; ``forks`` belong to one vbucket."""
    return max((fork for fork in forks if not fork.seqno), key=attrgetter("epoch"), default=None)


IS_FORK_SQL: Final = f"{is_kind(RowKind.ROLLBACK)} AND seqno IS NOT NULL"
"""True for a row that starts an epoch. The row of a rollback order has no seqno."""


def dead_by_sql(fork: str, row: str) -> str:
    """Return the SQL condition by which a fork kills a row of the same vbucket; see `live_up_to`.

    Both arguments are names of structs or tables with ``epoch`` and ``seqno``.
    """
    return f"{fork}.epoch > {row}.epoch AND {row}.seqno > {fork}.seqno"


def forks_between(
    lake: LakeTables, after_round: int, to_round: int, vbuckets: Collection[int]
) -> dict[int, list[Fork]]:
    """Return the forks of some vbuckets by vbucket, each vbucket's oldest first."""
    forks: dict[int, list[Fork]] = {vbucket: [] for vbucket in vbuckets}
    if not vbuckets or after_round >= to_round:
        return forks
    rows = lake.changes.rows(
        "DISTINCT vbucket, epoch, seqno, round, "
        f"coalesce(detail = {string(RestartReason.BACKFILL)}, false) AS is_backfill",
        f"{IS_FORK_SQL} AND epoch > {FIRST_EPOCH} "
        f"AND round > {int(after_round)} AND round <= {int(to_round)} "
        f"AND vbucket IN ({integer_list(sorted(vbuckets))})",
    )
    for row in sorted(rows, key=itemgetter("epoch")):
        forks[row["vbucket"]].append(read(Fork, row))
    return forks


@dataclass(frozen=True, slots=True)
class Epoch(Record):
    """A row of the view ``epochs``: a fork, with the rollback order that caused it."""

    vbucket: int
    epoch: int
    round: int
    reason: str
    """A `RestartReason`."""
    fork_seqno: int
    from_seqno: int | None = None
    from_vb_uuid: int | None = None
    to_seqno: int | None = None

    def __str__(self) -> str:
        told = f"round {self.round}: vbucket {self.vbucket} goes on from seqno {self.fork_seqno}"
        if self.from_seqno is None:
            return f"{told} ({self.reason})"
        return (
            f"{told}; it had read up to {self.from_seqno} of branch {self.from_vb_uuid:016x}, the "
            f"producer ordered it back to {self.to_seqno}"
        )


def epochs_sql(changes_sql: str) -> str:
    """Return the beginnings of epochs, each with the rollback order that caused it, if any.

    History goes on at ``fork_seqno``: rows of earlier epochs above it are dead. An epoch may have
    several orders; a plan follows the newest.
    """
    return f"""
SELECT f.vbucket, f.epoch, f.seqno AS fork_seqno, f.round, f.detail AS reason,
  o.round AS ordered_in_round, o.rollback.from_seqno AS from_seqno, o.rollback.to_seqno AS to_seqno,
  o.rollback.from_vb_uuid AS from_vb_uuid, o.rollback.failover_log AS server_failover_log
FROM (SELECT DISTINCT vbucket, epoch, seqno, round, detail
      FROM {changes_sql} WHERE {IS_FORK_SQL}) f
LEFT JOIN (SELECT vbucket, epoch, round, rollback,
             row_number() OVER (PARTITION BY vbucket, epoch ORDER BY round DESC) AS nth
           FROM {changes_sql} WHERE {is_kind(RowKind.ROLLBACK)} AND seqno IS NULL) o
  ON o.vbucket = f.vbucket AND o.epoch = f.epoch - 1 AND o.nth = 1
    AND f.detail = {string(RestartReason.ROLLBACK)}"""


def newest_epochs(lake: LakeTables, count: int) -> list[Epoch]:
    """Return the newest rows of the view ``epochs``, newest first."""
    columns = pa.schema(columns_of(Epoch))
    found = lake.changes.query(
        lambda name, _: (
            f"SELECT {', '.join(columns.names)} FROM ({epochs_sql(name)}) "
            f"ORDER BY round DESC, vbucket, epoch DESC LIMIT {int(count)}"
        ),
        columns,
    )
    return [read(Epoch, row) for row in found.to_pylist()]


def live_complete_seqnos(
    lake: LakeTables, states: Collection[LakeVbucketState], bounds: Mapping[int, int], to_round: int
) -> dict[int, int]:
    """Return each vbucket's newest live snapshot end at or below its bound, if it has one."""
    if not states:
        return {}
    forked = [state.vbucket for state in states if state.epoch > FIRST_EPOCH]
    forks = forks_between(lake, 0, to_round, forked)
    ranges = []
    for state in states:
        for epoch in range(FIRST_EPOCH, state.epoch + 1):
            high = min(bounds[state.vbucket], live_up_to(epoch, forks.get(state.vbucket, ())))
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


def changed_collections(lake: LakeTables, after_round: int, to_round: int) -> frozenset[int]:
    rows = lake.changes.rows(
        "DISTINCT collection_id",
        f"round > {int(after_round)} AND round <= {int(to_round)} AND {is_kind(*ITEM_KINDS)}",
    )
    return frozenset(row["collection_id"] for row in rows)


def first_rounds_after(
    lake: LakeTables, applied_rounds: Mapping[int, int], newest_round: int
) -> dict[int, int]:
    """By collection id, return its first round with rows above ``applied_rounds``.

    ``applied_rounds`` maps collection ids to rounds. Collections without such rows are left out.
    """
    behind = " OR ".join(
        f"(collection_id = {int(collection_id)} AND round > {int(number)})"
        for collection_id, number in applied_rounds.items()
        if number < newest_round
    )
    if not behind:
        return {}
    rows = lake.changes.rows(
        "collection_id, min(round) AS first",
        f"round > {min(applied_rounds.values())} AND {is_kind(*ITEM_KINDS, RowKind.SYSTEM_EVENT)} "
        f"AND ({behind}) GROUP BY collection_id",
    )
    return {row["collection_id"]: row["first"] for row in rows}
