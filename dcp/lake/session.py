"""The only place that makes a Spark session, or takes one over, and sets it up for Delta.

Three cases, told apart here and nowhere else:

* this Python process starts Spark itself: everything is set, and Spark's own output goes to a file;
* ``spark-submit`` has started the JVM: its settings win, the Delta jars join its class path;
* a session exists already (a notebook, a Spark Connect client): only what a session may set is set.

Why each setting: the tables below. ``docs/operations.md`` says what an operator may change.
"""

import os
import signal
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from dcp.errors import ConfigError, SetupError
from dcp.lake.leftovers import keep_log, remove_empty_warehouse_at_exit, temporary_log_file
from dcp.lake.log4j import write_log4j_properties
from dcp.lake.memory import writer_settings
from dcp.lake.runtime import delta_jars, find_java_home

TASK_ATTEMPTS: Final = 4
"""How often a task may be tried: a killed Python worker costs one attempt, not the round."""

DELTA_EXTENSION: Final = "io.delta.sql.DeltaSparkSessionExtension"
DELTA_CATALOG: Final = "org.apache.spark.sql.delta.catalog.DeltaCatalog"

JAVA_OPTIONS: Final = "spark.driver.extraJavaOptions"

MALLOC_ARENAS: Final = "2"

PARQUET_IN_LIST: Final = 200
"""Longest IN list that Parquet's reader may get. It becomes a chain of ORs that is serialised
recursively: at 1,000 it overflowed the stack of a task, which ends the whole JVM."""


def build_session(
    *,
    app_name: str = "dcplake",
    master: str | None = None,
    driver_memory: str = "2g",
    log_file: Path | None = None,
    extra: Mapping[str, str] | None = None,
) -> SparkSession:
    """Return a session that is ready for the lake; the one that exists already where there is one.

    Args:
        app_name: shown in Spark's UI and logs.
        master: for example ``local[2]``; None means what spark-submit says, else all local cores.
        driver_memory: the JVM's heap, as Spark writes it (``2g``). In local mode that is all of it.
        log_file: where Spark's own output goes; None chooses a new file in the temporary folder.
        extra: further Spark settings; they win over ours (the JVM's options are added to ours).

    Raises:
        SetupError: Java or the Delta jars are missing, or Spark did not start (names its log).
        ConfigError: the session that exists lacks Delta.

    """
    import delta.exceptions  # noqa: F401  (registers Delta's typed errors)

    settings = dict(extra or {})
    session = SparkSession.getActiveSession()
    if session is None:
        session = _start(app_name, master, driver_memory, log_file, settings)
    _set_up(session, settings)
    return session


def local_master(master: str) -> str:
    """Return ``master`` with retries: local mode alone takes them from its name, ``local[2,4]``."""
    if master == "local":
        return f"local[1,{TASK_ATTEMPTS}]"
    if master.startswith("local[") and "," not in master:
        return f"{master[:-1]},{TASK_ATTEMPTS}]"
    return master


def slots_of(master: str) -> int:
    """Return how many tasks run at once under a local master; 0 where the cluster decides."""
    if not master.startswith("local"):
        return 0
    cores = master.removeprefix("local").strip("[]").split(",")[0] or "1"
    return os.cpu_count() or 1 if cores == "*" else int(cores)


def session_slots(spark: SparkSession) -> int:
    """Return how many tasks of a session run at once; 0 where the cluster decides."""
    return slots_of(spark.conf.get("spark.master", "") or "")


def static_settings(driver_memory: str, log4j: Path | None) -> dict[str, str]:
    """Return what must be set before Spark starts."""
    settings = {
        "spark.jars": ",".join(str(jar) for jar in delta_jars()),
        "spark.sql.extensions": DELTA_EXTENSION,
        "spark.sql.catalog.spark_catalog": DELTA_CATALOG,
        "spark.driver.memory": driver_memory,
        "spark.task.maxFailures": str(TASK_ATTEMPTS),
        # A second copy of a task would open the same streams again and lose the first one's.
        "spark.speculation": "false",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        # 1.5 times as fast as TCP for short tasks, and no port to guard.
        "spark.python.unix.domain.socket.enabled": "true",
    }
    if log4j is not None:
        settings[JAVA_OPTIONS] = f"-Dlog4j2.configurationFile={log4j.as_uri()}"
    return settings


def session_settings(slots: int) -> dict[str, str]:
    """Return what every session needs; all of it can be set at any time."""
    cores = str(max(1, slots))
    return {
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.ansi.enabled": "true",
        # Keys written as literals may contain ${.
        "spark.sql.variable.substitute": "false",
        "spark.sql.shuffle.partitions": cores,
        "spark.databricks.delta.snapshotPartitions": cores,
        # MERGE's outer join: hashing beats sorting the whole target.
        "spark.sql.join.preferSortMergeJoin": "false",
        "spark.sql.parquet.pushdown.inFilterThreshold": str(PARQUET_IN_LIST),
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
        # A version is needed until the rollback horizon has passed since it was superseded.
        "spark.databricks.delta.vacuum.enforceTimeTravelWithinDeletedFileRetentionDuration": (
            "false"
        ),
    }


