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
from typing import TYPE_CHECKING, Annotated, Final

from dcp.client.addresses import NodeAddress
from dcp.lake.rounds.round_plan import BackfillSource, LeftOut, left_out_lines
from dcp.lake.tables.vbucket_state import FIRST_EPOCH, VbucketProgress
from dcp.records import Record

if TYPE_CHECKING:
    from dcp.client.probe import ClusterView, VbucketHolder


@dataclass(frozen=True, slots=True)
class BackfillReport(Record):
    """Only the process that carries it out knows the figures beside those of vbuckets."""

    id: str
    vbuckets: int
    done: int
    documents: int = 0
    """Read in `seconds`, like `frame_bytes` and `seqnos`."""
    frame_bytes: int = 0
    seqnos: int = 0
    seqnos_left: int = 0
    """The nodes still hold so much for it."""
    seconds: float = 0.0
    waiting_for: tuple[LeftOut, ...] = ()
    """The vbuckets that cannot be read now."""

    @property
    def documents_per_second(self) -> Annotated[float, "documents_per_second"]:
        return round(self.documents / self.seconds, 1) if self.seconds else 0.0

    @property
    def seconds_left(self) -> Annotated[float | None, "seconds_left"]:
        """The time that the rest takes at this speed; None if nothing was read yet."""
        return self.seqnos_left * self.seconds / self.seqnos if self.seqnos else None

    def __str__(self) -> str:
        told = f"backfill {self.id}: {self.done} of {self.vbuckets} vbuckets"
        if self.seconds:
            told += (
                f", {self.documents:,} documents, {self.documents_per_second:,.0f} documents/s, "
                f"{self.frame_bytes / 1e6 / self.seconds:,.2f} MB/s"
            )
        if self.seconds_left is not None:
            told += f", {self.seconds_left:,.0f} s left"
        return "\n".join([told, *left_out_lines(self.waiting_for)])


@dataclass(frozen=True, slots=True)
class BackfillEstimate(Record):
    vbuckets: int
    seqnos: Annotated[Mapping[NodeAddress, int], "nodes"]
    """By node, the most documents that it can hold; without a lake, the high seqnos."""
    bytes_per_document: float | None
    """The mean of the tables' rows as frames; None: there are none."""
    bytes_per_second: float | None
    left_out: tuple[LeftOut, ...]
    """The vbuckets that could not begin now."""

    @property
    def documents(self) -> Annotated[int, "documents"]:
        return sum(self.seqnos.values())

    @property
    def frame_bytes(self) -> Annotated[float | None, "bytes"]:
        return self.bytes_per_document and self.documents * self.bytes_per_document

    @property
    def seconds(self) -> Annotated[float | None, "seconds"]:
        return (
            self.frame_bytes and self.bytes_per_second and self.frame_bytes / self.bytes_per_second
        )

    def __str__(self) -> str:
        told = f"backfill of {self.vbuckets} vbuckets: at most {self.documents:,} documents"
        if self.frame_bytes:
            told += f", about {self.frame_bytes / 1e6:,.1f} MB"
        if self.seconds:
            told += f", {self.seconds:,.0f} s at {(self.bytes_per_second or 0) / 1e6:g} MB/s"
        nodes = [f"  {node}: {seqnos:,} documents" for node, seqnos in self.seqnos.items()]
        return "\n".join([told, *nodes, *left_out_lines(self.left_out)])


REPLICAS: Final = "replicas"
SETTINGS: Final = "settings"
SOURCES: Final = (REPLICAS, SETTINGS)
"""A backfill reads from replicas, or as ``source.seeds`` say (a relay, perhaps)."""

LEAST_MEGABYTES_PER_SECOND: Final = 0.01
MOST_MEGABYTES_PER_SECOND: Final = 1e6

SEQNOS_OF_A_ROUND: Final = 500_000
"""A round begins vbuckets that hold so many seqnos together, or one that holds more."""

BACKFILL_ROUND_SECONDS: Final = 5.0
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
        taken_over: Collection[int] = (),
    ) -> "BackfillProgress":
        """Sort the vbuckets; ``begun`` are those that began at 0 after the request's round.

        The active nodes read those ``taken_over``, which began once more for another reason.
        """
        started = request.vbuckets & (request.new_vbuckets | frozenset(begun))
        done = frozenset(
            vbucket
            for vbucket in started
            if (state := states.get(vbucket)) is not None
            and state.is_whole
            and (state.caught_up_seqno > 0 or state.position.seqno == 0)
        ) | (started & frozenset(taken_over))
        return cls(request.vbuckets - started, started - done, done)


def is_new(state: VbucketProgress) -> bool:
    """Return whether nothing of a vbucket was ever published."""
    return state.epoch == FIRST_EPOCH and not state.is_whole


@dataclass(frozen=True, slots=True)
class BackfillStream:
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
        """Return the backfill's stream of a vbucket, or why nobody may read it; None: not its."""
        return self.streams.get(vbucket) or self.left_out.get(vbucket)


def plan_backfill(
    request: BackfillRequest,
    progress: BackfillProgress,
    states: Mapping[int, VbucketProgress],
    cluster: "ClusterView",
    copies: Mapping[int, Sequence["VbucketHolder"]],
) -> BackfillPlan:
    """Choose the streams of the next round; see the module's text.

    A vbucket without a state was never read. ``copies`` are the readable ones of each vbucket.
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
