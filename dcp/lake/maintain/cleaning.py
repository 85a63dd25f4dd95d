"""Decides which rows of ``changes`` no rollback or apply can need. No Spark.

The versions of the replicas at the horizon decide, not the age of rows. Let R be the oldest round
that a version of any replica within the horizon holds; the version at the horizon's start counts. A
rollback within the horizon restores one of these versions, and takes from the log only the rows
that this version lacks. So a document row may go if both conditions hold:

- It is a row of round R or of an earlier one.
- Its seqno is at or below the complete seqno of its vbucket, and its epoch is the vbucket's or an
  older one. This must hold in round R, and in each round that a replica had at the horizon's
  start. It then holds in later rounds, too: they complete more, or have a newer epoch.

``complete``, ``rollback``, ``applied`` and ``system_event`` rows stay for ever, as they show which
versions and branches there were. ``position`` and ``status`` rows stay from the oldest round whose
rows an apply to one of these versions reads.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from dcp.lake.change_log.applied import applied_of_version, indexed_applied
from dcp.lake.change_log.round_queries import count_changes, round_records, rounds_left
from dcp.lake.config.table_names import CHANGES_TABLE
from dcp.lake.maintain.work import (
    MaintenanceWork,
    StepReport,
    maintenance_metadata,
    unless_driver_writes,
)
from dcp.lake.store.sql import integer_list, u64
from dcp.lake.tables.applied_version import AppliedVersion
from dcp.lake.tables.commit_history import CommitHistory
from dcp.lake.tables.history import CLEANING, READ_VERSION, history
from dcp.lake.tables.horizon import version_at
from dcp.lake.tables.lake_tables import ReplicaTable, record_cleaned_round
from dcp.lake.tables.schema import ITEM_KINDS, RowKind, is_kind
from dcp.lake.tables.vbucket_state import LakeVbucketState
from dcp.printable import number_ranges


@dataclass(frozen=True, slots=True)
class CleaningPlan:
    to_round: int
    """Documents of later rounds stay."""
    keep_positions_from: int
    """Position and status rows of earlier rounds go."""
    seqnos: tuple[int, ...]
    """For every vbucket, in order: documents above this seqno stay."""
    epochs: tuple[int, ...]
    """For every vbucket, in order: documents of later epochs stay."""
    replicas: tuple[ReplicaTable, ...]
    """Documents of these replicas may go."""

    def documents_sql(self) -> str:
        seqnos = ", ".join(map(u64, self.seqnos))
        epochs = integer_list(self.epochs)
        collections = integer_list(replica.collection_id for replica in self.replicas)
        return (
            f"round <= {self.to_round} AND {is_kind(*ITEM_KINDS)} "
            f"AND collection_id IN ({collections}) "
            f"AND seqno <= get(array({seqnos}), vbucket) "
            f"AND epoch <= get(array({epochs}), vbucket)"
        )

    def positions_sql(self) -> str:
        return f"round < {self.keep_positions_from} AND {is_kind(RowKind.POSITION, RowKind.STATUS)}"

    def condition_sql(self) -> str:
        return f"({self.documents_sql()}) OR ({self.positions_sql()})"


class CleaningDeferredError(Exception):
    """Its text gives the reason why nothing may be removed."""


def versions_within(
    replica: ReplicaTable,
    commit_history: CommitHistory,
    horizon_start: datetime,
    indexed: Sequence[AppliedVersion],
) -> list[AppliedVersion]:
    """Return the applies whose rows the versions of a replica within the horizon have.

    ``indexed`` are the table's ``applied`` rows in the log, oldest first. They reach farther back
    than the history.
    """
    first = version_at(commit_history.commits, horizon_start)
    if first is None:
        raise CleaningDeferredError(
            f"table {replica.name} has no version from before {horizon_start:%F %T} UTC"
        )
    found: list[AppliedVersion] = []
    for version in range(first.version, commit_history.newest + 1):
        applied = applied_of_version(replica.name, commit_history, version, indexed)
        if applied is None:
            raise CleaningDeferredError(f"table {replica.name} had no round at version {version}")
        if applied not in found[-1:]:
            found.append(applied)
    return found


def rounds_to_judge(versions: Collection[Sequence[AppliedVersion]]) -> set[int]:
    oldest = {min(each.to_round for each in of_table) for of_table in versions}
    return oldest | {of_table[0].to_round for of_table in versions}


def plan_cleaning(
    versions: Mapping[ReplicaTable, Sequence[AppliedVersion]],
    states: Mapping[int, Mapping[int, LakeVbucketState]],
) -> CleaningPlan:
    """Return the rows that may go; ``versions`` are the applies within the horizon, by replica.

    ``states`` are the states of every vbucket, by round, for `rounds_to_judge`.
    """
    for replica, applied in versions.items():
        if stale := sorted({vbucket for each in applied for vbucket in each.stale}):
            # What they had is from older rounds, and what they wait for is not applied.
            raise CleaningDeferredError(
                f"table {replica.name} had stale vbuckets: {number_ranges(stale)}"
            )
    rounds = rounds_to_judge(versions.values())
    to_round = min(rounds, default=0)
    if to_round == 0:
        raise CleaningDeferredError("a replica table had no round when the horizon began")
    judges = [states[number] for number in sorted(rounds)]
    by_vbucket = [[each[vbucket] for each in judges] for vbucket in sorted(judges[0])]
    log_from = min(each.log_from_round for applied in versions.values() for each in applied)
    return CleaningPlan(
        to_round,
        min(log_from, to_round),
        tuple(min(state.complete_seqno for state in states_of) for states_of in by_vbucket),
        tuple(min(state.epoch for state in states_of) for states_of in by_vbucket),
        tuple(versions),
    )


def clean(work: MaintenanceWork) -> Iterator[StepReport]:
    try:
        plan = cleaning_of(work)
    except CleaningDeferredError as why:
        yield StepReport("clean", CHANGES_TABLE, f"nothing is removed: {why}")
        return
    rows = count_changes(work.lake, plan.condition_sql())
    if work.dry_run or not rows:
        told = f"would remove {rows:,} rows up to round {plan.to_round}"
        if not rows:
            told = f"no row up to round {plan.to_round} is left that is not needed"
        yield StepReport(
            "clean", CHANGES_TABLE, told, figures={"rows": rows, "to_round": plan.to_round}
        )
        return
    yield unless_driver_writes("clean", CHANGES_TABLE, lambda: _remove(work, plan))


def cleaning_of(work: MaintenanceWork) -> CleaningPlan:
    """Plan the removal; writes nothing.

    Raises:
        CleaningDeferredError: nothing may be removed.
    """
    start = work.kept.start(work.now)
    if not work.replicas:
        raise CleaningDeferredError("there is no replica table")
    versions = {}
    for replica in work.replicas:
        commit_history = CommitHistory(tuple(work.commits(replica)))
        indexed = [] if commit_history.is_whole else indexed_applied(work.lake, [replica.name], 0)
        versions[replica] = versions_within(replica, commit_history, start, indexed)
    rounds = rounds_to_judge(versions.values())
    if gone := rounds - {0} - rounds_left(work.lake, rounds):
        raise CleaningDeferredError(
            f"the horizon has become longer than when positions of round {max(gone)} were removed"
        )
    records = round_records(work.lake, rounds)
    return plan_cleaning(versions, {number: found.states for number, found in records.items()})


def _remove(work: MaintenanceWork, plan: CleaningPlan) -> StepReport:
    lake = work.lake
    # First the note, then the deed: a rebuild must never take a log for whole that is not.
    record_cleaned_round(lake, plan.replicas, plan.to_round)
    read_version = history(lake.changes, 1)[0].version
    metadata = maintenance_metadata(lake, "clean") | {
        CLEANING: plan.to_round,
        READ_VERSION: read_version,
    }
    rows = lake.changes.delete(plan.condition_sql(), metadata)
    told = f"removed {rows:,} rows up to round {plan.to_round}"
    figures = {"rows": rows, "to_round": plan.to_round}
    return StepReport("clean", CHANGES_TABLE, told, done=True, figures=figures)
