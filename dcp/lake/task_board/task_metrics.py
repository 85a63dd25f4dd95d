"""Exports the samples of a lake's tasks in Prometheus' text format.

Labels are bounded: the task's number, the node, the stage. Counters begin anew with each task, as
after a restart of a process. The names are those of flow control in the field.
"""

from collections.abc import Iterable
from typing import Final

from dcp.lake.task_board.task_stats import TaskStats
from dcp.prometheus import exposition, metrics

TASK_METRICS: Final = metrics(
    {"task": "label"},
    """
dcp_window_bytes              connections[node=node].window.size
    Window of the connection: what the node may have outstanding.
dcp_window_overflow_bytes_max connections[node=node].window.overshoot_bytes
    Most by which one message went beyond the window.
dcp_recv_bytes_total          connections[node=node].received_bytes
    Bytes received that flow control counts.
dcp_released_bytes_total      connections[node=node].released_bytes
    Bytes that left this process's memory.
dcp_acked_bytes_total         connections[node=node].acknowledged_bytes
    Bytes acknowledged to the node.
dcp_unacked_bytes             connections[node=node].window.in_use
    What the node counts as not acknowledged.
dcp_ack_total                 connections[node=node].acks  Acknowledgements sent.
dcp_window_full_seconds_total connections[node=node].window.full_seconds
    How long the window was full.

credit_used  connections[node=node].stages[stage=name,kind=kind].in_use  What a stage holds.
credit_used  stages[stage=name,kind=kind].in_use                         What a stage holds.
credit_limit connections[node=node].stages[stage=name,kind=kind].size
    What a stage may hold; then the stage before waits.
credit_limit stages[stage=name,kind=kind].size
    What a stage may hold; then the stage before waits.
fc_bottleneck connections[node=node].bottleneck[stage]
    1 for the stage, or acknowledgement, that a full window waits for.
fc_bottleneck_seconds_total bottleneck_seconds[stage]  How long full windows waited for a stage.

window_policy       windows.policy[policy]
    1 for the policy that sizes the windows of the executor.
window_quota_bytes  windows.quota_bytes
    Memory of the executor that the policy's parts are of.
window_connections  windows.connections
    Most connections that share it at once, as planned.
window_shared_bytes windows.windows_bytes  Windows of all of them.

dcplake_task_rows               rows             Document rows that the task received.
dcplake_task_undecodable_values undecodable_values
    Values of them that cannot be decoded, and are as they were sent.
dcplake_task_open_vbuckets      open_vbuckets    Vbuckets that the task still reads.
dcplake_task_resident_bytes     resident_bytes   Resident memory of the task's Python process.
dcplake_task_memory_bound_bytes bound_bytes
    The most that it takes (docs/reference/memory.md).
dcplake_task_round              round            The round that the task works for.
""",
)


def task_exposition(all_stats: Iterable[TaskStats]) -> str:
    return exposition((TASK_METRICS, newest_by_label(all_stats)))


def newest_by_label(all_stats: Iterable[TaskStats]) -> tuple[TaskStats, ...]:
    """Return the samples of different labels, of which each makes series of its own."""
    newest = {stats.label: stats for stats in sorted(all_stats, key=lambda stats: stats.at)}
    return tuple(stats for _, stats in sorted(newest.items()))
