"""Removes from ``changes`` the rows that nothing needs; the rules are in ``cleaning.py``."""

from collections.abc import Iterator

from dcp.lake.log.applied import indexed_applied
from dcp.lake.log.round_records import count_changes, round_records, rounds_left
from dcp.lake.maintain.cleaning import (
    CleaningDeferred,
    CleaningPlan,
    plan_cleaning,
    rounds_to_judge,
    versions_within,
)
from dcp.lake.maintain.maintenance_work import MaintenanceWork, StepReport, unless_driver_writes
from dcp.lake.tables.history import CLEANING, history
from dcp.lake.tables.lineage import Lineage
from dcp.lake.tables.tables import record_cleaned_round

STEP = "clean"


def clean(work: MaintenanceWork) -> Iterator[StepReport]:
    plan = cleaning_of(work)
    if isinstance(plan, CleaningDeferred):
        yield StepReport(STEP, "changes", str(plan))
        return
    rows = count_changes(work.lake, plan.condition_sql())
    if work.dry_run or not rows:
        told = f"would remove {rows:,} rows up to round {plan.to_round}"
        if not rows:
            told = f"no row up to round {plan.to_round} is left that is not needed"
        yield StepReport(STEP, "changes", told, figures={"rows": rows, "to_round": plan.to_round})
        return
    yield unless_driver_writes(STEP, "changes", lambda: _remove(work, plan))


def cleaning_of(work: MaintenanceWork) -> CleaningPlan | CleaningDeferred:
    """Plan the removal; writes nothing."""
    start = work.kept.start(work.now)
    if not work.replicas:
        return CleaningDeferred("there is no replica table")
    versions = {}
    for replica in work.replicas:
        lineage = Lineage(tuple(work.commits(replica)))
        indexed = [] if lineage.is_whole else indexed_applied(work.lake, [replica.name], 0)
        found = versions_within(replica, lineage, start, indexed)
        if isinstance(found, CleaningDeferred):
            return found
        versions[replica] = found
    rounds = rounds_to_judge(versions.values())
    if gone := rounds - {0} - rounds_left(work.lake, rounds):
        return CleaningDeferred(
            f"the horizon has become longer than when positions of round {max(gone)} were removed"
        )
    records = round_records(work.lake, rounds)
    return plan_cleaning(versions, {number: found.states for number, found in records.items()})


def _remove(work: MaintenanceWork, plan: CleaningPlan) -> StepReport:
    lake = work.lake
    # First the note, then the deed: a rebuild must never take a log for whole that is not.
    record_cleaned_round(lake, plan.replicas, plan.to_round)
    base = history(lake.changes, 1)[0].version
    metadata = work.metadata(STEP) | {CLEANING: plan.to_round, "base": base}
    rows = lake.changes.delete(plan.condition_sql(), metadata)
    told = f"removed {rows:,} rows up to round {plan.to_round}"
    figures = {"rows": rows, "to_round": plan.to_round}
    return StepReport(STEP, "changes", told, done=True, figures=figures)
