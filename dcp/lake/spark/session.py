"""Makes a Spark session, or takes one over, and sets it up for Delta.

There are four cases:

* This process starts Spark: it makes all settings, and Spark's output goes to a file.
* ``spark-submit`` has started the JVM: its settings win, and the Delta jars join its class path.
* A session exists (in a notebook): a session beside it is set up, and it stays unchanged.
* The master is a Spark Connect server: a new session there is set up.
"""

import os
import signal
import subprocess
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from dcp.errors import ConfigError, SetupError
from dcp.installation import how_to_install
from dcp.lake.config.required_spark import REQUIRED_SPARK
from dcp.lake.config.spark_master import local_master, slots_of
from dcp.lake.config.storage_options import S3A_CLASS
from dcp.lake.spark.beside import is_connect, is_same, make_active, session_beside
from dcp.lake.spark.failures import JVM_SECONDS, innermost, start_cause, watch_jvm
from dcp.lake.spark.jvm_environment import environment, jvm_variables, set_language
from dcp.lake.spark.launch_properties import launch_properties, write_log4j_properties
from dcp.lake.spark.leftovers import (
    kept_spark_log,
    remove_empty_warehouse_at_exit,
    temporary_spark_log,
)
from dcp.lake.spark.session_settings import (
    DELTA_EXTENSION,
    EXECUTOR_JAVA_OPTIONS,
    EXTENSIONS,
    JARS,
    JAVA_OPTIONS,
    PACKAGES,
    PYTHON,
    PYTHON_VARIABLE,
    S3_PACKAGE,
    guarding_settings,
    jars_settings,
    log_store_settings,
    python_of_tasks,
    session_settings,
    static_settings,
    warehouse_settings,
)

if TYPE_CHECKING:
    from pyspark import SparkContext

_POOL: Final = "spark.scheduler.pool"

_started: list[SparkSession] = []
"""The session that `build_session` started."""

_starting: Final = threading.Event()
"""Set while `is_starting`."""


def build_session(
    *,
    app_name: str = "dcplake",
    master: str | None = None,
    driver_memory: str = "2g",
    spark_log: Path | None = None,
    extra: Mapping[str, str] | None = None,
    theirs: SparkSession | None = None,
    on_s3: bool = False,
) -> SparkSession:
    """Return a session that is ready for the lake: a started one, or a new one beside the user's.

    Args:
        app_name: the name in Spark's UI and logs.
        master: for example ``local[2]``, or ``sc://host:port`` for Spark Connect. None takes the
            master of spark-submit, or else all local cores.
        driver_memory: the JVM's heap in Spark's notation (``2g``). In local mode, tasks share it.
        spark_log: gets Spark's output; None chooses a new temporary file.
        extra: further Spark settings. They override ours, but JVM options, jars and extensions are
            added to ours. Settings of spark-submit override both. Nothing overrides
            `REQUIRED_SPARK`.
        theirs: a user's session; None means the active one, if any.
        on_s3: tables are on S3, for which Spark needs more jars.

    Raises:
        SetupError: Java or the Delta jars are missing, Spark did not start (the message names its
            log), or a Spark Connect server does not answer.
        ConfigError: the existing session lacks Delta, or its master is of an unknown kind.
    """
    import delta.exceptions  # noqa: F401  (registers Delta's typed errors)

    settings = dict(extra or {})
    if theirs is not None and _is_started(theirs):
        return theirs  # it is already set up
    session = theirs or _session_that_is_there()
    if session is not None:
        return _set_up(session if _is_started(session) else session_beside(session), settings)
    remove_empty_warehouse_at_exit()
    _starting.set()
    try:
        if "PYSPARK_GATEWAY_PORT" in os.environ:  # spark-submit made the JVM
            session = _start_in_submitted_jvm(app_name, master, settings, on_s3=on_s3)
        elif master is not None and master.startswith("sc://"):
            session = _connect(master, settings)
        else:
            started = _start(app_name, master, driver_memory, spark_log, settings, on_s3=on_s3)
            session = _set_up(started, settings)
    finally:
        _starting.clear()
    _started[:] = [session]
    return session


def is_starting() -> bool:
    return _starting.is_set()


def _session_that_is_there() -> SparkSession | None:
    session = SparkSession.getActiveSession()
    if session is None:
        from pyspark import SparkContext

        # PySpark keeps the session object of a stopped context.
        if SparkContext._active_spark_context is not None:
            session = SparkSession._instantiatedSession
    if session is None and _started and is_connect(_started[0]):
        ours: Any = _started[0]
        session = None if ours.is_stopped else ours
    return session


@contextmanager
def active_session_kept() -> Iterator[None]:
    before = _session_that_is_there()
    try:
        yield
    finally:
        if before is not None:
            make_active(before)


