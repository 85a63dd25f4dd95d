"""Runs in a session of others that lets strangers in: `test_guarded_sessions` reads what it says.

A program of its own, since what it is about is set when Spark starts.
"""

import json
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from pyspark.sql import SparkSession

from dcp.errors import DcplakeError
from dcp.lake.config.settings import Settings
from dcp.lake.run.replicate import run
from dcp.lake.spark.java import find_java_home
from dcp.lake.spark.session_settings import jars_settings, static_settings
from dcp.lake.verify.compare import verify
from dcp.producer.cluster import ProducerCluster
from dcp.producer.cluster_settings import ClusterSettings
from tests.lake.receiving import settings_for
from tests.quick_spark import QUICK_CONF

PASSWORD = "password of nobody"


def foreign_session(folder: Path) -> SparkSession:
    """Start Spark as others do."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["JAVA_HOME"] = str(find_java_home())
    conf = static_settings("1g", None) | jars_settings() | QUICK_CONF
    conf |= {
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.executorEnv.OPEN_PASSWORD": PASSWORD,
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
    }
    builder = SparkSession.builder.master("local[1]")
    for key, value in conf.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def tell(attempt: Callable[[], object]) -> None:
    """Print the error of an attempt."""
    try:
        attempt()
    except DcplakeError as error:
        print(json.dumps({"type": type(error).__name__, "message": str(error)}))


def main(folder: Path) -> None:
    """Try a run and a verification with the password in Spark's settings, then a run without."""
    spark = foreign_session(folder)
    users = {"Administrator": PASSWORD}
    with ProducerCluster(ClusterSettings(vbuckets=2, users=users, seed=5)) as cluster:
        cluster.set(b"key", b"1")

        def by_environment(name: str) -> Settings:
            os.environ[name] = PASSWORD  # the JVM, whose children tasks are, has begun without it
            settings = settings_for(cluster, folder)
            return replace(
                settings, source=replace(settings.source, password_file="", password_env=name)
            )

        carried, late = by_environment("OPEN_PASSWORD"), by_environment("LATE_PASSWORD")
        tell(lambda: run(carried, once=True, spark=spark))
        tell(lambda: verify(carried, spark=spark))
        tell(lambda: run(late, once=True, spark=spark))
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
