"""Which version of a replica table holds which rounds: from its history, and as rows of the log.

The history is the truth. Its index are the ``applied`` rows of ``changes``, which the round after
an apply writes; a reader of the index may find it behind the truth, never ahead of it.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from dcp.lake.history import WHOLE, WINDOW, Commit, history, reaches_creation
from dcp.lake.schema import CHANGES
from dcp.lake.sql import string, string_list
from dcp.lake.tables import LakeTables, ReplicaTable


@dataclass(frozen=True, slots=True)
class AppliedVersion:
    """A version of a replica table that holds the state of ``to_round``."""

    table: str
    version: int
    from_round: int
    to_round: int
    inserted: int = field(default=0, compare=False)
    updated: int = field(default=0, compare=False)
    deleted: int = field(default=0, compare=False)

    def __str__(self) -> str:
        """Say in one line what happened."""
        return (
            f"{self.table} version {self.version}: round {self.from_round} -> {self.to_round}, "
            f"{self.inserted} inserted, {self.updated} updated, {self.deleted} deleted"
        )


@dataclass(frozen=True, slots=True)
class ReplicaStatus:
    """Where a replica table stands: its last apply (None before the first), its newest commits."""

    applied: AppliedVersion | None
    commits: tuple[Commit, ...]

    @property
    def round(self) -> int:
        """The round that the last apply went to; 0 before the first."""
        return self.applied.to_round if self.applied else 0

    @property
    def applied_version(self) -> int:
        """The version of the last apply; -1 before the first."""
        return self.applied.version if self.applied else -1

    @property
    def version(self) -> int:
        """The table's newest version."""
        return self.commits[0].version


def replica_status(lake: LakeTables, replica: ReplicaTable) -> ReplicaStatus:
    """Return where a replica table stands, by its history; by the index where that is cleaned."""
    commits: list[Commit] = []
    for limit in (WINDOW, WHOLE):
        commits = history(lake.spark, lake.table_sql(replica.name), limit)
        applied = next((applied_of(replica.name, c) for c in commits if c.is_apply), None)
        if applied or reaches_creation(commits):
            return ReplicaStatus(applied, tuple(commits))
    indexed = indexed_applied(lake, [replica.name], 0)
    newest = max(indexed, key=lambda each: each.version, default=None)
    return ReplicaStatus(newest, tuple(commits))


def applied_of(table: str, commit: Commit) -> AppliedVersion:
    """Return what an apply's commit says about itself."""
    counts = [
        int(commit.metrics.get(name, "0") or 0)
        for name in ("numTargetRowsInserted", "numTargetRowsUpdated", "numTargetRowsDeleted")
    ]
    return AppliedVersion(
        table, commit.version, int(commit.ours["from"]), int(commit.ours["to"]), *counts
    )


def unindexed_applied(
    lake: LakeTables, replicas: Iterable[ReplicaTable]
) -> tuple[AppliedVersion, ...]:
    """Return the applies that ``changes`` does not list yet, oldest first: for the next round.

    Looks back over the newest commits of each table: every round lists what is not listed, so no
    more than the applies since the last round can be missing.
    """
    found = [
        applied_of(replica.name, commit)
        for replica in replicas
        for commit in history(lake.spark, lake.table_sql(replica.name))
        if commit.is_apply
    ]
    if not found:
        return ()
    tables = sorted({each.table for each in found})
    # An apply to a round is listed by a later round.
    listed = set(indexed_applied(lake, tables, min(each.to_round for each in found) + 1))
    return tuple(
        sorted((each for each in found if each not in listed), key=lambda e: (e.table, e.version))
    )


def indexed_applied(
    lake: LakeTables, tables: Sequence[str], first_round: int
) -> list[AppliedVersion]:
    """Return the ``applied`` rows of some tables, of rounds from ``first_round`` on."""
    rows = lake.spark.sql(
        f"SELECT DISTINCT applied.* FROM {lake.changes_sql} WHERE kind = {string('applied')} "
        f"AND round >= {int(first_round)} AND applied.table IN ({string_list(tables)})"
    ).collect()
    return [
        AppliedVersion(row["table"], row["version"], row["from_round"], row["to_round"])
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
            },
        }
        for each in applied
    ]
    return pa.RecordBatch.from_pylist(rows, schema=CHANGES)
