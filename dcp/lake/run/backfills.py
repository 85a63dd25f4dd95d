"""Carries out the backfills that the table ``control`` asks for, a part of one in each round.

Whichever driver runs does it: what is done of a backfill stands in the change log, so that any
later one goes on. One at a time, the oldest first.
"""

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from time import monotonic
from typing import Any, Final

from dcp.client.addresses import NodeAddress
from dcp.client.probe import ClusterView, VbucketHolder, collection_seqnos, probe_replicas
from dcp.errors import ConfigError, LakeError
from dcp.lake.log.applied import replica_status
from dcp.lake.log.changes import latest_round
from dcp.lake.log.collection_log import backfilled_collections
from dcp.lake.log.control import BACKFILL, Action, ActionState, Control
from dcp.lake.log.epoch_log import forks_between
from dcp.lake.log.epochs import is_live
from dcp.lake.log.round_records import positions_at
from dcp.lake.receive.source_access import SourceAccess
from dcp.lake.rounds.backfill_plan import (
    FIRST_VBUCKETS,
    LEAST_MEGABYTES_PER_SECOND,
    MOST_MEGABYTES_PER_SECOND,
    REPLICAS,
    SOURCES,
    BackfillPlan,
    BackfillProgress,
    BackfillRequest,
    CollectionsTurn,
    is_new,
    plan_backfill,
    vbuckets_of_next,
)
from dcp.lake.rounds.backfill_report import BackfillReport
from dcp.lake.rounds.observer import Observer
from dcp.lake.rounds.round_plan import BackfillSource, LeftOut, RoundPlan, left_out_lines
from dcp.lake.rounds.round_report import RoundReport
from dcp.lake.run.control_requests import vbuckets_of
from dcp.lake.tables.collections import ManifestCollection, collections_of
from dcp.lake.tables.document_filter import DocumentFilter
from dcp.lake.tables.tables import LakeTables, replicas_in
from dcp.lake.tables.vbucket_state import VbucketProgress
from dcp.printable import number_ranges, numbers_of
from dcp.suggestions import did_you_mean
from dcp.wire.vocabulary import VbucketState

_SOURCE: Final = "source"
_RATE: Final = "megabytes_per_second"
_COLLECTIONS: Final = "collections"
_NAMES_SHOWN: Final = 20
_OF_COLLECTIONS: Final = " of collections "
"""What stands in the detail of a request that has begun, between its vbuckets and ids."""


@dataclass(slots=True)
class _Counts:
    """Counts of a backfill in this process, and its standing when that last changed."""

    began_at: float
    moved_at: float
    standing: tuple[int, ...] = ()
    documents: int = 0
    frame_bytes: int = 0
    seqnos: int = 0
    failures: dict[int, LeftOut] = field(default_factory=dict)

    @classmethod
    def begun_now(cls) -> "_Counts":
        """Return those of a backfill that begins."""
        now = monotonic()
        return cls(now, now)

    def note(self, *standing: int) -> None:
        """Note how far the backfill is."""
        if standing != self.standing:
            self.standing, self.moved_at = standing, monotonic()