def session_of_user(theirs: SparkSession | None) -> SparkSession | None:
    """Return ``theirs`` or the existing session; None if `build_session` started it."""
    session = theirs or _session_that_is_there()
    return None if session is None or _is_started(session) else session


def _is_started(session: SparkSession) -> bool:
    return any(is_same(session, each) for each in _started)


def started_session() -> SparkSession | None:
    return _started[0] if _started else None


def end_session(session: SparkSession) -> None:
    """Stop a session that `build_session` started, and its JVM, so that another can start.

    If somebody has stopped the session and uses the JVM, it leaves the JVM alone.
    """
    from pyspark import SparkContext

    _started.clear()
    if is_connect(session):
        session.stop()
        return
    if session.sparkContext is not SparkContext._active_spark_context:
        return
    gateway: Any = SparkContext._gateway
    with suppress(Py4JError, OSError):  # the JVM may have ended
        session.stop()
    process = getattr(gateway, "proc", None)
    if process is None:  # the JVM belongs to spark-submit, and ends with this process
        return
    with suppress(Py4JError, OSError):
        gateway.shutdown()
        process.stdin.close()  # this ends the JVM
    try:
        process.wait(JVM_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
    SparkContext._gateway = SparkContext._jvm = None


def session_slots(spark: SparkSession) -> int:
    """Return how many tasks a session runs at once; 0 if the cluster decides."""
    master = spark.conf.get("spark.master", "")
    return slots_of(master) if master else 0


def jvm_of(spark: SparkSession) -> Any:
    return None if is_connect(spark) else spark.sparkContext._jvm


def free_checkpoint(frame: DataFrame) -> None:
    """Free the rows of a local checkpoint. Spark itself waits for its next garbage collection."""
    frame._jdf.queryExecution().analyzed().rdd().unpersist(False)


@contextmanager
def in_pool(spark: SparkSession, name: str) -> Iterator[None]:
    """Put this thread's jobs into a pool of Spark's fair scheduler inside the block."""
    if is_connect(spark):  # the jobs run in threads of the server
        yield
        return
    context = spark.sparkContext
    before = context.getLocalProperty(_POOL)
    context.setLocalProperty(_POOL, name)
    try:
        yield
    finally:
        # None removes the property.
        context.setLocalProperty(_POOL, before)  # type: ignore[arg-type]  # its stub has no None


def _start(
    app_name: str,
    master: str | None,
    driver_memory: str,
    spark_log: Path | None,
    extra: Mapping[str, str],
    *,
    on_s3: bool,
) -> SparkSession:
    running = local_master(master or "local[*]")
    variables = jvm_variables(running)
    spark_log = spark_log or temporary_spark_log()
    settings = static_settings(driver_memory, write_log4j_properties(spark_log))
    # The user's packages bring hadoop-aws; a second copy would conflict.
    is_resolved = S3_PACKAGE in extra.get(PACKAGES, "")
    settings |= jars_settings(lambda name: is_resolved and name == S3A_CLASS, on_s3=on_s3)
    settings["spark.master"] = running
    settings["spark.app.name"] = app_name
    settings |= guarding_settings(settings["spark.master"])
    settings = _overridden(settings, extra)
    try:
        with environment(variables):
            return _start_jvm(settings, spark_log)
    except SetupError:
        kept_spark_log()
        raise


def _start_jvm(settings: Mapping[str, str], spark_log: Path) -> SparkSession:
    from pyspark import SparkConf, SparkContext
    from pyspark.java_gateway import launch_gateway

    conf = SparkConf(loadDefaults=False).setAll(list(settings.items()))
    try:
        with spark_log.open("ab") as output, launch_properties(settings):
            gateway = launch_gateway(  # type: ignore[no-untyped-call]
                popen_kwargs={"stdout": output, "stderr": output}
            )
        watch_jvm(gateway.proc)
        set_language(gateway.jvm)  # the user's options may have replaced ours
        theirs = gateway.jvm.java.lang.System.getProperty  # includes spark-defaults.conf
        for key, value in (warehouse_settings() | log_store_settings(theirs)).items():
            if theirs(key) is None:
                conf.set(key, value)
        if theirs(PACKAGES):  # spark-submit has added the packages' jars; executors need them, too
            conf.set(JARS, _overridden({JARS: theirs(JARS)}, settings)[JARS])
        os.environ[PYTHON_VARIABLE] = python_of_tasks(theirs(PYTHON), settings["spark.master"])
        with _sigint_kept():
            _keep_quiet_at_the_end(SparkContext(conf=conf, gateway=gateway))
        return SparkSession.builder.getOrCreate()
    except (PySparkException, Py4JError, OSError) as failure:
        raise SetupError(
            f"Spark did not start with spark.master {settings['spark.master']!r}: "
            f"{start_cause(failure, spark_log)}; its log says more: {spark_log}"
        ) from failure


def _start_in_submitted_jvm(
    app_name: str, master: str | None, extra: Mapping[str, str], *, on_s3: bool
) -> SparkSession:
    from pyspark import SparkConf, SparkContext

    SparkContext._ensure_initialized()
    conf = SparkConf()  # has the settings of spark-submit
    jvm: Any = SparkContext._jvm
    set_language(jvm)
    # Python workers print warnings, for example if the JVM closed a socket first. They would reach
    # the screen. Spark's own log has opened its stream before, and is unaffected.
    jvm.java.lang.System.setErr(jvm.java.io.PrintStream(str(temporary_spark_log())))
    given = dict(conf.getAll())
    ours = static_settings("", None) | warehouse_settings() | {"spark.app.name": app_name}
    running = given.get("spark.master") or master or "local[*]"
    if running.startswith("local"):  # on a cluster its owner decides: docs/howto/protect-secrets.md
        ours |= guarding_settings(running)
    ours |= log_store_settings({**extra, **given}.get)
    ours |= jars_settings(lambda name: _has_class(jvm, name), on_s3=on_s3)
    wanted = _overridden(_overridden(ours, extra), given)
    _add_to_class_path(jvm, wanted.get(JARS, ""), given.get(JARS, ""))
    for key, value in wanted.items():
        if value and key != JAVA_OPTIONS:  # the JVM already runs
            conf.set(key, value)
    conf.set("spark.master", local_master(running))
    os.environ[PYTHON_VARIABLE] = python_of_tasks(conf.get(PYTHON), running)
    with _sigint_kept():
        session = SparkSession.builder.config(conf=conf).getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    _keep_quiet_at_the_end(session.sparkContext)
    return _set_up(session, extra, given)


def _connect(server: str, extra: Mapping[str, str]) -> SparkSession:
    try:
        return _set_up(SparkSession.builder.remote(server).create(), extra)
    except PySparkException as failure:
        raise SetupError(
            f"spark.master: no session at {server.partition(';')[0]}: {innermost(failure)}; "
            "expected a Spark Connect server there, and here its client:"
            f" {how_to_install('connect')}"
        ) from failure


def _overridden(ours: Mapping[str, str], theirs: Mapping[str, str]) -> dict[str, str]:
    """Merge settings: theirs override ours; lists are joined without duplicates."""
    joined = {}
    for key in (JAVA_OPTIONS, EXECUTOR_JAVA_OPTIONS):
        if key in ours and key in theirs:
            joined[key] = f"{ours[key]} {theirs[key]}"
    for key in (JARS, EXTENSIONS):
        names = f"{ours.get(key, '')},{theirs.get(key, '')}".split(",")
        if listed := ",".join(dict.fromkeys(filter(None, names))):
            joined[key] = listed
    return {**ours, **theirs, **joined}


def _keep_quiet_at_the_end(context: "SparkContext") -> None:
    """Keep PySpark's accumulator server from printing a stack trace when the JVM ends.

    The failing call reports the same in one line.
    """
    context._accumulatorServer.handle_error = lambda *_: None  # type: ignore[method-assign]  # of one object


@contextmanager
def _sigint_kept() -> Iterator[None]:
    """Restore the handler of SIGINT: PySpark's handler would cancel the running round at once."""
    handler = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, handler)


