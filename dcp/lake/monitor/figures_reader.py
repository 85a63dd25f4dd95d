"""Reads the figures of a lake. Status, metrics, page and report render them.

They come from the lake's own tables, without Spark if Delta's log and files suffice, and from its
task board. The newest round's plan says what the cluster had. Only a relay is asked for its own
figures, and only by `read_figures` on request.
"""

import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import takewhile
from typing import TYPE_CHECKING, Final, TypeVar

from dcp.errors import ConfigError, LakeError
from dcp.lake.adapters.opening import opened_lake
from dcp.lake.change_log.applied import ReplicaStatus, replica_status, shown_stale
from dcp.lake.change_log.changes import newest_round, refuse_tampered_log, round_time
from dcp.lake.change_log.control import Control, pause_of, paused_by
from dcp.lake.change_log.epochs import first_rounds_after, forks_between, live_up_to
from dcp.lake.change_log.last_contact import LastContact, last_contact
from dcp.lake.change_log.round_queries import reports_since, round_record, round_records
from dcp.lake.change_log.tampering import refuse_log_behind, short_vacuums
from dcp.lake.config.settings import Settings
from dcp.lake.config.table_names import AUDIT_TABLE, CHANGES_TABLE
from dcp.lake.maintain.horizon_guard import look_back, recorded_horizon, wrong_properties
from dcp.lake.monitor.lake_figures import (
    LakeFigures,
    ReplicaFigures,
    RoundFigures,
    TableFigures,
)
from dcp.lake.query.views_sql import AS_SENT_SQL
from dcp.lake.rounds.round_report import window_full_shares
from dcp.lake.store.table import TableSize
from dcp.lake.tables.history import FEW, WINDOW, TableCommit, history
from dcp.lake.tables.horizon import Horizon
from dcp.lake.tables.lake_tables import LakeTables, ReplicaTable, refuse_lost_replica, replicas_in
from dcp.lake.tables.round_record import Outcome, RoundRecord, VbucketReport
from dcp.lake.tables.vbucket_state import LakeVbucketState
from dcp.lake.task_board.board_files import read_board
from dcp.lake.task_board.board_folder import BoardFolder
from dcp.lake.task_board.task_stats import TaskStats

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROUNDS_SHOWN: Final = 30
"""The most rounds in the figures; fewer at first, if they have many vbuckets."""

_REPORTS_READ: Final = 3000
"""A first reading reads about this many reports of vbuckets, in tens of milliseconds."""
_FEWEST_ROUNDS: Final = 3

UnderWay = tuple[Mapping[int, int], LastContact | None]
"""What a driver knows: seqnos by vbucket, and its last contact with the cluster."""

NOTHING_UNDER_WAY: Final[UnderWay] = ({}, None)

_LOGGER = logging.getLogger(__name__)
_Found = TypeVar("_Found")
_Head = tuple[str, int, datetime]
"""A table's name, and the version and time of its newest commit."""


def read_figures(
    settings: Settings,
    spark: "SparkSession | None" = None,
    *,
    searches: bool,
    asks_source: bool = False,
) -> LakeFigures:
    """Open a lake and return its present figures.

    Args:
        settings: all settings.
        spark: see `dcp.lake.adapters.opening.opened_store`.
        searches: see `FiguresReader`.
        asks_source: ask the source for its figures, too.

    Raises:
        LakeError: there is no lake, or it is damaged.
        ConfigError: see `dcp.lake.adapters.opening.opened_store`.
    """
    with opened_lake(settings, spark) as lake:
        reader = FiguresReader(lake, BoardFolder.of(settings), searches=searches)
        figures = reader.read(datetime.now(UTC))
    if not asks_source:
        return figures
    from dcp.lake.monitor.source_figures import ask_source  # the clients take long to load

    return replace(figures, source=ask_source(settings))


@dataclass(frozen=True, slots=True)
class _Lag:
    """The changes that a replica table lacks."""

    reached: Mapping[int, int]
    """By vbucket, the seqno up to which the table is complete; rounds without rows for it count."""
    since: datetime | None
    """When the lake learned of the oldest missing change; None if none is missing."""

    def lacking(self, known: Sequence[int]) -> list[int]:
        """Return the number of lacking seqnos for every vbucket, from its newest known one."""
        return [max(0, high - self.reached.get(vb, 0)) for vb, high in enumerate(known)]


