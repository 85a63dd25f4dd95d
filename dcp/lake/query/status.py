"""Reads the status of a lake: figures, number of documents, warnings."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any

from dcp.errors import LakeError
from dcp.lake.change_log.applied import ReplicaStatus, replica_status
from dcp.lake.change_log.changes import refuse_tampered_log
from dcp.lake.change_log.control import BACKFILL, RESYNC, Action, Control, pause_of, paused_by
from dcp.lake.change_log.tampering import refuse_log_behind, short_vacuums
from dcp.lake.maintain.horizon_guard import look_back, recorded_horizon, wrong_properties
from dcp.lake.query.lake_figures import LakeFigures, lake_figures
from dcp.lake.query.views_sql import AS_SENT_SQL
from dcp.lake.tables.history import TableCommit, history
from dcp.lake.tables.horizon import Horizon
from dcp.lake.tables.lake_tables import LakeTables, ReplicaTable, refuse_lost_replica, replicas_in
from dcp.lake.tables.round_record import UNDECODABLE, VbucketReport
from dcp.printable import Shown, age_text, number_ranges, printable
from dcp.records import UNSTORED, plain


@dataclass(frozen=True, slots=True)
class LakeStatus(LakeFigures, Shown):
    """The figures, and the facts that only `dcplake status` shows."""

    at: datetime
    """Ages count from this time."""
    place: str
    documents: Annotated[Mapping[str, int], UNSTORED]
    """By table."""
    undecodable_values: Annotated[Mapping[str, int], UNSTORED]
    """By table: documents whose value is stored as it was sent."""
    horizon_seconds: float = 0.0
    """Rollbacks over this time can be undone."""
    warnings: tuple[str, ...] = ()
    """Foreign changes that shorten the horizon, or damage the log."""
    requests: tuple[Action, ...] = ()
    """Open requests of the table ``control``."""
    paused: str = ""
    """Names who paused the lake; empty if it is not paused."""

    def to_json(self) -> dict[str, Any]:
        shown = ("id", "action", "state", "vbuckets", "who")
        return {
            **plain(self),
            "is_driven": self.is_driven(self.at),
            "waiting_for_snapshot_end": plain(self.waiting),
            "stuck": plain(self.stuck),
            "replicas": [
                {
                    **plain(each),
                    "stale": plain(self.stale[each.table]),
                    "documents": self.documents[each.table],
                    "undecodable_values": self.undecodable_values[each.table],
                }
                for each in self.replicas
            ],
            "requests": [
                {name: plain(getattr(each, name)) for name in shown} for each in self.requests
            ],
        }

    def __str__(self) -> str:
        lines = [
            f"lake {self.lake_id} at {self.place}: bucket {self.bucket!r}, {self.vbuckets} "
            f"vbuckets, round {self.round}"
        ]
        lines += self._age_lines()
        for replica in self.replicas:
            behind = self.round - replica.round
            place = f"last applied at round {replica.round}" if behind > 0 else "holds that round"
            lines.append(
                f"  {replica.table}: version {replica.version}, "
                f"{self.documents[replica.table]:,} documents, {place}"
            )
            if replica.defect:
                lines.append(f"    no apply is possible: found {replica.defect} by somebody else")
            if undecodable := self.undecodable_values[replica.table]:
                lines.append(f"    {undecodable:,} {UNDECODABLE}")
            if stale := self.stale[replica.table]:
                lines.append(
                    f"    stale, until they are streamed whole: vbuckets {number_ranges(stale)}"
                )
        if self.waiting:
            lines.append(f"  waiting for their snapshot's end: {len(self.waiting)} vbuckets")
        lines += _stuck_lines(self.stuck)
        if self.paused:
            lines.append(f"  {printable(self.paused)}; dcplake resume ends that")
        for each in self.requests:
            has_vbuckets = each.action in (BACKFILL, RESYNC)
            of = f" vbuckets {each.vbuckets or 'all'};" if has_vbuckets else ""
            line = (
                f"  {each.action} {each.id}, {each.state}:{of} asked for by {printable(each.who)}"
            )
            lines.append(line + (f"; waits: {printable(each.detail)}" if each.detail else ""))
        lines += [f"  warning: {warning}" for warning in self.warnings]
        return "\n".join(lines)

    def _age_lines(self) -> list[str]:
        applies = (each.applied_at for each in self.replicas if each.applied_at)
        ages = [
            f"last {what} {age_text((self.at - time).total_seconds())} ago"
            for what, time in (("round", self.round_at), ("apply", max(applies, default=None)))
            if time is not None
        ]
        if self.last_contact is None:
            return ["  no contact with the cluster yet"]
        lines = [f"  {', '.join([self.last_contact.told(self.at), *ages])}"]
        if not self.is_driven(self.at):
            lines.append("    so the lag is unknown; dcplake run goes on from there")
        elif behind := self.last_contact.behind:
            lines[0] += f"; {behind:,} seqnos were to be read then"
        return lines


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
    window = look_back(lake)
    statuses = {each: replica_status(lake, each, window) for each in replicas_in(lake)}
    figures = lake_figures(lake, commits, statuses)
    horizon = recorded_horizon(lake)
    actions = Control(lake).actions()
    pause = pause_of(actions)
    # Two questions: the log answers each of them, mostly without a look into any data file.
    return LakeStatus(
        **figures.parts(),
        at=datetime.now(UTC),
        place=str(lake.location),
        documents={each.name: _count(lake, each, "true") for each in statuses},
        undecodable_values={each.name: _count(lake, each, AS_SENT_SQL) for each in statuses},
        horizon_seconds=horizon.seconds,
        warnings=tuple(_warnings(lake, horizon, commits, figures.round, statuses)),
        requests=tuple(each for each in actions if each.is_open),
        paused="" if pause is None else paused_by(pause),
    )


def _count(lake: LakeTables, replica: ReplicaTable, condition: str) -> int:
    [counted] = lake.table(replica.name).rows("count(*) AS found", condition)
    return int(counted["found"])


def _warnings(
    lake: LakeTables,
    horizon: Horizon,
    commits: Sequence[TableCommit],
    newest: int,
    replicas: Mapping[ReplicaTable, ReplicaStatus],
) -> Iterator[str]:
    """Yield everything that the next run would refuse or warn of. Refuses nothing itself."""
    try:
        refuse_tampered_log(lake, commits)
        statuses = {replica.name: status for replica, status in replicas.items()}
        refuse_log_behind(str(lake.location), newest, statuses)
        if newest:
            refuse_lost_replica(lake)
    except LakeError as error:
        yield str(error)
    for table, wrong in wrong_properties(lake, replicas, horizon).items():
        found = ", ".join(f"{name} {value or 'not set'}" for name, value in wrong.items())
        yield f"table {table}: found {found}, expected the horizon of {horizon}"
    now = datetime.now(UTC)
    for replica, status in replicas.items():
        yield from short_vacuums(replica.name, status.commit_history.commits, horizon, now)