def _has_class(jvm: Any, name: str) -> bool:
    loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
    return loader.getResource(name.replace(".", "/") + ".class") is not None


def _add_to_class_path(jvm: Any, jars: str, submitted: str) -> None:
    loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
    there = submitted.split(",")
    for jar in filter(None, jars.split(",")):
        if jar not in there:
            loader.addURL(jvm.java.net.URL(jar if ":" in jar else Path(jar).absolute().as_uri()))


def _set_up(
    session: SparkSession, extra: Mapping[str, str], given: Mapping[str, str] | None = None
) -> SparkSession:
    """Set our settings, then ``extra``; keep the settings in ``given``."""
    extensions = session.conf.get(EXTENSIONS, "") or ""
    if DELTA_EXTENSION not in extensions:
        raise ConfigError(
            f"The Spark session was started without Delta: found {EXTENSIONS} = {extensions!r}, "
            f"expected it to contain {DELTA_EXTENSION}."
        )
    slots = session_slots(session) or os.cpu_count() or 1
    wanted = session_settings(slots)
    for key, value in extra.items():
        if key in wanted or session.conf.isModifiable(key):
            wanted[key] = value
    for key in given or {}:
        wanted.pop(key, None)
    for key, value in {**wanted, **REQUIRED_SPARK}.items():
        session.conf.set(key, value)
    return session
