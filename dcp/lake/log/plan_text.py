"""How a plan reads: for people on a screen, and as JSON for machines."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from dcp.printable import printable

if TYPE_CHECKING:
    from dcp.lake.log.plan import Idle, LeftOut, RoundPlan, StreamPlan, TaskPlan

_LISTED = 10


def plan_text(plan: "RoundPlan") -> str:
    """Return a few lines: what streams from where, how far it is behind, what is left out."""
    streams = plan.streams
    backlog = sum(stream.backlog for stream in streams)
    head = (
        f"round {plan.round}: {len(streams)} vbuckets, {backlog:,} seqnos behind, "
        f"{len(plan.tasks)} tasks of at most {plan.target_bytes:,} bytes "
        f"and {plan.target_seconds:g} s each"
    )
    windows = dict.fromkeys(f"  {task.windows}" for task in plan.tasks)
    lines = [head, *windows, *map(_task_text, plan.tasks), *map(_epoch_text, plan.streams)]
    return "\n".join([*filter(None, lines), *left_out_lines(plan.left_out)])


def _epoch_text(stream: "StreamPlan") -> str:
    if not stream.begins_epoch:
        return ""
    position = stream.state.position
    return (
        f"  vbucket {stream.vbucket}: epoch {stream.state.epoch} begins at seqno {position.seqno} "
        f"(branch {position.vb_uuid:016x})"
    )


def idle_text(idle: "Idle") -> str:
    """Return why there is no round."""
    head = f"no round: after round {idle.latest_round} "
    head += "nothing can be streamed" if idle.left_out else "no vbucket is behind"
    return "\n".join([head, *left_out_lines(idle.left_out)])


def _task_text(task: "TaskPlan") -> str:
    by_node = [
        f"{node}: vbuckets "
        + number_ranges(stream.vbucket for stream in task.streams if stream.node == node)
        for node in task.nodes
    ]
    return f"  task {task.index}: {task.backlog:,} seqnos; " + "; ".join(by_node)


def left_out_lines(left_out: "tuple[LeftOut, ...]") -> list[str]:
    """Return a line for each reason, with the vbuckets that it concerns."""
    by_reason: dict[tuple[str, str], list[int]] = {}
    for left in left_out:
        by_reason.setdefault((left.reason, left.detail), []).append(left.vbucket)
    lines = [
        f"  left out: vbuckets {number_ranges(vbuckets)}: {reason} ({printable(detail)})"
        for (reason, detail), vbuckets in by_reason.items()
    ]
    more = len(lines) - _LISTED
    return [*lines[:_LISTED], f"  … and {more} more reasons"] if more > 0 else lines


def number_ranges(numbers: Iterable[int]) -> str:
    """Return ``0-3, 7, 9-10`` for the numbers."""
    ranges: list[list[int]] = []
    for number in sorted(numbers):
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    return ", ".join(f"{low}-{high}" if high > low else f"{low}" for low, high in ranges)


def plan_json(plan: "RoundPlan") -> dict[str, Any]:
    """Return the plan as a JSON object."""
    return {
        "lake": plan.lake_id,
        "round": plan.round,
        "target_bytes": plan.target_bytes,
        "target_seconds": plan.target_seconds,
        "tasks": [
            {
                "index": task.index,
                "nodes": [str(node) for node in task.nodes],
                "carried": len(task.carried),
                "window_bytes": task.windows.window_bytes,
                "streams": [
                    {
                        "vbucket": stream.vbucket,
                        "node": str(stream.node),
                        "epoch": stream.state.epoch,
                        "vb_uuid": f"{stream.state.position.vb_uuid:016x}",
                        "seqno": stream.state.position.seqno,
                        "snap_start": stream.state.position.snap_start,
                        "snap_end": stream.state.position.snap_end,
                        "complete_seqno": stream.state.position.complete_seqno,
                        "target_seqno": stream.target_seqno,
                        "begins_epoch": stream.begins_epoch,
                    }
                    for stream in task.streams
                ],
            }
            for task in plan.tasks
        ],
        "left_out": left_out_json(plan.left_out),
    }


def left_out_json(left_out: "tuple[LeftOut, ...]") -> list[dict[str, Any]]:
    """Return the vbuckets that are left out as JSON objects."""
    return [
        {"vbucket": left.vbucket, "reason": left.reason, "detail": left.detail} for left in left_out
    ]
