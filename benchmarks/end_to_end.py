"""Documents of a bucket into `changes` and into the replica, beside Spark writing the same rows.

    make bench BENCH=end_to_end ARGS="--documents 1000000 --value-bytes 1024 --repetitions 3"

All variants run in one session, interleaved, medians of the repetitions:

* source alone: one consumer in this process, batches of ``changes`` made and thrown away. It proves
  that the producer is not the bottleneck;
* receive: the round's own job, written to nowhere;
* parquet, delta: the Arrow rows that the round would receive, from files in memory, written by
  Spark as Parquet and as a plain Delta append;
* changes: one round, as ``dcplake run`` does it, from plan to read-back; apply: what follows.

Ratios are rows per second over those of the plain Delta append.
"""

import argparse
import shutil
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from statistics import median
from time import monotonic
from typing import TYPE_CHECKING

import pyarrow as pa

from benchmarks._producer import BenchProducer, producer
from benchmarks._runs import StepTimes, line, session, settings_for
from dcp.lake.config.settings import Settings
from dcp.lake.receive.source_access import query_cluster, source_access
from dcp.lake.receive.task_receiver import TaskReceiver, receive_function
from dcp.lake.rounds.lake_state import LakeState
from dcp.lake.rounds.round_plan import RoundPlan
from dcp.lake.rounds.round_planner import plan_round
from dcp.lake.run.replicate import run
from dcp.lake.tables.schema import CHANGES, spark_ddl

if TYPE_CHECKING:
    from pyspark.sql import DataFrameWriter, SparkSession

_LAKE_ID = "benchmark"
PLAIN_DELTA = "same rows to plain delta (b)"
MapInArrow = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


def main() -> None:
    arguments = _arguments()
    folder = Path(tempfile.mkdtemp(prefix="dcplake-bench-", dir=arguments.folder))
    memory = Path(tempfile.mkdtemp(prefix="dcplake-bench-", dir=arguments.memory_folder))
    try:
        with producer(arguments.documents, arguments.value_bytes) as source:
            _measure(arguments, source, folder, memory)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        shutil.rmtree(memory, ignore_errors=True)


def _measure(
    arguments: argparse.Namespace, source: BenchProducer, folder: Path, memory: Path
) -> None:
    settings = settings_for(source, folder, "lake")
    plan = plan_for(settings, arguments.cores)
    files, frame_bytes = record(settings, plan, memory)
    row_bytes = frame_bytes // source.documents
    spark = session(folder, arguments.cores, arguments.driver_memory)
    replay = replay_function(files)
    seconds: dict[str, list[float]] = {}

    def timed(name: str, action: Callable[[], None]) -> None:
        begin = monotonic()
        action()
        seconds.setdefault(name, []).append(monotonic() - begin)

    def rows(function: MapInArrow) -> "DataFrameWriter":
        tasks = len(plan.tasks)
        return spark.range(0, tasks, 1, tasks).mapInArrow(function, spark_ddl(CHANGES)).write

    for repetition in range(arguments.repetitions + 1):
        if repetition == 1:
            seconds = {}  # the first was to warm up
        out = folder / f"out{repetition}"
        receive = receive_function(plan, source_access(settings))
        timed("source alone, one process", partial(_drain, settings, plan))
        timed("receive, to nowhere", rows(receive).format("noop").mode("append").save)
        timed("same rows to parquet (a)", partial(rows(replay).parquet, f"{out}/parquet"))
        timed(PLAIN_DELTA, partial(rows(replay).format("delta").save, f"{out}/delta"))
        times = _replicate(spark, settings_for(source, folder, f"out{repetition}/lake"), source)
        steps = {
            "round into changes": sum(times.round_seconds),
            "apply into the replica": sum(times.apply_seconds),
            "changes and replica": sum(times.round_seconds) + sum(times.apply_seconds),
        }
        for name, taken in steps.items():
            seconds.setdefault(name, []).append(taken)
        shutil.rmtree(out)
        told = ", ".join(f"{name} {taken[-1]:.1f}" for name, taken in seconds.items())
        print(f"repetition {repetition} (0 warms up), seconds: {told}", flush=True)
    base = median(seconds[PLAIN_DELTA])
    print(
        f"{source.documents:,} documents of {source.value_bytes:,} bytes, {source.vbuckets} "
        f"vbuckets, {arguments.cores} cores, medians of {arguments.repetitions}; last column: "
        "speed over (b)"
    )
    for name, values in seconds.items():
        print(line(name, values, source.documents, row_bytes, base))


def plan_for(settings: Settings, slots: int) -> RoundPlan:
    """Return the plan of a new lake's first round."""
    cluster = query_cluster(source_access(settings))
    plan = plan_round(LakeState(_LAKE_ID, 0), cluster, settings.round, settings.flow_control, slots)
    assert isinstance(plan, RoundPlan)
    return plan


def _batches(settings: Settings, plan: RoundPlan, index: int) -> Iterator[pa.RecordBatch]:
    name = f"benchmark-{index}-{monotonic()}"
    return TaskReceiver(
        plan.tasks[index], plan.round, plan.budget, source_access(settings), name
    ).batches()


def _drain(settings: Settings, plan: RoundPlan) -> None:
    for index in range(len(plan.tasks)):
        for _ in _batches(settings, plan, index):
            pass


def record(settings: Settings, plan: RoundPlan, memory: Path) -> tuple[list[str], int]:
    """Write each task's batches to an Arrow file in memory; return the files and their bytes."""
    files: list[str] = []
    value_bytes = 0
    for index in range(len(plan.tasks)):
        files.append(str(memory / f"{index}.arrow"))
        with pa.OSFile(files[-1], "wb") as sink, pa.ipc.new_file(sink, CHANGES) as writer:
            for batch in _batches(settings, plan, index):
                writer.write_batch(batch)
                value_bytes += batch.column("value").nbytes
    return files, value_bytes


def replay_function(files: list[str]) -> MapInArrow:
    """Return a function for mapInArrow that yields what was recorded, without a copy."""

    def replay(indices: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in indices:
            for index in batch.column(0).to_pylist():
                with pa.memory_map(files[index]) as source:
                    reader = pa.ipc.open_file(source)
                    for number in range(reader.num_record_batches):
                        yield reader.get_batch(number)

    return replay


def _replicate(spark: "SparkSession", settings: Settings, source: BenchProducer) -> StepTimes:
    times = StepTimes()
    run(settings, once=True, spark=spark, observer=times)
    if times.rows != source.documents:
        raise AssertionError(f"found {times.rows} rows, expected {source.documents}")
    return times


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="benchmarks.end_to_end", description=__doc__.split("\n")[0]
    )
    parser.add_argument("--documents", type=int, default=1_000_000)
    parser.add_argument("--value-bytes", type=int, default=1024)
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--driver-memory", default="2g")
    parser.add_argument("--folder", help="where the tables go (default: the temporary folder)")
    parser.add_argument("--memory-folder", default="/dev/shm", help="a file system in memory")  # noqa: S108
    return parser.parse_args()


if __name__ == "__main__":
    main()
