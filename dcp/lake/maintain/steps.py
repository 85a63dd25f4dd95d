"""Maintenance of a lake: table properties, heartbeats, cleaning of the log, OPTIMIZE and VACUUM.

No step removes what a rollback within the horizon may need; a shorter time is refused, with its
cost. Each commit names dcplake.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from dcp.errors import ConfigError, FencedError
from dcp.lake.adapters.opening import opened_lake
from dcp.lake.change_log.applied import replica_status
from dcp.lake.change_log.changes import newest_round, refuse_tampered_log
from dcp.lake.change_log.tampering import refuse_log_behind
from dcp.lake.config.settings import Settings
from dcp.lake.config.table_names import CHANGES_TABLE
from dcp.lake.maintain.cleaning import clean
from dcp.lake.maintain.compaction import optimize, vacuum
from dcp.lake.maintain.horizon_guard import (
    beat,
    keep_retention,
    newest_commit_time,
    recorded_horizon,
    wrong_properties,
)
from dcp.lake.maintain.work import MaintenanceWork, StepReport
from dcp.lake.tables.history import history
from dcp.lake.tables.horizon import HOUR_SECONDS, Horizon, loss_text
from dcp.lake.tables.lake_tables import LakeTables, replicas_in

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def maintain(
    settings: Settings,
    *,
    steps: Sequence[str] | None = None,
    retain_hours: float | None = None,
    dry_run: bool = False,
    spark: "SparkSession | None" = None,
    told: Callable[[StepReport], object] = lambda _: None,
) -> list[StepReport]:
    """Maintain the lake of these settings, with its lock held.

    The horizon is the larger of ``lake.horizon_hours`` and the newest run's horizon: only a run
    makes it shorter.

    Args:
        settings: only the sections of the lake and of Spark matter.
        steps: some of `STEPS`, which run in their order; None means all.
        retain_hours: keep more than the horizon.
        dry_run: write nothing, and report the plan.
        spark: the session to use; None builds or takes over one.
        told: called after each step on each table.

    Raises:
        ConfigError: ``retain_hours`` is below the horizon; names the cost.
        LakeError: there is no lake, or somebody else changed the log.
        FencedError: a driver works on the lake; or it committed in the moment of a step. That step
            was not done, all others are done.
    """
    with opened_lake(settings, spark, writer="" if dry_run else "dcplake maintain") as lake:
        horizon = max(
            Horizon.of_hours(settings.lake.horizon_hours),
            recorded_horizon(lake),
            key=lambda each: each.seconds,
        )
        work = work_on(lake, horizon, retain_hours, dry_run=dry_run)
        reports = []
        for report in run_steps(work, steps):
            reports.append(report)
            told(report)
    if left := [f"{each.step} {each.table}" for each in reports if each.is_left]:
        raise FencedError(
            f"{lake.location}: skipped {', '.join(left)}: another driver committed in the same "
            "moment; all else is done. Run `dcplake maintain` again"
        )
    return reports


def work_on(
    lake: LakeTables,
    horizon: Horizon,
    retain_hours: float | None = None,
    *,
    now: datetime | None = None,
    dry_run: bool = False,
) -> MaintenanceWork:
    """Return the work on a lake. VACUUM goes by the real time, the other steps by ``now``."""
    kept_seconds = horizon.seconds if retain_hours is None else retain_hours * HOUR_SECONDS
    now = now or datetime.now(UTC)
    if kept_seconds >= horizon.seconds:
        return MaintenanceWork(
            lake, replicas_in(lake), horizon, Horizon(kept_seconds), now, dry_run
        )
    work = MaintenanceWork(lake, replicas_in(lake), horizon, horizon, now, dry_run)
    losses = (
        loss_text(replica.name, work.commits(replica), horizon, kept_seconds, now)
        for replica in work.replicas
    )
    raise ConfigError(_refusal(kept_seconds, horizon, [each for each in losses if each], now))


def run_steps(work: MaintenanceWork, steps: Sequence[str] | None = None) -> Iterator[StepReport]:
    lake = work.lake
    commits = history(lake.changes)
    refuse_tampered_log(lake, commits)
    statuses = {each.name: replica_status(lake, each) for each in work.replicas}
    refuse_log_behind(str(lake.location), newest_round(lake, commits), statuses)
    for name, step in STEPS.items():
        if steps is None or name in steps:
            yield from step(work)


def _retention(work: MaintenanceWork) -> Iterator[StepReport]:
    if work.dry_run:
        for table, wrong in wrong_properties(work.lake, work.replicas, work.horizon).items():
            told = f"would set {', '.join(wrong)} to the horizon of {work.horizon}"
            yield StepReport("retention", table, told)
        return
    for table, told in keep_retention(work.lake, work.replicas, work.horizon).items():
        yield StepReport("retention", table, told, done=True)


def _heartbeat(work: MaintenanceWork) -> Iterator[StepReport]:
    for replica in (None, *work.replicas):
        table = CHANGES_TABLE if replica is None else replica.name
        age = work.now - newest_commit_time(work.lake, table)
        if age.total_seconds() < work.horizon.heartbeat_seconds:
            continue
        if work.dry_run:
            yield StepReport("heartbeat", table, "would make a new version with the same rows")
        elif beat(work.lake, replica):
            told = "made a new version with the same rows"
            yield StepReport("heartbeat", table, told, done=True)


STEPS: Final[Mapping[str, Callable[[MaintenanceWork], Iterator[StepReport]]]] = {
    "retention": _retention,
    "heartbeat": _heartbeat,
    "clean": clean,
    "optimize": optimize,
    "vacuum": vacuum,
}


def _refusal(kept_seconds: float, horizon: Horizon, losses: Sequence[str], now: datetime) -> str:
    lost = "; ".join(losses) or "no version that there is now"
    since = datetime.fromtimestamp(now.timestamp() - kept_seconds, UTC)
    return (
        f"--retain-hours: found {kept_seconds / HOUR_SECONDS:g}, expected the horizon of {horizon} "
        f"or more. It would remove {lost}; rollbacks to what was before "
        f"{since:%Y-%m-%d %H:%M:%S} UTC could not be undone any more. Nothing was done. If that is "
        "what you want, lower lake.horizon_hours and let `dcplake run` start with it first"
    )
