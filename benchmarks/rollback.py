"""A rollback undone on a small and on a large table: what does the table's size cost?

    make bench BENCH=rollback ARGS="--small 100000 --large 1600000 --lost 1000 --repetitions 3"

Two producers, two lakes, one session. Each repetition updates ``--lost`` documents, anywhere or in
4 vbuckets only, while the replicas stand still, and publishes them; a failover loses exactly these.
Measured is the next whole ``run(once=True)``: the rounds with the orders and the new epochs, the
apply that undoes, the audit. Each must be exact: so many rows updated, none else, each audited.

Bytes read are what the JVM read from files, by Hadoop's own count; files are the MERGE's own
metrics. The look at the base (can its rows be read?) is part of the apply's plan.
"""

import argparse
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from time import monotonic
from typing import TYPE_CHECKING, Any, Final
from unittest.mock import patch

from benchmarks._producer import BenchProducer, producer
from benchmarks._runs import (
    COUNTED_READS,
    FEW_VBUCKETS,
    MIB,
    StepTimes,
    bytes_read,
    require_documents,
    session,
    settings_for,
)
from dcp.lake.adapters.spark_store import SparkStore
from dcp.lake.apply import applier
from dcp.lake.apply.slice_reader import SliceReader
from dcp.lake.config.settings import Settings
from dcp.lake.config.table_names import AUDIT_TABLE
from dcp.lake.run import driver
from dcp.lake.run.replicate import run
from dcp.lake.store.location import LakeLocation
from dcp.lake.tables.applied_version import AppliedVersion
from dcp.lake.tables.history import history

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

STEPS: Final = {
    "rounds": (driver, "run_round"),
    "plan": (applier, "plan_merge"),
    "look at base": (SliceReader, "try_to_read"),
    "merge": (applier, "run_apply"),
    "audit": (applier, "write_audit"),
}
FILES: Final = {
    "files added": "numTargetFilesAdded",
    "files removed": "numTargetFilesRemoved",
    "vectors added": "numTargetDeletionVectorsAdded",
    "vectors updated": "numTargetDeletionVectorsUpdated",
}


@dataclass
class Cost:
    """What the calls of one function took so far."""

    seconds: float = 0.0
    read_bytes: int = 0


@contextmanager
def costs(spark: "SparkSession") -> Iterator[dict[str, Cost]]:
    """Note what each of the `STEPS` costs meanwhile."""
    found = {name: Cost() for name in STEPS}
    with ExitStack() as patches:
        for name, (owner, function) in STEPS.items():
            counted = _counted(spark, getattr(owner, function), found[name])
            patches.enter_context(patch.object(owner, function, counted))
        yield found


def _counted(spark: "SparkSession", function: Callable[..., Any], cost: Cost) -> Callable[..., Any]:
    def call(*arguments: Any, **named: Any) -> Any:
        begin, read_before = monotonic(), bytes_read(spark)
        try:
            return function(*arguments, **named)
        finally:
            cost.seconds += monotonic() - begin
            cost.read_bytes += bytes_read(spark) - read_before

    return call


@dataclass
class Case:
    """One table, with losses in some vbuckets: its measurements, by name."""

    name: str
    source: BenchProducer
    settings: Settings
    vbuckets: tuple[int, ...] | None
    figures: dict[str, list[float]] = field(default_factory=dict)

    def measure(self, spark: "SparkSession", lost: int, seed: int) -> None:
        """Publish ``lost`` updates, lose them, and measure the run that takes them back."""
        self.source.pause_replication()
        self.source.update(lost, seed, self.vbuckets)
        self._run(spark, lost)
        self.source.fail_over()
        location = LakeLocation(root=self.settings.lake.root)
        docs = location.table_sql("docs")
        table = spark.sql(f"DESCRIBE DETAIL {docs}").collect()[0]
        begin = monotonic()
        with costs(spark) as found:
            version = self._run(spark, lost)
        self._note("run, s", monotonic() - begin)
        audit = location.table_sql(AUDIT_TABLE)
        told = spark.sql(f"SELECT key FROM {audit} WHERE version = {version.version}").count()
        vbuckets = len(self.vbuckets or range(self.source.vbuckets))
        restored = [each for each in version.undone if each.version > 0]
        if told != lost or len(restored) != vbuckets or len(version.undone) != vbuckets:
            raise AssertionError(f"{self.name}: audit of {told} rows, {version}: {version.undone}")
        for name, cost in found.items():
            self._note(f"{name}, s", cost.seconds)
        for name, cost in found.items():
            self._note(f"{name}, MiB read", cost.read_bytes / MIB)
        commits = history(SparkStore(lambda: spark, location).table("docs"))
        metrics = next(each for each in commits if each.version == version.version).metrics
        for name, metric in FILES.items():
            self._note(name, float(metrics.get(metric, 0)))
        self._note("MiB added", float(metrics.get("numTargetBytesAdded", 0)) / MIB)
        self._note("table, files", table["numFiles"])
        self._note("table, MiB", table["sizeInBytes"] / MIB)

    def _run(self, spark: "SparkSession", updated: int) -> AppliedVersion:
        times = StepTimes()
        run(self.settings, once=True, spark=spark, observer=times)
        version = times.applied_version
        expected = (updated, 0, 0, 1)
        if version is None or expected != (
            *(version.updated, version.inserted, version.deleted),
            len(times.apply_seconds),
        ):
            raise AssertionError(f"{self.name}: found {version}, expected {updated} updated")
        return version

    def _note(self, name: str, figure: float) -> None:
        self.figures.setdefault(name, []).append(figure)

    def last(self) -> str:
        """Return the newest figures in a line."""
        return ", ".join(f"{name} {values[-1]:.2f}" for name, values in self.figures.items())


