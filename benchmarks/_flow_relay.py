"""Flow control of a relay: a fast consumer and a slow one behind `dcplake relay`, by strategy.

The documents are written while both stream: what lies on the cluster's disk would come as one first
snapshot, which a relay does not pass on before it has all of it.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Thread
from time import monotonic, sleep
from typing import Final

from benchmarks._flow_rows import MIB, Row
from benchmarks._flow_windows import limit_name
from benchmarks._producer import PASSWORD, USER
from benchmarks._served import Served, served
from benchmarks._sink import Sink, SinkSpec
from dcp.client.kv.kv_client import KvClient
from dcp.client.kv.kv_connection import KvConnection
from dcp.lake.config.flow_control_settings import FlowControlSettings
from dcp.seeds import parse_seed

VBUCKETS: Final = 16
VALUE_BYTES: Final = 16 * 1024
STRATEGIES: Final = {
    "max": ("max", 8),
    "tagged, slow outside": ("tagged,g:7,t:60s", 8),
    "tagged, slow inside": ("tagged,g:7,t:60s", 7),
    "min": ("min,t:60s", 8),
}
"""By the name in the picture: ``--fc``, and the tag of the slow consumer; the fast one has 7."""
_WRITE_DOCUMENTS: Final = 256
_LOOK_SECONDS: Final = 0.05
_OWN_WINDOW: Final = FlowControlSettings(window_bytes=MIB, batch_bytes=MIB // 2)


@dataclass(frozen=True, slots=True)
class RelayGrid:
    """What is measured; speeds in MB/s.

    ``slow_speeds`` are tried with ``window_bytes``, ``windows_bytes`` with ``slow_speed``.
    """

    slow_speeds: tuple[float, ...]
    windows_bytes: tuple[int, ...]
    slow_speed: float
    documents: int
    seconds: float
    window_bytes: int = 2 * MIB
    quota_bytes: int = 64 * MIB


@dataclass(slots=True)
class _Relaying:
    pid: int
    seeds: tuple[str, ...]
    _statistics: KvConnection

    def received_bytes(self) -> int:
        """What has come from the cluster."""
        found = self._statistics.statistics("relay")
        names = (":acked_bytes", ":unacked_bytes")
        return sum(int(value) for name, value in found.items() if name.endswith(names))

    def resident_bytes(self, name: str) -> int:
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith(f"{name}:"):
                return int(line.split()[1]) * 1024
        raise AssertionError(f"Linux tells {name}")


def by_strategy(grid: RelayGrid) -> Iterator[Row]:
    """Measure every strategy with every slow consumer."""
    for speed in grid.slow_speeds:
        for line, (spec, slow_tag) in STRATEGIES.items():
            yield _measure(grid, spec, slow_tag, speed).row("relay", line, speed)


def by_strategy_and_window(grid: RelayGrid) -> Iterator[Row]:
    """Measure every strategy with every window that the relay gives the cluster's nodes."""
    for window_bytes in grid.windows_bytes:
        in_window = replace(grid, window_bytes=window_bytes)
        for line, (spec, slow_tag) in STRATEGIES.items():
            measured = _measure(in_window, spec, slow_tag, grid.slow_speed)
            yield measured.row("relay by window", line, window_bytes / 1024)


@dataclass(frozen=True, slots=True)
class _Measured:
    slow_limit: float
    fast: float
    slow: float
    upstream: float
    grown_bytes: int

    def row(self, part: str, line: str, x: float) -> Row:
        return Row(
            part,
            line,
            x,
            limit_name(self.slow_limit),
            self.fast,
            None,
            self.grown_bytes / MIB,
            self.upstream,
            self.slow,
        )


def _measure(grid: RelayGrid, spec: str, slow_tag: int, speed: float) -> _Measured:
    with served(0, 0, VBUCKETS) as source, _relaying(source, grid, spec) as relay:
        fast = Sink(_sink("fast", 7, relay, 0.0))
        slow = Sink(_sink("slow", slow_tag, relay, speed * 1e6))
        with closing(fast), closing(slow):
            for sink in (fast, slow):
                sink.go()
            for sink in (fast, slow):
                sink.wait_until_streaming()
            before = relay.resident_bytes("VmRSS")
            writer = Thread(target=_write, args=(source, grid.documents))
            began = monotonic()
            writer.start()
            received, seconds = _follow(relay, began, grid)
            fast.stop()
            slow.stop()
            writer.join()
            results = fast.result(), slow.result()
            grown = relay.resident_bytes("VmHWM") - before
    fast_speed, slow_speed = (result.bytes_per_second / 1e6 for result in results)
    upstream = received / seconds / 1e6
    return _Measured(speed, fast_speed, slow_speed, upstream, max(0, grown))


def _follow(relay: _Relaying, began: float, grid: RelayGrid) -> tuple[int, float]:
    """Watch until the time is over; return what came from the cluster, and when the last of it."""
    received, ended = 0, began + _LOOK_SECONDS
    while monotonic() < began + grid.seconds:
        now_received = relay.received_bytes()
        if now_received > received:
            received, ended = now_received, monotonic()
        sleep(_LOOK_SECONDS)
    return received, ended - began


def _sink(name: str, tag: int, relay: _Relaying, bytes_per_second: float) -> SinkSpec:
    return SinkSpec(
        f"{name}#gtag={tag}",
        relay.seeds,
        USER,
        PASSWORD,
        VBUCKETS,
        _OWN_WINDOW,
        connections=1,
        bytes_per_second=bytes_per_second,
        seconds=3600.0,
        documents=0,
    )


def _write(source: Served, documents: int) -> None:
    value = b"x" * VALUE_BYTES
    with KvClient(source.seeds, USER, PASSWORD, "default") as client:
        for first in range(0, documents, _WRITE_DOCUMENTS):
            numbers = range(first, min(first + _WRITE_DOCUMENTS, documents))
            client.set([(b"k%08d" % number, value) for number in numbers])


@contextmanager
def _relaying(source: Served, grid: RelayGrid, spec: str) -> Iterator[_Relaying]:
    words = ["relay", "--upstream", source.seeds[0], "--user", USER, "--listen", "127.0.0.1:0"]
    words += ["--window-bytes", str(grid.window_bytes), "--memory-quota", str(grid.quota_bytes)]
    with TemporaryDirectory() as folder:
        process = subprocess.Popen(
            [sys.executable, "-m", "dcp.cli.main", *words, "--data", folder, "--fc", spec],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "DCPLAKE_PASSWORD": PASSWORD},
        )
        try:
            if process.stdout is None:
                raise AssertionError("its output is a pipe")
            ready = json.loads(process.stdout.readline())
            connection = KvConnection(*parse_seed(ready["seeds"][0]), 10.0)
            with closing(connection):
                connection.log_in(USER, PASSWORD, "default")
                yield _Relaying(process.pid, tuple(ready["seeds"]), connection)
        finally:
            process.kill()
            process.wait()
            if process.stdout is not None:
                process.stdout.close()
