"""The settings of a Spark session, with their reasons.

``docs/howto/protect-secrets.md`` says what operators may change.
"""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

from dcp.lake.config.lake_root import S3_SCHEMES
from dcp.lake.config.memory import writer_settings
from dcp.lake.config.spark_master import TASK_ATTEMPTS
from dcp.lake.config.storage_options import LOG_STORE, LOG_STORE_OF_ALL, S3A_CLASS
from dcp.lake.spark.jars import LOG_STORE_JAR, delta_jars, s3_jars
from dcp.lake.spark.jvm_environment import LOOPBACK, driver_java_options, task_settings
from dcp.lake.spark.leftovers import sockets_folder

DELTA_EXTENSION: Final = "io.delta.sql.DeltaSparkSessionExtension"
DELTA_CATALOG: Final = "org.apache.spark.sql.delta.catalog.DeltaCatalog"

JAVA_OPTIONS: Final = "spark.driver.extraJavaOptions"
EXECUTOR_JAVA_OPTIONS: Final = "spark.executor.extraJavaOptions"
JARS: Final = "spark.jars"
PACKAGES: Final = "spark.jars.packages"
S3_PACKAGE: Final = "org.apache.hadoop:hadoop-aws:"
EXTENSIONS: Final = "spark.sql.extensions"
PYTHON: Final = "spark.pyspark.python"
PYTHON_VARIABLE: Final = "PYSPARK_PYTHON"


def static_settings(driver_memory: str, log4j: Path | None) -> dict[str, str]:
    """Return the settings that Spark needs at its start, except the jars."""
    settings = {
        EXTENSIONS: DELTA_EXTENSION,
        "spark.sql.catalog.spark_catalog": DELTA_CATALOG,
        "spark.driver.memory": driver_memory,
        "spark.task.maxFailures": str(TASK_ATTEMPTS),
        # A speculative copy of a task would open the same streams again and take them from it.
        "spark.speculation": "false",
        # Receiving and applying run side by side, each in its pool (`in_pool`).
        "spark.scheduler.mode": "FAIR",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        # 1.5 times as fast as TCP for short tasks, and needs no open port.
        "spark.python.unix.domain.socket.enabled": "true",
        # By default (20 retries, each wait twice as long), S3A would wait for days for a store that
        # answers 503.
        "spark.hadoop.fs.s3a.retry.throttle.limit": "6",
    }
    if log4j is not None:
        log_option = f"-Dlog4j2.configurationFile={log4j.as_uri()}"
        settings[JAVA_OPTIONS] = f"{log_option} {driver_java_options()}"
    return settings | task_settings()


def jars_settings(
    is_there: Callable[[str], bool] = lambda _: False, *, on_s3: bool = False
) -> dict[str, str]:
    """Return settings that add the jars; ``is_there`` says which classes Spark already has."""
    jars = [] if is_there(DELTA_EXTENSION) else delta_jars()
    jars += [] if is_there(LOG_STORE) else [LOG_STORE_JAR]
    jars += s3_jars() if on_s3 and not is_there(S3A_CLASS) else []
    return {JARS: ",".join(str(jar) for jar in jars)} if jars else {}


def log_store_settings(given: Callable[[str], str | None]) -> dict[str, str]:
    """Return settings that let the store itself refuse the second commit of a version on S3.

    ``given`` returns the user's settings. If the user has chosen one log store for all schemes, the
    result is empty, because Delta refuses both kinds of settings.
    """
    if given(LOG_STORE_OF_ALL):
        return {}
    keys = (f"spark.delta.logStore.{scheme}.impl" for scheme in S3_SCHEMES)
    return {key: given(key) or LOG_STORE for key in keys}


def guarding_settings(master: str) -> dict[str, str]:
    """Return settings that keep strangers away from the processes of a session.

    Otherwise, Spark's block manager serves task data to any client. Spark makes a secret for each
    session, but under a standalone master, the cluster's owner sets one.
    """
    if master.startswith("spark://"):
        return {}
    settings = {"spark.authenticate": "true", "spark.network.crypto.enabled": "true"}
    if master.startswith("local"):  # all processes are on this machine
        settings |= {
            "spark.driver.bindAddress": LOOPBACK,
            "spark.driver.host": LOOPBACK,
            # Any user who may write to these sockets is served.
            "spark.python.unix.domain.socket.dir": str(sockets_folder()),
            # Spark drops a silent executor. In local mode (Spark 4.2) no scheduler adds it again,
            # and a session would not survive the sleep of its machine.
            "spark.storage.blockManagerHeartbeatTimeoutMs": "3650d",
        }
    return settings


def warehouse_settings() -> dict[str, str]:
    """Return a setting for Spark's default folder of tables, if Spark would mistake its path.

    Spark uses the path of a URI without decoding it: a space becomes ``%20``.
    """
    folder = Path("spark-warehouse").absolute()
    if folder.as_uri() == f"file://{folder}":
        return {}
    return {"spark.sql.warehouse.dir": f"file:{folder}"}


def python_of_tasks(configured: str | None, master: str) -> str:
    """Return the Python of tasks: ``spark.pyspark.python``, or this one.

    On a cluster, ``PYSPARK_PYTHON`` counts as well. Under a local master it is ignored: images set
    it for other programs, to a Python that may lack dcplake.
    """
    elsewhere = "" if master.startswith("local") else os.environ.get(PYTHON_VARIABLE)
    return configured or elsewhere or sys.executable


def session_settings(slots: int) -> dict[str, str]:
    """Return the settings that can be set at any time."""
    cores = str(max(1, slots))
    return {
        "spark.sql.shuffle.partitions": cores,
        "spark.databricks.delta.snapshotPartitions": cores,
        # For the outer join of a MERGE, hashing costs less than sorting the whole target.
        "spark.sql.join.preferSortMergeJoin": "false",
        "spark.sql.parquet.compression.codec": "zstd",
        # They bound the memory of writing and reading tasks for any size of documents (memory.py).
        **writer_settings(),
        "spark.sql.execution.arrow.maxRecordsPerBatch": "10000",
        # By default, every OPTIMIZE rewrites a whole table of up to 100 GiB.
        "spark.databricks.delta.optimize.clustering.mergeStrategy.minCubeSize.threshold": str(
            64 * 1024 * 1024
        ),
        "spark.databricks.delta.optimize.clustering.mergeStrategy.minCubeSize.targetCubeSize": (
            str(256 * 1024 * 1024)
        ),
    }
