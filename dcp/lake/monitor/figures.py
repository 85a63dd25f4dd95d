"""Reads a lake's figures in full from its own tables, and renders them as JSON and as a page.

A reader that stays alive reads only what has changed, so it can be asked every few seconds.
"""

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from importlib import resources
from itertools import takewhile
from typing import Annotated, Any, Final

from dcp.lake.change_log.applied import ReplicaStatus, replica_status
from dcp.lake.change_log.changes import newest_round, round_time
from dcp.lake.change_log.epochs import first_rounds_after, forks_between, live_up_to
from dcp.lake.change_log.last_contact import last_contact
from dcp.lake.change_log.round_queries import reports_since, round_record, round_records
from dcp.lake.monitor.run_watch import Health
from dcp.lake.query.lake_figures import LakeFigures, lake_figures
from dcp.lake.rounds.round_report import window_full_shares
from dcp.lake.store.table import TableSize
from dcp.lake.tables.history import WINDOW, TableCommit, history
from dcp.lake.tables.lake_tables import AUDIT_TABLE, LakeTables, ReplicaTable, replicas_in
from dcp.lake.tables.round_record import Outcome, RoundRecord, VbucketReport
from dcp.lake.tables.vbucket_state import VbucketProgress
from dcp.lake.task_board.task_stats import WAITED_FOR
from dcp.records import SPREAD, UNSTORED, plain

ROUNDS_SHOWN: Final = 30
"""The number of newest rounds in the figures; fewer at first, if they have many vbuckets."""

_REPORTS_READ: Final = 3000
"""A first look reads about this many reports of vbuckets, in tens of milliseconds."""
_FEWEST_ROUNDS: Final = 3


@dataclass(frozen=True, slots=True)
class TableFigures:
    table: str
    version: int
    size: Annotated[TableSize, SPREAD]


@dataclass(frozen=True, slots=True)
class Lag:
    """The changes that a replica table lacks."""

    reached: Mapping[int, int]
    """By vbucket, the seqno up to which the table is complete; rounds without rows for it count."""
    since: datetime | None
    """When the lake learned of the oldest missing change; None if none is missing."""

    def seqnos(self, highs: Mapping[int, int]) -> int:
        return sum(max(0, high - self.reached.get(vb, 0)) for vb, high in highs.items())

    def seconds(self, at: datetime) -> float:
        return 0.0 if self.since is None else max(0.0, (at - self.since).total_seconds())


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
class FullFigures(LakeFigures):
    """The figures, and those that cost more reads: for the metrics and the page."""

    rounds: tuple[RoundFigures, ...]
    """The newest ones, newest first."""
    highs: Annotated[Mapping[int, int], UNSTORED]
    """By vbucket, the newest seqno that the lake knows of."""
    lags: Annotated[Mapping[str, Lag], UNSTORED]
    """By replica table."""
    tables: tuple[TableFigures, ...]

    def lag_seqnos(self, table: str, at: datetime) -> int | None:
        """Return the number of known seqnos that a replica table lacks.

        None if it lacks none and nobody drives the lake: then the cluster may hold more.
        """
        lacking = self.lags[table].seqnos(self.highs)
        return lacking if lacking or self.is_driven(at) else None

    def lag_seconds(self, table: str, at: datetime) -> float | None:
        """Return for how long the oldest missing change is known; None as for `lag_seqnos`."""
        lacking = self.lags[table].seconds(at)
        return lacking if lacking or self.is_driven(at) else None

    def seeing(self, targets: Mapping[int, int], since: datetime) -> "FullFigures":
        """Return the figures for a driver that knows higher seqnos of some vbuckets.

        ``since`` is when the driver asked the cluster, or a time long ago.
        """
        highs = {**self.highs}
        for vbucket, target in targets.items():
            highs[vbucket] = max(target, highs.get(vbucket, 0))
        lags = {
            table: replace(lag, since=since) if lag.since is None and lag.seqnos(highs) else lag
            for table, lag in self.lags.items()
        }
        contact = self.last_contact and replace(
            self.last_contact, time=max(self.last_contact.time, since)
        )
        return replace(self, highs=highs, lags=lags, last_contact=contact)


