"""Measures applies without deletion vectors: the same rounds on a lake with and on one without.

    make bench BENCH=deletion_vectors ARGS="--documents 300000 --changes 1000 --repetitions 3"

Two producers of the same documents, two lakes, one session; rounds of ``--changes`` updates on
either, in turn, anywhere or in 4 vbuckets only. MiB added are Delta's own figure of the MERGE.
"""

import argparse
import tempfile
from dataclasses import replace
from pathlib import Path
from statistics import median

import psutil

from benchmarks._producer import BenchProducer, producer
from benchmarks._runs import COUNTED_READS, FEW_VBUCKETS, MIB, session, settings_for
from benchmarks.rounds import Case, Meter
from dcp.lake.adapters.spark_store import SparkStore
from dcp.lake.run.replicate import run
from dcp.lake.store.location import LakeLocation
from dcp.lake.tables.history import history


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--documents", type=int, default=300_000)
    parser.add_argument("--value-bytes", type=int, default=200)
    parser.add_argument("--changes", type=int, default=1_000)
    parser.add_argument("--repetitions", type=int, default=3)
    arguments = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="dcplake-bench-") as folder,
        producer(arguments.documents, arguments.value_bytes) as with_vectors,
        producer(arguments.documents, arguments.value_bytes) as without,
    ):
        _measure(arguments, {True: with_vectors, False: without}, Path(folder))


def _measure(
    arguments: argparse.Namespace, sources: dict[bool, BenchProducer], folder: Path
) -> None:
    others = {each.pid for each in psutil.Process().children(recursive=True)}
    spark = session(folder, 2, "2g", COUNTED_READS)
    meter = Meter(spark, others)
    cases, added = [], []
    for has_vectors, source in sources.items():
        settings = settings_for(source, folder, str(has_vectors))
        settings = replace(settings, lake=replace(settings.lake, deletion_vectors=has_vectors))
        run(settings, once=True, spark=spark)
        name = "with" if has_vectors else "without"
        cases.append(Case(f"{name}, all vbuckets", source, settings, None))
        cases.append(Case(f"{name}, 4 vbuckets", source, settings, FEW_VBUCKETS))
    for repetition in range(arguments.repetitions + 1):
        for case in cases:
            case.measure(spark, meter, arguments.changes, repetition)
            docs = SparkStore(lambda: spark, LakeLocation(root=case.settings.lake.root)).table(
                "docs"
            )
            added.append(float(history(docs)[0].metrics["numTargetBytesAdded"]) / MIB)
    print(
        f"{arguments.changes:,} of {arguments.documents:,} documents change; medians of "
        f"{arguments.repetitions} (one more to warm up)"
    )
    print(f"{'deletion vectors':28}{'run':>8}{'apply':>8} s{'read':>8}{'added':>8} MiB")
    for number, case in enumerate(cases):
        figures = (case.whole, case.applies, case.read, added[number :: len(cases)])
        whole, apply, read, new = (median(each[1:]) for each in figures)
        print(f"{case.name:28}{whole:8.2f}{apply:8.2f}  {read:8.2f}{new:8.2f}")


if __name__ == "__main__":
    main()