class FiguresReader:
    """Reads the figures of one open lake, in one thread at a time.

    It reads again only what has changed since its last read.
    """

    def __init__(self, lake: LakeTables, board: BoardFolder, *, searches: bool) -> None:
        """``searches``: search the log for several rounds, and for rows that tables lack.

        Each of these rounds, and each round since a table's newest row, may cost a read. Without a
        search there is only the newest round, and the lag of a table at an older one is unknown.
        """
        self._lake = lake
        self._board = board
        self._searches = searches
        self._control = Control(lake)
        self._heads: Sequence[_Head] = ()
        self._of_tables: LakeFigures | None = None
        """The figures that stay while no table has a new version; the others are empty."""
        self._highs: Mapping[int, int] = {}
        """The newest known seqno of each vbucket."""
        self._unread = 0
        """The known seqnos that the newest round left to later ones."""
        self._lags: Mapping[str, _Lag] = {}
        """By replica table, as far as it is known."""
        self._rounds: dict[int, RoundFigures] = {}
        self._sizes: Mapping[_Head, TableSize] = {}
        self._counts: Mapping[_Head, tuple[int, int]] = {}
        self._vacuums: Mapping[_Head, tuple[TableCommit, ...]] = {}

    def read(self, at: datetime, under_way: UnderWay = NOTHING_UNDER_WAY) -> LakeFigures:
        """Return the figures at a time. A driver may know higher seqnos than its lake.

        Raises:
            LakeError: a table, or the newest round's record, is damaged.
        """
        targets, asked = under_way
        with self._lake.read_once():
            of_tables = self._figures_of_tables(at)
            contact = last_contact(self._lake.store, of_tables.round_at, self._unread)
            if asked is not None and (contact is None or contact.time <= asked.time):
                contact = replace(asked, minutes=() if contact is None else contact.minutes)
            requests = self._control.requests()
            pause = pause_of(requests)
            tasks, unreadable = _running(self._board)
            figures = replace(
                of_tables,
                at=at,
                last_contact=contact,
                warnings=(*of_tables.warnings, *self._short_vacuums(of_tables, at), *unreadable),
                requests=tuple(each for each in requests if each.is_open),
                paused="" if pause is None else paused_by(pause),
                tasks=tasks,
            )
            return self._with_lags(figures, targets)

    def _figures_of_tables(self, at: datetime) -> LakeFigures:
        replicas = replicas_in(self._lake)
        tables = [CHANGES_TABLE, *(each.name for each in replicas)]
        if self._lake.table(AUDIT_TABLE).exists():
            tables.append(AUDIT_TABLE)
        newest = [(table, history(self._lake.table(table))[0]) for table in tables]
        heads = [(table, commit.version, commit.time) for table, commit in newest]
        if self._of_tables is None or self._heads != heads:
            self._of_tables, self._heads = self._read_tables(replicas, heads, at), heads
        return self._of_tables

    def _read_tables(
        self, replicas: Sequence[ReplicaTable], heads: Sequence[_Head], at: datetime
    ) -> LakeFigures:
        lake, shown = self._lake, {each.name for each in replicas}
        commits = history(lake.changes, WINDOW if self._searches else FEW)
        newest = newest_round(lake, commits)
        round_at = round_time(lake, newest, commits) if newest else None
        rounds = self._round_figures(commits, newest, round_at)
        record = round_record(lake, newest)
        statuses = {each: replica_status(lake, each) for each in replicas}
        of_replicas = [head for head in heads if head[0] in shown]
        self._sizes = _kept(self._sizes, heads, lambda table: lake.table(table).size())
        self._counts = _kept(self._counts, of_replicas, lambda table: _counts(lake, table))
        self._vacuums = _kept(self._vacuums, of_replicas, lambda table: _vacuums(lake, table))
        self._highs = _high_seqnos(record)
        self._unread = sum(_unread(record).values())
        self._lags = self._known_lags(statuses, commits, newest, record)
        counts = {table: counts for (table, *_), counts in self._counts.items()}
        states, reports = sorted(record.states.items()), record.reports
        identity = lake.identity
        return LakeFigures(
            bucket=identity.bucket,
            lake_id=identity.lake_id,
            location=str(lake.location),
            vbuckets=identity.vbucket_count,
            at=at,
            round=newest,
            round_at=round_at,
            rounds=rounds,
            last_contact=None,
            waiting=tuple(vb for vb, state in states if not state.position.is_complete),
            stuck=tuple(each for each in reports if each.failed or each.reason),
            rollbacks=sum(state.rollbacks for _, state in states),
            behind=(),
            replicas=tuple(
                ReplicaFigures(
                    status,
                    tuple(sorted(shown_stale(status, record.states))),
                    *counts[replica.name],
                    lag_seqnos=None,
                    lag_seconds=None,
                )
                for replica, status in statuses.items()
            ),
            tables=tuple(TableFigures(*head[:2], size) for head, size in self._sizes.items()),
            horizon_seconds=recorded_horizon(lake).seconds,
            warnings=tuple(_warnings(lake, commits, newest, statuses)),
            requests=(),
            paused="",
        )

    def _with_lags(self, figures: LakeFigures, targets: Mapping[int, int]) -> LakeFigures:
        at, contact = figures.at, figures.last_contact
        vbuckets = range(figures.vbuckets)
        known = [max(targets.get(vb, 0), self._highs.get(vb, 0)) for vb in vbuckets]
        lacking = {table: lag.lacking(known) for table, lag in self._lags.items()}

        def with_lag(replica: ReplicaFigures) -> ReplicaFigures:
            if (lag := self._lags.get(replica.table)) is None:
                return replica
            seqnos = sum(lacking[replica.table])
            since = lag.since or (contact.time if seqnos and contact else at)
            seconds = max(0.0, (at - since).total_seconds())
            return replace(
                replica,
                lag_seqnos=seqnos if seqnos or figures.is_driven else None,
                lag_seconds=seconds if seconds or figures.is_driven else None,
            )

        behind = tuple(max(each) for each in zip([0] * len(known), *lacking.values(), strict=True))
        return replace(figures, behind=behind, replicas=tuple(map(with_lag, figures.replicas)))

    def _short_vacuums(self, figures: LakeFigures, at: datetime) -> Iterator[str]:
        for (table, *_), vacuums in self._vacuums.items():
            yield from short_vacuums(table, vacuums, Horizon(figures.horizon_seconds), at)

    def _known_lags(
        self,
        statuses: Mapping[ReplicaTable, ReplicaStatus],
        commits: Sequence[TableCommit],
        newest: int,
        record: RoundRecord,
    ) -> dict[str, _Lag]:
        # If a table is ahead of the log, somebody took the log back: its newest round is unknown.
        known = {
            each: status
            for each, status in statuses.items()
            if status.round == newest or (self._searches and status.round < newest)
        }
        try:
            return dict(_lags(self._lake, known, commits, newest, record))
        except LakeError as error:  # a damaged file; or a table taken back to a forgotten round
            _LOGGER.info("%s: the lag is unknown: %s", self._lake.location, error)
            return {}

    def _round_figures(
        self, commits: Sequence[TableCommit], newest: int, round_at: datetime | None
    ) -> tuple[RoundFigures, ...]:
        """Return the newest rounds; the same read of the log brings the newest round's record."""
        vbucket_count = self._lake.identity.vbucket_count
        most = ROUNDS_SHOWN if self._searches else 1
        at_once = min(most, max(_FEWEST_ROUNDS, _REPORTS_READ // vbucket_count))
        read_from = max(1, newest - at_once + 1)
        missing = [each for each in range(read_from, newest + 1) if each not in self._rounds]
        if missing:
            reports = reports_since(self._lake, missing[0], {newest})
            times = {each.round: each.time for each in commits if each.round is not None}
            self._rounds |= {
                number: _of_round(
                    number,
                    round_at if number == newest else times.get(number),
                    reports.get(number, ()),
                )
                for number in missing
            }
        shown = range(newest, max(0, newest - most), -1)
        known = tuple(takewhile(lambda number: number in self._rounds, shown))
        self._rounds = {number: self._rounds[number] for number in known}
        return tuple(self._rounds.values())


def _kept(
    known: Mapping[_Head, _Found], heads: Sequence[_Head], read_table: Callable[[str], _Found]
) -> dict[_Head, _Found]:
    """Return what is known of these versions of tables, and read the others."""
    return {head: known[head] if head in known else read_table(head[0]) for head in heads}


def _counts(lake: LakeTables, table: str) -> tuple[int, int]:
    """Return the number of documents, and of those whose value is stored as it was sent."""
    # Two questions: the log answers each of them, mostly without a reading into any data file.
    all_, as_sent = (
        lake.table(table).rows("count(*) AS found", condition)[0]["found"]
        for condition in ("true", AS_SENT_SQL)
    )
    return int(all_), int(as_sent)


def _vacuums(lake: LakeTables, table: str) -> tuple[TableCommit, ...]:
    commits = history(lake.table(table), look_back(lake))
    return tuple(each for each in commits if each.retention_seconds is not None)


def _running(board: BoardFolder) -> tuple[tuple[TaskStats, ...], Sequence[str]]:
    """Return the tasks of the board, and why it cannot be read."""
    try:
        return tuple(read_board(board)), ()
    except (ConfigError, OSError) as error:  # no other figure may suffer
        return (), (str(error),)


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
        # A stream that caught up proved that the node has nothing up to the target.
        if each.outcome is not Outcome.CAUGHT_UP:
            highs[each.vbucket] = max(highs[each.vbucket], each.target_seqno)
    return highs


def _unread(record: RoundRecord) -> dict[int, int]:
    """Return the number of seqnos of each vbucket that a round's plan knew of and did not read."""
    highs = _high_seqnos(record)
    return {
        vb: max(0, highs[vb] - max(_reached(state), state.position.seqno))
        for vb, state in record.states.items()
    }


def _reached(state: LakeVbucketState) -> int:
    return max(state.caught_up_seqno, state.complete_seqno)


def _lags(
    lake: LakeTables,
    statuses: Mapping[ReplicaTable, ReplicaStatus],
    commits: Sequence[TableCommit],
    newest: int,
    record: RoundRecord,
) -> Iterator[tuple[str, _Lag]]:
    now = record.states
    waiting = [
        state.first_incomplete_round for state in now.values() if state.first_incomplete_round
    ]
    if any(_unread(record).values()):
        waiting.append(newest)
    held = {each.collection_id: status.round for each, status in statuses.items()}
    lacking = first_rounds_after(lake, held, newest)
    records = round_records(lake, {held[collection_id] for collection_id in lacking})
    for replica, status in statuses.items():
        first = lacking.get(replica.collection_id)
        reached = {vb: _reached(state) for vb, state in now.items()}
        if first is not None:
            reached = _reached_at(lake, status.round, records[status.round].states, now, newest)
        since = min([*waiting, *([] if first is None else [first])], default=None)
        yield (
            replica.name,
            _Lag(reached, None if since is None else round_time(lake, since, commits)),
        )


def _reached_at(
    lake: LakeTables,
    round_number: int,
    states: Mapping[int, LakeVbucketState],
    now: Mapping[int, LakeVbucketState],
    newest: int,
) -> dict[int, int]:
    """Return the seqnos that the states of a round had reached, as far as they are still live."""
    forked = [vb for vb, state in states.items() if state.epoch != now[vb].epoch]
    forks = forks_between(lake, round_number, newest, forked)
    return {
        vb: min(_reached(state), live_up_to(state.epoch, forks.get(vb, ())))
        for vb, state in states.items()
    }


def _warnings(
    lake: LakeTables,
    commits: Sequence[TableCommit],
    newest: int,
    replicas: Mapping[ReplicaTable, ReplicaStatus],
) -> Iterator[str]:
    """Yield everything that the next run would refuse or set right. Refuses nothing itself."""
    try:
        refuse_tampered_log(lake, commits)
        statuses = {replica.name: status for replica, status in replicas.items()}
        refuse_log_behind(str(lake.location), newest, statuses)
        if newest:
            refuse_lost_replica(lake)
    except LakeError as error:
        yield str(error)
    horizon = recorded_horizon(lake)
    for table, wrong in wrong_properties(lake, replicas, horizon).items():
        found = ", ".join(f"{name} {value or 'not set'}" for name, value in wrong.items())
        yield f"table {table}: found {found}, expected the horizon of {horizon}"
