"""Measures a command that finds little to do, beside a bare PySpark session: seconds of CPU.

    make bench BENCH=start_up ARGS="--repetitions 3"

A producer, a lake of it, and then in turn, each as a process of its own from start to exit: a
PySpark session that counts the rows of the lake's small table; ``status``, ``plan`` and
``run --once`` with nothing to do; and ``run --once`` after 100 changes. CPU is that of the whole
tree of processes, the JVM and Python's workers among them: what loses its parent is adopted here.
"""

import argparse
import ctypes
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from time import monotonic
from typing import Final

import psutil

from benchmarks._producer import PASSWORD, USER
from dcp.lake.spark.jars import delta_jars
from dcp.lake.spark.session import DELTA_CATALOG, DELTA_EXTENSION
from dcp.producer.model.cluster_settings import ClusterSettings
from dcp.producer.server.cluster import ProducerCluster

_SUBREAPER: Final = 36  # PR_SET_CHILD_SUBREAPER of prctl(2)
_BARE: Final = "bare session"
_CHANGES: Final = 100
_COUNT: Final = """
import sys
from pyspark.sql import SparkSession
jars, extension, catalog, table = sys.argv[1:]
spark = (
    SparkSession.builder.master("local[*]").config("spark.jars", jars)
    .config("spark.sql.extensions", extension)
    .config("spark.sql.catalog.spark_catalog", catalog).getOrCreate()
)
assert spark.read.format("delta").load(table).count() > 0
"""


def adopt_orphans() -> None:
    """Become the parent of every process of ours that loses its own."""
    ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)


def cpu_seconds(words: list[str]) -> tuple[float, float]:
    """Run a command to its end, and all that it left; return its CPU and wall seconds.

    What loses its parent meanwhile must be adopted by this process (`adopt_orphans`).
    """
    others = {child.pid for child in psutil.Process().children()}
    before, began = os.times(), monotonic()
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wall_seconds = monotonic() - began
    while left := {child.pid for child in psutil.Process().children()} - others:
        os.waitpid(left.pop(), 0)
    after = os.times()
    used = after.children_user - before.children_user
    return used + after.children_system - before.children_system, wall_seconds


def report(found: Mapping[str, Sequence[tuple[float, float]]]) -> None:
    """Print what each command took, the first one being the floor."""
    floor = median(cpu for cpu, _ in next(iter(found.values())))
    print("medians, in turn: CPU and wall seconds, CPU over the first's")
    for title, runs in found.items():
        cpu, wall = (median(each) for each in zip(*runs, strict=True))
        print(f"{title:26} {cpu:7.1f} {wall:7.1f} {cpu / floor:6.2f}")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--documents", type=int, default=10_000)
    parser.add_argument("--repetitions", type=int, default=3)
    arguments = parser.parse_args()
    adopt_orphans()
    with (
        tempfile.TemporaryDirectory() as name,
        ProducerCluster(ClusterSettings(vbuckets=64, users={USER: PASSWORD})) as cluster,
    ):
        folder = Path(name)
        (folder / "password").write_text(PASSWORD)
        options = {
            "source.seeds": ",".join(cluster.seeds),
            "source.username": USER,
            "source.password_file": str(folder / "password"),
            "lake.root": str(folder / "lake"),
        }
        sets = [word for pair in options.items() for word in ("--set", "=".join(pair))]
        jars = ",".join(map(str, delta_jars()))
        bare = [jars, DELTA_EXTENSION, DELTA_CATALOG, str(folder / "lake" / "docs")]
        ours = [sys.executable, "-m", "dcp.cli.main"]
        commands = {
            _BARE: [sys.executable, "-c", _COUNT, *bare],
            "status": [*ours, "status", "--set", f"lake.root={folder / 'lake'}"],
            "plan": [*ours, "plan", *sets],
            "run --once, idle": [*ours, "run", "--once", *sets],
            f"run --once, {_CHANGES} changes": [*ours, "run", "--once", *sets],
        }

        def write(first: int, count: int) -> None:
            with cluster.batch():
                for number in range(first, first + count):
                    cluster.set(b"key-%d" % number, b'{"n": %d}' % monotonic())

        write(0, arguments.documents)
        cpu_seconds(commands["run --once, idle"])
        found: dict[str, list[tuple[float, float]]] = {title: [] for title in commands}
        for repetition in range(arguments.repetitions):
            for title, words in commands.items():
                if title.endswith("changes"):
                    write(repetition * _CHANGES, _CHANGES)
                found[title].append(cpu_seconds(words))
    report(found)


if __name__ == "__main__":
    main()
