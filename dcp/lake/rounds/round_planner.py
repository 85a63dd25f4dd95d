"""Plans a round: the vbuckets to stream, and for each its task, position and target.

`plan_round` compares the positions in ``changes`` with the cluster's seqnos. It spreads the
vbuckets that are behind, or on another branch, over the tasks. A vbucket that no node can serve at
that moment is left out until the next round.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from heapq import heapify, heappop, heappush
from math import inf
from typing import TYPE_CHECKING, Final

from dcp.client.addresses import NodeAddress
from dcp.lake.config.flow_control_settings import FlowControlSettings, WindowPlan
from dcp.lake.config.settings import RoundSettings
from dcp.lake.rounds.backfill_plan import BACKFILL_ROUND_SECONDS
from dcp.lake.rounds.lake_state import LakeState
from dcp.lake.rounds.restarts import restarts_of
from dcp.lake.rounds.round_plan import Idle, LeftOut, RoundPlan, StreamPlan, TaskBudget, TaskPlan
from dcp.lake.tables.round_record import StuckReason
from dcp.lake.tables.vbucket_state import LakeVbucketState, Restart

if TYPE_CHECKING:
    from dcp.client.probe import ProbedCluster

SEQNOS_OF_A_TASK: Final = 10_000
"""A round gets one more task for each so many seqnos, which take a task about 0.1 seconds."""

CLUSTER_TASKS: Final = 2
"""The most tasks of a round if the cluster decides how many run at once.

`RoundSettings.tasks` can set another number.
"""


def plan_round(
    lake_state: LakeState,
    cluster: "ProbedCluster",
    settings: RoundSettings,
    flow: FlowControlSettings,
    slots: int | Callable[[], int],
    *,
    targets: Mapping[int, int] | None = None,
    skip: Mapping[int, LeftOut] | None = None,
) -> RoundPlan | Idle:
    """Plan the next round; return `Idle` if no vbucket needs a stream, or all may wait.

    Args:
        lake_state: the state of the lake.
        cluster: map, high seqnos and unreachable nodes, read just before.
        settings: number of tasks, and limits in bytes and seconds.
        flow: policy and sizes of the flow control windows.
        slots: how many tasks Spark runs at once (0: unknown), or a function that returns this. The
            planner calls it only if there is something to stream.
        targets: seqnos to reach instead of the high seqnos, for a run that ends there.
        skip: vbuckets not to stream in this round, with the reason to report.

    Raises:
        ConfigError: the filter says to start now, but the lake has begun at seqno 0.
    """
    lake_state.refuse_late_start()
    goals = cluster.high_seqnos if targets is None else targets
    restarts, skip = restarts_of(lake_state), skip or {}
    streams: list[StreamPlan] = []
    left_out: list[LeftOut] = []
    for vb in range(cluster.map.vbucket_count):
        match _planned(lake_state, cluster, vb, restarts.get(vb), goals.get(vb), skip.get(vb)):
            case LeftOut() as left:
                left_out.append(left)
            case StreamPlan() as stream:
                streams.append(stream)
    if all(_may_wait(stream, lake_state, cluster) for stream in streams):
        return Idle(
            lake_state.lake_id,
            lake_state.latest_round,
            tuple(left_out),
            delayed=frozenset(stream.vbucket for stream in streams),
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
        budget=TaskBudget(settings.target_bytes, min(settings.target_seconds, most_seconds)),
    )


def _planned(
    lake_state: LakeState,
    cluster: "ProbedCluster",
    vbucket: int,
    restart: Restart | LeftOut | None,
    goal: int | None,
    skipped: LeftOut | None,
) -> StreamPlan | LeftOut | None:
    """Return a vbucket's stream, or why it is left out; None: it has reached its goal."""
    if isinstance(restart, LeftOut):
        return skipped or restart
    has_started = lake_state.has_started(vbucket)
    state, high_seqno = lake_state.restarted(vbucket, restart), cluster.high_seqnos.get(vbucket)
    backfill = lake_state.backfill
    read = None if backfill is None else backfill.read(vbucket, restart)
    if not has_started and goal is not None:
        failover_log = cluster.failover_logs.get(vbucket)
        goal = None if failover_log is None else high_seqno
        if failover_log is not None and high_seqno is not None:
            state = state.starting_at(failover_log, high_seqno)  # the round records this start
    elif has_started and read is not None:
        if isinstance(read, LeftOut):
            return read
        return StreamPlan(state, read.node, read.high_seqno, restart, is_backfill=True)
    elif restart is not None or is_elsewhere(state, cluster):
        goal = high_seqno  # a rollback may have removed the old goal
    elif goal is not None and not is_behind(state, goal):
        return None
    if skipped is not None:
        return skipped
    node = cluster.map.owner(vbucket)
    if node is None:
        return LeftOut(vbucket, StuckReason.NO_ACTIVE_NODE, cluster.map.why_without_owner(vbucket))
    if node in cluster.unreachable:
        detail = f"{node}: {cluster.unreachable[node]}"
        return LeftOut(vbucket, StuckReason.NODE_UNREACHABLE, detail)
    if goal is None:
        detail = f"{node} did not tell its high seqno, or its branch"
        return LeftOut(vbucket, StuckReason.NO_HIGH_SEQNO, detail)
    return StreamPlan(state, node, goal, restart)


