"""What the ``applied`` rows of ``changes`` are needed for.

    make bench BENCH=applied_rows ARGS="--documents 100000 --changes 1000"

The commit of an apply has the record of that apply, and a row of the next round repeats it.

First, ``docs_live`` is asked in turns: by a view that reads the rows, and by a view that is made
anew before each query, for which Python reads the table's history. CPU seconds of all our
processes, wall seconds and Spark jobs of each query are printed. Then ``docs`` is copied into an S3
server, which counts the requests for its history.

Second, ``docs`` stands still for 30 days. Then somebody else changes a property twice, and Delta's
log cleanup removes the commit of the last apply. The next apply is planned and committed with the
rows, without them, and without them after a heartbeat of ours. Rows to merge, stale vbuckets and
rows that the apply wrote are printed.
"""

import argparse
import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from time import monotonic
from typing import TYPE_CHECKING, Final
from unittest.mock import patch

import psutil
import pyarrow.fs as pafs

from benchmarks._producer import BenchProducer, producer
from benchmarks._runs import session, settings_for
from benchmarks.rounds import Cost, Meter
from dcp.errors import DcplakeError
from dcp.lake.adapters.opening import lake_location, opened_lake, spark_of
from dcp.lake.adapters.spark_store import SparkStore
from dcp.lake.apply.commit import run_apply
from dcp.lake.apply.merge_planner import plan_merge
from dcp.lake.change_log.applied import replica_status
from dcp.lake.change_log.changes import latest_round
from dcp.lake.change_log.touched_keys import count_rows
from dcp.lake.config.settings import ApplySettings, ApplyWhen, LakeSettings, Settings
from dcp.lake.maintain.horizon_guard import beat
from dcp.lake.query import views_sql
from dcp.lake.query.views_sql import docs_live_sql
from dcp.lake.run.replicate import run
from dcp.lake.tables.history import CLEANING
from dcp.lake.tables.lake_tables import DOCS, LakeTables, open_lake, record_cleaned_round
from dcp.lake.tables.schema import RowKind, is_kind
from tests.lake.object_store import BUCKET, ObjectStore, kind_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_QUERY: Final = "SELECT count(*), sum(rev) FROM {}"
_STILL_SECONDS: Final = 30 * 86_400


def main() -> None:
    """Measure and print."""
    arguments = _arguments()
    folder = Path(tempfile.mkdtemp(prefix="dcplake-bench-", dir=arguments.folder))
    try:
        with producer(arguments.documents, arguments.value_bytes) as source:
            others = {each.pid for each in psutil.Process().children(recursive=True)}
            spark = session(folder, 2, "2g")
            settings = settings_for(source, folder, "lake")
            _fill(arguments, source, settings, spark)
            bench = _Bench(folder, settings, spark, Meter(spark, others))
            bench.queries(arguments.repetitions)
            bench.requests()
            bench.cleaned_logs()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _fill(
    arguments: argparse.Namespace, source: BenchProducer, settings: Settings, spark: "SparkSession"
) -> None:
    """Make rounds with an apply each, and a last one without; it lists the apply before it."""
    run(settings, once=True, spark=spark)
    for number in range(1, arguments.rounds + 1):
        source.update(arguments.changes, number)
        is_last = number == arguments.rounds
        receiving = replace(settings, apply=ApplySettings(when=ApplyWhen.NEVER))
        run(receiving if is_last else settings, once=True, spark=spark)


