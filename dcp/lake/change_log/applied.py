"""Maps versions of a replica table to the rounds that they hold.

The table's history decides. If Delta's log cleanup has removed an apply's commit, a later heartbeat
commit repeats its content. The ``applied`` rows of ``changes`` are an index of the history; it may
lag behind the history, but is never ahead. Views need the index, since no SQL relation shows
Delta's commit information. `replica_status` needs it if log cleanup removed an apply's commit
before a heartbeat repeated it. ``benchmarks/applied_rows.py`` measures both.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Annotated, Any

import pyarrow as pa

from dcp.lake.store.table import Operation
from dcp.lake.tables.applied_version import BEGINNING, AppliedVersion
from dcp.lake.tables.commit_history import CommitHistory
from dcp.lake.tables.history import FEW, WHOLE, WINDOW, TableCommit, history
from dcp.lake.tables.lake_tables import LakeTables, ReplicaTable
from dcp.lake.tables.schema import CHANGES, RowKind, is_kind
from dcp.lake.tables.vbucket_state import LakeVbucketState
from dcp.records import UNSTORED, read, row_of


@dataclass(frozen=True, slots=True)
class ReplicaStatus:
    """A replica table's history, and the apply whose rows the table has."""

    table: str
    applied: Annotated[AppliedVersion | None, UNSTORED]
    """None before the first apply. After a RESTORE it may be older than the newest apply."""
    since_version: Annotated[int, UNSTORED]
    """The version of that apply, or of the RESTORE to it; -1 before the first apply."""
    commit_history: Annotated[CommitHistory, UNSTORED]

    @property
    def current(self) -> AppliedVersion:
        """The apply whose rows the newest version has, with the newest version's number."""
        return replace(self.applied or BEGINNING, table=self.table, version=self.version)

    @property
    def version(self) -> Annotated[int, "version"]:
        return self.commit_history.newest

    @property
    def round(self) -> Annotated[int, "round"]:
        """The round that the table has reached; 0 before the first apply."""
        return self.current.to_round

    @property
    def applied_at(self) -> Annotated[datetime | None, "applied_at"]:
        """None before the first apply, or if the history has forgotten it."""
        commit = None if self.applied is None else self.commit_history.commit(self.applied.version)
        return None if commit is None else commit.time

    @property
    def defect(self) -> Annotated[str, "defect"]:
        """The foreign commit that stops every apply; empty if there is none."""
        defect = self.commit_history.defect(self.version)
        return "" if defect is None else str(defect)


def replica_status(lake: LakeTables, replica: ReplicaTable, window: int = FEW) -> ReplicaStatus:
    """Return a replica table's status, from its history, or from the index if that is cleaned.

    It reads at least ``window`` commits, if the table has so many.
    """
    commit_history = conclusive_history(lake, replica.name, window)
    since = commit_history.since()
    if (commit := commit_history.applied()) is not None:
        since = commit.version if since is None else since
        return ReplicaStatus(replica.name, applied_of(replica.name, commit), since, commit_history)
    origin = commit_history.origin(commit_history.newest)
    if origin < 0 or commit_history.is_whole:
        return ReplicaStatus(replica.name, None, -1 if since is None else since, commit_history)
    if (told := commit_history.heartbeat_of(commit_history.newest)) is not None:
        since = int(told["since"]) if since is None else since
        return ReplicaStatus(replica.name, applied_of_heartbeat(told), since, commit_history)
    # A table that was dropped and created again may have index rows with higher versions.
    indexed = [each for each in indexed_applied(lake, [replica.name], 0) if each.version <= origin]
    applied = indexed[-1] if indexed else None
    if since is None:
        since = applied.version if applied else -1
    return ReplicaStatus(replica.name, applied, since, commit_history)


def applied_of_version(
    table: str,
    commit_history: CommitHistory,
    version: int,
    indexed: Sequence[AppliedVersion] = (),
) -> AppliedVersion | None:
    """Return the apply whose rows a version has, valid or not; None if it is unknown.

    If Delta's log cleanup has removed the commit, a heartbeat may repeat its content. If none does,
    ``indexed`` decides: the table's ``applied`` rows in the log, oldest first.
    """
    at = commit_history.origin(version)
    if (origin := commit_history.commit(at)) is not None:
        return applied_of(table, origin) if origin.is_apply else None
    if (told := commit_history.heartbeat_of(version)) is not None:
        return applied_of_heartbeat(told)
    older = [each for each in indexed if each.version <= at]
    return older[-1] if older else None


def shown_stale(status: ReplicaStatus, newest: Mapping[int, LakeVbucketState]) -> dict[int, int]:
    """Return the vbuckets whose rows a table shows as of an older round, with that round.

    These are the stale vbuckets of its newest version, and vbuckets that began at 0 again and are
    not complete.
    """
    current = status.current
    anew = (vb for vb, state in newest.items() if state.is_beginning_again)
    return {**current.stale} | {vb: current.round_of(vb) for vb in anew}


