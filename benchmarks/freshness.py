"""Measures the age of a change when it is visible in ``docs_live`` and in ``docs``, and a floor.

    make bench BENCH=freshness ARGS="--rates 100 1000 --seconds 180"

``dcplake run`` follows a producer on which documents are overwritten at a steady rate. A change is
written at the time in its CAS. It can be seen in ``docs_live`` from the commit of the first round
in which its snapshot is complete, and in ``docs`` from that of the first apply up to such a round:
both times are those of the commits' files, so that looking costs nothing.

The floor is a loop by hand, in a session with the same settings: whatever the same rate has brought
since the last pass goes into one plain append, then into one MERGE with the keys as literals. It
has no source to read from, keeps no promise, and does nothing else.
"""

import argparse
import shutil
import signal
import subprocess
import sys
import tempfile
from bisect import bisect_left
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from time import sleep, time
from typing import TYPE_CHECKING, Any

import psutil
import pyarrow as pa

from benchmarks._commands import lake_options, sets_of
from benchmarks._producer import BenchProducer, producer
from benchmarks._runs import session, settings_for
from dcp.lake.adapters.spark_store import SparkStore
from dcp.lake.change_log.changes import latest_round
from dcp.lake.config.settings import Settings
from dcp.lake.store.location import LakeLocation
from dcp.lake.store.sql import string_list
from dcp.lake.tables.history import WHOLE, history
from dcp.lake.tables.lake_tables import LakeTables, open_lake
from dcp.lake.tables.schema import RowKind, is_kind

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_NANOSECONDS = 1_000_000_000
_SETTLE_SECONDS = 20.0


class _SparkNeededError(AssertionError):
    pass


@dataclass
class Ages:
    """Ages of changes when they could be seen, in seconds."""

    live: list[float] = field(default_factory=list)
    docs: list[float] = field(default_factory=list)


def main() -> None:
    arguments = _arguments()
    folder = Path(tempfile.mkdtemp(prefix="dcplake-bench-", dir=arguments.folder))
    try:
        for rate in arguments.rates:
            with producer(arguments.documents, arguments.value_bytes) as source:
                _ours(arguments, source, folder / f"ours-{rate}", rate)
            if not arguments.no_floor:
                ages, passes = _by_hand(arguments, folder / f"floor-{rate}", rate)
                _report(f"by hand, {rate}/s, {passes} passes", ages)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _ours(arguments: argparse.Namespace, source: BenchProducer, folder: Path, rate: int) -> None:
    folder.mkdir()
    settings = settings_for(source, folder, "lake")
    options = {
        **lake_options(source.seeds, folder),
        "spark.master": f"local[{arguments.cores}]",
        **dict(each.split("=", 1) for each in arguments.set),
    }
    words = [sys.executable, "-m", "dcp.cli.main", "run", *sets_of(options)]
    with (folder / "run.log").open("wb") as log:
        process = subprocess.Popen(words, stdout=log, stderr=subprocess.STDOUT)
        try:
            lake = _first_apply(settings, process)
            sleep(_SETTLE_SECONDS)
            first, before = latest_round(lake) + 1, _cpu_seconds(process.pid)
            begin = time()
            written = source.write(rate, arguments.seconds)
            cpu_seconds, seconds = _cpu_seconds(process.pid) - before, time() - begin
            sleep(_SETTLE_SECONDS)
            process.send_signal(signal.SIGTERM)
            code = process.wait(120)
        finally:
            process.kill()
    if code:
        raise AssertionError((folder / "run.log").read_text())
    ages, rounds, applies = _ages(lake, first)
    print(
        f"{written:,} changes in {seconds:.0f} s: {rounds} rounds, {applies} applies, "
        f"{cpu_seconds / seconds:.2f} CPU seconds a second"
    )
    _report(f"dcplake run, {rate}/s", ages)


def _first_apply(settings: Settings, process: "subprocess.Popen[bytes]") -> LakeTables:
    """Wait until the table is there and filled; return the lake."""
    location = LakeLocation(root=settings.lake.root)
    docs = SparkStore(_no_spark, location).table("docs")
    while process.poll() is None:
        sleep(0.5)
        with suppress(_SparkNeededError):  # delta-rs reads no table that is just being made
            if docs.exists() and history(docs, 1)[0].version > 0:
                return open_lake(SparkStore(_no_spark, location))
    raise AssertionError(f"the run ended with {process.returncode}")