@dataclass(frozen=True, slots=True)
class _Bench:
    folder: Path
    settings: Settings
    spark: "SparkSession"
    meter: Meter

    def open(self, name: str = "lake") -> LakeTables:
        """Open a lake in the folder, with nothing remembered of it."""
        settings = replace(self.settings, lake=LakeSettings(root=str(self.folder / name)))
        return open_lake(SparkStore(spark_of(settings, self.spark), lake_location(settings)))

    def queries(self, repetitions: int) -> None:
        """Ask ``docs_live`` in both ways, in turns; the first answers warm up."""
        lake = self.open()
        live = docs_live_sql(lake.table_sql(DOCS.name), lake.changes_sql, DOCS)
        self.spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW by_rows AS {live}")
        ways: dict[str, Callable[[], object]] = {
            "by the rows": lambda: self._ask("by_rows"),
            "by the history, read before each query": self._ask_by_history,
            "  of that, reading the history": lambda: replica_status(self.open(), DOCS),
        }
        answers = {repr(ways[name]()) for name in list(ways)[:2]}
        if len(answers) != 1:
            raise AssertionError(f"found {answers}, expected one answer")
        found: dict[str, list[tuple[Cost, float]]] = {name: [] for name in ways}
        for _ in range(repetitions):
            for name, way in ways.items():
                before, begin = self.meter.now(), monotonic()
                way()
                found[name].append((self.meter.now().since(before), monotonic() - begin))
        print(f"{'docs_live':42}{'CPU s':>7}{'wall s':>8}{'jobs':>6}")
        for name, costs in found.items():
            cpu = median(cost.cpu_seconds for cost, _ in costs)
            jobs = median(cost.jobs for cost, _ in costs)
            wall = median(seconds for _, seconds in costs)
            print(f"{name:42}{cpu:7.2f}{wall:8.2f}{jobs:6.0f}", flush=True)

    def _ask(self, view: str) -> object:
        return self.spark.sql(_QUERY.format(view)).collect()

    def _ask_by_history(self) -> object:
        lake = self.open()
        current = replica_status(lake, DOCS).current

        def literal(_: str, __: object, name: str) -> str:
            return f"CAST({getattr(current, name)} AS BIGINT)"

        with patch.object(views_sql, "_newest_apply", literal):
            live = docs_live_sql(lake.table_sql(DOCS.name), lake.changes_sql, DOCS)
        self.spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW by_history AS {live}")
        return self._ask("by_history")

    def requests(self) -> None:
        """Count the requests for the history of ``docs`` in an S3 server."""
        with ObjectStore() as store:
            pafs.copy_files(
                str(self.folder / "lake"),
                f"{BUCKET}/lake",
                source_filesystem=pafs.LocalFileSystem(),
                destination_filesystem=store.files,
            )
            on_s3 = LakeSettings(root=f"s3://{BUCKET}/lake", storage_options=store.options)
            asked = Counter[str]()
            with opened_lake(replace(self.settings, lake=on_s3), starts_spark=False) as lake:
                store.answer = lambda request: asked.update([kind_of(request)])
                for name in ("new to the table", "that knows the table"):
                    replica_status(lake, DOCS)
                    told = ", ".join(f"{count} {kind}" for kind, count in sorted(asked.items()))
                    print(f"the history in S3, for a process {name}: {told}", flush=True)
                    asked.clear()

    def cleaned_logs(self) -> None:
        """Plan and commit an apply to a table whose log has lost the last apply."""
        stood_still = self.open()
        listed = replica_status(stood_still, DOCS)
        stood_still.table(DOCS.name).set_properties({"delta.checkpointInterval": "2"})
        for file in (self.folder / "lake" / DOCS.name).rglob("*"):
            then = file.stat().st_mtime - _STILL_SECONDS
            os.utime(file, (then, then))
        print(f"{'after log cleanup':42}{'merges':>9}{'stale':>7}{'wrote':>9}{'CPU s':>7}")
        for number, (title, has_rows, beats, is_clean) in enumerate(_CASES):
            name = f"case-{number}"
            shutil.copytree(self.folder / "lake", self.folder / name)
            lake = self.open(name)
            if is_clean:
                record_cleaned_round(lake, [DOCS], listed.round)
            if beats:
                beat(lake, DOCS)
            for value in ("1", "2"):
                self.spark.sql(
                    f"ALTER TABLE {lake.table_sql(DOCS.name)} SET TBLPROPERTIES ('other'='{value}')"
                )
            if not has_rows:
                lake.changes.delete(is_kind(RowKind.APPLIED), {CLEANING: 0})
            history = replica_status(self.open(name), DOCS).commit_history
            if history.applied() is not None:
                raise AssertionError(f"found {history.applied()}, expected no apply")
            self._apply(title, name)

    def _apply(self, title: str, name: str) -> None:
        lake, before = self.open(name), self.meter.now()
        plan = plan_merge(lake, DOCS, latest_round(lake))
        if plan is None:
            raise AssertionError("found no plan, expected one")
        log_slice, touched = plan.log_slice, plan.touched
        merges = len(touched) if touched is not None else None
        if merges is None:
            merges, _ = count_rows(lake.changes, DOCS.collection_id, log_slice)
        why = ""
        try:
            made = run_apply(lake, plan, "benchmark")
            wrote = f"{made.inserted + made.updated + made.deleted:,}"
        except DcplakeError as error:
            wrote, why = "nothing", f"  {error}\n"
        cpu = self.meter.now().since(before).cpu_seconds
        told = f"{title:42}{merges:9,}{len(log_slice.stale):7}{wrote:>9}{cpu:7.1f}"
        print(f"{told}\n{why}", end="", flush=True)


_CASES: Final = (
    ("with the rows", True, False, False),
    ("without them", False, False, False),
    ("without them, the log is cleaned", False, False, True),
    ("without them, after a heartbeat", False, True, False),
)
"""Each with: the log has the rows, a heartbeat came first, maintenance has cleaned the log."""


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="benchmarks.applied_rows", description=__doc__.split("\n")[0]
    )
    parser.add_argument("--documents", type=int, default=100_000)
    parser.add_argument("--value-bytes", type=int, default=200)
    parser.add_argument("--changes", type=int, default=1_000)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--repetitions", type=int, default=7)
    parser.add_argument("--folder", help="where the tables go (default: the temporary folder)")
    return parser.parse_args()


if __name__ == "__main__":
    main()
