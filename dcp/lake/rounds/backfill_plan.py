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

_DOCUMENT_BYTES: Final = 1000
"""What a document is taken for on the wire, before one was read."""

ROUND_SECONDS: Final = 5.0
"""The most that a round with a backfill takes: all other vbuckets wait for its end."""


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


def plan_backfill(
    request: BackfillRequest,
    progress: BackfillProgress,
    states: Mapping[int, VbucketProgress],
    cluster: "ClusterView",
    copies: Mapping[int, Sequence["VbucketHolder"]],
    collections: Mapping[NodeAddress, Mapping[int, int]],
    resting: Mapping[int, LeftOut],
) -> BackfillPlan:
    """Choose what the next round reads; see the module's text.

    Args:
        request: the backfill.
        progress: how far its vbuckets are.
        states: their newest states; one that is missing was never read.
        cluster: what the active nodes hold.
        copies: what may be read of each vbucket (`copies_of`).
        collections: of a backfill of some, the seqno of their newest item in each vbucket that a
            node holds.
        resting: vbuckets that it left in vain in the last round, and why; not begun in this one.

    """
    streams: dict[int, BackfillStream] = {}
    left_out: dict[int, LeftOut] = {}
    waiting_for: dict[int, LeftOut] = {}
    seqnos, most = 0, _seqnos_of_a_round(request)
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
        held_seqno = None
        if request.collections is not None and not isinstance(found, LeftOut):
            held_seqno = collections.get(found.node, {}).get(vbucket)
            found = resting.get(vbucket) or _not_ready(request, state, found, held_seqno) or found
        if isinstance(found, LeftOut):
            waiting_for[vbucket] = found
            continue
        read_seqnos = found.high_seqno if held_seqno is None else held_seqno
        if not seqnos or seqnos + read_seqnos <= most:
            streams[vbucket] = BackfillStream(
                found.node, found.high_seqno, True, request.collections, held_seqno or 0
            )
            seqnos += read_seqnos
    return BackfillPlan(request.source, streams, left_out, waiting_for)


def _seqnos_of_a_round(request: BackfillRequest) -> int:
    """Return how many seqnos the vbuckets that begin in a round may hold together.

    Those whose collections are brought anew are read to their end in it, which takes the longer the
    lower the rate is.
    """
    rate = request.source.bytes_per_second
    if request.collections is None or rate is None:
        return SEQNOS_OF_A_ROUND
    return min(SEQNOS_OF_A_ROUND, int(rate * ROUND_SECONDS / _DOCUMENT_BYTES))


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


def _not_ready(
    request: BackfillRequest,
    state: VbucketProgress,
    copy: "VbucketHolder",
    held_seqno: int | None,
) -> LeftOut | None:
    """Return why some collections of a vbucket cannot be read yet; None where they can.

    What the lake did not have is read for the first time, by the rounds as ever.
    """
    if state.vbucket in request.new_vbuckets or not state.complete_seqno:
        return LeftOut(state.vbucket, "not read yet", "expected its first whole state first")
    if held_seqno is None:
        detail = f"{copy.node} does not tell its newest item of the collections"
        return LeftOut(state.vbucket, "no high seqno", detail)
    return None


def _no_copy(vbucket: int, source: BackfillSource) -> LeftOut:
    if source.reads_replicas:
        return LeftOut(vbucket, "no replica", "no node that answers holds it as a replica")
    return LeftOut(vbucket, "no active node", "no node that answers holds it")
