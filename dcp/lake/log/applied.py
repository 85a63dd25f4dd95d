"""Maps versions of a replica table to the rounds they hold: from its history and the log's index.

The history is the truth; where Delta's log cleanup took an apply, a heartbeat after it repeats what
that said. Its index are the ``applied`` rows of ``changes``, which the first round that is planned
after an apply writes; a reader of the index may find it behind the truth, never ahead of it.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import pyarrow as pa

from dcp.lake.log.log_slice import HeldVersion, LogSlice, Undo
from dcp.lake.tables.history import FEW, WHOLE, WINDOW, TableCommit, history
from dcp.lake.tables.lineage import Lineage
from dcp.lake.tables.schema import CHANGES, RowKind, is_kind
from dcp.lake.tables.tables import LakeTables, ReplicaTable
from dcp.lake.tables.vbucket_state import FIRST_EPOCH, VbucketProgress
from dcp.printable import number_ranges


@dataclass(frozen=True, slots=True)
class AppliedVersion:
    """A version of a replica table that holds the state of ``to_round``.

    The fields that are not compared come from the commit alone.
    """

    table: str
    version: int
    from_round: int
    to_round: int
    log_from_round: int
    """The log has the later rounds' rows that it lacks from this round on.

    That is ``to_round``, or the oldest round with a row that still waited for its snapshot's end
    then.
    """
    stale: tuple[tuple[int, int], ...] = ()
    """(vbucket, round): it holds the vbucket as of this older round."""
    undone: tuple[Undo, ...] = ()
    """The vbuckets that it took back."""
    cleared: tuple[int, ...] = field(default=(), compare=False)
    """In these vbuckets it emptied the collection."""
    revived: tuple[int, ...] = field(default=(), compare=False)
    """In these vbuckets it undid an emptying."""
    inserted: int = field(default=0, compare=False)
    updated: int = field(default=0, compare=False)
    deleted: int = field(default=0, compare=False)
    rewritten: int = field(default=0, compare=False)

    def __str__(self) -> str:
        counts = f"{self.inserted} inserted, {self.updated} updated, {self.deleted} deleted"
        if self.rewritten:
            counts = f"all {self.rewritten} rows written anew, with other typed columns"
        told = (
            f"{self.table} version {self.version}: round {self.from_round} -> {self.to_round}, "
            f"{counts}"
        )
        if self.undone:
            told += f"; rolled back: vbuckets {number_ranges(each.vbucket for each in self.undone)}"
        if self.cleared:
            told += f"; flushed or dropped: vbuckets {number_ranges(self.cleared)}"
        if self.stale:
            told += f"; stale: vbuckets {number_ranges(vb for vb, _ in self.stale)}"
        return told

    @property
    def held(self) -> HeldVersion:
        return HeldVersion(self.version, self.to_round, dict(self.stale))


@dataclass(frozen=True, slots=True)
class ReplicaStatus:
    """The status of a replica table: the apply whose rows it has, and its history."""

    applied: AppliedVersion | None
    """None before the first apply; after a RESTORE it is not the newest apply."""
    since_version: int
    """The apply's own version, or the RESTORE's; -1 before the first apply."""
    lineage: Lineage

    @property
    def round(self) -> int:
        """The round that the table holds; 0 before the first apply."""
        return self.applied.to_round if self.applied else 0

    @property
    def held(self) -> HeldVersion:
        stale = dict(self.applied.stale) if self.applied else {}
        return HeldVersion(self.version, self.round, stale)

    @property
    def version(self) -> int:
        return self.lineage.newest


def replica_status(lake: LakeTables, replica: ReplicaTable, window: int = FEW) -> ReplicaStatus:
    """Return a replica table's status, by its history, or by the index if that is cleaned.

    ``window`` is the least number of commits in the lineage, if there are as many.
    """
    lineage = settled_lineage(lake, replica.name, window)
    since = lineage.since()
    if (commit := lineage.applied()) is not None:
        return ReplicaStatus(
            applied_of(replica.name, commit), commit.version if since is None else since, lineage
        )
    origin = lineage.origin(lineage.newest)
    if origin < 0 or lineage.is_whole:
        return ReplicaStatus(None, -1 if since is None else since, lineage)
    if (told := lineage.heartbeat_content(lineage.newest)) is not None:
        since = int(told["since"]) if since is None else since
        return ReplicaStatus(applied_of_heartbeat(replica.name, told), since, lineage)
    # A table that was dropped and made again may have older rows with higher versions there.
    indexed = [each for each in indexed_applied(lake, [replica.name], 0) if each.version <= origin]
    applied = indexed[-1] if indexed else None
    if since is None:
        since = applied.version if applied else -1
    return ReplicaStatus(applied, since, lineage)


def applied_at(table: str, lineage: Lineage, version: int) -> AppliedVersion | None:
    """Return the apply whose rows a version has, sound or not; None if the history tells none.

    If log cleanup took its commit, a heartbeat may repeat its content.
    """
    origin = lineage.commit(lineage.origin(version))
    if origin is not None:
        return applied_of(table, origin) if origin.is_apply else None
    told = lineage.heartbeat_content(version)
    return None if told is None else applied_of_heartbeat(table, told)


def shown_stale(status: ReplicaStatus, newest: Mapping[int, VbucketProgress]) -> dict[int, int]:
    """Return the vbuckets whose rows a table shows as of an older round, and that round.

    These are the stale ones of its newest version. Vbuckets that began anew since and are not
    complete join them.
    """
    held = status.held
    anew = (vb for vb, state in newest.items() if state.epoch > FIRST_EPOCH and not state.is_whole)
    return dict(held.stale) | {vb: held.round_of(vb) for vb in anew}


def settled_lineage(lake: LakeTables, table: str, window: int = FEW) -> Lineage:
    """Return a table's lineage, from as much of its history as its newest version needs."""
    for limit in (window, max(window, WINDOW)):
        lineage = Lineage(tuple(history(lake.table(table), limit)))
        # Of a table with a defect the message names an older version that is sound.
        if lineage.is_settled and (limit > FEW or lineage.defect(lineage.newest) is None):
            return lineage
    return Lineage(tuple(history(lake.table(table), WHOLE)))


