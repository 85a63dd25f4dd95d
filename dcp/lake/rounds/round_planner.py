"""Plans a round: which vbuckets are streamed, by which task, from which position to which target.

``plan_round`` compares the positions in ``changes`` with what the cluster holds and spreads the
vbuckets that are behind, or on another branch, over the tasks. None of them means ``Idle``: no
round and no commit. ``Idle`` also means that every vbucket that is behind may wait
(`dcp.lake.rounds.empty_rounds`).

Vbuckets that no node can serve at that moment (there is none, it does not answer, or does not tell
what it holds) are left out, and do not make a round: they wait for the next one.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from heapq import heapify, heappop, heappush
from math import inf
from typing import TYPE_CHECKING, Final

from dcp.client.addresses import NodeAddress
from dcp.lake.config.flow_control_settings import FlowControlSettings, WindowPlan
from dcp.lake.config.settings import RoundSettings
from dcp.lake.rounds.backfill_plan import BACKFILL_ROUND_SECONDS, BackfillStream
from dcp.lake.rounds.lake_state import LakeState
from dcp.lake.rounds.round_plan import Idle, LeftOut, RoundPlan, StreamPlan, TaskPlan
from dcp.lake.tables.vbucket_state import (
    FIRST_EPOCH,
    Restart,
    VbucketProgress,
)

if TYPE_CHECKING:
    from dcp.client.probe import ClusterView

SEQNOS_OF_A_TASK: Final = 10_000
"""A round gets a further task for each so many seqnos; a task reads them in a tenth of a second."""

CLUSTER_TASKS: Final = 2
"""The most tasks of a round if the cluster decides how many run at once.

`RoundSettings.tasks` sets another number.
"""


def plan_round(
    lake_state: LakeState,
    cluster: "ClusterView",
    settings: RoundSettings,
    flow: FlowControlSettings,
    slots: int | Callable[[], int],
    *,
    targets: Mapping[int, int] | None = None,
    skip: Mapping[int, LeftOut] | None = None,
) -> RoundPlan | Idle:
    """Plan the next round.

    Args:
        lake_state: the lake's.
        cluster: map, high seqnos and unreachable nodes, just asked for.
        settings: number of tasks, bytes and seconds.
        flow: policy and numbers of the windows.
        slots: how many tasks Spark runs at once (0: unknown); or a function, called only if there
            is something to stream.
        targets: seqnos to reach instead of the high seqnos (a run that ends there).
        skip: vbuckets not to stream now, with the reason to report.

    Raises:
        ConfigError: the lake is to start now, and has begun at seqno 0.
    """
    lake_state.refuse_late_start()
    goals = cluster.high_seqnos if targets is None else targets
    streams: list[StreamPlan] = []
    left_out: list[LeftOut] = []
    for vbucket in range(cluster.map.vbucket_count):
        match _planned(lake_state, cluster, vbucket, goals.get(vbucket), skip or {}):
            case LeftOut() as left:
                left_out.append(left)
            case StreamPlan() as stream:
                streams.append(stream)
    if all(_may_wait(stream, lake_state, cluster) for stream in streams):
        return Idle(
            lake_state.lake_id,
            lake_state.latest_round,
            tuple(left_out),
            waiting=frozenset(stream.vbucket for stream in streams),
        )
    slots = slots if isinstance(slots, int) else slots()
    if slots < 0:
        raise ValueError(f"slots: found {slots}, expected 0 or more")
    shares = _shares(streams, slots, settings.tasks)
    most_seconds = BACKFILL_ROUND_SECONDS if any(each.is_backfill for each in streams) else inf
    return RoundPlan(
        lake_id=lake_state.lake_id,
        round=lake_state.latest_round + 1,
        tasks=_tasks(lake_state, cluster, shares, left_out, flow),
        left_out=tuple(left_out),
        target_bytes=settings.target_bytes,
        target_seconds=min(settings.target_seconds, most_seconds),
    )


def _planned(
    lake_state: LakeState,
    cluster: "ClusterView",
    vbucket: int,
    goal: int | None,
    skip: Mapping[int, LeftOut],
) -> StreamPlan | LeftOut | None:
    """Return a vbucket's stream, or why it is left out; None: it lacks nothing up to its goal."""
    restart, has_started = lake_state.restart(vbucket), lake_state.has_started(vbucket)
    if isinstance(restart, LeftOut):
        return skip.get(vbucket, restart)
    state, high_seqno = lake_state.restarted(vbucket, restart), cluster.high_seqnos.get(vbucket)
    backfill = lake_state.backfill
    read = None if backfill is None else backfill.read(vbucket)
    if not has_started and goal is not None:
        log = cluster.failover_logs.get(vbucket)
        goal = None if log is None else high_seqno
        if log is not None and high_seqno is not None:
            state = state.starting_at(log, high_seqno)  # which the round records
    elif has_started and read is not None and not _begins_otherwise(read, restart):
        if isinstance(read, LeftOut):
            return read
        return StreamPlan(state, read.node, read.high_seqno, restart, is_backfill=True)
    elif restart is not None or is_elsewhere(state, cluster):
        goal = high_seqno  # what was to be reached may be lost
    elif goal is not None and not is_behind(state, goal):
        return None
    if vbucket in skip:
        return skip[vbucket]
    node = cluster.map.owner(vbucket)
    if node is None:
        return LeftOut(vbucket, "no active node", cluster.map.why_without_owner(vbucket))
    if node in cluster.unreachable:
        return LeftOut(vbucket, "node unreachable", f"{node}: {cluster.unreachable[node]}")
    if goal is None:
        detail = f"{node} did not tell its high seqno, or its branch"
        return LeftOut(vbucket, "no high seqno", detail)
    return StreamPlan(state, node, goal, restart)


