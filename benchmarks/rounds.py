"""A round with few changes: what the table's size costs, and what it costs when done by hand.

    make bench BENCH=rounds ARGS="--small 100000 --large 1600000 --changes 1000 --repetitions 5"

Two producers, two lakes, one session. Both tables are built by the product itself, from full
producers. Then rounds of ``--changes`` updates on either, in turn, anywhere or in 4 vbuckets
only; each is a whole ``run(once=True)``: look at the cluster, plan, receive, append, apply. Bytes
read are what the JVM read from files during the apply, by Hadoop's own count.

With ``--check`` each is followed by a data-quality check of what it changed, as ``jobs/quality.py``
makes it, results appended.

After each the floor, on tables that begin as copies: a plain append of the round's rows, and one
hand-written MERGE of them with the keys as literals. Compared are the CPU seconds of all our
processes (without the producers'), and Spark jobs, of round and apply.
"""

import argparse
import shutil
import tempfile
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from time import monotonic
from typing import TYPE_CHECKING, Any, cast

import psutil
import pyarrow as pa
import pyarrow.compute as pc

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
from dcp.lake.config.settings import Settings
from dcp.lake.quality.check import check_replica
from dcp.lake.quality.report import write_results
from dcp.lake.rounds.observer import RoundProgress
from dcp.lake.rounds.round_plan import RoundPlan
from dcp.lake.rounds.round_report import RoundReport
from dcp.lake.run.replicate import run
from dcp.lake.store.location import LakeLocation
from dcp.lake.store.sql import integer_list, string_list
from dcp.lake.tables.applied_version import AppliedVersion
from dcp.lake.tables.history import history
from dcp.lake.tables.lake_tables import open_lake
from dcp.lake.tables.schema import CHANGES, REPLICA, RowKind, spark_ddl

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True)
class Cost:
    """What something took: CPU seconds of all our processes, and Spark jobs."""

    cpu_seconds: float
    jobs: int

    def since(self, before: "Cost") -> "Cost":
        return Cost(self.cpu_seconds - before.cpu_seconds, self.jobs - before.jobs)


class Meter:
    """Counts what this process and those that it has started since have used."""

    def __init__(self, spark: "SparkSession", others: set[int]) -> None:
        self._scheduler = cast(Any, spark.sparkContext)._jsc.sc().dagScheduler()
        self._others = others

    def now(self) -> Cost:
        own = psutil.Process().cpu_times()
        seconds = own.user + own.system
        for each in psutil.Process().children(recursive=True):
            if each.pid not in self._others:
                with suppress(psutil.NoSuchProcess):
                    used = each.cpu_times()
                    seconds += used.user + used.system + used.children_user + used.children_system
        return Cost(seconds, self._scheduler.numTotalJobs())


class RoundTimes(StepTimes):
    """Times of the steps, what round and apply took, and the bytes that the apply read."""

    def __init__(self, spark: "SparkSession", meter: Meter) -> None:
        super().__init__()
        self._spark = spark
        self._meter = meter
        self._before = Cost(0, 0)
        self._read_before = 0
        self.cost = Cost(0, 0)
        self.apply_bytes = 0

    def planned(self, plan: RoundPlan, progress: RoundProgress | None) -> None:
        super().planned(plan, progress)
        self._before = self._meter.now()

    def committed(self, report: RoundReport) -> None:
        super().committed(report)
        self._read_before = bytes_read(self._spark)

    def applied(self, version: AppliedVersion) -> None:
        super().applied(version)
        self.cost = self._meter.now().since(self._before)
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
    costs: list[Cost] = field(default_factory=list)
    floors: list[Cost] = field(default_factory=list)
    checks: list[Cost] = field(default_factory=list)

    def check(self, spark: "SparkSession", meter: Meter, rows: int) -> None:
        lake = open_lake(SparkStore(lambda: spark, LakeLocation(root=self.settings.lake.root)))
        before = meter.now()
        report = check_replica(lake)
        write_results(lake, report)
        self.checks.append(meter.now().since(before))
        if report.check.checked_rows != rows or report.failed:
            raise AssertionError(f"{self.name}: found {report}, expected {rows} rows")

    def measure(self, spark: "SparkSession", meter: Meter, changes: int, seed: int) -> None:
        self.source.update(changes, seed, self.vbuckets)
        begin = monotonic()
        times = RoundTimes(spark, meter)
        run(self.settings, once=True, spark=spark, observer=times)
        self.whole.append(monotonic() - begin)
        self.rounds.append(sum(times.round_seconds))
        self.applies.append(sum(times.apply_seconds))
        self.read.append(times.apply_bytes / MIB)
        version = times.applied_version
        if times.rows != changes or version is None or version.updated != changes:
            raise AssertionError(f"{self.name}: found {times.rows} rows, {version}")
        docs = SparkStore(lambda: spark, LakeLocation(root=self.settings.lake.root)).table("docs")
        metrics = history(docs)[0].metrics
        self.scan_ms.append(float(metrics.get("scanTimeMs", 0)))
        self.rewrite_ms.append(float(metrics.get("rewriteTimeMs", 0)))
        self.costs.append(times.cost)
        self.floors.append(_by_hand(spark, meter, Path(self.settings.lake.root), version.to_round))