class Backfills:
    """The backfills of one driver."""

    def __init__(
        self, lake: LakeTables, control: Control, access: SourceAccess, observer: Observer
    ) -> None:
        self._control = control
        self._lake = lake
        self._access = access
        self._observer = observer
        self._request: BackfillRequest | None = None
        self._counts = _Counts.begun_now()
        self._resting: Mapping[int, LeftOut] = {}
        self._most_vbuckets = FIRST_VBUCKETS

    @property
    def is_open(self) -> bool:
        """True if a backfill is going on."""
        return self._request is not None

    def next(self, cluster: ClusterView, wanted: DocumentFilter) -> BackfillPlan | None:
        """Return what the next round reads for a backfill; None where there is none.

        ``wanted`` is the lake's filter.
        """
        while (action := self._oldest_open()) is not None:
            newest = latest_round(self._lake)
            states = positions_at(self._lake, newest)
            if action.is_to_be_cancelled:
                self._end(action, ActionState.CANCELLED, newest)
            elif self._request is None or self._request.id != action.id:
                self._request = self._begun(action, states, newest, cluster, wanted)
                self._counts = _Counts.begun_now()
                self._resting, self._most_vbuckets = {}, FIRST_VBUCKETS
            if self._request is not None:
                plan = self._plan(action, self._request, states, newest, cluster)
                if plan is not None:
                    return plan
        return None

    def learn(self, plan: RoundPlan, report: RoundReport) -> None:
        """Take note of what a round brought."""
        before = {each.vbucket: each.state for each in plan.streams if each.is_backfill}
        partial = {each.vbucket for each in plan.streams if each.partial is not None}
        counts = self._counts
        for each in report.vbuckets:
            if each.vbucket not in before:
                continue
            counts.documents += each.rows
            counts.frame_bytes += each.frame_bytes
            start = 0 if each.vbucket in partial else before[each.vbucket].position.seqno
            counts.seqnos += max(0, each.seqno - start)
            counts.failures.pop(each.vbucket, None)
            if each.reason:
                counts.failures[each.vbucket] = LeftOut(each.vbucket, each.reason, each.detail)
        if partial:
            self._most_vbuckets = vbuckets_of_next(len(partial), report.seconds)
        # Once these leave their place to others; their active nodes are read meanwhile.
        self._resting = {vb: left for vb, left in counts.failures.items() if vb in partial}

    def _oldest_open(self) -> Action | None:
        """Return the oldest backfill to do."""
        for action in self._control.actions():
            if action.is_open and action.action == BACKFILL:
                return action
        self._request = None
        return None

    def _begun(
        self,
        action: Action,
        states: Mapping[int, VbucketProgress],
        newest: int,
        cluster: ClusterView,
        wanted: DocumentFilter,
    ) -> BackfillRequest | None:
        """Return a request that is begun, by us now or by a driver before; None: refused."""
        try:
            request = request_of(action, cluster.map.vbucket_count)
            if action.state is ActionState.BEGUN:
                return request
            if request.names:
                ids = collections_to_read(request.names, cluster.manifest, wanted)
                request = replace(request, collections=ids)
            self._refuse_damaged(request)
        except (ConfigError, LakeError) as error:
            self._control.write(action, ActionState.REFUSED, newest, str(error))
            return None
        new = frozenset(vb for vb in request.vbuckets if vb not in states or is_new(states[vb]))
        detail = number_ranges(new)
        if request.collections is not None:
            detail += _OF_COLLECTIONS + number_ranges(request.collections)
        self._control.write(action, ActionState.BEGUN, newest, detail)
        return replace(request, begun_round=newest, new_vbuckets=new)

    def _refuse_damaged(self, request: BackfillRequest) -> None:
        """Refuse to bring a collection anew into a table that others wrote to: it takes no apply.

        Raises:
            ForeignWriteError: there is one; it says what helps.

        """
        for replica in replicas_in(self._lake):
            if replica.collection_id in (request.collections or ()):
                lineage = replica_status(self._lake, replica).lineage
                lineage.refuse_defect(replica.name, self._lake.table_sql(replica.name))

    def _plan(
        self,
        action: Action,
        request: BackfillRequest,
        states: Mapping[int, VbucketProgress],
        newest: int,
        cluster: ClusterView,
    ) -> BackfillPlan | None:
        if request.collections is not None and (
            gone := request.collections - {each.collection_id for each in _there(cluster.manifest)}
        ):
            detail = f"collections were dropped meanwhile: ids {number_ranges(gone)}"
            self._end(action, ActionState.INCOMPLETE, newest, detail)
            return None
        progress = progress_of(self._lake, request, states, newest)
        if request.collections is not None:  # where a node has nothing, there is nothing to bring
            highs = cluster.high_seqnos
            empty = (vb for vb in progress.waiting - states.keys() if highs.get(vb) == 0)
            progress = progress.without(empty)
        if not progress.waiting and not progress.reading:
            self._end(action, ActionState.DONE, newest)
            return None
        # In this order: what is no copy any more, being read again, then holds less than the lake.
        seqnos = held_seqnos(cluster, self._access, request)
        copies = self._copies(cluster, request)
        turn = CollectionsTurn(seqnos, self._resting, self._most_vbuckets)
        self._resting = {}
        plan = plan_backfill(request, progress, states, cluster, copies, turn)
        counts = self._counts
        moving = progress.reading if request.collections is None else progress.waiting
        read = sum(states[vb].position.seqno for vb in moving if vb in states)
        counts.note(len(progress.done), len(progress.waiting), read)
        stuck = {**plan.waiting_for, **plan.left_out, **counts.failures}
        left = [stuck[vb] for vb in sorted(stuck) if vb not in progress.done]
        report = self._report(request, progress, states, plan, left)
        self._observer.backfill(report)
        patience_seconds = self._access.consumer.node_deadline_seconds
        if monotonic() - counts.moved_at < patience_seconds:
            return plan
        outcome = "are read from their active nodes, if at all"
        if request.collections is not None:
            outcome = "keep the rows of these collections that they had"
        missing = len(progress.waiting) + len(progress.reading)
        detail = (
            f"{missing} of {len(request.vbuckets)} vbuckets made no progress for "
            f"{patience_seconds:g} s and {outcome}: "
            f"{number_ranges(progress.waiting | progress.reading)}"
        )
        lines = [detail, *left_out_lines(tuple(left))]
        self._end(action, ActionState.INCOMPLETE, newest, "\n".join(lines))
        return None

    def _copies(
        self, cluster: ClusterView, request: BackfillRequest
    ) -> Mapping[int, Sequence[VbucketHolder]]:
        return copies_of(cluster, self._access, reads_replicas=request.source.reads_replicas)

    def _report(
        self,
        request: BackfillRequest,
        progress: BackfillProgress,
        states: Mapping[int, VbucketProgress],
        plan: BackfillPlan,
        left: Sequence[LeftOut],
    ) -> BackfillReport:
        counts = self._counts
        reading = sum(
            max(0, stream.high_seqno - states[vb].position.seqno)
            for vb, stream in plan.streams.items()
            if vb in progress.reading and vb in states
        )
        # What waits will be read from its beginning: at most what the lake has.
        waiting = sum(states[vb].complete_seqno for vb in progress.waiting if vb in states)
        return BackfillReport(
            request.id,
            len(request.vbuckets),
            len(progress.done),
            counts.documents,
            counts.frame_bytes,
            counts.seqnos,
            reading + waiting,
            monotonic() - counts.began_at,
            tuple(left),
        )

    def _end(self, action: Action, state: ActionState, newest: int, detail: str = "") -> None:
        if not detail:
            detail = f"{self._counts.documents:,} documents by the driver that ended it"
        self._control.write(action, state, newest, detail)
        self._request = None


