"""The settings of a session: what its master and its stores ask for, with the reason of each.

``docs/howto/operations.md`` says what operators may change.
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
    """Return settings that Spark needs before its start, besides the jars."""
    settings = {
        EXTENSIONS: DELTA_EXTENSION,
        "spark.sql.catalog.spark_catalog": DELTA_CATALOG,
        "spark.driver.memory": driver_memory,
        "spark.task.maxFailures": str(TASK_ATTEMPTS),
        # A second copy of a task would open the same streams again and lose the first one's.
        "spark.speculation": "false",
        # What receives and what applies side by side have a pool each (`in_pool`).
        "spark.scheduler.mode": "FAIR",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        # 1.5 times as fast as TCP for short tasks, and no port to guard.
        "spark.python.unix.domain.socket.enabled": "true",
        # By its own default (20, each wait twice the last one) S3A would wait for days for a store
        # that answers 503.
        "spark.hadoop.fs.s3a.retry.throttle.limit": "6",
    }
    if log4j is not None:
        log_option = f"-Dlog4j2.configurationFile={log4j.as_uri()}"
        settings[JAVA_OPTIONS] = f"{log_option} {driver_java_options()}"
    return settings | task_settings()


def jars_settings(
    is_there: Callable[[str], bool] = lambda _: False, *, on_s3: bool = False
) -> dict[str, str]:
    """Return settings that bring the jars; ``is_there`` says which classes Spark has already."""
    jars = [] if is_there(DELTA_EXTENSION) else delta_jars()
    jars += [] if is_there(LOG_STORE) else [LOG_STORE_JAR]
    jars += s3_jars() if on_s3 and not is_there(S3A_CLASS) else []
    return {JARS: ",".join(str(jar) for jar in jars)} if jars else {}


def log_store_settings(given: Callable[[str], str | None]) -> dict[str, str]:
    """Let the store itself refuse the second commit of a version on S3.

    ``given`` returns the user's settings. The user may have chosen a log store, and Delta refuses
    two.
    """
    if given(LOG_STORE_OF_ALL):
        return {}
    keys = (f"spark.delta.logStore.{scheme}.impl" for scheme in S3_SCHEMES)
    return {key: given(key) or LOG_STORE for key in keys}


def guarding_settings(master: str) -> dict[str, str]:
    """Return settings that keep strangers out of a session's processes.

    Without them Spark's block manager serves task data to any client. Spark makes a secret for each
    session. Under a standalone master the secret is the cluster's, and its owner sets it.
    """
    if master.startswith("spark://"):
        return {}
    settings = {"spark.authenticate": "true", "spark.network.crypto.enabled": "true"}
    if master.startswith("local"):  # all of Spark is on this machine
        settings |= {
            "spark.driver.bindAddress": LOOPBACK,
            "spark.driver.host": LOOPBACK,
            # Whoever may write to these sockets is served without a further question.
            "spark.python.unix.domain.socket.dir": str(sockets_folder()),
            # Spark gives up a silent executor. Here (Spark 4.2) no scheduler takes it back, and the
            # session of a machine that slept for a while would end.
            "spark.storage.blockManagerHeartbeatTimeoutMs": "3650d",
        }
    return settings


def warehouse_settings() -> dict[str, str]:
    """Return Spark's default folder of tables if Spark itself would miss it.

    Spark takes the path from its URI and decodes nothing: a space becomes ``%20``.
    """
    folder = Path("spark-warehouse").absolute()
    if folder.as_uri() == f"file://{folder}":
        return {}
    return {"spark.sql.warehouse.dir": f"file:{folder}"}


def python_of_tasks(configured: str | None, master: str) -> str:
    """Return the Python of tasks: ``spark.pyspark.python``, else this one.

    On a cluster ``PYSPARK_PYTHON`` counts, too. With a local master it is ignored: images set it
    for other programs, to a Python that may lack dcplake.
    """
    elsewhere = "" if master.startswith("local") else os.environ.get(PYTHON_VARIABLE)
    return configured or elsewhere or sys.executable


def session_settings(slots: int) -> dict[str, str]:
    """Return settings that can be set at any time."""
    cores = str(max(1, slots))
    return {
        "spark.sql.shuffle.partitions": cores,
        "spark.databricks.delta.snapshotPartitions": cores,
        # MERGE's outer join: hashing beats sorting the whole target.
        "spark.sql.join.preferSortMergeJoin": "false",
        "spark.sql.parquet.compression.codec": "zstd",
        # Memory of a writing and of a reading task, however large the documents: memory.py.
        **writer_settings(),
        "spark.sql.execution.arrow.maxRecordsPerBatch": "10000",
        # Without these every OPTIMIZE rewrites the whole table up to 100 GiB.
        "spark.databricks.delta.optimize.clustering.mergeStrategy.minCubeSize.threshold": str(
            64 * 1024 * 1024
        ),
        "spark.databricks.delta.optimize.clustering.mergeStrategy.minCubeSize.targetCubeSize": (
            str(256 * 1024 * 1024)
        ),
    }
