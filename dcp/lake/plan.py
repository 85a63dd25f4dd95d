"""What a round will do, decided before it does anything: pure data that prints well.

``plan_round`` compares the positions in ``changes`` with the cluster's high seqnos and spreads the
vbuckets that are behind over the tasks. No vbucket behind means ``Idle``: no round and no commit.
The plan holds no secret.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Any

from dcp.client.addresses import NodeAddress
from dcp.lake.plan_text import idle_text, left_out_json, plan_json, plan_text
from dcp.lake.settings import RoundSettings
from dcp.lake.vbucket_state import VbucketState

if TYPE_CHECKING:
    from dcp.client.probe import ClusterView
    from dcp.lake.applied import AppliedVersion


@dataclass(frozen=True, slots=True)
class StreamPlan:
    """One vbucket to stream: from which node, from which state, to which seqno at least."""

    state: VbucketState
    node: NodeAddress
    target_seqno: int

    def __post_init__(self) -> None:
        """Reject a target that was reached already: such a vbucket needs no stream."""
        if self.target_seqno <= self.state.position.complete_seqno:
            raise ValueError(
                f"stream plan of vbucket {self.vbucket}: found target {self.target_seqno}, "
                f"expected more than the complete seqno {self.state.position.complete_seqno}"
            )

    @property
    def vbucket(self) -> int:
        """The vbucket."""
        return self.state.vbucket

    @property
    def backlog(self) -> int:
        """Seqnos between here and the target: the most rows that can be missing."""
        return max(0, self.target_seqno - self.state.position.seqno)


@dataclass(frozen=True, slots=True)
class TaskPlan:
    """One Spark task: what it streams, and its share of what the round only writes down.

    ``carried`` are states of vbuckets that no task streams, ``left_out`` those of them that should
    have been; ``applied`` are replica versions that the log does not list yet.
    """

    index: int
    streams: tuple[StreamPlan, ...]
    carried: tuple[VbucketState, ...]
    left_out: "tuple[LeftOut, ...]" = ()
    applied: "tuple[AppliedVersion, ...]" = ()

    @property
    def nodes(self) -> tuple[NodeAddress, ...]:
        """The nodes it connects to, one connection each."""
        return tuple(sorted({stream.node for stream in self.streams}))

    @property
    def backlog(self) -> int:
        """Seqnos that its vbuckets are behind."""
        return sum(stream.backlog for stream in self.streams)


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A vbucket that is behind, or may be, and cannot be streamed now."""

    vbucket: int
    reason: str
    detail: str


@dataclass(frozen=True, slots=True)
class RoundPlan:
    """The whole round. Its tasks write the position of every vbucket, streamed or carried."""

    lake_id: str
    round: int
    tasks: tuple[TaskPlan, ...]
    left_out: tuple[LeftOut, ...]
    target_bytes: int
    target_seconds: float

    @property
    def streams(self) -> tuple[StreamPlan, ...]:
        """The streams of all tasks, by vbucket."""
        streams = (stream for task in self.tasks for stream in task.streams)
        return tuple(sorted(streams, key=lambda stream: stream.vbucket))

    def listing(self, applied: "Sequence[AppliedVersion]") -> "RoundPlan":
        """Return the plan of a round that lists these replica versions as well."""
        count = len(self.tasks)
        tasks = (replace(task, applied=tuple(applied[task.index :: count])) for task in self.tasks)
        return replace(self, tasks=tuple(tasks))

    def to_json(self) -> dict[str, Any]:
        """Return the plan as a JSON object; seqnos are exact integers."""
        return plan_json(self)

    def __str__(self) -> str:
        return plan_text(self)


@dataclass(frozen=True, slots=True)
class Idle:
    """No stream is needed, or none is possible: no round, no commit."""

    lake_id: str
    latest_round: int
    left_out: tuple[LeftOut, ...]

    def to_json(self) -> dict[str, Any]:
        """Return this as a JSON object."""
        return {
            "lake": self.lake_id,
            "round": None,
            "latest_round": self.latest_round,
            "left_out": left_out_json(self.left_out),
        }

    def __str__(self) -> str:
        return idle_text(self)


@dataclass(frozen=True, slots=True)
class LakePosition:
    """Where a lake stands: its newest round, and each vbucket's state there."""

    lake_id: str
    latest_round: int
    states: Mapping[int, VbucketState] = field(default_factory=dict)

    def state(self, vbucket: int) -> VbucketState:
        """Return the vbucket's state; the beginning where the lake has not met it yet."""
        return self.states.get(vbucket) or VbucketState.beginning(vbucket)