def request_of(action: Action, vbucket_count: int) -> BackfillRequest:
    """Return the request that the rows of ``control`` make.

    Raises:
        ConfigError: they ask for what there is not.

    """
    vbucket_text, _, collection_text = action.begun_detail.partition(_OF_COLLECTIONS)
    try:
        new = numbers_of(vbucket_text) if vbucket_text else frozenset()
        collections = numbers_of(collection_text) if collection_text else None
    except ValueError:
        raise ConfigError(
            f"its row {ActionState.BEGUN}: found detail {action.begun_detail!r}, expected vbuckets"
        ) from None
    vbuckets = vbuckets_of(action.vbuckets, vbucket_count)
    source, names = _options_of(action.options)
    return BackfillRequest(action.id, vbuckets, source, action.begun_round, new, names, collections)


def collections_to_read(
    names: frozenset[str], manifest: bytes | None, wanted: DocumentFilter
) -> frozenset[int]:
    """Return the ids of the collections that a backfill names, by themselves or by their scopes.

    Raises:
        ConfigError: the bucket has no such scope or collection, or the lake's filter leaves it out.

    """
    there = _there(manifest)
    known = collections_of(manifest).names
    for name in sorted(names):
        if name not in known:
            raise ConfigError(
                f"collections: found {name!r}{did_you_mean(name, known)}, expected scopes or "
                f"collections of the bucket, as in {', '.join(sorted(known)[:_NAMES_SHOWN])}"
            )
        of_it = [each.collection_id for each in there if name in each.names]
        if not of_it:
            raise ConfigError(f"collections: found {name!r}, a scope without collections")
        if not any(wanted.is_wanted.get(collection_id, True) for collection_id in of_it):
            raise ConfigError(f"collections: found {name!r}, which [filter] leaves out")
    chosen = [each.collection_id for each in there if not names.isdisjoint(each.names)]
    return frozenset(each for each in chosen if wanted.is_wanted.get(each, True))


def _there(manifest: bytes | None) -> tuple[ManifestCollection, ...]:
    return collections_of(manifest).all


