"""Exports the samples of a lake's tasks in Prometheus' text format.

Labels are bounded: the task's number, the node, the stage. Counters begin anew with each task, as
after a restart of a process. The names are those of flow control in the field.
"""

from collections.abc import Iterable, Iterator
from typing import Final

from prometheus_client.samples import Sample

from dcp.client.stats import StageStats
from dcp.lake.task_board.task_stats import Connection, TaskStats
from dcp.prometheus import Metrics, exposition_of

_METRICS: Final[Metrics] = {
    "dcp_window_bytes": "Window of the connection: what the node may have outstanding.",
    "dcp_window_overflow_bytes_max": "Most by which one message went beyond the window.",
    "dcp_recv_bytes_total": "Bytes received that flow control counts.",
    "dcp_released_bytes_total": "Bytes that left this process's memory.",
    "dcp_acked_bytes_total": "Bytes acknowledged to the node.",
    "dcp_unacked_bytes": "What the node counts as not acknowledged.",
    "dcp_ack_total": "Acknowledgements sent.",
    "dcp_window_full_seconds_total": "How long the window was full.",
    "credit_used": "What a stage holds.",
    "credit_limit": "What a stage may hold; then the stage before waits.",
    "fc_gating": "1 for the stage, or acknowledgement, that a full window waits for.",
    "fc_gating_seconds_total": "How long full windows waited for a stage.",
    "window_policy": "1 for the policy that sizes the windows of the executor.",
    "window_quota_bytes": "Memory of the executor that the policy's parts are of.",
    "window_connections": "Most connections that share it at once, as planned.",
    "window_shared_bytes": "Windows of all of them.",
    "dcplake_task_rows": "Document rows that the task received.",
    "dcplake_task_undecodable_values": (
        "Values of them that cannot be decoded, and are as they were sent."
    ),
    "dcplake_task_open_vbuckets": "Vbuckets that the task still reads.",
    "dcplake_task_resident_bytes": "Resident memory of the task's Python process.",
    "dcplake_task_memory_bound_bytes": "The most that it takes (docs/reference/memory.md).",
    "dcplake_task_round": "The round that the task works for.",
}


def exposition(all_stats: Iterable[TaskStats]) -> str:
    """Return the metrics of all tasks. If two samples have one label, the newer one counts."""
    newest: dict[str, TaskStats] = {}
    for stats in sorted(all_stats, key=lambda stats: stats.at):
        newest[stats.label] = stats
    samples = [sample for _, stats in sorted(newest.items()) for sample in _samples(stats)]
    return exposition_of(samples, _METRICS)


def _samples(stats: TaskStats) -> Iterator[Sample]:
    task = {"task": stats.label}
    yield Sample("dcplake_task_rows", task, stats.rows)
    yield Sample("dcplake_task_undecodable_values", task, stats.undecodable_values)
    yield Sample("dcplake_task_open_vbuckets", task, stats.open_vbuckets)
    yield Sample("dcplake_task_round", task, stats.round)
    yield Sample("dcplake_task_resident_bytes", task, stats.resident_bytes)
    yield Sample("dcplake_task_memory_bound_bytes", task, stats.bound_bytes)
    yield Sample("window_policy", task | {"policy": stats.windows.policy}, 1)
    yield Sample("window_quota_bytes", task, stats.windows.quota_bytes)
    yield Sample("window_connections", task, stats.windows.connections)
    yield Sample("window_shared_bytes", task, stats.windows.windows_bytes)
    for stage in stats.stages:
        yield from _of_stage(stage, task)
    shared = {stage.name for stage in stats.stages}
    for gate in sorted({each.gate for each in stats.connections} & shared):
        yield Sample("fc_gating", task | {"stage": gate}, 1)
    for gate, seconds in sorted(stats.gate_seconds.items()):
        yield Sample("fc_gating_seconds_total", task | {"stage": gate}, seconds)
    for connection in stats.connections:
        labels = task | {"node": connection.node}
        yield from _of_connection(connection, labels)
        for stage in connection.stages:
            yield from _of_stage(stage, labels)
        if connection.gate and connection.gate not in shared:
            yield Sample("fc_gating", labels | {"stage": connection.gate}, 1)


def _of_connection(each: Connection, labels: dict[str, str]) -> Iterator[Sample]:
    if each.window is not None:
        yield Sample("dcp_window_bytes", labels, each.window.size)
        yield Sample("dcp_unacked_bytes", labels, each.window.in_use)
        yield Sample("dcp_window_overflow_bytes_max", labels, each.window.overshoot_bytes)
        yield Sample("dcp_window_full_seconds_total", labels, each.window.full_seconds)
    yield Sample("dcp_recv_bytes_total", labels, each.received_bytes)
    yield Sample("dcp_released_bytes_total", labels, each.released_bytes)
    yield Sample("dcp_acked_bytes_total", labels, each.acknowledged_bytes)
    yield Sample("dcp_ack_total", labels, each.acks)


def _of_stage(stage: StageStats, labels: dict[str, str]) -> Iterator[Sample]:
    labels = labels | {"stage": stage.name, "kind": stage.kind}
    yield Sample("credit_used", labels, stage.in_use)
    yield Sample("credit_limit", labels, stage.size)
