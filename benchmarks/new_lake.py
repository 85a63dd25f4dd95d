"""A first load as whole commands, beside a bare PySpark that appends the same rows: seconds of CPU.

    make bench BENCH=new_lake ARGS="--documents 200000 --value-bytes 1024"

In turn, each as a process of its own from start to exit: a script that starts Spark and appends
to a new Delta table the rows that the round would receive, from files in memory; ``run --once``
into a new lake, without applying; and ``run --once``. CPU is that of the whole tree of processes,
the producer's left out.
"""

import argparse
import json
import os
import shutil
import sys
import tempfile
from inspect import getsource
from pathlib import Path
from typing import Final

from benchmarks._commands import CommandCost, adopt_orphans, cost_of, lake_options, report, sets_of
from benchmarks._producer import producer
from benchmarks._runs import settings_for
from benchmarks.end_to_end import plan_for, record, replay_function
from dcp.lake.spark.jars import delta_jars
from dcp.lake.spark.session_settings import DELTA_CATALOG, DELTA_EXTENSION
from dcp.lake.tables.schema import CHANGES, spark_ddl

# The bare session imports nothing of ours, so it is given the source of the function.
_APPEND: Final = f"""
from __future__ import annotations
import json, os, shutil, sys
import pyarrow as pa
from pyspark.sql import SparkSession

jars, extension, catalog, columns, table, files = sys.argv[1:]
files = json.loads(files)
os.environ["PYSPARK_PYTHON"] = sys.executable
shutil.rmtree(table, ignore_errors=True)

{getsource(replay_function)}
spark = (
    SparkSession.builder.master("local[*]").config("spark.jars", jars)
    .config("spark.driver.memory", "2g").config("spark.sql.extensions", extension)
    .config("spark.sql.catalog.spark_catalog", catalog).getOrCreate()
)
rows = spark.range(0, len(files), 1, len(files)).mapInArrow(replay_function(files), columns)
rows.write.format("delta").save(table)
"""


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="benchmarks.new_lake", description=__doc__.split("\n")[0])
    parser.add_argument("--documents", type=int, default=200_000)
    parser.add_argument("--value-bytes", type=int, default=1024)
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--memory-folder", default="/dev/shm", help="a file system in memory")  # noqa: S108
    arguments = parser.parse_args()
    adopt_orphans()
    with (
        tempfile.TemporaryDirectory() as name,
        tempfile.TemporaryDirectory(dir=arguments.memory_folder) as memory,
        producer(arguments.documents, arguments.value_bytes) as source,
    ):
        folder = Path(name)
        settings = settings_for(source, folder, "lake")
        files, _ = record(settings, plan_for(settings, os.cpu_count() or 1), Path(memory))
        options = lake_options(source.seeds, folder)
        sets = sets_of(options | {"round.target_bytes": str(settings.round.target_bytes)})
        ours = [sys.executable, "-m", "dcp.cli.main", "run", "--once", *sets]
        jars = ",".join(map(str, delta_jars()))
        bare = [jars, DELTA_EXTENSION, DELTA_CATALOG, spark_ddl(CHANGES), str(folder / "plain")]
        commands = {
            "plain append": [sys.executable, "-c", _APPEND, *bare, json.dumps(files)],
            "run --once, no apply": [*ours, "--set", "apply.when=never"],
            "run --once": ours,
        }
        found: dict[str, list[CommandCost]] = {title: [] for title in commands}
        for _ in range(arguments.repetitions):
            for title, words in commands.items():
                shutil.rmtree(settings.lake.root, ignore_errors=True)
                found[title].append(cost_of(words))
    report(found)


if __name__ == "__main__":
    main()
