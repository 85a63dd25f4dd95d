"""Measures a command that finds little to do, beside a bare PySpark session: seconds of CPU.

    make bench BENCH=start_up ARGS="--repetitions 3"

A producer, a lake of it, and then in turn, each as a process of its own from start to exit: a
PySpark session that counts the rows of the lake's small table; ``status``, ``plan`` and
``run --once`` with nothing to do; and ``run --once`` after 100 changes. CPU is that of the whole
tree of processes, the JVM and Python's workers among them: what loses its parent is adopted here.
"""

import argparse
import sys
import tempfile
from pathlib import Path
from time import monotonic
from typing import Final

from benchmarks._commands import CommandCost, adopt_orphans, cost_of, lake_options, report, sets_of
from benchmarks._producer import PASSWORD, USER
from dcp.lake.spark.jars import delta_jars
from dcp.lake.spark.session_settings import DELTA_CATALOG, DELTA_EXTENSION
from dcp.producer.cluster import ProducerCluster
from dcp.producer.cluster_settings import ClusterSettings

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
        sets = sets_of(lake_options(cluster.seeds, folder))
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
        cost_of(commands["run --once, idle"])
        found: dict[str, list[CommandCost]] = {title: [] for title in commands}
        for repetition in range(arguments.repetitions):
            for title, words in commands.items():
                if title.endswith("changes"):
                    write(repetition * _CHANGES, _CHANGES)
                found[title].append(cost_of(words))
    report(found)


if __name__ == "__main__":
    main()
