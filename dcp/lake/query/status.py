"""Reads the status of a lake: its rounds, its replicas, and vbuckets that wait or were left out."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any

from dcp.errors import LakeError
from dcp.lake.change_log.applied import ReplicaStatus, replica_status, shown_stale
from dcp.lake.change_log.changes import newest_round, refuse_tampered_log
from dcp.lake.change_log.control import Action, Control
from dcp.lake.change_log.round_queries import round_record
from dcp.lake.change_log.tampering import refuse_log_behind, short_vacuums
from dcp.lake.maintain.horizon_guard import look_back, recorded_horizon, wrong_properties
from dcp.lake.query.views_sql import AS_SENT_SQL
from dcp.lake.tables.history import TableCommit, history
from dcp.lake.tables.horizon import Horizon
from dcp.lake.tables.lake_tables import LakeTables, ReplicaTable, refuse_lost_replica, replicas_in
from dcp.lake.tables.round_record import UNDECODABLE, VbucketReport
from dcp.lake.tables.vbucket_state import VbucketProgress
from dcp.printable import Shown, number_ranges, printable
from dcp.records import plain


@dataclass(frozen=True, slots=True)
class ReplicaSummary:
    table: str
    version: int
    round: int
    documents: int
    defect: str
    """The foreign commit that stops every apply; empty if all is well."""
    stale: tuple[int, ...] = ()
    """It shows these vbuckets as of an older round, until they are whole again."""
    undecodable_values: int = 0
    """Documents whose value is as it was sent."""


@dataclass(frozen=True, slots=True)
class LakeStatus(Shown):
    """A lake at one moment; the cluster is not asked."""

    place: str
    lake_id: Annotated[str, "lake"]
    bucket: str
    vbuckets: int
    round: int
    waiting: Annotated[tuple[int, ...], "waiting_for_snapshot_end"]
    """The newest rows of these vbuckets wait for a snapshot's end."""
    stuck: tuple[VbucketReport, ...]
    """The vbuckets that the newest round did not bring further, with its reason."""
    replicas: tuple[ReplicaSummary, ...]
    horizon_seconds: float = 0.0
    """Rollbacks can be undone as far back."""
    warnings: tuple[str, ...] = ()
    """Foreign changes that shorten the horizon, or damage the log."""
    requests: tuple[Action, ...] = ()
    """Requests of the table ``control`` that are not done."""

    def to_json(self) -> dict[str, Any]:
        shown = ("id", "action", "state", "vbuckets", "who")
        requests = [{name: plain(getattr(each, name)) for name in shown} for each in self.requests]
        told: dict[str, Any] = plain(self)
        return told | {"requests": requests}

    def __str__(self) -> str:
        lines = [
            f"lake {self.lake_id} at {self.place}: bucket {self.bucket!r}, {self.vbuckets} "
            f"vbuckets, round {self.round}"
        ]
        for replica in self.replicas:
            behind = self.round - replica.round
            place = f"last applied at round {replica.round}" if behind > 0 else "holds that round"
            lines.append(
                f"  {replica.table}: version {replica.version}, {replica.documents:,} documents, "
                + place
            )
            if replica.defect:
                lines.append(f"    no apply is possible: found {replica.defect} by somebody else")
            if replica.undecodable_values:
                lines.append(f"    {replica.undecodable_values:,} {UNDECODABLE}")
            if replica.stale:
                lines.append(
                    f"    stale, until they are streamed whole: vbuckets "
                    f"{number_ranges(replica.stale)}"
                )
        if self.waiting:
            lines.append(f"  waiting for their snapshot's end: {len(self.waiting)} vbuckets")
        lines += _stuck_lines(self.stuck)
        lines += [
            f"  {each.action} {each.id}, {each.state}: vbuckets {each.vbuckets or 'all'}; asked for"
            f" by {printable(each.who)}"
            for each in self.requests
        ]
        lines += [f"  warning: {warning}" for warning in self.warnings]
        return "\n".join(lines)


def _stuck_lines(stuck: Sequence[VbucketReport]) -> list[str]:
    by_reason: dict[str, list[VbucketReport]] = {}
    for report in stuck:
        by_reason.setdefault(report.reason, []).append(report)
    return [
        f"  stand still: vbuckets {number_ranges(each.vbucket for each in reports)}: {reason} "
        f"({reports[0].vbucket}: {printable(reports[0].detail)})"
        for reason, reports in by_reason.items()
    ]


def lake_status(lake: LakeTables) -> LakeStatus:
    commits = history(lake.changes)
    newest = newest_round(lake, commits)
    record = round_record(lake, newest)
    horizon = recorded_horizon(lake)
    window = look_back(lake)
    replicas = {each: replica_status(lake, each, window) for each in replicas_in(lake)}
    return LakeStatus(
        place=str(lake.location),
        lake_id=lake.identity.lake_id,
        bucket=lake.identity.bucket,
        vbuckets=lake.identity.vbucket_count,
        round=newest,
        waiting=tuple(
            v for v, state in sorted(record.states.items()) if not state.position.is_complete
        ),
        stuck=tuple(report for report in record.reports if report.failed or report.reason),
        replicas=tuple(_summary(lake, *each, record.states) for each in replicas.items()),
        horizon_seconds=horizon.seconds,
        warnings=tuple(_warnings(lake, horizon, commits, replicas)),
        requests=tuple(each for each in Control(lake).actions() if each.is_open),
    )


def _warnings(
    lake: LakeTables,
    horizon: Horizon,
    commits: Sequence[TableCommit],
    replicas: Mapping[ReplicaTable, ReplicaStatus],
) -> Iterator[str]:
    """Name all that the next run would refuse or warn of; refuse nothing here."""
    try:
        refuse_tampered_log(lake, commits)
        statuses = {replica.name: status for replica, status in replicas.items()}
        refuse_log_behind(str(lake.location), newest_round(lake, commits), statuses)
        if newest_round(lake, commits):
            refuse_lost_replica(lake)
    except LakeError as error:
        yield str(error)
    for table, wrong in wrong_properties(lake, replicas, horizon).items():
        found = ", ".join(f"{name} {value or 'not set'}" for name, value in wrong.items())
        yield f"table {table}: found {found}, expected the horizon of {horizon}"
    now = datetime.now(UTC)
    for replica, status in replicas.items():
        for short in short_vacuums(replica.name, status.commit_history.commits, horizon, now):
            yield str(short)


def _summary(
    lake: LakeTables,
    replica: ReplicaTable,
    status: ReplicaStatus,
    states: Mapping[int, VbucketProgress],
) -> ReplicaSummary:
    table = lake.table(replica.name)
    # Two questions: the log answers each of them, mostly without a look into any data file.
    [counted] = table.rows("count(*) AS found", "true")
    [as_sent] = table.rows("count(*) AS found", AS_SENT_SQL)
    defect = status.commit_history.defect(status.version)
    return ReplicaSummary(
        replica.name,
        status.version,
        status.round,
        counted["found"],
        "" if defect is None else str(defect),
        tuple(sorted(shown_stale(status, states))),
        as_sent["found"],
    )
