"""Samples one receiving task: rates, and the stage that each full window waited for.

The board's thread takes samples, and the task's own when it ends: one after the other, so that each
moment is counted once. Both only read what the task counts.
"""

import os
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from time import monotonic, time

import psutil

from dcp.client.addresses import NodeAddress
from dcp.client.stats import ConnectionStats, StageStats
from dcp.lake.config.window_plan import WindowPlan
from dcp.lake.task_monitor.task_stats import Connection, NodeStreams, TaskStats, connection_of


@dataclass(frozen=True, slots=True)
class TaskState:
    vbuckets: int
    open_vbuckets: int
    rows: int
    taken_bytes: int
    connections: Sequence[ConnectionStats]
    stages: Sequence[StageStats]
    streams: Mapping[NodeAddress, NodeStreams]
    windows: WindowPlan | None = None
    batch_bytes: int = 0
    bound_bytes: int = 0
    undecodable_values: int = 0


class TaskWatcher:
    def __init__(self, task: str, round_number: int, state: Callable[[], TaskState]) -> None:
        """``state`` must be cheap and change nothing."""
        self._task = task
        self._round = round_number
        self._state = state
        self._began = self._seen_at = monotonic()
        self._rows = 0
        self._taken_bytes = 0
        self._bytes_of: dict[str, int] = {}
        self._gate_seconds: dict[str, float] = {}
        self._lock = threading.Lock()

    def stats(self) -> TaskStats:
        """Take a sample, from any thread."""
        with self._lock:
            return self._stats()

    def _stats(self) -> TaskStats:
        state, now = self._state(), monotonic()
        seconds = max(1e-6, now - self._seen_at)
        connections = tuple(
            connection_of(
                each,
                state.stages,
                state.streams.get(each.node, NodeStreams()),
                state.batch_bytes,
            )
            for each in state.connections
        )
        for gate in {each.gate for each in connections if each.gate}:
            self._gate_seconds[gate] = self._gate_seconds.get(gate, 0.0) + seconds
        connections = tuple(
            replace(each, bytes_per_second=self._new_bytes(each) / seconds) for each in connections
        )
        self._bytes_of = {each.name: each.received_bytes for each in connections}
        new_bytes, self._taken_bytes = state.taken_bytes - self._taken_bytes, state.taken_bytes
        new_rows, self._rows, self._seen_at = state.rows - self._rows, state.rows, now
        return TaskStats(
            task=self._task,
            round=self._round,
            host=socket.gethostname(),
            pid=os.getpid(),
            at=time(),
            seconds=now - self._began,
            vbuckets=state.vbuckets,
            open_vbuckets=state.open_vbuckets,
            rows=state.rows,
            bytes=state.taken_bytes,
            rows_per_second=new_rows / seconds,
            bytes_per_second=new_bytes / seconds,
            connections=connections,
            stages=tuple(state.stages),
            gate_seconds=dict(self._gate_seconds),
            windows=state.windows,
            resident_bytes=psutil.Process().memory_info().rss,
            bound_bytes=state.bound_bytes,
            undecodable_values=state.undecodable_values,
        )

    def _new_bytes(self, connection: Connection) -> int:
        return connection.received_bytes - self._bytes_of.get(connection.name, 0)