def _copy_by_hand(lake: Path) -> None:
    """Make the tables of the floor, beside the lake's own."""
    for table in ("changes", "docs"):
        shutil.copytree(lake / table, lake.with_name(f"{lake.name}-by-hand") / table)


def _by_hand(spark: "SparkSession", meter: Meter, lake: Path, number: int) -> Cost:
    """Append and merge what a round brought, as one writes it without dcplake."""
    rows = spark.sql(f"SELECT * FROM delta.`{lake / 'changes'}` WHERE round = {number}").toArrow()
    items = rows.filter(pc.field("kind") == RowKind.MUTATION)
    times = [(int(cas) >> 16 << 16) // 1000 for cas in items["cas"].to_pylist()]
    items = items.append_column("modified_at", pa.array(times, REPLICA.field("modified_at").type))
    place = lake.with_name(f"{lake.name}-by-hand")
    before = meter.now()
    spark.createDataFrame(rows, spark_ddl(CHANGES)).write.format("delta").mode("append").save(
        str(place / "changes")
    )
    spark.createDataFrame(items.select(REPLICA.names)).createOrReplaceTempView("by_hand")
    spark.sql(
        f"MERGE INTO delta.`{place / 'docs'}` t USING by_hand s "
        "ON t.vbucket = s.vbucket AND t.key = s.key AND "
        f"t.vbucket IN ({integer_list(set(items['vbucket'].to_pylist()))}) AND "
        f"t.key IN ({string_list(items['key'].to_pylist())}) "
        "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
    ).collect()
    return meter.now().since(before)


def main() -> None:
    arguments = _arguments()
    for name, documents in (("--small", arguments.small), ("--large", arguments.large)):
        require_documents(name, documents, arguments.changes)
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
    others = {each.pid for each in psutil.Process().children(recursive=True)}
    spark = session(folder, arguments.cores, arguments.driver_memory, COUNTED_READS)
    meter = Meter(spark, others)
    cases = []
    for name, source in sources.items():
        settings = settings_for(source, folder, name)
        begin = monotonic()
        run(settings, once=True, spark=spark)
        print(f"built {source.documents:,} documents in {monotonic() - begin:.1f} s", flush=True)
        _copy_by_hand(Path(settings.lake.root))
        if arguments.check:
            first = Case(name, source, settings, None)
            first.check(spark, meter, source.documents)
            print(f"whole table checked in {first.checks[0].cpu_seconds:.1f} CPU s", flush=True)
        cases.append(Case(f"{source.documents:,}, all vbuckets", source, settings, None))
        cases.append(Case(f"{source.documents:,}, 4 vbuckets", source, settings, FEW_VBUCKETS))
    for repetition in range(arguments.repetitions + 1):
        for case in cases:
            case.measure(spark, meter, arguments.changes, repetition)
            if arguments.check:
                case.check(spark, meter, arguments.changes)
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
    print(f"{'round and apply, over the floor':34}{'CPU s':>8}{'floor':>8}{'ratio':>7}{'jobs':>8}")
    for case in cases:
        ours, floor = (
            median(each.cpu_seconds for each in costs[1:]) for costs in (case.costs, case.floors)
        )
        jobs = [max(each.jobs for each in costs[1:]) for costs in (case.costs, case.floors)]
        print(f"{case.name:34}{ours:8.2f}{floor:8.2f}{ours / floor:7.2f}{jobs[0]:8}{jobs[1]:4}")
        if case.checks:
            checks = case.checks[1:]
            seconds, most = median(each.cpu_seconds for each in checks), max(c.jobs for c in checks)
            print(f"  and a check of the changed rows{seconds:11.2f} CPU s, {most} jobs")
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
    parser.add_argument("--check", action="store_true", help="check data quality after each")
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--driver-memory", default="2g")
    parser.add_argument("--folder", help="where the tables go (default: the temporary folder)")
    return parser.parse_args()


if __name__ == "__main__":
    main()
