"""Measures a round after many rounds, with many vbuckets, and beside many idle collections.

    make bench BENCH=growth ARGS="--rounds 1000 --vbuckets 1024 --collections 20"

One warm driver follows a producer in a process of its own. Each round brings ``--changes`` updates
of the default collection; ``--collections`` others hold a few documents each and never change. Of
the first ten rounds after the first (and ten more to warm up), and of ten at each tenth part of the
way, the medians of planning, receiving and applying are printed: CPU seconds of all our processes,
wall seconds and Spark jobs; then the files and the bytes of Delta's log of ``changes`` and
``docs``. With ``--apply-every`` 20 only one of twenty rounds between those is applied at once.
"""

import argparse
import shutil
import tempfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from statistics import median
from time import monotonic
from typing import Any, Final, TypeVar

import psutil
from deltalake import DeltaTable

from benchmarks._producer import BenchProducer, producer
from benchmarks._runs import MIB, session, settings_for
from benchmarks.rounds import Cost, Meter
from dcp.lake.adapters.opening import lake_location, spark_of
from dcp.lake.adapters.spark_store import SparkStore
from dcp.lake.receive.source_access import SourceAccess, query_cluster, source_access
from dcp.lake.rounds.observer import Observer
from dcp.lake.rounds.round_plan import RoundPlan
from dcp.lake.run.driver import Driver
from dcp.lake.run.replicate import open_or_create

STEPS: Final = ("plan", "round", "apply", "idle")
_WARM_UP: Final = 10
_WINDOW: Final = 10
_DOCUMENTS_OF_A_COLLECTION: Final = 100

Step = tuple[Cost, float]
"""What a step took: CPU seconds and jobs, and wall seconds."""

_Found = TypeVar("_Found")


def main() -> None:
    """Measure and print."""
    arguments = _arguments()
    folder = Path(tempfile.mkdtemp(prefix="dcplake-bench-", dir=arguments.folder))
    try:
        with producer(arguments.documents, arguments.value_bytes, arguments.vbuckets) as source:
            if arguments.collections:
                source.fill_collections(arguments.collections, _DOCUMENTS_OF_A_COLLECTION)
            _measure(arguments, source, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _measure(arguments: argparse.Namespace, source: BenchProducer, folder: Path) -> None:
    others = {each.pid for each in psutil.Process().children(recursive=True)}
    spark = session(folder, arguments.cores, "2g")
    meter = Meter(spark, others)
    settings = settings_for(source, folder, "lake")
    access = source_access(settings)
    cluster = query_cluster(access)
    lake = open_or_create(
        SparkStore(spark_of(settings, spark), lake_location(settings)), settings, cluster
    )
    with closing(Driver(lake, settings, access, Observer())) as driver:
        _round(driver, access, meter)
        heads = (f"{step + ': CPU s':>16} wall jobs" for step in STEPS)
        print(f"{'after rounds':>12}{''.join(heads)}", flush=True)
        found: list[list[Step]] = []
        for number in range(1, arguments.rounds + _WARM_UP + 1):
            source.update(arguments.changes, number)
            done, part = number - _WARM_UP, max(1, arguments.rounds // 10)
            left = _WINDOW - done if done <= _WINDOW else -done % part
            if left >= _WINDOW and number % arguments.apply_every:
                _receive(driver, access, lambda step: step())
                continue
            found = [*found, _round(driver, access, meter)][-_WINDOW:]
            if done > 0 and left == 0:
                _report(done, found, Path(settings.lake.root))


def _round(driver: Driver, access: SourceAccess, meter: Meter) -> list[Step]:
    """Plan, run and apply one round, then look once more; return what each step took."""
    steps: list[Step] = []

    def timed(step: Callable[[], _Found]) -> _Found:
        before, begin = meter.now(), monotonic()
        found = step()
        steps.append((meter.now().since(before), monotonic() - begin))
        return found

    newest = _receive(driver, access, timed)
    timed(lambda: driver.apply(newest, force=True))

    def idle() -> None:
        driver.prepare_round(query_cluster(access))
        driver.apply(newest, force=False)

    timed(idle)
    return steps


def _receive(driver: Driver, access: SourceAccess, do: Callable[[Callable[[], Any]], Any]) -> int:
    """Plan and run one round, each step by ``do``; return its number."""
    plan = do(lambda: driver.prepare_round(query_cluster(access)))
    if not isinstance(plan, RoundPlan):
        raise AssertionError(f"found {plan}, expected a round")
    number: int = do(lambda: driver.round(plan)).round
    return number


def _report(done: int, rounds: list[list[Step]], lake: Path) -> None:
    told = f"{done:12,}"
    for steps in zip(*rounds, strict=True):
        cpu = median(cost.cpu_seconds for cost, _ in steps)
        wall = median(seconds for _, seconds in steps)
        told += f"{cpu:16.2f}{wall:5.2f}{median(cost.jobs for cost, _ in steps):5.0f}"
    for table in ("changes", "docs"):
        files = len(DeltaTable(str(lake / table)).file_uris())
        log_bytes = sum(each.stat().st_size for each in (lake / table / "_delta_log").rglob("*.*"))
        told += f"  {table}: {files} files, log {log_bytes / MIB:.1f} MiB"
    print(told, flush=True)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benchmarks.growth", description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--changes", type=int, default=1_000)
    parser.add_argument("--documents", type=int, default=100_000)
    parser.add_argument("--value-bytes", type=int, default=200)
    parser.add_argument("--vbuckets", type=int, default=64)
    parser.add_argument("--collections", type=int, default=0, help="idle ones, beside the default")
    parser.add_argument("--apply-every", type=int, default=1, help="rounds")
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--folder", help="where the tables go (default: the temporary folder)")
    return parser.parse_args()


if __name__ == "__main__":
    main()
