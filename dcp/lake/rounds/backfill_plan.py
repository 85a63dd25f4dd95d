"""Chooses the vbuckets of a backfill that the next round reads, and the node for each. Pure.

A backfill reads replica vbuckets from seqno 0, to spare the active nodes. Few begin in one round:
the published rows of a vbucket stay until its first whole state replaces them, and changes of that
time wait.

A replica vbucket may lag behind the active node, or be on another branch. A published vbucket
begins only if a replica vbucket has all of the lake's seqnos on the active node's branch. So no
published row is lost. If the replica vbucket is ahead of a node that is promoted later, that node
orders a rollback.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Final

from dcp.client.addresses import NodeAddress
from dcp.lake.rounds.round_plan import BackfillNodes, LeftOut, left_out_lines
from dcp.lake.tables.round_record import StuckReason
from dcp.lake.tables.vbucket_state import FIRST_EPOCH, LakeVbucketState, Restart, state_of
from dcp.records import Record

if TYPE_CHECKING:
    from dcp.client.probe import ProbedCluster, VbucketHolder


@dataclass(frozen=True, slots=True)
class BackfillReport(Record):
    """The progress of a backfill. Only the process that runs it knows more than the vbuckets."""

    id: str
    vbuckets: int
    done: int
    documents: int = 0
    """Read in `seconds`, as are `frame_bytes` and `seqnos`."""
    frame_bytes: int = 0
    seqnos: int = 0
    seqnos_left: int = 0
    """The seqnos that its nodes still hold for it."""
    seconds: float = 0.0
    waiting_for: tuple[LeftOut, ...] = ()
    """The vbuckets that cannot be read now."""

    @property
    def documents_per_second(self) -> Annotated[float, "documents_per_second"]:
        return round(self.documents / self.seconds, 1) if self.seconds else 0.0

    @property
    def seconds_left(self) -> Annotated[float | None, "seconds_left"]:
        """The time for the rest at this speed; None if nothing has been read."""
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
    """By node, the most documents that it can hold. Without a lake: the high seqnos."""
    bytes_per_document: float | None
    """The mean size of the tables' rows as DCP frames; None without rows."""
    bytes_per_second: float | None
    left_out: tuple[LeftOut, ...]
    """The vbuckets that cannot begin at present."""

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
NODE_CHOICES: Final = (REPLICAS, SETTINGS)
"""A backfill reads replica vbuckets, or as ``source.seeds`` say (perhaps from a relay)."""

LEAST_MEGABYTES_PER_SECOND: Final = 0.01
MOST_MEGABYTES_PER_SECOND: Final = 1e6

SEQNOS_OF_A_ROUND: Final = 500_000
"""A round begins vbuckets with at most so many seqnos together, or a single larger one."""

BACKFILL_ROUND_SECONDS: Final = 5.0
"""The target length of a round with a backfill, since all other vbuckets wait for its end."""


@dataclass(frozen=True, slots=True)
class Backfill:
    """A backfill, as a request asks for it and its driver began it."""

    id: str
    vbuckets: frozenset[int]
    nodes: BackfillNodes
    begun_round: int
    new_vbuckets: frozenset[int] = frozenset()
    """Vbuckets of which the lake had nothing when the backfill began."""


@dataclass(frozen=True, slots=True)
class BackfillProgress:
    """The vbuckets of a backfill by their progress. Each is in exactly one set."""

    waiting: frozenset[int]
    reading: frozenset[int]
    done: frozenset[int]

    @classmethod
    def of(
        cls,
        backfill: Backfill,
        states: Mapping[int, LakeVbucketState],
        begun: Collection[int],
        taken_over: Collection[int] = (),
    ) -> "BackfillProgress":
        """Sort the vbuckets; ``begun`` began at 0 after the request's round.

        The vbuckets ``taken_over`` began again for another reason: their active nodes read them.
        """
        started = backfill.vbuckets & (backfill.new_vbuckets | frozenset(begun))
        done = frozenset(
            vbucket
            for vbucket in started
            if (state := states.get(vbucket)) is not None
            and state.is_whole
            and (state.caught_up_seqno > 0 or state.position.seqno == 0)
        ) | (started & frozenset(taken_over))
        return cls(backfill.vbuckets - started, started - done, done)


