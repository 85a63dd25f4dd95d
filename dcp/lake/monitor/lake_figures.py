"""The figures of a lake: their metrics, their JSON, and each line that ``dcplake status`` prints.

``figures_reader.py`` reads them. The labels of metrics are bounded: bucket, lake, tables, reasons,
stages. Metrics give times, not ages: a file of metrics may be read late.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Annotated, Any, ClassVar, Final

from dcp.lake.change_log.applied import ReplicaStatus
from dcp.lake.change_log.control import ControlRequest, RequestAction
from dcp.lake.change_log.last_contact import LastContact
from dcp.lake.store.table import TableSize
from dcp.lake.tables.round_record import UNDECODABLE, VbucketReport
from dcp.lake.task_board.board_files import BoardFigures
from dcp.lake.task_board.task_metrics import TASK_METRICS, newest_by_label
from dcp.lake.task_board.task_stats import TaskStats
from dcp.printable import Shown, age_text, number_ranges, printable
from dcp.prometheus import Metrics, exposition, metrics
from dcp.quantities import memory_text, share_text, size_text
from dcp.records import SPREAD, UNSTORED, Record, brief
from dcp.relay_figures import GroupFigures, RelayFigures, UpstreamFigures

_LABELS: Final = {"bucket": "bucket", "lake": "lake_id"}
_METRICS: Final = metrics(
    _LABELS,
    """
dcplake_lag_seqnos replicas[table=table].lag_seqnos
    Seqnos between what a replica table shows and the newest known ones, summed over all vbuckets.
    Collections share a vbucket's seqnos. While nobody drives the lake, a lag of 0 has no sample.
dcplake_lag_seconds replicas[table=table].lag_seconds
    How long the lake has known of the oldest change that a replica table lacks; 0 if it lacks none.
    While nobody drives the lake, a lag of 0 has no sample.
dcplake_last_contact_timestamp_seconds last_contact.time
    When a driver last asked the cluster what it holds; it notes that once a minute.
dcplake_last_contact_behind_seqnos last_contact.behind
    Seqnos that the lake lacked at that contact; if a newer round shows it, after that round.
dcplake_round                        round              The newest committed round.
dcplake_last_round_timestamp_seconds newest_round.time
    When the newest round was committed.
dcplake_round_rows                   newest_round.rows
    Document rows of the newest round.
dcplake_round_received_bytes         newest_round.bytes
    Bytes of the newest round on the wire.
dcplake_round_window_full_ratio      newest_round.window_full[stage]
    Part of the newest round's time in which nodes could send nothing, by the stage that was waited
    for.
dcplake_table_round replicas[table=table].status.round
    Round that a replica table was last brought to.
dcplake_last_apply_timestamp_seconds replicas[table=table].status.applied_at
    When a replica table was last applied to.
dcplake_rollbacks_total rollbacks
    Rollbacks that the cluster has ordered since the lake was made. Each vbucket counts.
dcplake_stuck_vbuckets stuck_by_reason[reason]
    Vbuckets that the newest round could not bring further, by reason.
dcplake_waiting_vbuckets waiting
    Vbuckets whose newest rows wait for the end of their snapshot.
dcplake_stale_vbuckets replicas[table=table].stale
    Vbuckets that a replica table shows as they were, until they are streamed whole.
dcplake_table_version tables[table=table].version     The newest version of a table.
dcplake_table_bytes   tables[table=table].size.bytes  Bytes of that version's data files.
dcplake_table_files   tables[table=table].size.files  Data files of that version.
""",
)
_OF_TASKS: Final = tuple(
    replace(each, path=f"tasks[task=label].{each.path}", labels=_LABELS) for each in TASK_METRICS
)


@dataclass(frozen=True, slots=True)
class TableFigures:
    table: str
    version: int
    size: Annotated[TableSize, SPREAD]


@dataclass(frozen=True, slots=True)
class ReplicaFigures:
    status: Annotated[ReplicaStatus, SPREAD]
    stale: tuple[int, ...]
    """Vbuckets that the table shows as of an older round until they are whole."""
    documents: int
    undecodable_values: int
    """Documents whose value is stored as it was sent."""
    lag_seqnos: int | None
    """The number of known seqnos that the table lacks.

    None if it lacks none and nobody drives the lake: then the cluster may hold more. None, too, if
    the reader did not search the log for them, or could not.
    """
    lag_seconds: float | None
    """For how long the oldest missing change is known; None as for ``lag_seqnos``."""

    @property
    def table(self) -> str:
        return self.status.table


@dataclass(frozen=True, slots=True)
class RoundFigures:
    round: int
    time: datetime | None
    """None if the history has forgotten it."""
    rows: int
    bytes: int
    vbuckets: int
    rollbacks: int
    window_full: Mapping[str, float]
    """The share of the time in which nodes could send nothing, by stage (empty: unknown)."""


@dataclass(frozen=True, slots=True)
class Health(Record):
    is_well: Annotated[bool, UNSTORED]
    reason: str
    """The run waits for this."""
    quiet_seconds: float
    """The time since a round ended, an idle pass, or the running round's last progress."""
    limit_seconds: float

    @property
    def status(self) -> Annotated[str, "status"]:
        return "ok" if self.is_well else "stalled"


