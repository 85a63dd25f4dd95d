"""Which version of a replica table holds which rounds: from its history, and as rows of the log.

The history is the truth. Its index are the ``applied`` rows of ``changes``, which the round after
an apply writes; a reader of the index may find it behind the truth, never ahead of it.
"""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field

import pyarrow as pa

from dcp.lake.history import WHOLE, WINDOW, Commit, history
from dcp.lake.lineage import Lineage
from dcp.lake.plan_text import number_ranges
from dcp.lake.schema import CHANGES
from dcp.lake.sql import string_list
from dcp.lake.stretch import HeldVersion, Undo
from dcp.lake.tables import LakeTables, ReplicaTable


@dataclass(frozen=True, slots=True)
class AppliedVersion:
    """A version of a replica table that holds the state of ``to_round``.

    What it lacks of a later round is in the log from ``log_from_round`` on: that is ``to_round``,
    or the oldest round with a row that still waited for its snapshot's end then. ``stale`` are
    (vbucket, round) of those that it holds as they were at an older round, ``undone`` are those
    that it took back.
    """

    table: str
    version: int
    from_round: int
    to_round: int
    log_from_round: int
    stale: tuple[tuple[int, int], ...] = ()
    undone: tuple[Undo, ...] = ()
    inserted: int = field(default=0, compare=False)
    updated: int = field(default=0, compare=False)
    deleted: int = field(default=0, compare=False)

    def __str__(self) -> str:
        """Say in one line what happened."""
        told = (
            f"{self.table} version {self.version}: round {self.from_round} -> {self.to_round}, "
            f"{self.inserted} inserted, {self.updated} updated, {self.deleted} deleted"
        )
        if self.undone:
            told += f"; rolled back: vbuckets {number_ranges(each.vbucket for each in self.undone)}"
        if self.stale:
            told += f"; stale: vbuckets {number_ranges(vb for vb, _ in self.stale)}"
        return told

    @property
    def held(self) -> HeldVersion:
        """What it holds of each vbucket."""
        return HeldVersion(self.version, self.to_round, dict(self.stale))


@dataclass(frozen=True, slots=True)
class ReplicaStatus:
    """Where a replica table stands.

    ``applied`` is the apply whose rows it has (None before the first); after a RESTORE that is not
    the newest one. ``since_version`` is the version that put the table there (-1 before the first
    apply): the apply's own, or the RESTORE's.
    """

    applied: AppliedVersion | None
    since_version: int
    lineage: Lineage

    @property
    def round(self) -> int:
        """The round that the table holds; 0 before the first apply."""
        return self.applied.to_round if self.applied else 0

    @property
    def held(self) -> HeldVersion:
        """What the table's newest version holds of each vbucket."""
        stale = dict(self.applied.stale) if self.applied else {}
        return HeldVersion(self.version, self.round, stale)

    @property
    def version(self) -> int:
        """The table's newest version."""
        return self.lineage.newest


def replica_status(lake: LakeTables, replica: ReplicaTable) -> ReplicaStatus:
    """Return where a replica table stands, by its history; by the index where that is cleaned."""
    lineage = settled_lineage(lake, replica.name)
    since = lineage.since()
    if (commit := lineage.applied()) is not None:
        return ReplicaStatus(
            applied_of(replica.name, commit), commit.version if since is None else since, lineage
        )
    origin = lineage.origin(lineage.newest)
    if origin < 0 or lineage.is_whole:
        return ReplicaStatus(None, -1 if since is None else since, lineage)
    # A table that was dropped and made again may have older rows with higher versions there.
    indexed = [each for each in indexed_applied(lake, [replica.name], 0) if each.version <= origin]
    applied = indexed[-1] if indexed else None
    if since is None:
        since = applied.version if applied else -1
    return ReplicaStatus(applied, since, lineage)


def settled_lineage(lake: LakeTables, table: str) -> Lineage:
    """Return a table's lineage, from as much of its history as its newest version needs."""
    lineage = Lineage(tuple(history(lake.spark, lake.table_sql(table))))
    if lineage.is_settled:
        return lineage
    return Lineage(tuple(history(lake.spark, lake.table_sql(table), WHOLE)))


