"""Makes the archive of loaded classes with which the JVMs of the tests start: `make test` runs it.

A JVM with Spark and Delta loads some 18,000 classes before its first commit is made; with the
archive it finds them parsed and checked. It is only a cache: a JVM that it does not fit (another
Java, other jars) does without it, and says nothing.
"""

import os
import tempfile
from pathlib import Path

from pyspark import SparkContext

from dcp.lake.run import run
from dcp.lake.session import build_session
from dcp.producer.cluster import ProducerCluster
from dcp.producer.settings import ClusterSettings
from tests.lake.receiving import settings_for
from tests.quick_spark import ARCHIVE, ARCHIVE_SECONDS, QUICK_CONF, QUICK_JAVA_OPTIONS


def make_archive(archive: Path) -> None:
    """Replicate once, in a JVM that archives its classes at its end."""
    archive.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=archive.parent) as folder:
        made = Path(folder) / archive.name
        java_options = f"{QUICK_JAVA_OPTIONS} -XX:ArchiveClassesAtExit={made}"
        _replicate(Path(folder), java_options)
        if made.exists():  # not every Java can; the tests run without it, too
            made.replace(archive)


def _replicate(folder: Path, java_options: str) -> None:
    spark = build_session(
        master="local[2]",
        driver_memory="1500m",
        log_file=folder / "spark.log",
        extra=QUICK_CONF
        | {
            "spark.driver.extraJavaOptions": java_options,
            "spark.sql.warehouse.dir": str(folder / "warehouse"),
        },
    )
    with ProducerCluster(ClusterSettings(nodes=1, vbuckets=2, seed=1)) as cluster:
        settings = settings_for(cluster, folder, round={"quiet_seconds": 0.2})
        for number in range(20):
            cluster.set(b"key-%d" % number, b"1")
        run(settings, once=True, spark=spark)
    gateway = SparkContext._gateway
    assert gateway is not None
    spark.stop()
    gateway.proc.stdin.close()  # this ends the JVM
    gateway.proc.wait(ARCHIVE_SECONDS)


if __name__ == "__main__":
    os.chdir(Path(__file__).parents[1])
    make_archive(ARCHIVE)
    print(f"tests: {ARCHIVE}")
