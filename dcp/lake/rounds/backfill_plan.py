"""Chooses the vbuckets of a backfill that the next round reads, and the node of each. Pure.

A backfill reads vbuckets from their beginning, from nodes that hold them as replicas, so that the
active nodes carry none of its load. Few of them begin in one round: what was published of a vbucket
stays until its first whole state replaces it, and the changes of that time wait.

A replica may be behind its active node, or on the branch of one that failed. So a vbucket that was
published begins only where a replica holds all that the lake holds of it, on the branch of the
active node: its rows never go back. What the replica has more than a node that is promoted later,
that node orders back, as any rollback.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from dcp.client.addresses import NodeAddress
from dcp.lake.rounds.round_plan import BackfillSource, LeftOut
from dcp.lake.tables.vbucket_state import FIRST_EPOCH, VbucketProgress

if TYPE_CHECKING:
    from dcp.client.probe import ClusterView, VbucketHolder

REPLICAS: Final = "replicas"
SETTINGS: Final = "settings"
SOURCES: Final = (REPLICAS, SETTINGS)
"""A backfill reads from replicas, or as ``source.seeds`` say (a relay, perhaps)."""

LEAST_MEGABYTES_PER_SECOND: Final = 0.01
MOST_MEGABYTES_PER_SECOND: Final = 1e6

SEQNOS_OF_A_ROUND: Final = 500_000
"""A round begins vbuckets that hold so many seqnos together, or one that holds more."""

ROUND_SECONDS: Final = 5.0
"""The aim for a round with a backfill: all other vbuckets wait for its end."""


@dataclass(frozen=True, slots=True)
class BackfillRequest:
    id: str
    vbuckets: frozenset[int]
    source: BackfillSource
    begun_round: int
    new_vbuckets: frozenset[int] = frozenset()
    """The lake had nothing of these vbuckets when it began."""


@dataclass(frozen=True, slots=True)
class BackfillProgress:
    """The vbuckets of a backfill by their progress: each is in one of the three."""

    waiting: frozenset[int]
    reading: frozenset[int]
    done: frozenset[int]

    @classmethod
    def of(
        cls,
        request: BackfillRequest,
        states: Mapping[int, VbucketProgress],
        begun: Collection[int],
    ) -> "BackfillProgress":
        """Sort the vbuckets.

        Args:
            request: the backfill.
            states: the vbuckets' newest states.
            begun: those that began an epoch at 0 after the request's round.
        """
        started = request.vbuckets & (request.new_vbuckets | frozenset(begun))
        done = frozenset(
            vbucket for vbucket in started if vbucket in states and _is_read(states[vbucket])
        )
        return cls(request.vbuckets - started, started - done, done)


def is_new(state: VbucketProgress) -> bool:
    """Return whether nothing of a vbucket was ever published."""
    return state.epoch == FIRST_EPOCH and not state.is_whole


def _is_read(state: VbucketProgress) -> bool:
    return state.is_whole and (state.caught_up_seqno > 0 or state.position.seqno == 0)


@dataclass(frozen=True, slots=True)
class BackfillStream:
    """A vbucket to read from a copy: its node, and the seqno that it holds."""

    node: NodeAddress
    high_seqno: int
    begins_epoch: bool


@dataclass(frozen=True, slots=True)
class BackfillPlan:
    """A backfill's part of a round."""

    source: BackfillSource
    streams: Mapping[int, BackfillStream]
    left_out: Mapping[int, LeftOut] = field(default_factory=dict)
    """No other stream may read these vbuckets meanwhile."""
    waiting_for: Mapping[int, LeftOut] = field(default_factory=dict)
    """The reason why these vbuckets do not begin; their active nodes stream them as always."""

    def read(self, vbucket: int) -> BackfillStream | LeftOut | None:
        """Return the backfill's stream of a vbucket, or why nobody may read it; None: not its
        vbucket.
        """
        return self.streams.get(vbucket) or self.left_out.get(vbucket)


def plan_backfill(
    request: BackfillRequest,
    progress: BackfillProgress,
    states: Mapping[int, VbucketProgress],
    cluster: "ClusterView",
    copies: Mapping[int, Sequence["VbucketHolder"]],
) -> BackfillPlan:
    """Choose the streams of the next round; see the module's text.

    Args:
        request: the backfill.
        progress: of its vbuckets.
        states: their newest states; a missing one was never read.
        cluster: the active nodes' high seqnos.
        copies: the readable copies of each vbucket (`copies_of`).
    """
    streams: dict[int, BackfillStream] = {}
    left_out: dict[int, LeftOut] = {}
    waiting_for: dict[int, LeftOut] = {}
    seqnos = 0
    for vbucket in sorted(progress.reading):
        state = states.get(vbucket) or VbucketProgress.beginning(vbucket)
        copy = max(copies.get(vbucket, ()), key=lambda each: each.high_seqno, default=None)
        if copy is None:
            left_out[vbucket] = _no_copy(vbucket, request.source)
            continue
        streams[vbucket] = BackfillStream(copy.node, copy.high_seqno, begins_epoch=False)
        seqnos += max(0, copy.high_seqno - state.position.seqno)
    for vbucket in sorted(progress.waiting):
        state = states.get(vbucket) or VbucketProgress.beginning(vbucket)
        found = copy_to_begin_with(state, cluster, copies.get(vbucket, ()), request.source)
        if isinstance(found, LeftOut):
            waiting_for[vbucket] = found
        elif not seqnos or seqnos + found.high_seqno <= SEQNOS_OF_A_ROUND:
            streams[vbucket] = BackfillStream(found.node, found.high_seqno, begins_epoch=True)
            seqnos += found.high_seqno
    return BackfillPlan(request.source, streams, left_out, waiting_for)


def copy_to_begin_with(
    state: VbucketProgress,
    cluster: "ClusterView",
    copies: Sequence["VbucketHolder"],
    source: BackfillSource,
) -> "VbucketHolder | LeftOut":
    vbucket, complete = state.vbucket, state.complete_seqno
    if state.order is not None:
        return LeftOut(vbucket, "rollback pending", "it is followed first")
    active = cluster.failover_logs.get(vbucket)
    on_branch = [
        copy
        for copy in copies
        if active is None
        or copy.failover_log is None
        or copy.failover_log.current_uuid == active.current_uuid
    ]
    best = max(on_branch, key=lambda each: each.high_seqno, default=None)
    if best is None and copies:
        named = ", ".join(str(copy.node) for copy in copies)
        return LeftOut(
            vbucket, "replica on another branch", f"{named}: not that of the active node"
        )
    if best is None:
        return _no_copy(vbucket, source)
    if best.high_seqno < complete:
        detail = f"{best.node} holds seqnos up to {best.high_seqno}, the lake up to {complete}"
        return LeftOut(vbucket, "replica behind", detail)
    return best


def _no_copy(vbucket: int, source: BackfillSource) -> LeftOut:
    if source.reads_replicas:
        return LeftOut(vbucket, "no replica", "no node that answers holds it as a replica")
    return LeftOut(vbucket, "no active node", "no node that answers holds it")
