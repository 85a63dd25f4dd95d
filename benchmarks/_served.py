"""A producer as ``dcplake serve`` has it, in a process of its own, with documents; what it costs.

python -m benchmarks._served COUNT VALUE_BYTES VBUCKETS
"""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import psutil

from benchmarks._documents import fill
from benchmarks._producer import producer_settings
from dcp.producer.cluster import ProducerCluster


@dataclass(frozen=True, slots=True)
class Served:
    """A serving process."""

    pid: int
    seeds: list[str]

    @property
    def cpu_seconds(self) -> float:
        """What it has used so far, in user and system mode."""
        times = psutil.Process(self.pid).cpu_times()
        return times.user + times.system

    @property
    def resident_bytes(self) -> int:
        """How much memory it has."""
        return psutil.Process(self.pid).memory_info().rss


@contextmanager
def served(count: int, value_bytes: int, vbuckets: int) -> Iterator[Served]:
    """Start the process; it has ``count`` documents of ``value_bytes`` on its disk, in memory."""
    words = [sys.executable, "-m", "benchmarks._served", *map(str, (count, value_bytes, vbuckets))]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        if process.stdin is None or process.stdout is None:
            raise AssertionError("both are pipes")
        try:
            ready = json.loads(process.stdout.readline())
            yield Served(process.pid, ready["seeds"])
            process.stdin.close()
            if process.wait(30):
                raise SystemExit(f"the producer ended with {process.returncode}")
        finally:
            process.kill()


def main() -> None:
    """Serve until standard input ends."""
    count, value_bytes, vbuckets = map(int, sys.argv[1:])
    with ProducerCluster(producer_settings(vbuckets)) as cluster:
        fill(cluster, count, value_bytes)
        print(json.dumps({"seeds": cluster.seeds}), flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main()