def applied_of(table: str, commit: Commit) -> AppliedVersion:
    """Return what an apply's commit says about itself."""
    counts = [
        int(commit.metrics.get(name, "0") or 0)
        for name in ("numTargetRowsInserted", "numTargetRowsUpdated", "numTargetRowsDeleted")
    ]
    ours = commit.ours
    return AppliedVersion(
        table,
        commit.version,
        int(ours["from"]),
        int(ours["to"]),
        int(ours["log_from"]),
        tuple(sorted((int(vb), int(number)) for vb, number in ours.get("stale", {}).items())),
        tuple(Undo(*(int(value) for value in each)) for each in ours.get("undone", ())),
        *counts,
    )


def unindexed_applied(
    lake: LakeTables, replicas: Iterable[ReplicaTable]
) -> tuple[AppliedVersion, ...]:
    """Return the applies that ``changes`` does not list yet, oldest first: for the next round.

    A RESTORE is listed as well, with the round that it took the table back to: the newest row of a
    table says where it stands. Looks back over the newest commits of each table: every round lists
    what is not listed, so no more than the applies since the last round can be missing.
    """
    found = [each for replica in replicas for each in _recent(lake, replica.name)]
    if not found:
        return ()
    tables = sorted({each.table for each in found})
    # An apply to a round is listed by a later round.
    listed = set(indexed_applied(lake, tables, min(each.to_round for each in found) + 1))
    return tuple(
        sorted((each for each in found if each not in listed), key=lambda e: (e.table, e.version))
    )


def _recent(lake: LakeTables, table: str) -> list[AppliedVersion]:
    lineage = settled_lineage(lake, table)
    found = []
    for commit in lineage.commits[:WINDOW]:
        if commit.is_apply:
            found.append(applied_of(table, commit))
        elif commit.restored is not None and lineage.defect(commit.version) is None:
            origin = lineage.commit(lineage.origin(commit.version))
            if origin:
                made = applied_of(table, origin)
                at, log_from, stale = made.to_round, made.log_from_round, made.stale
                found.append(AppliedVersion(table, commit.version, at, at, log_from, stale))
            elif lineage.is_whole:
                found.append(AppliedVersion(table, commit.version, 0, 0, 0))
    return found


def indexed_applied(
    lake: LakeTables, tables: Sequence[str], first_round: int
) -> list[AppliedVersion]:
    """Return the ``applied`` rows of some tables, of rounds from ``first_round`` on, in order."""
    rows = lake.spark.sql(
        f"SELECT round, applied.* FROM {lake.changes_sql} "
        f"WHERE kind = 'applied' AND round >= {int(first_round)} "
        f"AND applied.table IN ({string_list(tables)}) "
        "ORDER BY round, version"
    ).collect()
    return [
        AppliedVersion(
            row["table"],
            row["version"],
            row["from_round"],
            row["to_round"],
            row["log_from_round"],
            tuple(sorted((each["vbucket"], each["round"]) for each in row["stale"] or ())),
            tuple(
                sorted(
                    Undo(each["vbucket"], each["version"], int(each["fork_seqno"]))
                    for each in row["undone"] or ()
                )
            ),
        )
        for row in rows
    ]


def applied_to_batch(applied: Iterable[AppliedVersion], round_number: int) -> pa.RecordBatch:
    """Return the ``applied`` rows of a round, with the columns of ``changes``."""
    rows = [
        {
            "round": round_number,
            "kind": "applied",
            "applied": {
                "table": each.table,
                "version": each.version,
                "from_round": each.from_round,
                "to_round": each.to_round,
                "log_from_round": each.log_from_round,
                "stale": [{"vbucket": vb, "round": number} for vb, number in each.stale],
                "undone": [asdict(undo) for undo in each.undone],
            },
        }
        for each in applied
    ]
    return pa.RecordBatch.from_pylist(rows, schema=CHANGES)
