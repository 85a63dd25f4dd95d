"""Samples the resident memory of a tree of processes, by kind: JVM, Python workers, driver.

Memory is PSS, resident memory with each shared page divided among those who share it, so the sum
over forked workers counts no page twice.
"""

import threading
from collections.abc import Callable
from typing import Final, Self

import psutil

INTERVAL_SECONDS: Final = 0.2


class MemorySampler:
    """Peaks of a process and all below it, from ``start`` until ``stop``; in bytes."""

    def __init__(self, pid: int, interval_seconds: float = INTERVAL_SECONDS) -> None:
        self._root = psutil.Process(pid)
        self._interval_seconds = interval_seconds
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="memory-sampler", daemon=True)
        self.peak_bytes = 0
        self.peaks: dict[str, int] = {}
        """The largest single process of each kind."""
        self.at_peak: dict[str, int] = {}
        """Sum of each kind at the instant of the peak."""
        self.samples = 0
        self.on_sample: Callable[[dict[str, int]], None] | None = None

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stop.set()
        self._thread.join(10)

    def _run(self) -> None:
        while not self._stop.wait(self._interval_seconds):
            self.sample()

    def sample(self) -> None:
        sums: dict[str, int] = {}
        try:
            processes = [self._root, *self._root.children(recursive=True)]
        except psutil.NoSuchProcess:
            return
        for process in processes:
            try:
                kind = self._kind(process)
                pss = process.memory_full_info().pss
            except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
                continue
            sums[kind] = sums.get(kind, 0) + pss
            self.peaks[kind] = max(self.peaks.get(kind, 0), pss)
        total = sum(sums.values())
        self.samples += 1
        if total > self.peak_bytes:
            self.peak_bytes, self.at_peak = total, sums
        if self.on_sample is not None:
            self.on_sample(sums)

    def _kind(self, process: psutil.Process) -> str:
        if process.pid == self._root.pid:
            return "driver"
        if "java" in process.name():
            return "jvm"
        return "worker" if "python" in process.name().lower() else "other"