@dataclass(frozen=True, slots=True)
class SourceFigures(Record):
    """The figures of a lake's source. A cluster has none, a relay has its own."""

    node: str = ""
    relay: RelayFigures | None = None
    trouble: str = ""
    """The reason why nobody was asked, or nobody answered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LakeFigures(BoardFigures, Shown):
    """A lake at one instant, as its own tables tell it. Ages and lags count up to ``at``."""

    metrics: ClassVar[Metrics] = _METRICS

    bucket: str
    lake_id: Annotated[str, "lake"]
    location: str
    vbuckets: int
    round: int
    round_at: datetime | None
    """None before the first round, or if the history has forgotten it."""
    rounds: tuple[RoundFigures, ...]
    """The newest ones, newest first."""
    last_contact: LastContact | None
    """None if no driver has asked the cluster."""
    waiting: tuple[int, ...]
    """Vbuckets whose newest rows wait for the end of a snapshot."""
    stuck: tuple[VbucketReport, ...]
    """Vbuckets that the newest round could not advance, each with its reason."""
    rollbacks: int
    """The number of rollbacks that producers ordered; each order is for one vbucket."""
    behind: tuple[int, ...]
    """For every vbucket, in order: the most known seqnos that a table with a known lag lacks."""
    replicas: tuple[ReplicaFigures, ...]
    tables: tuple[TableFigures, ...]
    horizon_seconds: float
    """Rollbacks over this time can be undone."""
    warnings: tuple[str, ...]
    """Foreign changes that shorten the horizon, or damage the log."""
    requests: tuple[ControlRequest, ...]
    """Open requests of the table ``control``."""
    paused: str
    """Names who paused the lake; empty if it is not paused."""
    source: SourceFigures | None = None
    """None unless the source was asked."""
    health: Health | None = None
    """None unless a run serves its own figures."""

    @property
    def is_driven(self) -> Annotated[bool, "is_driven"]:
        """True if a driver watches the cluster. Otherwise the cluster's state is unknown."""
        return self.last_contact is not None and not self.last_contact.is_overdue(self.at)

    @property
    def minutes(self) -> Annotated[list[dict[str, Any]], "minutes"]:
        """The driver's last hours by minute, oldest first; a missing value is 0."""
        contact = self.last_contact
        return [] if contact is None else [brief(each) for each in contact.minutes]

    @property
    def newest_round(self) -> RoundFigures | None:
        return self.rounds[0] if self.rounds else None

    @property
    def stuck_by_reason(self) -> Mapping[str, int]:
        return dict(sorted(Counter(each.reason for each in self.stuck).items()))

    def exposition(self) -> str:
        """Return the figures as Prometheus reads them."""
        shown = replace(self, tasks=newest_by_label(self.tasks))
        return exposition((_METRICS + _OF_TASKS, [shown]))

    def __str__(self) -> str:
        """Return what ``dcplake status`` prints."""
        applies = (each.status.applied_at for each in self.replicas if each.status.applied_at)
        lines = [
            f"lake {self.lake_id} at {self.location}: bucket {self.bucket!r}, {self.vbuckets} "
            f"vbuckets, round {self.round}",
            *age_lines(self.at, self.last_contact, self.round_at, max(applies, default=None)),
        ]
        for each in self.replicas:
            lines += _replica_lines(each, self.round)
        if self.waiting:
            lines.append(f"  waiting for their snapshot's end: {len(self.waiting)} vbuckets")
        lines += _stuck_lines(self.stuck)
        if self.paused:
            lines.append(f"  {printable(self.paused)}; dcplake resume ends that")
        lines += map(_request_line, self.requests)
        lines += [f"  warning: {warning}" for warning in self.warnings]
        lines += task_lines(self.tasks)
        lines += [] if self.source is None else source_lines(self.source)
        return "\n".join(lines)


