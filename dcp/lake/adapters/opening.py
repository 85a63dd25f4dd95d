"""Opens a lake from its settings, for reading or as its single writer.

`opened_lake` opens a lake that exists. A command that may find none, or makes the lake, opens its
place by `opened_store`, and asks `find_lake`.

This module chooses the location of a lake, its lock, and the Spark session that works on it.
"""

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Final

from dcp.errors import ConfigError, LakeError, StoppedError
from dcp.lake.adapters.spark_store import SparkStore
from dcp.lake.adapters.spark_table import StartSpark
from dcp.lake.config.lake_root import is_on_s3, local_root
from dcp.lake.config.memory import MEBIBYTE, direct_memory_options, heap_bytes
from dcp.lake.config.settings import Settings, SourceSettings
from dcp.lake.config.spark_master import slots_of
from dcp.lake.config.storage_options import LOG_STORE, options_of_delta_rs, s3a_settings
from dcp.lake.config.store_options import cloud_way, is_in_cloud
from dcp.lake.config.table_names import CHANGES_TABLE
from dcp.lake.spark.beside import note_settings
from dcp.lake.spark.hadoop import log_store_of
from dcp.lake.spark.jvm_environment import refuse_language
from dcp.lake.spark.jvm_options import jvm_options
from dcp.lake.spark.session import build_session, jvm_of
from dcp.lake.spark.session_settings import JAVA_OPTIONS
from dcp.lake.store.location import LakeLocation
from dcp.lake.store.lock import locked
from dcp.lake.tables.lake_tables import LakeTables, open_lake

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_CARRIERS: Final = ("spark.executorEnv", "spark.yarn.appMasterEnv", "spark.kubernetes.driverEnv")
_ENCRYPTION: Final = ("spark.network.crypto.enabled", "spark.ssl.rpc.enabled")


def lake_location(settings: Settings) -> LakeLocation:
    lake, conf = settings.lake, settings.spark.conf

    @cache
    def way(bucket: str) -> Mapping[str, str] | None:
        if is_on_s3(bucket):
            return options_of_delta_rs(bucket, lake.storage_options, conf)
        return cloud_way(bucket, lake.storage_options, conf) if is_in_cloud(bucket) else None

    if lake.schema:
        return LakeLocation(schema=lake.schema, way=way)
    return LakeLocation(root=lake.root, way=way)


@contextmanager
def opened_lake(
    settings: Settings,
    spark: "SparkSession | None" = None,
    *,
    writer: str = "",
    starts_spark: bool = True,
) -> Iterator[LakeTables]:
    """Open the lake of these settings; see `opened_store` for the arguments.

    Raises:
        LakeError: there is no lake, or the table is foreign or of another format version.
        NeedsSparkError, FencedError, SetupError, ConfigError: see `opened_store`.
    """
    with opened_store(settings, spark, writer=writer, starts_spark=starts_spark) as store:
        yield open_lake(store)


@contextmanager
def opened_store(
    settings: Settings,
    spark: "SparkSession | None" = None,
    *,
    writer: str = "",
    makes_lake: bool = False,
    starts_spark: bool = True,
    is_long: Callable[[], bool] = lambda: False,
    stop: threading.Event | None = None,
) -> Iterator[SparkStore]:
    """Yield the store of a lake, which need not exist. Spark starts when it is needed.

    Args:
        settings: all settings.
        spark: a session to work beside; None starts a session, or works beside an active one.
        writer: the command that is the lake's single writer in the block. It holds a local lake's
            lock, unless settings forbid locks. Empty for a reader.
        makes_lake: the command may make the lake, and so the folder for the lock.
        starts_spark: if false, what only Spark can read raises NeedsSparkError.
        is_long: called when Spark starts; see `jvm_options`.
        stop: once it is set, starting Spark raises StoppedError.

    Raises:
        LakeLockedError: another process is the writer; the message names it.
        SetupError: the lock file cannot be opened.
        ConfigError: ``spark`` would give the password to strangers, write other file names, or
            overwrite commits of others on S3; or it has a log store that the settings lack.
    """
    location = lake_location(settings)
    has_lock = bool(writer) and settings.lake.lock and location.root is not None
    root = local_root(settings.lake.root) if has_lock else None
    start = refuse_to_start
    if starts_spark:
        start = spark_of(settings, spark, is_long=is_long, stop=stop)
    with locked(root, writer, makes_lake=makes_lake):
        yield SparkStore(start, location)