def main() -> None:
    arguments = _arguments()
    for name, documents in (("--small", arguments.small), ("--large", arguments.large)):
        require_documents(name, documents, arguments.lost)
    folder = Path(tempfile.mkdtemp(prefix="dcplake-bench-", dir=arguments.folder))
    try:
        with (
            producer(arguments.small, arguments.value_bytes, nodes=2) as small,
            producer(arguments.large, arguments.value_bytes, nodes=2) as large,
        ):
            _measure(arguments, (small, large), folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _measure(
    arguments: argparse.Namespace, sources: tuple[BenchProducer, BenchProducer], folder: Path
) -> None:
    spark = session(folder, arguments.cores, arguments.driver_memory, COUNTED_READS)
    cases: list[Case] = []
    lakes: list[tuple[BenchProducer, Settings]] = []
    for source in sources:
        settings = settings_for(source, folder, f"lake-{source.documents}")
        begin = monotonic()
        run(settings, once=True, spark=spark)
        print(f"built {source.documents:,} documents in {monotonic() - begin:.1f} s", flush=True)
        lakes.append((source, settings))
    for vbuckets in (None, FEW_VBUCKETS):
        where = "all" if vbuckets is None else f"{len(vbuckets)}"
        cases += [Case(f"{each.documents:,}, {where}", each, s, vbuckets) for each, s in lakes]
    for _ in range(arguments.warm_ups):
        cases[0].measure(spark, arguments.lost, 0)
        cases[0].figures.clear()
    for repetition in range(1, arguments.repetitions + 1):
        for case in cases:
            case.measure(spark, arguments.lost, repetition)
            print(f"repetition {repetition}, {case.name} vbuckets: {case.last()}", flush=True)
    _report(arguments, cases)


def _report(arguments: argparse.Namespace, cases: list[Case]) -> None:
    print(
        f"{arguments.lost:,} documents undone, {arguments.cores} cores, medians of "
        f"{arguments.repetitions} ({arguments.warm_ups} more, on the small table, to warm up)"
    )
    heads = [*(case.name for case in cases), "large/small, all", "large/small, 4"]
    print(f"{'documents, vbuckets':24}" + "".join(f"{head:>18}" for head in heads))
    for name in cases[0].figures:
        middle = [median(case.figures[name]) for case in cases]
        ratios = (
            f"{large / small:18.2f}" if small else f"{'':>18}"
            for small, large in (middle[:2], middle[2:])
        )
        print(f"{name:24}" + "".join(f"{value:18.2f}" for value in middle) + "".join(ratios))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benchmarks.rollback", description=__doc__.split("\n")[0])
    parser.add_argument("--small", type=int, default=100_000)
    parser.add_argument("--large", type=int, default=1_600_000)
    parser.add_argument("--value-bytes", type=int, default=200)
    parser.add_argument("--lost", type=int, default=1_000)
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--warm-ups", type=int, default=1)
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--driver-memory", default="2g")
    parser.add_argument("--folder", help="where the tables go (default: the temporary folder)")
    return parser.parse_args()


if __name__ == "__main__":
    main()