def conclusive_history(lake: LakeTables, table: str, window: int = FEW) -> CommitHistory:
    """Return a table's history, as far back as its newest version needs."""
    for limit in (window, max(window, WINDOW)):
        commit_history = CommitHistory(tuple(history(lake.table(table), limit)))
        # The error message about a defect names an older valid version, so it needs more history.
        if commit_history.is_conclusive and (
            limit > FEW or commit_history.defect(commit_history.newest) is None
        ):
            return commit_history
    return CommitHistory(tuple(history(lake.table(table), WHOLE)))


def applied_of(table: str, commit: TableCommit) -> AppliedVersion:
    made = read(AppliedVersion, {**commit.ours, "table": table, "version": commit.version})
    written = "" if commit.operation == Operation.MERGE else "numOutputRows"
    inserted, updated, deleted, rewritten = (
        int(commit.metrics.get(name, "0") or 0)
        for name in (
            "numTargetRowsInserted",
            "numTargetRowsUpdated",
            "numTargetRowsDeleted",
            written,
        )
    )
    return replace(made, inserted=inserted, updated=updated, deleted=deleted, rewritten=rewritten)


def heartbeat_content(status: ReplicaStatus) -> dict[str, Any]:
    """Return what a heartbeat repeats of a table's status, as `replica_status` reads it."""
    return {"since": status.since_version, **(row_of(status.applied) if status.applied else {})}


def applied_of_heartbeat(told: Mapping[str, Any]) -> AppliedVersion | None:
    return read(AppliedVersion, told) if "to_round" in told else None


def unindexed_applied(
    lake: LakeTables, replicas: Iterable[ReplicaTable]
) -> tuple[AppliedVersion, ...]:
    """Return the applies that ``changes`` does not list, oldest first, for the next round.

    A RESTORE counts as an apply to the round that it took the table back to. Readers of the index
    take a table's round from its newest row.
    """
    names = [replica.name for replica in replicas]
    # Every round lists the missing applies, so that few recent commits suffice. If none of them is
    # listed, the search goes further back.
    found_in = lake.store.for_each(lambda table: _recent(lake, table, FEW), names)
    recent = dict(zip(names, found_in, strict=True))
    listed = _listed(lake, recent)
    if unknown := [table for table, found in recent.items() if listed.isdisjoint(found)]:
        recent |= {table: _recent(lake, table, WINDOW) for table in unknown}
        listed = _listed(lake, recent)
    found = [each for made in recent.values() for each in made if each not in listed]
    return tuple(sorted(found, key=lambda each: (each.table, each.version)))


def _listed(
    lake: LakeTables, recent: Mapping[str, Sequence[AppliedVersion]]
) -> frozenset[AppliedVersion]:
    """Return the applies that ``changes`` lists. An apply to round n is listed after round n."""
    rounds = [each.to_round for made in recent.values() for each in made]
    if not rounds:
        return frozenset()
    return frozenset(indexed_applied(lake, sorted(recent), min(rounds) + 1))


def _recent(lake: LakeTables, table: str, window: int) -> list[AppliedVersion]:
    commit_history = conclusive_history(lake, table, window)
    found = []
    for commit in commit_history.commits[:window]:
        if commit.is_apply:
            found.append(applied_of(table, commit))
        elif commit.restored is not None and commit_history.defect(commit.version) is None:
            origin = commit_history.commit(commit_history.origin(commit.version))
            if origin:
                made = applied_of(table, origin)
                found.append(
                    AppliedVersion(
                        table,
                        commit.version,
                        made.to_round,
                        made.to_round,
                        made.log_from_round,
                        made.stale_vbuckets,
                    )
                )
            elif commit_history.is_whole:
                found.append(replace(BEGINNING, table=table, version=commit.version))
    if not found and (told := commit_history.heartbeat_of(commit_history.newest)) is not None:
        applied = applied_of_heartbeat(told)  # its commit is gone from the history
        found += [applied] if applied else []
    return found


def indexed_applied(
    lake: LakeTables, tables: Sequence[str], first_round: int
) -> list[AppliedVersion]:
    found = lake.changes.rows(
        "round, applied", f"{is_kind(RowKind.APPLIED)} AND round >= {int(first_round)}"
    )
    found.sort(key=lambda row: (row["round"], row["applied"]["version"]))
    applied = (read(AppliedVersion, row["applied"]) for row in found)
    return [each for each in applied if each.table in tables]


def applied_to_batch(applied: Iterable[AppliedVersion], round_number: int) -> pa.RecordBatch:
    rows = [
        {"round": round_number, "kind": RowKind.APPLIED, "applied": row_of(each)}
        for each in applied
    ]
    return pa.RecordBatch.from_pylist(rows, schema=CHANGES)
