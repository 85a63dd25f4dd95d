"""The memory bound of a whole run by the formula of ``docs/reference/memory.md``, part by part."""

from dataclasses import dataclass
from typing import Final

from dcp.lake.config.memory import MEBIBYTE, direct_memory_bytes, worker_bytes

_JVM_NATIVE_BYTES: Final = 400 * MEBIBYTE
"""Classes, compiled code, threads, the collector's tables, compression contexts."""
_DAEMON_BYTES: Final = 80 * MEBIBYTE
"""The process that forks the workers."""
_DRIVER_BYTES: Final = 500 * MEBIBYTE
"""The Python driver: plans, positions, the rows of small applies (`merge_plan.RowBudget`)."""


@dataclass(frozen=True, slots=True)
class MemoryBound:
    """The most that each part of a run takes, in bytes, with ``tasks`` running at once.

    ``direct_bytes`` is a limit that holds twice: Netty, which Arrow uses, keeps its own account.
    ``workers_bytes`` are all workers together, ``worker_bytes`` is one of them.
    """

    tasks: int
    heap_bytes: int
    direct_bytes: int
    native_bytes: int
    worker_bytes: int
    workers_bytes: int
    driver_bytes: int

    @property
    def jvm_bytes(self) -> int:
        """The whole JVM."""
        return self.heap_bytes + 2 * self.direct_bytes + self.native_bytes

    @property
    def total_bytes(self) -> int:
        """The whole process tree."""
        return self.jvm_bytes + self.workers_bytes + _DAEMON_BYTES + self.driver_bytes


def memory_bound(
    *,
    tasks: int,
    connections: int,
    window_bytes: int,
    batch_bytes: int,
    heap_bytes: int,
) -> MemoryBound:
    """Return the bound for ``tasks`` tasks with ``connections`` nodes each.

    ``window_bytes`` is the window of each connection (``flow_control_settings.py``).
    """
    worker = worker_bytes(connections, window_bytes, batch_bytes)
    return MemoryBound(
        tasks=tasks,
        heap_bytes=heap_bytes,
        direct_bytes=direct_memory_bytes(tasks, batch_bytes),
        native_bytes=_JVM_NATIVE_BYTES,
        worker_bytes=worker,
        workers_bytes=tasks * worker,
        driver_bytes=_DRIVER_BYTES,
    )