def spark_of(
    settings: Settings,
    spark: "SparkSession | None" = None,
    *,
    is_long: Callable[[], bool] = lambda: False,
    stop: threading.Event | None = None,
) -> StartSpark:
    """Return a function that returns the session to work in; see `opened_store`.

    Its first call makes the session. All threads share it.
    """

    def check(session: "SparkSession") -> None:
        refuse_open_password(session, settings.source)
        lake = settings.lake
        root = None if lake.schema else local_root(lake.root)
        refuse_language(session, jvm_of(session), root)
        if lake.on_s3 and not lake.schema:
            _refuse_unknown_log_store(session, lake_location(settings))

    if spark is not None:
        check(spark)

    @cache
    def start() -> "SparkSession":
        if spark is None and stop is not None and stop.is_set():
            raise StoppedError("asked to stop before Spark had started")
        started = session(settings, spark, is_long=spark is None and is_long())
        check(started)
        # Here no statement runs, so that sessions beside this one get its unchanged settings.
        note_settings(started)
        return started

    starting = threading.Lock()

    def start_once() -> "SparkSession":
        with starting:
            return start()

    return start_once


def _refuse_unknown_log_store(session: "SparkSession", location: LakeLocation) -> None:
    """Refuse a log store with which Spark would commit in another way than this process."""
    chosen = log_store_of(session, str(location))
    if chosen != LOG_STORE and location.of_table(CHANGES_TABLE) is not None:
        raise ConfigError(
            f"{location}: found the log store {chosen} in this Spark session, but not in "
            f"[spark.conf], expected {LOG_STORE}; remove the setting where Spark gets it "
            "(--conf, spark-defaults.conf, the start of the session). Or add it to [spark.conf]: "
            "then only Spark reads and commits (docs/howto/object-stores.md)"
        )


class NeedsSparkError(LakeError):
    """Only Spark can read this lake, and the caller must not start it."""


def refuse_to_start() -> "SparkSession":
    raise NeedsSparkError(
        "this lake cannot be read without Spark, expected tables in a folder or an object store, "
        "with whole Delta logs; dcplake status starts Spark and says more"
    )


def session(
    settings: Settings, spark: "SparkSession | None" = None, *, is_long: bool = False
) -> "SparkSession":
    """Return the Spark session of these settings, or one beside ``spark`` or an active one.

    Its JVM has the memory of docs/reference/memory.md and the options of `jvm_options`.

    Raises:
        ConfigError: the heap is too small for the tasks of a local master.
    """
    if spark is not None:
        return build_session(theirs=spark, extra=settings.spark.conf)
    tasks = slots_of(settings.spark.master) or 1
    options = direct_memory_options(tasks, settings.flow_control.batch_bytes)
    options = f"{options} {jvm_options(is_long=is_long)}"
    theirs = settings.spark.conf.get(JAVA_OPTIONS, "")
    lake = settings.lake
    store: Mapping[str, str] = {}
    if lake.on_s3:
        store = s3a_settings("" if lake.schema else lake.root, lake.storage_options)
    return build_session(
        master=settings.spark.master,
        driver_memory=f"{heap_bytes(settings.spark.driver_memory, tasks) // MEBIBYTE}m",
        extra={
            **store,
            **settings.spark.conf,
            JAVA_OPTIONS: f"{options} {theirs}".strip(),
        },
        on_s3=lake.on_s3,
    )


def refuse_open_password(spark: "SparkSession", source: SourceSettings) -> None:
    """Raise ConfigError for a foreign session that would give the password to strangers.

    A ``spark.executorEnv`` setting is part of every task. Unless Spark's processes authenticate
    each other, they serve tasks and settings to any client.
    """

    def is_on(key: str) -> bool:
        return (spark.conf.get(key, "") or "").lower() == "true"

    names = [f"{prefix}.{source.password_env}" for prefix in _CARRIERS]
    carrier = next((name for name in names if spark.conf.get(name, "")), None)
    if carrier is not None and not (is_on("spark.authenticate") and any(map(is_on, _ENCRYPTION))):
        raise ConfigError(
            f"found the password in {carrier}, which Spark gives to anyone on the network;"
            f" expected spark.authenticate and {_ENCRYPTION[0]} to be true, or the password where"
            " the executors find it themselves (docs/howto/give-tasks-the-password.md)"
        )