def _begins_otherwise(read: BackfillStream | LeftOut, restart: Restart | None) -> bool:
    """Return whether a vbucket that a backfill reads must begin anew for another reason.

    A replica may lack what was published of it; its active node has it.
    """
    is_reading = isinstance(read, LeftOut) or not read.begins_epoch
    return is_reading and restart is not None


def _shares(streams: Sequence[StreamPlan], slots: int, wanted: int) -> list[tuple[StreamPlan, ...]]:
    """Return the streams of each task.

    A backfill's streams may be slow, so they have half of the simultaneous tasks. If only one task
    runs at once, they are the second turn.
    """
    live = [stream for stream in streams if not stream.is_backfill]
    backfill = [stream for stream in streams if stream.is_backfill]
    if not live or not backfill:
        return _spread(streams, _task_count(streams, slots, wanted))
    half = max(1, (slots or wanted or CLUSTER_TASKS) // 2)
    return [share for part in (live, backfill) for share in _spread(part, min(half, len(part)))]


def _task_count(streams: Collection[StreamPlan], slots: int, wanted: int) -> int:
    """Return how many tasks share the streams: ``wanted``, else as many as they are worth.

    Each task costs a connection to each of its nodes, a worker's turn and a file of ``changes``.
    """
    at_once = slots or wanted or CLUSTER_TASKS
    worth = wanted or 1 + sum(stream.backlog for stream in streams) // SEQNOS_OF_A_TASK
    return min(at_once, worth, len(streams))


def is_behind(state: VbucketProgress, target_seqno: int) -> bool:
    """Return whether rows up to ``target_seqno`` may be missing or pending.

    A vbucket that began anew may be empty. It must prove that, so that its old rows can go.
    """
    if state.epoch > FIRST_EPOCH and not state.is_whole:
        return True
    return target_seqno > max(state.caught_up_seqno, state.position.complete_seqno)


def is_elsewhere(state: VbucketProgress, cluster: "ClusterView") -> bool:
    """Return whether the producer may be on another history than the one read: it must be asked.

    It holds less than we do, or writes on a branch that the log accepted with our data lacks. The
    seqnos alone do not tell: a new branch may have reached the very seqno of the lost one.
    """
    if state.position.seqno == 0 or state.failover_log is None:
        return False
    high = cluster.high_seqnos.get(state.vbucket)
    if high is not None and high < state.position.seqno:
        return True
    log = cluster.failover_logs.get(state.vbucket)
    return log is not None and log.current_uuid != state.failover_log.current_uuid


def _may_wait(stream: StreamPlan, lake_state: LakeState, cluster: "ClusterView") -> bool:
    """Return whether a stream is no reason for a round: only a high seqno asks for it."""
    asks_more = stream.restart or stream.is_backfill or is_elsewhere(stream.state, cluster)
    is_complete = stream.state.position.is_complete
    return stream.vbucket in lake_state.waiting and is_complete and not asks_more


def _spread(streams: Sequence[StreamPlan], count: int) -> list[tuple[StreamPlan, ...]]:
    """Give the largest backlogs first, node by node in turn, always to the least loaded task."""
    shares: list[list[StreamPlan]] = [[] for _ in range(count)]
    loads = [(0, 0, index) for index in range(count)]
    heapify(loads)
    for stream in _largest_first(streams):
        backlog, streams_there, index = heappop(loads)
        shares[index].append(stream)
        heappush(loads, (backlog + stream.backlog, streams_there + 1, index))
    # The vbuckets whose newest rows came longest ago open first: a budget may have ended them.
    return [
        tuple(sorted(share, key=lambda each: (each.state.last_data_round or 0, each.vbucket)))
        for share in shares
    ]


def _tasks(
    lake_state: LakeState,
    cluster: "ClusterView",
    shares: Sequence[tuple[StreamPlan, ...]],
    left_out: Sequence[LeftOut],
    flow: FlowControlSettings,
) -> tuple[TaskPlan, ...]:
    """Give each task its streams, its share of the states to write down, and its windows.

    Windows are sized as if all tasks ran at once in one executor. A backfill's tasks, beside
    others, come last and carry nothing.
    """
    streamed = {stream.vbucket for share in shares for stream in share}
    known = {*range(cluster.map.vbucket_count), *lake_state.states}
    carried = [lake_state.state(vbucket) for vbucket in sorted(known - streamed)]
    live = sum(not share[0].is_backfill for share in shares)
    carriers = live or len(shares)
    carries = [
        tuple(carried[index::carriers]) if index < carriers else () for index in range(len(shares))
    ]
    vbuckets = [{state.vbucket for state in each} for each in carries]
    windows = WindowPlan.of(flow, sum(len({each.node for each in share}) for share in shares))
    source = None if lake_state.backfill is None else lake_state.backfill.source
    backfill = source and source.shared_by(sum(share[0].is_backfill for share in shares))
    seeds = tuple(node for node in cluster.map.addresses if node not in cluster.unreachable)
    tasks = []
    for index, share in enumerate(shares):
        misses = tuple(left for left in left_out if left.vbucket in vbuckets[index])
        reads = backfill if share[0].is_backfill else None
        tasks.append(
            TaskPlan(
                index,
                share,
                carries[index],
                windows,
                misses,
                backfill=reads,
                seeds=seeds,
                document_filter=lake_state.document_filter,
            )
        )
    return tuple(tasks)


def _largest_first(streams: Collection[StreamPlan]) -> list[StreamPlan]:
    turn: dict[NodeAddress | None, int] = {}
    ranked = []
    for stream in sorted(streams, key=lambda stream: (-stream.backlog, stream.vbucket)):
        turn[stream.node] = turn.get(stream.node, 0) + 1
        ranked.append((-stream.backlog, turn[stream.node], stream.node, stream.vbucket, stream))
    return [stream for *_, stream in sorted(ranked, key=lambda entry: entry[:4])]