def plan_round(
    position: LakePosition,
    cluster: "ClusterView",
    settings: RoundSettings,
    slots: int,
    *,
    targets: Mapping[int, int] | None = None,
    skip: Mapping[int, LeftOut] | None = None,
) -> RoundPlan | Idle:
    """Plan the next round.

    Args:
        position: where the lake stands.
        cluster: map, high seqnos and unreachable nodes, asked for just now.
        settings: number of tasks, bytes and seconds.
        slots: how many tasks Spark runs at the same time.
        targets: seqnos to reach instead of the high seqnos (a run that ends there).
        skip: vbuckets not to stream now, with the reason to report.

    """
    if slots < 1:
        raise ValueError(f"slots: found {slots}, expected 1 or more")
    goals = cluster.high_seqnos if targets is None else targets
    streams: list[StreamPlan] = []
    left_out: list[LeftOut] = []
    for vbucket in range(cluster.map.vbucket_count):
        state = position.state(vbucket)
        goal = goals.get(vbucket)
        if goal is not None and not is_behind(state, goal):
            continue
        planned = _stream_or_reason(state, goal, cluster, skip or {})
        if isinstance(planned, StreamPlan):
            streams.append(planned)
        else:
            left_out.append(planned)
    if not streams:
        return Idle(position.lake_id, position.latest_round, tuple(left_out))
    streamed = {stream.vbucket for stream in streams}
    vbuckets = {*range(cluster.map.vbucket_count), *position.states}
    carried = [position.state(vbucket) for vbucket in sorted(vbuckets - streamed)]
    return RoundPlan(
        lake_id=position.lake_id,
        round=position.latest_round + 1,
        tasks=_spread(streams, carried, left_out, min(slots, settings.tasks or slots)),
        left_out=tuple(left_out),
        target_bytes=settings.target_bytes,
        target_seconds=settings.target_seconds,
    )


def is_behind(state: VbucketState, target_seqno: int) -> bool:
    """Whether rows up to ``target_seqno`` may be missing, or wait for their snapshot's end."""
    return target_seqno > max(state.caught_up_seqno, state.position.complete_seqno)


def _stream_or_reason(
    state: VbucketState, goal: int | None, cluster: "ClusterView", skip: Mapping[int, LeftOut]
) -> StreamPlan | LeftOut:
    vbucket = state.vbucket
    if vbucket in skip:
        return skip[vbucket]
    node = cluster.map.owner(vbucket)
    if node is None:
        return LeftOut(vbucket, "no active node", "the cluster map names no active node for it")
    if node in cluster.unreachable:
        return LeftOut(vbucket, "node unreachable", f"{node}: {cluster.unreachable[node]}")
    if goal is None:
        return LeftOut(vbucket, "no high seqno", f"{node} did not tell its high seqno")
    return StreamPlan(state, node, goal)


def _spread(
    streams: Sequence[StreamPlan],
    carried: Sequence[VbucketState],
    left_out: Sequence[LeftOut],
    slots: int,
) -> tuple[TaskPlan, ...]:
    """Give the largest backlogs first, node by node in turn, always to the least loaded task."""
    count = min(slots, len(streams))
    shares: list[list[StreamPlan]] = [[] for _ in range(count)]
    loads = [(0, 0, index) for index in range(count)]
    heapify(loads)
    for stream in _largest_first(streams):
        backlog, streams_there, index = heappop(loads)
        shares[index].append(stream)
        heappush(loads, (backlog + stream.backlog, streams_there + 1, index))
    tasks = []
    for index, share in enumerate(shares):
        carries = tuple(carried[index::count])
        vbuckets = {state.vbucket for state in carries}
        misses = tuple(left for left in left_out if left.vbucket in vbuckets)
        tasks.append(TaskPlan(index, tuple(sorted(share, key=_longest_waiting)), carries, misses))
    return tuple(tasks)


def _largest_first(streams: Collection[StreamPlan]) -> list[StreamPlan]:
    """Largest backlog first; the nodes take turns among equals, so that no task gets one node's."""
    turn: dict[NodeAddress, int] = {}
    ranked = []
    for stream in sorted(streams, key=lambda stream: (-stream.backlog, stream.vbucket)):
        turn[stream.node] = turn.get(stream.node, 0) + 1
        ranked.append((-stream.backlog, turn[stream.node], stream.node, stream.vbucket, stream))
    return [stream for *_, stream in sorted(ranked, key=lambda entry: entry[:4])]


def _longest_waiting(stream: StreamPlan) -> tuple[int, int]:
    """Streams open in this order: a task that runs out of budget serves the others next time."""
    return stream.state.last_data_round or 0, stream.vbucket