def _shares(streams: Sequence[StreamPlan], slots: int, wanted: int) -> list[tuple[StreamPlan, ...]]:
    """Return the streams of each task.

    A backfill's streams may be slow, so that they get only half of the tasks that run at once. If
    only one task runs at once, theirs runs after the other.
    """
    ordinary = [stream for stream in streams if not stream.is_backfill]
    backfill = [stream for stream in streams if stream.is_backfill]
    if not ordinary or not backfill:
        return _spread(streams, _task_count(streams, slots, wanted))
    half = max(1, (slots or wanted or CLUSTER_TASKS) // 2)
    return [share for part in (ordinary, backfill) for share in _spread(part, min(half, len(part)))]


def _task_count(streams: Collection[StreamPlan], slots: int, wanted: int) -> int:
    """Return how many tasks share the streams: ``wanted``, or as many as the backlog is worth.

    Each task costs a connection to each of its nodes, a Python worker, and a file of ``changes``.
    """
    at_once = slots or wanted or CLUSTER_TASKS
    worth = wanted or 1 + sum(stream.backlog for stream in streams) // SEQNOS_OF_A_TASK
    return min(at_once, worth, len(streams))


def is_behind(state: LakeVbucketState, target_seqno: int) -> bool:
    """Return whether the lake may lack rows up to ``target_seqno``, or their snapshot's end.

    A vbucket that began at 0 again may be empty. It must be read to prove that, so that its old
    rows can go.
    """
    if state.is_beginning_again:
        return True
    return target_seqno > max(state.caught_up_seqno, state.position.complete_seqno)


def is_elsewhere(state: LakeVbucketState, cluster: "ProbedCluster") -> bool:
    """Return whether the producer may be on another history, and a stream must ask it.

    The producer has fewer seqnos than the lake, or writes on a branch that the lake's failover log
    lacks.
    """
    if state.position.seqno == 0 or state.failover_log is None:
        return False
    high = cluster.high_seqnos.get(state.vbucket)
    if high is not None and high < state.position.seqno:
        return True
    # Seqnos alone do not show it: a new branch may have reached the same seqno as the lost one.
    failover_log = cluster.failover_logs.get(state.vbucket)
    return failover_log is not None and failover_log.current_uuid != state.failover_log.current_uuid


def _may_wait(stream: StreamPlan, lake_state: LakeState, cluster: "ProbedCluster") -> bool:
    """Return whether a stream alone starts no round: its vbucket waits, and only has new seqnos."""
    asks_more = stream.restart or stream.is_backfill or is_elsewhere(stream.state, cluster)
    is_complete = stream.position.is_complete
    return stream.vbucket in lake_state.delayed and is_complete and not asks_more


def _spread(streams: Sequence[StreamPlan], count: int) -> list[tuple[StreamPlan, ...]]:
    """Assign the largest backlogs first, in turns by node, each to the least loaded task."""
    shares: list[list[StreamPlan]] = [[] for _ in range(count)]
    loads = [(0, 0, index) for index in range(count)]
    heapify(loads)
    for stream in _largest_first(streams):
        backlog, streams_there, index = heappop(loads)
        shares[index].append(stream)
        heappush(loads, (backlog + stream.backlog, streams_there + 1, index))
    # A budget may have ended streams of earlier rounds. Those open first that have waited for rows
    # the longest.
    return [
        tuple(sorted(share, key=lambda each: (each.state.last_data_round or 0, each.vbucket)))
        for share in shares
    ]


def _tasks(
    lake_state: LakeState,
    cluster: "ProbedCluster",
    shares: Sequence[tuple[StreamPlan, ...]],
    left_out: Sequence[LeftOut],
    flow: FlowControlSettings,
) -> tuple[TaskPlan, ...]:
    """Give each task its streams, its share of the states to write, and its windows.

    Window sizes assume that all tasks run at once in one executor. A backfill's tasks come last;
    if there are others, only those write the states of vbuckets without a stream.
    """
    # A round writes every vbucket's state, so the tasks share those that have no stream.
    streamed = {stream.vbucket for share in shares for stream in share}
    known = {*range(cluster.map.vbucket_count), *lake_state.states}
    unstreamed = [lake_state.state(vbucket) for vbucket in sorted(known - streamed)]
    ordinary = sum(not share[0].is_backfill for share in shares)
    writers = ordinary or len(shares)
    parts = [
        tuple(unstreamed[index::writers]) if index < writers else () for index in range(len(shares))
    ]
    vbuckets = [{state.vbucket for state in each} for each in parts]
    windows = WindowPlan.of(flow, sum(len({each.node for each in share}) for share in shares))
    nodes = None if lake_state.backfill is None else lake_state.backfill.nodes
    backfill = nodes and nodes.shared_by(sum(share[0].is_backfill for share in shares))
    seeds = tuple(node for node in cluster.map.addresses if node not in cluster.unreachable)
    tasks = []
    for index, share in enumerate(shares):
        misses = tuple(left for left in left_out if left.vbucket in vbuckets[index])
        reads = backfill if share[0].is_backfill else None
        tasks.append(
            TaskPlan(
                index,
                share,
                parts[index],
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
        # Among equal backlogs, the nodes take turns.
        turn[stream.node] = turn.get(stream.node, 0) + 1
        ranked.append((-stream.backlog, turn[stream.node], stream.node, stream.vbucket, stream))
    return [stream for *_, stream in sorted(ranked, key=lambda entry: entry[:4])]
