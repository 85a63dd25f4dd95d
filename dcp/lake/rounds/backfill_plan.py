"""Chooses the vbuckets of a backfill that the next round reads, and the node of each. Pure.

A backfill reads vbuckets from their beginning, from nodes that hold them as replicas, so that the
active nodes carry none of its load. Few of them begin in one round: what was published of a vbucket
stays until its first whole state replaces it, and the changes of that time wait.

A replica may be behind its active node, or on the branch of one that failed. So a vbucket that was
published begins only where a replica holds all that the lake holds of it, on the branch of the
active node: its rows never go back. What the replica has more than a node that is promoted later,
that node orders back, as any rollback.

Some collections alone are brought anew beside the others, which stay as they are: one stream from
seqno 0 brings all documents of those, and of the others what is new (`PartialBackfill`). Deletions
that a node has purged are not in such a stream. So a vbucket's begins only when the lake has read
what the active node held when the backfill began in this process, which no purge has overtaken.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from dcp.client.addresses import NodeAddress
from dcp.lake.rounds.round_plan import BackfillSource, LeftOut
from dcp.lake.tables.vbucket_state import FIRST_EPOCH, VbucketProgress
from dcp.types import U64_MAX

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

    ``collections`` are the only ones that it brings anew; None: everything.
    """

    node: NodeAddress
    high_seqno: int
    begins_epoch: bool
    collections: frozenset[int] | None = None


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
    first_seqnos: Mapping[int, int],
    resting: Mapping[int, LeftOut],
) -> BackfillPlan:
    """Choose what the next round reads; see the module's text.

    Args:
        request: the backfill.
        progress: how far its vbuckets are.
        states: their newest states; one that is missing was never read.
        cluster: what the active nodes hold.
        copies: what may be read of each vbucket (`copies_of`).
        first_seqnos: what the active nodes held when this process began with the backfill; of use
            where it is one of collections.
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
        if request.collections is not None and not isinstance(found, LeftOut):
            # One that the lake did not have is read for the first time, by the rounds as ever.
            is_new = vbucket in request.new_vbuckets
            least = U64_MAX if is_new else first_seqnos.get(vbucket)
            found = resting.get(vbucket) or _not_read_yet(state, least) or found
        if isinstance(found, LeftOut):
            waiting_for[vbucket] = found
        elif not seqnos or seqnos + found.high_seqno <= most:
            streams[vbucket] = BackfillStream(
                found.node, found.high_seqno, begins_epoch=True, collections=request.collections
            )
            seqnos += found.high_seqno
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


def _not_read_yet(state: VbucketProgress, least: int | None) -> LeftOut | None:
    """Return why some collections of a vbucket cannot be read yet; None where they can.

    ``least`` is what its active node held; None: it did not tell.
    """
    if least is not None and state.complete_seqno >= max(least, 1):
        return None
    detail = f"the lake holds seqnos up to {state.complete_seqno}, expected "
    if least is None:
        detail += "what its active node holds, which does not tell"
    else:
        detail += "its first whole state" if least == U64_MAX else f"{least} first"
    return LeftOut(state.vbucket, "not read yet", detail)


def _no_copy(vbucket: int, source: BackfillSource) -> LeftOut:
    if source.reads_replicas:
        return LeftOut(vbucket, "no replica", "no node that answers holds it as a replica")
    return LeftOut(vbucket, "no active node", "no node that answers holds it")