def progress_of(
    lake: LakeTables,
    request: BackfillRequest,
    states: Mapping[int, VbucketProgress],
    newest: int,
) -> BackfillProgress:
    """Return how far a backfill is by what the log says."""
    if request.collections is not None:
        brought = _brought(lake, request, states, newest)
        return BackfillProgress.of_collections(request, states, brought)
    forks = forks_between(lake, request.begun_round, newest, request.vbuckets)
    return BackfillProgress.of(request, states, {each.vbucket for each in forks if not each.seqno})


def _brought(
    lake: LakeTables,
    request: BackfillRequest,
    states: Mapping[int, VbucketProgress],
    newest: int,
) -> dict[int, set[int]]:
    """Return the collections that vbuckets got since a request began, and did not lose again."""
    brought = backfilled_collections(lake, request.begun_round, newest)
    found: dict[int, set[int]] = {}
    forks = forks_between(lake, request.begun_round, newest, request.vbuckets) if brought else []
    for collection_id, events in brought.items():
        for event in events:
            own = [fork for fork in forks if fork.vbucket == event.vbucket]
            if is_live(event.epoch, event.seqno, states[event.vbucket].epoch, own):
                found.setdefault(event.vbucket, set()).add(collection_id)
    return found


def copies_of(
    cluster: ClusterView, access: SourceAccess, *, reads_replicas: bool
) -> Mapping[int, Sequence[VbucketHolder]]:
    """Return the copies of each vbucket that a backfill may read."""
    if reads_replicas:
        return probe_replicas(cluster, access.consumer.connection, access.source.credentials())
    owners = {vb: cluster.map.owner(vb) for vb in cluster.high_seqnos}
    return {
        vb: [VbucketHolder(owner, cluster.high_seqnos[vb], cluster.failover_logs.get(vb))]
        for vb, owner in owners.items()
        if owner is not None
    }


def held_seqnos(
    cluster: ClusterView, access: SourceAccess, request: BackfillRequest
) -> Mapping[NodeAddress, Mapping[int, int]]:
    """Return the seqnos of the newest items of a request's collections, by node and vbucket."""
    if request.collections is None:
        return {}
    nodes = [node for node in cluster.map.addresses if node not in cluster.unreachable]
    state = VbucketState.REPLICA if request.source.reads_replicas else VbucketState.ACTIVE
    connection, credentials = access.consumer.connection, access.source.credentials()
    return collection_seqnos(nodes, connection, credentials, state, request.collections)


def backfill_options(
    source: str, megabytes_per_second: float | None, collections: Collection[str] = ()
) -> dict[str, Any]:
    """Return the options of a request, as its row has them."""
    rate = {} if megabytes_per_second is None else {_RATE: megabytes_per_second}
    names = {_COLLECTIONS: sorted(collections)} if collections else {}
    return {_SOURCE: source, **rate, **names}


def _options_of(options: str | None) -> tuple[BackfillSource, frozenset[str]]:
    """Return the source that a request's options name, and the collections."""
    try:
        told = json.loads(options or "{}")
    except ValueError:
        told = None
    known = {_SOURCE, _RATE, _COLLECTIONS}
    expected = f"expected a JSON object of {_SOURCE}, {_RATE} and {_COLLECTIONS}"
    if not isinstance(told, dict) or set(told) - known:
        raise ConfigError(f"options: found {options!r}, {expected}")
    names = told.get(_COLLECTIONS, [])
    is_list = isinstance(names, list) and (names or _COLLECTIONS not in told)
    if not is_list or not all(isinstance(each, str) for each in names):
        raise ConfigError(
            f"options: {_COLLECTIONS}: found {names!r:.80}, expected a list of names, as in "
            '["inventory.hotel"]'
        )
    return _source_of(told), frozenset(names)


def _source_of(told: Mapping[str, Any]) -> BackfillSource:
    source, rate = told.get(_SOURCE, REPLICAS), told.get(_RATE)
    if source not in SOURCES:
        raise ConfigError(f"options: {_SOURCE}: found {source!r}, expected {' or '.join(SOURCES)}")
    if rate is None:
        return BackfillSource(source == REPLICAS)
    is_number = isinstance(rate, int | float) and not isinstance(rate, bool)
    least, most = LEAST_MEGABYTES_PER_SECOND, MOST_MEGABYTES_PER_SECOND
    if not is_number or not least <= rate <= most:
        raise ConfigError(f"options: {_RATE}: found {rate!r}, expected {least:g} to {most:,.0f}")
    return BackfillSource(source == REPLICAS, rate * 1e6)