def is_new(state: LakeVbucketState) -> bool:
    return state.epoch == FIRST_EPOCH and not state.is_whole


@dataclass(frozen=True, slots=True)
class BackfillPlan:
    """A backfill's part of a round."""

    nodes: BackfillNodes
    copies: Mapping[int, "VbucketHolder"]
    """By vbucket, the copy that its stream reads."""
    beginning: frozenset[int]
    """The vbuckets of `copies` that begin with this round."""
    left_out: Mapping[int, LeftOut]
    """Vbuckets that no stream may read in this round."""
    waiting_for: Mapping[int, LeftOut]
    """Vbuckets that cannot begin, with the reason. Their active nodes stream them as usual."""

    def read(self, vbucket: int, restart: Restart | None) -> "VbucketHolder | LeftOut | None":
        """Return the copy to read, or why nobody may read the vbucket; None: its active node.

        The active node also streams a vbucket that has begun and must restart for another reason: a
        replica vbucket may lack published rows.
        """
        if restart is not None and vbucket not in self.beginning:
            return None
        return self.copies.get(vbucket) or self.left_out.get(vbucket)


def plan_backfill(
    backfill: Backfill,
    progress: BackfillProgress,
    states: Mapping[int, LakeVbucketState],
    cluster: "ProbedCluster",
    copies: Mapping[int, Sequence["VbucketHolder"]],
) -> BackfillPlan:
    """Choose the streams of the next round, by the rules in the module's docstring.

    ``copies`` are the readable copies of each vbucket.
    """
    chosen: dict[int, VbucketHolder] = {}
    beginning: set[int] = set()
    left_out: dict[int, LeftOut] = {}
    waiting_for: dict[int, LeftOut] = {}
    seqnos = 0
    # A vbucket that has begun must go on: its stream comes first, whatever it holds.
    for vbucket in sorted(progress.reading):
        state = state_of(states, vbucket)
        copy = max(copies.get(vbucket, ()), key=lambda each: each.high_seqno, default=None)
        if copy is None:
            left_out[vbucket] = _no_copy(vbucket, backfill.nodes)
            continue
        chosen[vbucket] = copy
        seqnos += max(0, copy.high_seqno - state.position.seqno)
    for vbucket in sorted(progress.waiting):
        state = state_of(states, vbucket)
        found = copy_to_begin_with(state, cluster, copies.get(vbucket, ()), backfill.nodes)
        if isinstance(found, LeftOut):
            waiting_for[vbucket] = found
        elif not seqnos or seqnos + found.high_seqno <= SEQNOS_OF_A_ROUND:
            chosen[vbucket] = found
            beginning.add(vbucket)
            seqnos += found.high_seqno
    return BackfillPlan(backfill.nodes, chosen, frozenset(beginning), left_out, waiting_for)


def copy_to_begin_with(
    state: LakeVbucketState,
    cluster: "ProbedCluster",
    copies: Sequence["VbucketHolder"],
    nodes: BackfillNodes,
) -> "VbucketHolder | LeftOut":
    vbucket, complete = state.vbucket, state.complete_seqno
    if state.order is not None:
        return LeftOut(vbucket, StuckReason.ROLLBACK, f"{state.order}, which comes first")
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
        detail = f"{named}: the active node is on another"
        return LeftOut(vbucket, StuckReason.REPLICA_ON_ANOTHER_BRANCH, detail)
    if best is None:
        return _no_copy(vbucket, nodes)
    if best.high_seqno < complete:
        detail = f"{best.node} holds seqnos up to {best.high_seqno}, the lake up to {complete}"
        return LeftOut(vbucket, StuckReason.REPLICA_BEHIND, detail)
    return best


def _no_copy(vbucket: int, nodes: BackfillNodes) -> LeftOut:
    if nodes.reads_replicas:
        return LeftOut(vbucket, StuckReason.NO_REPLICA, "no node that answers has one")
    return LeftOut(vbucket, StuckReason.NO_ACTIVE_NODE, "no node that answers holds it")
