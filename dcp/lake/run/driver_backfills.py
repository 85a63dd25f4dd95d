"""Carries out the backfills that the table ``control`` asks for, a part of one in each round.

The change log holds the progress of a backfill, so any later driver can go on with it. Backfills
run one at a time, the oldest first.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from time import monotonic
from typing import Final

from dcp.client.probe import ProbedCluster, VbucketHolder, probe_replicas
from dcp.errors import ConfigError
from dcp.lake.change_log.control import (
    Control,
    ControlRequest,
    RequestAction,
    RequestState,
    options_object,
)
from dcp.lake.change_log.epochs import forks_between, newest_beginning
from dcp.lake.receive.source_access import SourceAccess
from dcp.lake.rounds.backfill_plan import (
    LEAST_MEGABYTES_PER_SECOND,
    MOST_MEGABYTES_PER_SECOND,
    NODE_CHOICES,
    REPLICAS,
    Backfill,
    BackfillPlan,
    BackfillProgress,
    BackfillReport,
    is_new,
    plan_backfill,
)
from dcp.lake.rounds.observer import Observer
from dcp.lake.rounds.round_plan import BackfillNodes, LeftOut, RoundPlan, left_out_lines
from dcp.lake.rounds.round_report import RoundReport
from dcp.lake.run.control_requests import vbuckets_of
from dcp.lake.tables.lake_tables import LakeTables
from dcp.lake.tables.vbucket_state import LakeVbucketState, state_of
from dcp.printable import number_ranges, numbers_of

_FROM: Final = "from"
_RATE: Final = "megabytes_per_second"
_COLLECTIONS: Final = "collections"

NO_COLLECTIONS: Final = (
    "a backfill reads whole vbuckets; to read some collections anew, make a second lake whose "
    "[filter] has them (docs/howto/rebuild-from-replicas.md)"
)


class DriverBackfills:
    def __init__(
        self, lake: LakeTables, control: Control, access: SourceAccess, observer: Observer
    ) -> None:
        self._control = control
        self._lake = lake
        self._access = access
        self._observer = observer
        self._begin(None)

    def _begin(self, backfill: Backfill | None) -> None:
        """Work on a backfill, or on none; all counts begin anew."""
        self._backfill = backfill
        self._report = (
            BackfillReport("", 0, 0)
            if backfill is None
            else BackfillReport(backfill.id, len(backfill.vbuckets), 0)
        )
        self._failures: dict[int, LeftOut] = {}
        self._begun_at = self._moved_at = monotonic()
        self._standing: tuple[int, ...] = ()
        """The progress at `_moved_at`, its last change."""

    @property
    def is_open(self) -> bool:
        return self._backfill is not None

    def next(
        self, cluster: ProbedCluster, newest: int, states: Mapping[int, LakeVbucketState]
    ) -> BackfillPlan | None:
        while (request := self._oldest_open()) is not None:
            if request.is_to_be_cancelled:
                self._end(request, RequestState.CANCELLED, newest)
            elif self._backfill is None or self._backfill.id != request.id:
                self._begin(self._begun(request, states, newest, cluster))
            if self._backfill is not None:
                plan = self._plan(request, self._backfill, states, newest, cluster)
                if plan is not None:
                    return plan
        return None

    def learn(self, plan: RoundPlan, report: RoundReport) -> None:
        before = {each.vbucket: each.state for each in plan.streams if each.is_backfill}
        for each in report.vbuckets:
            if each.vbucket not in before:
                continue
            seqnos = max(0, each.seqno - before[each.vbucket].position.seqno)
            self._report = replace(
                self._report,
                documents=self._report.documents + each.rows,
                frame_bytes=self._report.frame_bytes + each.frame_bytes,
                seqnos=self._report.seqnos + seqnos,
            )
            self._failures.pop(each.vbucket, None)
            if each.reason:
                self._failures[each.vbucket] = LeftOut(each.vbucket, each.reason, each.detail)

    def _oldest_open(self) -> ControlRequest | None:
        for request in self._control.requests():
            if request.is_open and request.action == RequestAction.BACKFILL:
                return request
        self._backfill = None
        return None

    def _begun(
        self,
        request: ControlRequest,
        states: Mapping[int, LakeVbucketState],
        newest: int,
        cluster: ProbedCluster,
    ) -> Backfill | None:
        """Begin a request, or return one that a driver has begun; None if it is refused."""
        try:
            backfill = backfill_of(request, cluster.map.vbucket_count)
            if request.state is RequestState.BEGUN:
                return backfill
        except ConfigError as error:
            self._control.write(request, RequestState.REFUSED, newest, str(error))
            return None
        new = frozenset(vb for vb in backfill.vbuckets if is_new(state_of(states, vb)))
        self._control.write(request, RequestState.BEGUN, newest, number_ranges(new))
        return replace(backfill, begun_round=newest, new_vbuckets=new)

    def _plan(
        self,
        request: ControlRequest,
        backfill: Backfill,
        states: Mapping[int, LakeVbucketState],
        newest: int,
        cluster: ProbedCluster,
    ) -> BackfillPlan | None:
        progress = progress_of(self._lake, backfill, states, newest)
        if not progress.waiting and not progress.reading:
            self._end(request, RequestState.DONE, newest)
            return None
        reads_replicas = backfill.nodes.reads_replicas
        copies = copies_of(cluster, self._access, reads_replicas=reads_replicas)
        plan = plan_backfill(backfill, progress, states, cluster, copies)
        read = sum(states[vb].position.seqno for vb in progress.reading if vb in states)
        standing = len(progress.done), len(progress.waiting), read
        if standing != self._standing:
            self._standing, self._moved_at = standing, monotonic()
        stuck = {**plan.waiting_for, **plan.left_out, **self._failures}
        left = [stuck[vb] for vb in sorted(stuck) if vb not in progress.done]
        reading = sum(
            max(0, copy.high_seqno - states[vb].position.seqno)
            for vb, copy in plan.copies.items()
            if vb in progress.reading and vb in states
        )
        # What waits will be read from its beginning: at most what the lake has.
        waiting = sum(states[vb].complete_seqno for vb in progress.waiting if vb in states)
        self._report = replace(
            self._report,
            done=len(progress.done),
            seqnos_left=reading + waiting,
            seconds=monotonic() - self._begun_at,
            waiting_for=tuple(left),
        )
        self._observer.backfill(self._report)
        patience_seconds = self._access.consumer.node_deadline_seconds
        if monotonic() - self._moved_at < patience_seconds:
            return plan
        missing = len(progress.waiting) + len(progress.reading)
        detail = (
            f"{missing} of {len(backfill.vbuckets)} vbuckets made no progress for "
            f"{patience_seconds:g} s and are read from their active nodes, if at all: "
            f"{number_ranges(progress.waiting | progress.reading)}"
        )
        lines = [detail, *left_out_lines(tuple(left))]
        self._end(request, RequestState.INCOMPLETE, newest, "\n".join(lines))
        return None

    def _end(
        self, request: ControlRequest, state: RequestState, newest: int, detail: str = ""
    ) -> None:
        if not detail:
            detail = f"{self._report.documents:,} documents by the driver that ended it"
        self._control.write(request, state, newest, detail)
        self._begin(None)


def backfill_of(request: ControlRequest, vbucket_count: int) -> Backfill:
    """Return the backfill that a request asks for.

    Raises:
        ConfigError: it names unknown vbuckets, nodes or options.
    """
    try:
        new = numbers_of(request.begun_detail) if request.begun_detail else frozenset()
    except ValueError:
        raise ConfigError(
            f"its row {RequestState.BEGUN}: found detail {request.begun_detail!r}, "
            "expected vbuckets"
        ) from None
    vbuckets = vbuckets_of(request.vbuckets, vbucket_count)
    nodes = _nodes_of(request.options)
    return Backfill(request.id, vbuckets, nodes, request.round, new)


def progress_of(
    lake: LakeTables,
    backfill: Backfill,
    states: Mapping[int, LakeVbucketState],
    newest: int,
) -> BackfillProgress:
    forks = forks_between(lake, backfill.begun_round, newest, backfill.vbuckets)
    begun = {vb: each for vb, own in forks.items() if (each := newest_beginning(own)) is not None}
    # After any other restart the active node streams the vbucket from seqno 0. A replica vbucket
    # must not go on with it: it may lack published rows.
    taken_over = {vb for vb, each in begun.items() if not each.is_backfill}
    return BackfillProgress.of(backfill, states, begun, taken_over)


def copies_of(
    cluster: ProbedCluster, access: SourceAccess, *, reads_replicas: bool
) -> Mapping[int, Sequence[VbucketHolder]]:
    if reads_replicas:
        return probe_replicas(cluster, access.consumer.connection, access.source.credentials())
    owners = {vb: cluster.map.owner(vb) for vb in cluster.high_seqnos}
    return {
        vb: [VbucketHolder(owner, cluster.high_seqnos[vb], cluster.failover_logs.get(vb))]
        for vb, owner in owners.items()
        if owner is not None
    }


def requested_backfill(
    vbuckets: Collection[int] | None, nodes: str, megabytes_per_second: float | None = None
) -> ControlRequest:
    """Return a new request: of all vbuckets, without a limit, if these are None."""
    ranges = None if vbuckets is None else number_ranges(vbuckets)
    rate = {} if megabytes_per_second is None else {_RATE: megabytes_per_second}
    return ControlRequest.new(RequestAction.BACKFILL, ranges, {_FROM: nodes, **rate})


def _nodes_of(options: str | None) -> BackfillNodes:
    told = options_object(options)
    if told is not None and _COLLECTIONS in told:
        raise ConfigError(f"options: found {_COLLECTIONS}, expected none: {NO_COLLECTIONS}")
    if told is None or set(told) - {_FROM, _RATE}:
        expected = f"expected a JSON object of {_FROM} and {_RATE}"
        raise ConfigError(f"options: found {options!r}, {expected}")
    nodes, rate = told.get(_FROM, REPLICAS), told.get(_RATE)
    if nodes not in NODE_CHOICES:
        raise ConfigError(
            f"options: {_FROM}: found {nodes!r}, expected {' or '.join(NODE_CHOICES)}"
        )
    if rate is None:
        return BackfillNodes(nodes == REPLICAS)
    is_number = isinstance(rate, int | float) and not isinstance(rate, bool)
    least, most = LEAST_MEGABYTES_PER_SECOND, MOST_MEGABYTES_PER_SECOND
    if not is_number or not least <= rate <= most:
        raise ConfigError(f"options: {_RATE}: found {rate!r}, expected {least:g} to {most:,.0f}")
    return BackfillNodes(nodes == REPLICAS, rate * 1e6)