def _ages(lake: LakeTables, first_round: int) -> tuple[Ages, int, int]:
    committed = {
        each.round: each.time.timestamp()
        for each in history(lake.changes, WHOLE)
        if each.round is not None
    }
    applied = sorted(
        (int(each.ours["to_round"]), each.time.timestamp())
        for each in history(lake.table("docs"), WHOLE)
        if each.is_apply
    )
    complete: dict[int, list[tuple[int, int]]] = {}
    for row in lake.changes.rows(
        "round, vbucket, position", f"{is_kind(RowKind.POSITION)} AND round >= {first_round}"
    ):
        end = int(row["position"]["complete_seqno"])
        complete.setdefault(row["vbucket"], []).append((end, row["round"]))
    ages = Ages()
    for ends in complete.values():
        ends.sort()
    for row in lake.changes.rows(
        "vbucket, seqno, cas", f"{is_kind(RowKind.MUTATION)} AND round >= {first_round}"
    ):
        written = (int(row["cas"]) >> 16 << 16) / _NANOSECONDS
        ends = complete[row["vbucket"]]
        number = ends[bisect_left(ends, (int(row["seqno"]), 0))][1]
        ages.live.append(committed[number] - written)
        ages.docs.append(applied[bisect_left(applied, (number, 0.0))][1] - written)
    rounds = sum(number >= first_round for number in committed)
    return ages, rounds, sum(to_round >= first_round for to_round, _ in applied)


def _by_hand(arguments: argparse.Namespace, folder: Path, rate: int) -> tuple[Ages, int]:
    """Append and merge, pass after pass, what was due since the one before."""
    folder.mkdir()
    spark = session(folder, arguments.cores, "2g")
    random = Random(rate)
    log, docs = folder / "changes", folder / "docs"
    rows = _rows(range(arguments.documents), arguments.value_bytes, random)
    spark.createDataFrame(rows).write.format("delta").save(str(docs))
    ages, passes, done, begin = Ages(), 0, 0, time()
    while (passed := time() - begin) < arguments.seconds:
        due = int(passed * rate)
        if due == done:
            sleep(0.002)
            continue
        written = [begin + number / rate for number in range(done, due)]
        keys = {random.randrange(arguments.documents) for _ in written}
        rows = _rows(sorted(keys), arguments.value_bytes, random)
        _append_and_merge(spark, rows, log, docs, ages, written)
        done, passes = due, passes + 1
    spark.stop()
    return ages, passes


def _append_and_merge(
    spark: "SparkSession",
    rows: pa.Table,
    log: Path,
    docs: Path,
    ages: Ages,
    written: Sequence[float],
) -> None:
    frame = spark.createDataFrame(rows)
    frame.write.format("delta").mode("append").save(str(log))
    appended = time()
    frame.createOrReplaceTempView("by_hand")
    spark.sql(
        f"MERGE INTO delta.`{docs}` t USING by_hand s ON t.key = s.key "
        f"AND t.key IN ({string_list(rows['key'].to_pylist())}) "
        "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
    ).collect()
    merged = time()
    ages.live += [appended - each for each in written]
    ages.docs += [merged - each for each in written]


def _rows(numbers: Sequence[int], value_bytes: int, random: Random) -> pa.Table:
    keys = [f"doc:{number:010d}" for number in numbers]
    return pa.table({"key": keys, "value": [random.randbytes(value_bytes) for _ in keys]})


def _report(name: str, ages: Ages) -> None:
    for table, found in (("docs_live", ages.live), ("docs", ages.docs)):
        found.sort()
        shares = [found[min(len(found) - 1, int(len(found) * each))] for each in (0.5, 0.95, 0.99)]
        told = "  ".join(f"{each:6.2f}" for each in shares)
        print(f"{name:36} {table:10} p50, p95, p99 seconds: {told}", flush=True)


def _cpu_seconds(pid: int) -> float:
    found = 0.0
    for each in [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]:
        used = each.cpu_times()
        found += used.user + used.system + used.children_user + used.children_system
    return found


def _no_spark() -> Any:
    raise _SparkNeededError("a lake on this machine is read without Spark")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="benchmarks.freshness", description=__doc__.split("\n")[0]
    )
    parser.add_argument(
        "--rates", type=int, nargs="+", default=[100, 1000], help="changes a second"
    )
    parser.add_argument("--seconds", type=float, default=180.0)
    parser.add_argument("--documents", type=int, default=100_000)
    parser.add_argument("--value-bytes", type=int, default=200)
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--set", action="append", default=[], help="a setting of ours, key=value")
    parser.add_argument("--no-floor", action="store_true")
    parser.add_argument("--folder", help="where the tables go (default: the temporary folder)")
    return parser.parse_args()


if __name__ == "__main__":
    main()