class FiguresReader:
    """Reads the figures of one open lake again and again, in one thread at a time."""

    def __init__(self, lake: LakeTables) -> None:
        self._lake = lake
        self._newest: tuple[object, FullFigures] | None = None
        self._rounds: dict[int, RoundFigures] = {}
        self._sizes: dict[tuple[str, int, datetime], TableSize] = {}

    def read(self) -> FullFigures:
        """Return the present figures.

        Raises:
            LakeError: a table, or the newest round's record, is damaged.
        """
        lake = self._lake
        with lake.read_once():
            commits = history(lake.changes, WINDOW)  # the times of the rounds that it shows
            statuses = {each: replica_status(lake, each) for each in replicas_in(lake)}
            heads = {
                each.name: status.commit_history.commits[0] for each, status in statuses.items()
            }
            heads = {"changes": commits[0], **heads}
            if lake.table(AUDIT_TABLE).exists():
                heads[AUDIT_TABLE] = history(lake.table(AUDIT_TABLE), 1)[0]
            seen = {table: (head.version, head.time) for table, head in heads.items()}
            if self._newest is None or self._newest[0] != seen:
                self._newest = seen, self._read(commits, statuses, heads)
                return self._newest[1]
            figures = self._newest[1]
            if (contact := last_contact(lake.store, figures.round_at)) != figures.last_contact:
                self._newest = seen, replace(figures, last_contact=contact)
            return self._newest[1]

    def _read(
        self,
        commits: Sequence[TableCommit],
        statuses: Mapping[ReplicaTable, ReplicaStatus],
        heads: Mapping[str, TableCommit],
    ) -> FullFigures:
        lake = self._lake
        newest = newest_round(lake, commits)
        rounds = self._round_figures(commits, newest, statuses.values())
        figures = lake_figures(lake, commits, statuses)
        highs = _high_seqnos(round_record(lake, newest))
        return FullFigures(
            **figures.parts(),
            rounds=rounds,
            highs=highs,
            lags=dict(_lags(lake, statuses, commits, newest, highs)),
            tables=tuple(self._table_figures(heads)),
        )

    def _round_figures(
        self, commits: Sequence[TableCommit], newest: int, statuses: Iterable[ReplicaStatus]
    ) -> tuple[RoundFigures, ...]:
        """Return the newest rounds; the same read of the log brings what the figures need."""
        vbucket_count = self._lake.identity.vbucket_count
        at_once = min(ROUNDS_SHOWN, max(_FEWEST_ROUNDS, _REPORTS_READ // vbucket_count))
        read_from = max(1, newest - at_once + 1)
        missing = [each for each in range(read_from, newest + 1) if each not in self._rounds]
        if missing:
            needed = {newest, *(status.round for status in statuses)}
            reports = reports_since(self._lake, missing[0], needed)
            times = {each.round: each.time for each in commits if each.round is not None}
            self._rounds |= {
                number: _of_round(number, times.get(number), reports.get(number, ()))
                for number in missing
            }
        shown = range(newest, max(0, newest - ROUNDS_SHOWN), -1)
        known = tuple(takewhile(lambda number: number in self._rounds, shown))
        self._rounds = {number: self._rounds[number] for number in known}
        return tuple(self._rounds.values())

    def _table_figures(self, heads: Mapping[str, TableCommit]) -> list[TableFigures]:
        self._sizes = {
            place: self._sizes.get(place) or self._lake.table(table).size()
            for table, head in heads.items()
            for place in [(table, head.version, head.time)]
        }
        return [
            TableFigures(table, version, size) for (table, version, _), size in self._sizes.items()
        ]


def _of_round(
    number: int, time: datetime | None, reports: Collection[VbucketReport]
) -> RoundFigures:
    streamed = [each for each in reports if each.outcome is not Outcome.LEFT_OUT]
    return RoundFigures(
        number,
        time,
        sum(each.rows for each in streamed),
        sum(each.frame_bytes for each in streamed),
        len(streamed),
        sum(each.outcome is Outcome.ROLLBACK for each in streamed),
        {stage: share for stage, share in window_full_shares(streamed).items() if share},
    )


def _high_seqnos(record: RoundRecord) -> dict[int, int]:
    """Return the newest seqno of each vbucket that a round's plan, or its streams, knew."""
    highs = {vb: max(_reached(state), state.position.seqno) for vb, state in record.states.items()}
    for each in record.reports:
        if each.outcome is not Outcome.CAUGHT_UP:  # proven to hold nothing up to its target
            highs[each.vbucket] = max(highs[each.vbucket], each.target_seqno)
    return highs


def _reached(state: VbucketProgress) -> int:
    return max(state.caught_up_seqno, state.complete_seqno)


def _lags(
    lake: LakeTables,
    statuses: Mapping[ReplicaTable, ReplicaStatus],
    commits: Sequence[TableCommit],
    newest: int,
    highs: Mapping[int, int],
) -> Iterator[tuple[str, Lag]]:
    records = round_records(lake, {newest, *(status.round for status in statuses.values())})
    now = records[newest].states
    waiting = [state.first_pending_round for state in now.values() if state.first_pending_round]
    if any(highs[vb] > max(_reached(state), state.position.seqno) for vb, state in now.items()):
        waiting.append(newest)  # what its plan knew of and it did not read
    held = {each.collection_id: status.round for each, status in statuses.items()}
    lacking = first_rounds_after(lake, held, newest)
    for replica, status in statuses.items():
        first = lacking.get(replica.collection_id)
        reached = {vb: _reached(state) for vb, state in now.items()}
        if first is not None:
            reached = _reached_at(lake, status.round, records[status.round].states, now, newest)
        since = min([*waiting, *([] if first is None else [first])], default=None)
        yield (
            replica.name,
            Lag(reached, None if since is None else round_time(lake, since, commits)),
        )


def _reached_at(
    lake: LakeTables,
    round_number: int,
    states: Mapping[int, VbucketProgress],
    now: Mapping[int, VbucketProgress],
    newest: int,
) -> dict[int, int]:
    """Return the seqnos that the states of a round had reached, as far as they are still live."""
    forked = [vb for vb, state in states.items() if state.epoch != now[vb].epoch]
    forks = forks_between(lake, round_number, newest, forked)
    return {
        vb: min(_reached(state), live_up_to(state.epoch, forks.get(vb, ())))
        for vb, state in states.items()
    }


_PAGE: Final = "page.html"


def figures_json(lake: FullFigures, at: datetime, health: Health | None = None) -> dict[str, Any]:
    """Return the page's figures as a JSON object; times are ISO 8601, in UTC."""
    shown = ("vbucket", "reason", "detail")
    minutes = () if lake.last_contact is None else lake.last_contact.minutes
    return {
        **plain(lake),
        "at": at.isoformat(),
        "is_driven": lake.is_driven(at),
        "health": None if health is None else health.to_json(),
        "waiting": len(lake.waiting),
        "stuck": [{name: getattr(each, name) for name in shown} for each in lake.stuck],
        "replicas": [
            {
                **plain(each),
                "lag_seqnos": lake.lag_seqnos(each.table, at),
                "lag_seconds": lake.lag_seconds(each.table, at),
                "stale": len(lake.stale[each.table]),
            }
            for each in lake.replicas
        ],
        "waited_for": WAITED_FOR,
        "minutes": [each.told() for each in minutes],
        "map": _vbucket_map(lake),
    }


def _vbucket_map(lake: FullFigures) -> dict[str, list[int]]:
    """Return how far each vbucket is behind, and the vbuckets that stand out, by reason."""
    behind = [
        max((lag.seqnos({vb: lake.highs.get(vb, 0)}) for lag in lake.lags.values()), default=0)
        for vb in range(lake.vbuckets)
    ]
    left_out = {each.vbucket for each in lake.stuck if each.outcome is Outcome.LEFT_OUT}
    return {
        "behind": behind,
        "waiting": sorted(lake.waiting),
        "stale": sorted({vb for vbuckets in lake.stale.values() for vb in vbuckets}),
        "left_out": sorted(left_out),
        "still": sorted({each.vbucket for each in lake.stuck} - left_out),
    }


def page_html(figures: dict[str, Any] | None = None) -> str:
    """Return the page with these figures; without any it asks for ``figures.json``."""
    text = "null" if figures is None else json.dumps(figures).replace("<", "\\u003c")
    page = _part(_PAGE)
    for name in ("LICENSE", "uPlot.min.css", "uPlot.iife.min.js"):
        page = page.replace(f"INSERT {name}", _part(f"uplot/{name}"))
    return page.replace("FIGURES", text)


def _part(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8").strip()