def applied_of(table: str, commit: TableCommit) -> AppliedVersion:
    counts = [
        int(commit.metrics.get(name, "0") or 0)
        for name in (
            "numTargetRowsInserted",
            "numTargetRowsUpdated",
            "numTargetRowsDeleted",
            "numOutputRows" if commit.operation != "MERGE" else "",
        )
    ]
    emptied = (tuple(commit.ours.get(name, ())) for name in ("cleared", "revived"))
    return _applied_from(table, commit.version, commit.ours, *emptied, *counts)


def commit_content(from_round: int, log_slice: LogSlice) -> dict[str, Any]:
    return {
        "from": from_round,
        "to": log_slice.to_round,
        "log_from": log_slice.log_from_round,
        **({"first": log_slice.first_round} if log_slice.undone else {}),
        **_by_vbucket(log_slice.stale.items(), log_slice.undone),
        **({"cleared": list(log_slice.cleared)} if log_slice.cleared else {}),
        **({"revived": list(log_slice.revived)} if log_slice.revived else {}),
    }


def heartbeat_content(status: ReplicaStatus) -> dict[str, Any]:
    applied = status.applied
    told: dict[str, Any] = {"since": status.since_version}
    if applied is not None:
        told |= {
            "version": applied.version,
            "from": applied.from_round,
            "to": applied.to_round,
            "log_from": applied.log_from_round,
            **_by_vbucket(applied.stale, applied.undone),
        }
    return told


def applied_of_heartbeat(table: str, told: Mapping[str, Any]) -> AppliedVersion | None:
    """Return the apply that a heartbeat repeats; None if there was none yet."""
    return _applied_from(table, int(told["version"]), told) if "to" in told else None


def _by_vbucket(
    stale: Iterable[tuple[int, int]], undone: Iterable[Undo]
) -> dict[str, list[tuple[int, ...]]]:
    told: dict[str, list[tuple[int, ...]]] = {
        "stale": list(stale),
        "undone": [(each.vbucket, each.version, each.fork_seqno) for each in undone],
    }
    return {name: listed for name, listed in told.items() if listed}


def _applied_from(
    table: str, version: int, content: Mapping[str, Any], *commit_fields: Any
) -> AppliedVersion:
    return AppliedVersion(
        table,
        version,
        int(content["from"]),
        int(content["to"]),
        int(content["log_from"]),
        tuple(sorted((int(vbucket), int(number)) for vbucket, number in content.get("stale", ()))),
        tuple(sorted(Undo(*map(int, each)) for each in content.get("undone", ()))),
        *commit_fields,
    )


def unindexed_applied(
    lake: LakeTables, replicas: Iterable[ReplicaTable]
) -> tuple[AppliedVersion, ...]:
    """Return the applies that ``changes`` does not list yet, oldest first: for the next round.

    A RESTORE is listed as well, with the round that it took the table back to: a table's newest row
    tells its round. Every round lists the missing ones, so only applies since the last round can be
    missing. So it looks back over few commits of each table, and over more if none of those is
    listed.
    """
    recent = {replica.name: _recent(lake, replica.name, FEW) for replica in replicas}
    listed = _listed(lake, recent)
    if unknown := [table for table, found in recent.items() if listed.isdisjoint(found)]:
        recent |= {table: _recent(lake, table, WINDOW) for table in unknown}
        listed = _listed(lake, recent)
    found = [each for made in recent.values() for each in made if each not in listed]
    return tuple(sorted(found, key=lambda each: (each.table, each.version)))


def _listed(
    lake: LakeTables, recent: Mapping[str, Sequence[AppliedVersion]]
) -> frozenset[AppliedVersion]:
    """Return the applies that ``changes`` lists: a later round lists an apply to a round."""
    rounds = [each.to_round for made in recent.values() for each in made]
    if not rounds:
        return frozenset()
    return frozenset(indexed_applied(lake, sorted(recent), min(rounds) + 1))


def _recent(lake: LakeTables, table: str, window: int) -> list[AppliedVersion]:
    lineage = settled_lineage(lake, table, window)
    found = []
    for commit in lineage.commits[:window]:
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
    if not found and (told := lineage.heartbeat_content(lineage.newest)) is not None:
        applied = applied_of_heartbeat(table, told)  # its commit is gone from the history
        found += [applied] if applied else []
    return found


def indexed_applied(
    lake: LakeTables, tables: Sequence[str], first_round: int
) -> list[AppliedVersion]:
    found = lake.changes.rows(
        "round, applied", f"{is_kind(RowKind.APPLIED)} AND round >= {int(first_round)}"
    )
    found.sort(key=lambda row: (row["round"], row["applied"]["version"]))
    rows = (row["applied"] for row in found if row["applied"]["table"] in tables)
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
    rows = [
        {
            "round": round_number,
            "kind": RowKind.APPLIED,
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
