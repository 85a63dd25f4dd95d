"""A round with few changes on a small and on a large table: what does the table's size cost?

    make bench BENCH=rounds ARGS="--small 100000 --large 1600000 --changes 1000 --repetitions 5"

Two producers, two lakes, one session. Both tables are built by the product itself, from preloaded
producers. Then rounds of ``--changes`` updates on either, in turn, anywhere or in 4 vbuckets
only; each is a whole ``run(once=True)``: look at the cluster, plan, receive, append, apply. Bytes
read are what the JVM read from files during the apply, by Hadoop's own count.
"""

import argparse
import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from time import monotonic
from typing import TYPE_CHECKING

from benchmarks._producer import BenchProducer, producer
from benchmarks._runs import (
    COUNTED_READS,
    FEW_VBUCKETS,
    MIB,
    StepTimes,
    bytes_read,
    session,
    settings_for,
)
from dcp.lake.applied import AppliedVersion
from dcp.lake.history import history
from dcp.lake.round import RoundReport
from dcp.lake.run import run
from dcp.lake.settings import Settings
from dcp.lake.tables import LakeLocation

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class RoundTimes(StepTimes):
    """Times of the steps, and the bytes that the apply read."""

    def __init__(self, spark: "SparkSession") -> None:
        super().__init__()
        self._spark = spark
        self._read_before = 0
        self.apply_bytes = 0

    def committed(self, report: RoundReport) -> None:
        super().committed(report)
        self._read_before = bytes_read(self._spark)

    def applied(self, version: AppliedVersion) -> None:
        super().applied(version)
        self.apply_bytes = bytes_read(self._spark) - self._read_before


@dataclass
class Case:
    """One table, with changes in some vbuckets: its measurements."""

    name: str
    source: BenchProducer
    settings: Settings
    vbuckets: tuple[int, ...] | None
    whole: list[float] = field(default_factory=list)
    rounds: list[float] = field(default_factory=list)
    applies: list[float] = field(default_factory=list)
    scan_ms: list[float] = field(default_factory=list)
    rewrite_ms: list[float] = field(default_factory=list)
    read: list[float] = field(default_factory=list)

    def measure(self, spark: "SparkSession", changes: int, seed: int) -> None:
        self.source.update(changes, seed, self.vbuckets)
        begin = monotonic()
        times = RoundTimes(spark)
        run(self.settings, once=True, spark=spark, observer=times)
        self.whole.append(monotonic() - begin)
        self.rounds.append(sum(times.round_seconds))
        self.applies.append(sum(times.apply_seconds))
        self.read.append(times.apply_bytes / MIB)
        version = times.applied_version
        if times.rows != changes or version is None or version.updated != changes:
            raise AssertionError(f"{self.name}: found {times.rows} rows, {version}")
        docs = LakeLocation(root=self.settings.lake.root).table_sql("docs")
        metrics = history(spark, docs)[0].metrics
        self.scan_ms.append(float(metrics.get("scanTimeMs", 0)))
        self.rewrite_ms.append(float(metrics.get("rewriteTimeMs", 0)))


def main() -> None:
    arguments = _arguments()
    folder = Path(tempfile.mkdtemp(prefix="dcplake-bench-", dir=arguments.folder))
    try:
        with (
            producer(arguments.small, arguments.value_bytes) as small,
            producer(arguments.large, arguments.value_bytes) as large,
        ):
            _measure(arguments, {"small": small, "large": large}, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _measure(
    arguments: argparse.Namespace, sources: dict[str, BenchProducer], folder: Path
) -> None:
    spark = session(folder, arguments.cores, arguments.driver_memory, COUNTED_READS)
    cases = []
    for name, source in sources.items():
        settings = settings_for(source, folder, name)
        begin = monotonic()
        run(settings, once=True, spark=spark)
        print(f"built {source.documents:,} documents in {monotonic() - begin:.1f} s", flush=True)
        cases.append(Case(f"{source.documents:,}, all vbuckets", source, settings, None))
        cases.append(Case(f"{source.documents:,}, 4 vbuckets", source, settings, FEW_VBUCKETS))
    for repetition in range(arguments.repetitions + 1):
        for case in cases:
            case.measure(spark, arguments.changes, repetition)
            print(
                f"repetition {repetition} (0 warms up), {case.name}: run {case.whole[-1]:.1f} s, "
                f"round {case.rounds[-1]:.1f} s, apply {case.applies[-1]:.1f} s",
                flush=True,
            )
    _report(arguments, cases)


def _report(arguments: argparse.Namespace, cases: list[Case]) -> None:
    print(
        f"{arguments.changes:,} changes a round, {arguments.cores} cores, medians of "
        f"{arguments.repetitions} (one more to warm up)"
    )
    print(
        f"{'documents in the table':28}{'run':>8}{'round':>8}{'apply':>8}"
        f"{'scan':>8}{'rewrite':>8} s{'read':>8} MiB"
    )
    for case in cases:
        figures = (case.whole, case.rounds, case.applies, case.scan_ms, case.rewrite_ms, case.read)
        middle = [median(values[1:]) for values in figures]
        middle[3:5] = [milliseconds / 1000 for milliseconds in middle[3:5]]
        print(f"{case.name:28}" + "".join(f"{value:8.2f}" for value in middle[:5]), end="  ")
        print(f"{middle[5]:8.2f}")
    half = len(cases) // 2
    for small, large in zip(cases[:half], cases[half:], strict=True):
        ratios = [
            median(a[1:]) / median(b[1:])
            for a, b in (
                (large.whole, small.whole),
                (large.rounds, small.rounds),
                (large.applies, small.applies),
                (large.read, small.read),
            )
        ]
        where = small.name.partition(", ")[2]
        print(
            f"large over small, {where}: run {ratios[0]:.2f}, round {ratios[1]:.2f}, "
            f"apply {ratios[2]:.2f}, bytes read {ratios[3]:.2f}"
        )


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benchmarks.rounds", description=__doc__.split("\n")[0])
    parser.add_argument("--small", type=int, default=100_000)
    parser.add_argument("--large", type=int, default=1_600_000)
    parser.add_argument("--value-bytes", type=int, default=200)
    parser.add_argument("--changes", type=int, default=1_000)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--driver-memory", default="2g")
    parser.add_argument("--folder", help="where the tables go (default: the temporary folder)")
    return parser.parse_args()


if __name__ == "__main__":
    main()