def _start(
    app_name: str,
    master: str | None,
    driver_memory: str,
    log_file: Path | None,
    extra: Mapping[str, str],
) -> SparkSession:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    remove_empty_warehouse_at_exit()
    if "PYSPARK_GATEWAY_PORT" in os.environ:  # spark-submit made the JVM; its settings come first
        return _start_in_submitted_jvm(app_name, master, extra)
    os.environ["JAVA_HOME"] = str(find_java_home())
    # glibc gives every thread an arena of its own, which keeps what was freed; JVM and workers too.
    os.environ.setdefault("MALLOC_ARENA_MAX", MALLOC_ARENAS)
    log_file = log_file or temporary_log_file()
    settings = static_settings(driver_memory, write_log4j_properties(log_file))
    settings["spark.master"] = local_master(master or "local[*]")
    settings["spark.app.name"] = app_name
    logging = settings[JAVA_OPTIONS]
    settings |= extra
    if JAVA_OPTIONS in extra:
        settings[JAVA_OPTIONS] = f"{logging} {extra[JAVA_OPTIONS]}"
    try:
        return _start_jvm(settings, log_file)
    except SetupError:
        keep_log()
        raise


def _start_jvm(settings: Mapping[str, str], log_file: Path) -> SparkSession:
    """Start Spark; what its JVM prints, warnings of Java itself too, goes to ``log_file``."""
    from pyspark import SparkConf, SparkContext
    from pyspark.java_gateway import launch_gateway

    conf = SparkConf(loadDefaults=False).setAll(list(settings.items()))
    try:
        with log_file.open("ab") as output:
            gateway = launch_gateway(  # type: ignore[no-untyped-call]
                conf, {"stdout": output, "stderr": output}
            )
        with _sigint_kept():
            SparkContext(conf=conf, gateway=gateway)
        return SparkSession.builder.getOrCreate()
    except (PySparkException, OSError) as error:
        raise SetupError(f"Spark did not start: {error}; its log is {log_file}.") from error


def _start_in_submitted_jvm(
    app_name: str, master: str | None, extra: Mapping[str, str]
) -> SparkSession:
    from pyspark import SparkConf, SparkContext

    SparkContext._ensure_initialized()
    conf = SparkConf()  # what spark-submit was given
    jars = _add_to_class_path(SparkContext._jvm, conf)
    ours = static_settings("", None) | {"spark.jars": ",".join(jars), "spark.app.name": app_name}
    if master is not None:
        ours["spark.master"] = master
    for key, value in ours.items():
        if key == "spark.jars" or (value and not conf.contains(key)):
            conf.set(key, value)
    for key, value in extra.items():
        conf.set(key, value)
    conf.set("spark.master", local_master(conf.get("spark.master", "local[*]") or "local[*]"))
    with _sigint_kept():
        session = SparkSession.builder.config(conf=conf).getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session


@contextmanager
def _sigint_kept() -> Iterator[None]:
    """Put the handler of SIGINT back: PySpark's own would cancel the round under way at once."""
    handler = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, handler)


def _add_to_class_path(jvm: Any, conf: Any) -> list[str]:
    """Return ``spark.jars`` with Delta in it, on the driver's class path too.

    spark-submit puts only its own ``--jars`` there. Nothing is added where Delta is there already.
    """
    submitted = [jar for jar in (conf.get("spark.jars", "") or "").split(",") if jar]
    loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
    if loader.getResource(DELTA_EXTENSION.replace(".", "/") + ".class") is not None:
        return submitted
    jars = delta_jars()
    for jar in jars:
        loader.addURL(jvm.java.net.URL(jar.as_uri()))
    return submitted + [str(jar) for jar in jars]


def _set_up(session: SparkSession, extra: Mapping[str, str]) -> None:
    if DELTA_EXTENSION not in (session.conf.get("spark.sql.extensions", "") or ""):
        raise ConfigError(
            "The Spark session that exists already was started without Delta: found"
            f" spark.sql.extensions = {session.conf.get('spark.sql.extensions', '')!r},"
            f" expected it to contain {DELTA_EXTENSION}."
        )
    slots = session_slots(session) or os.cpu_count() or 1
    for key, value in (session_settings(slots) | dict(extra)).items():
        if session.conf.isModifiable(key) or key in session_settings(slots):
            session.conf.set(key, value)
