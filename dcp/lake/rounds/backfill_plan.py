"""Chooses the vbuckets of a backfill that the next round reads, and the node of each. Pure.

A backfill reads vbuckets from their beginning, from nodes that hold them as replicas, so that the
active nodes carry none of its load. Few of them begin in one round: what was published of a vbucket
stays until its first whole state replaces it, and the changes of that time wait.

A replica may be behind its active node, or on the branch of one that failed. So a vbucket that was
published begins only where a replica holds all that the lake holds of it, on the branch of the
active node: its rows never go back. What the replica has more than a node that is promoted later,
that node orders back, as any rollback.

Some collections alone are read anew beside the others, which stay as they are: a copy sends those
collections only, and what is new of all comes with the vbucket's own stream (`PartialBackfill`).
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
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
"""Where a backfill may read: from replicas, or as ``source.seeds`` say (a relay, perhaps)."""

LEAST_MEGABYTES_PER_SECOND: Final = 0.01
MOST_MEGABYTES_PER_SECOND: Final = 1e6

SEQNOS_OF_A_ROUND: Final = 500_000
"""A round begins vbuckets that hold so many seqnos together, or one that holds more."""

ROUND_SECONDS: Final = 5.0
"""What a round with a backfill is to take: all other vbuckets wait for its end.