def age_lines(
    at: datetime, contact: LastContact | None, round_at: datetime | None, apply_at: datetime | None
) -> list[str]:
    if contact is None:
        return ["  no contact with the cluster yet"]
    is_overdue, age = contact.is_overdue(at), age_text(contact.age_seconds(at))
    last = f"no contact with the cluster for {age}"
    ages = [
        last if is_overdue else f"last contact with the cluster {age} ago",
        *(
            f"last {what} {age_text((at - time).total_seconds())} ago"
            for what, time in (("round", round_at), ("apply", apply_at))
            if time is not None
        ),
    ]
    line = f"  {', '.join(ages)}"
    if is_overdue:
        return [line, "    so the lag is unknown; dcplake run goes on from there"]
    return [f"{line}; {contact.behind:,} seqnos were to be read then" if contact.behind else line]


def _replica_lines(replica: ReplicaFigures, newest_round: int) -> Iterator[str]:
    table, version, number = replica.table, replica.status.version, replica.status.round
    is_behind = number < newest_round
    standing = f"last applied at round {number}" if is_behind else "holds that round"
    yield f"  {table}: version {version}, {replica.documents:,} documents, {standing}"
    if replica.status.defect:
        yield f"    no apply is possible: found {replica.status.defect} by somebody else"
    if replica.undecodable_values:
        yield f"    {replica.undecodable_values:,} {UNDECODABLE}"
    if replica.stale:
        stale = number_ranges(replica.stale)
        yield f"    stale, until they are streamed whole: vbuckets {stale}"


def _stuck_lines(stuck: Iterable[VbucketReport]) -> Iterator[str]:
    by_reason: dict[str, list[VbucketReport]] = {}
    for report in stuck:
        by_reason.setdefault(report.reason, []).append(report)
    for reason, reports in by_reason.items():
        which = number_ranges(each.vbucket for each in reports)
        first = f"{reports[0].vbucket}: {printable(reports[0].detail)}"
        yield f"  stand still: vbuckets {which}: {reason} ({first})"


def _request_line(each: ControlRequest) -> str:
    has_vbuckets = each.action in (RequestAction.BACKFILL, RequestAction.RESYNC)
    of = f" vbuckets {printable(each.vbuckets or 'all')};" if has_vbuckets else ""
    waits = f"; waits: {printable(each.detail)}" if each.detail else ""
    request = printable(f"{each.action} {each.id}, {each.state}")
    return f"  {request}:{of} asked for by {printable(each.who)}{waits}"


def task_lines(tasks: Sequence[TaskStats]) -> Iterator[str]:
    """Yield a line for each task, and for each of its connections."""
    if tasks:
        yield f"connections of round {max(task.round for task in tasks)}:"
    for task in tasks:
        memory = memory_text(task.resident_bytes, task.bound_bytes)
        yield f"  {printable(task.label)}: {memory}"
        for each in task.connections:
            window = ""
            if each.window is not None:
                full = share_text(each.window.full_seconds, task.seconds)
                window = (
                    f"; flow control: {size_text(each.window.in_use)} of a buffer of "
                    f"{size_text(each.window.size)} in use, full {full} of the time"
                )
            yield printable(f"  {task.label} {each.node}: waits for {each.waits_for}{window}")


def source_lines(source: SourceFigures) -> Iterator[str]:
    """Yield who the source is if it is a relay, and what holds something up there."""
    if source.trouble:
        yield f"source: not known what it waits for: {printable(source.trouble)}"
    if source.relay is not None:
        yield from map(printable, _relay_lines(source.node, source.relay))


def _relay_lines(node: str, relay: RelayFigures) -> Iterator[str]:
    there = f"consumers {relay.consumers}, streams {relay.streams}"
    memory = memory_text(relay.resident_bytes, relay.memory_bound_bytes)
    yield f"relay {node}: {there}; {memory}"
    if relay.waits_for_disk:
        yield "  the cluster waits for the relay's disk"
    if relay.disk_trouble:
        yield f"  {relay.disk_trouble}"
    for group in relay.groups:
        yield from _group_lines(group)
    for link in relay.upstream:
        yield f"  upstream {link.node}: {_upstream_text(link)}"


def _group_lines(group: GroupFigures) -> Iterator[str]:
    if group.lacks_receivers or group.receivers < group.required:
        yield f"  {group}"
    if group.waits_for:
        unconsumed = size_text(group.unconsumed_bytes)
        yield f"  vbuckets {group.vbuckets}: {unconsumed} wait for consumer {group.waits_for}"


def _upstream_text(link: UpstreamFigures) -> str:
    if not link.is_ready:
        return f"no connection: {link.trouble or 'it is being set up'}"
    text = f"{size_text(link.unacked_bytes)} of {size_text(link.window_bytes)} in use"
    return f"{text}, waits for consumer {link.waits_for}" if link.waits_for else text