It ends then, but for collections that are read anew: what has begun of these is read to its end.
"""

FIRST_VBUCKETS: Final = 8
"""The first round of a backfill of some collections begins so many vbuckets."""


@dataclass(frozen=True, slots=True)
class BackfillRequest:
    """A backfill that was asked for and has begun.

    ``new_vbuckets`` are those of its vbuckets of which the lake had nothing when it began.
    ``names`` are those of the only scopes and collections that it reads anew; none: everything.
    ``collections`` are their ids, known once it has begun.
    """

    id: str
    vbuckets: frozenset[int]
    source: BackfillSource
    begun_round: int
    new_vbuckets: frozenset[int] = frozenset()
    names: frozenset[str] = frozenset()
    collections: frozenset[int] | None = None


@dataclass(frozen=True, slots=True)
class BackfillProgress:
    """The vbuckets of a backfill by how far they are: each is in one of the three."""

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

    @classmethod
    def of_collections(
        cls,
        request: BackfillRequest,
        states: Mapping[int, VbucketProgress],
        brought: Mapping[int, Collection[int]],
    ) -> "BackfillProgress":
        """Sort the vbuckets of a backfill of some collections: a round brings them or does not.

        Args:
            request: the backfill.
            states: the vbuckets' newest states.
            brought: the collections that each got after the request's round.

        """
        wanted = request.collections
        assert wanted, "expected a request of some collections"
        done = frozenset(
            vbucket
            for vbucket in request.vbuckets
            if wanted <= set(brought.get(vbucket, ()))
            or _is_empty(states.get(vbucket))
            or (vbucket in request.new_vbuckets and vbucket in states and _is_read(states[vbucket]))
        )
        return cls(request.vbuckets - done, frozenset(), done)

    def without(self, vbuckets: Iterable[int]) -> "BackfillProgress":
        """Return the same with some that wait done: there is nothing to do."""
        done = frozenset(vbuckets)
        return BackfillProgress(self.waiting - done, self.reading, self.done | done)


def is_new(state: VbucketProgress) -> bool:
    """Return whether nothing of a vbucket was ever published."""
    return state.epoch == FIRST_EPOCH and not state.is_whole


def _is_read(state: VbucketProgress) -> bool:
    """Return whether what a node held when it was asked was read to its end."""
    return state.is_whole and (state.caught_up_seqno > 0 or state.position.seqno == 0)


def _is_empty(state: VbucketProgress | None) -> bool:
    """Return whether a vbucket was read, and had nothing."""
    return state is not None and state.is_whole and state.complete_seqno == 0


@dataclass(frozen=True, slots=True)
class BackfillStream:
    """A vbucket to read from a copy: its node, and the seqno that it holds.

    ``collections`` are the only ones that it brings anew, and ``collections_seqno`` that of its
    newest item of them; None: everything.
    """

    node: NodeAddress
    high_seqno: int
    begins_epoch: bool
    collections: frozenset[int] | None = None
    collections_seqno: int = 0


@dataclass(frozen=True, slots=True)
class BackfillPlan:
    """The part of a round that a backfill has.

    ``left_out`` are vbuckets that no other stream may read meanwhile; ``waiting_for`` says of
    others, which are read from their active nodes as ever, why they do not begin.
    """

    source: BackfillSource
    streams: Mapping[int, BackfillStream]
    left_out: Mapping[int, LeftOut] = field(default_factory=dict)
    waiting_for: Mapping[int, LeftOut] = field(default_factory=dict)

    def read(self, vbucket: int) -> BackfillStream | LeftOut | None:
        """Return how the backfill reads a vbucket, or why nobody may; None: it leaves it alone."""
        return self.streams.get(vbucket) or self.left_out.get(vbucket)


def vbuckets_of_next(vbuckets: int, seconds: float) -> int:
    """Return how many vbuckets a round may begin, after one that began so many, and its time."""
    if seconds > ROUND_SECONDS:
        return max(1, vbuckets // 2)
    return vbuckets * 2 if seconds < ROUND_SECONDS / 2 else vbuckets


@dataclass(frozen=True, slots=True)
class CollectionsTurn:
    """The part of a backfill of some collections that the next round may begin.

    ``seqnos`` has, by node and vbucket, that of the newest item of the collections. ``resting`` are
    vbuckets that the last round left in vain, and why: others come first. The round begins
    ``most_vbuckets``.
    """

    seqnos: Mapping[NodeAddress, Mapping[int, int]] = field(default_factory=dict)
    resting: Mapping[int, LeftOut] = field(default_factory=dict)
    most_vbuckets: int = FIRST_VBUCKETS


def plan_backfill(
    request: BackfillRequest,
    progress: BackfillProgress,
    states: Mapping[int, VbucketProgress],
    cluster: "ClusterView",
    copies: Mapping[int, Sequence["VbucketHolder"]],
    turn: CollectionsTurn,
) -> BackfillPlan:
    """Choose what the next round reads; see the module's text.

    Args:
        request: the backfill.
        progress: how far its vbuckets are.
        states: their newest states; one that is missing was never read.
        cluster: what the active nodes hold.
        copies: what may be read of each vbucket (`copies_of`).
        turn: of a backfill of some collections, what the round may begin.

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
        found = copy_to_read(request, state, cluster, copies.get(vbucket, ()), turn.seqnos)
        found = turn.resting.get(vbucket, found)
        if isinstance(found, LeftOut):
            waiting_for[vbucket] = found
        elif request.collections is not None:
            if len(streams) < turn.most_vbuckets:
                streams[vbucket] = BackfillStream(
                    found.node,
                    found.high_seqno,
                    begins_epoch=True,
                    collections=request.collections,
                    collections_seqno=turn.seqnos[found.node][vbucket],
                )
        elif not seqnos or seqnos + found.high_seqno <= SEQNOS_OF_A_ROUND:
            streams[vbucket] = BackfillStream(found.node, found.high_seqno, begins_epoch=True)
            seqnos += found.high_seqno
    return BackfillPlan(request.source, streams, left_out, waiting_for)


def copy_to_read(
    request: BackfillRequest,
    state: VbucketProgress,
    cluster: "ClusterView",
    copies: Sequence["VbucketHolder"],
    seqnos: Mapping[NodeAddress, Mapping[int, int]],
) -> "VbucketHolder | LeftOut":
    """Return the copy that a request can begin a vbucket with, or why it cannot yet.

    ``seqnos`` are those of `CollectionsTurn`. What the lake did not have is read for the first
    time, by the rounds as ever.
    """
    found = copy_to_begin_with(state, cluster, copies, request.source)
    if request.collections is None or isinstance(found, LeftOut):
        return found
    if state.vbucket in request.new_vbuckets or not state.complete_seqno:
        return LeftOut(state.vbucket, "not read yet", "expected its first whole state first")
    if state.vbucket not in seqnos.get(found.node, {}):
        detail = f"{found.node} does not tell its newest item of the collections"
        return LeftOut(state.vbucket, "no high seqno", detail)
    return found


def copy_to_begin_with(
    state: VbucketProgress,
    cluster: "ClusterView",
    copies: Sequence["VbucketHolder"],
    source: BackfillSource,
) -> "VbucketHolder | LeftOut":
    """Return the copy that holds all that was published of a vbucket, or why there is none."""
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
