"""A whole run: rounds and applies, until what the cluster held at the start is applied, or forever.

``run`` is what ``dcplake run`` and ``jobs/replicate.py`` call. It can be killed at any instant and
started again: each step begins by reading what is durable.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING
from uuid import uuid4

from dcp.client.probe import ClusterView
from dcp.lake.connect import look_at_cluster, source_access
from dcp.lake.driver import Driver, RunReport
from dcp.lake.lock import local_root, locked
from dcp.lake.memory import MEBIBYTE, direct_memory_options, heap_bytes
from dcp.lake.observer import Observer
from dcp.lake.session import JAVA_OPTIONS, build_session, slots_of
from dcp.lake.settings import Settings
from dcp.lake.source import register_source
from dcp.lake.stop_signals import stop_on_signals
from dcp.lake.tables import LakeIdentity, LakeLocation, LakeTables, create_lake

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def run(
    settings: Settings,
    *,
    once: bool,
    observer: Observer | None = None,
    stop: threading.Event | None = None,
    spark: "SparkSession | None" = None,
) -> RunReport:
    """Replicate: ``once`` until what the cluster held at the start is applied, else until ``stop``.

    Without ``stop``, SIGTERM and SIGINT end a run after the round under way; a second signal ends
    it at once, which loses nothing that is durable.

    Args:
        settings: all of them.
        once: whether the run ends by itself.
        observer: hears of each step.
        stop: ends the run after the round under way, when set by another thread.
        spark: the session to use; None builds or takes over one.

    Raises:
        IncompleteRunError: the run did what it could, but some vbuckets could not be read.
        StoppedError: a run with ``once`` was asked to stop before it was done.
        FencedError: another driver works on the lake.
        AuthenticationError, BucketError, NodeUnavailableError: the cluster cannot be read at all.
        LakeError: the lake is not this bucket's, or somebody changed its tables.

    """
    observer = observer or Observer()
    location = lake_location(settings)
    root = local_root(settings.lake.root) if location.root is not None else None
    try:
        with (
            locked(root if settings.lake.lock else None, "dcplake run"),
            _stopping(stop) as stopped,
        ):
            access = source_access(settings)
            cluster = look_at_cluster(access)
            spark = spark or session(settings)
            lake = open_or_create(spark, settings, location, cluster)
            driver = Driver(lake, settings, access, observer)
            return driver.once(cluster, stopped) if once else driver.continuously(stopped)
    finally:
        observer.ended()


def lake_location(settings: Settings) -> LakeLocation:
    """Return where the lake of these settings is."""
    if settings.lake.schema:
        return LakeLocation(schema=settings.lake.schema)
    return LakeLocation(root=settings.lake.root)


def session(settings: Settings) -> "SparkSession":
    """Return the Spark session of these settings, or the one that is there already.

    It knows the format ``dcp``, and its JVM keeps to the memory of docs/memory.md.

    Raises:
        ConfigError: the heap is too small for the tasks of a local master.

    """
    tasks = slots_of(settings.spark.master) or 1
    options = direct_memory_options(tasks, settings.flow_control.batch_bytes)
    theirs = settings.spark.conf.get(JAVA_OPTIONS, "")
    spark = build_session(
        master=settings.spark.master,
        driver_memory=f"{heap_bytes(settings.spark.driver_memory, tasks) // MEBIBYTE}m",
        extra={**settings.spark.conf, JAVA_OPTIONS: f"{options} {theirs}".strip()},
    )
    register_source(spark)
    return spark


def open_or_create(
    spark: "SparkSession", settings: Settings, location: LakeLocation, cluster: ClusterView
) -> LakeTables:
    """Return the lake of this bucket, made if it is not there."""
    identity = LakeIdentity(
        lake_id=uuid4().hex,
        bucket=settings.source.bucket,
        bucket_uuid=cluster.map.bucket_uuid,
        vbucket_count=cluster.map.vbucket_count,
    )
    return create_lake(spark, location, identity, horizon_hours=settings.lake.horizon_hours)


@contextmanager
def _stopping(stop: threading.Event | None) -> Iterator[threading.Event]:
    if stop is not None:
        yield stop
        return
    with stop_on_signals() as event:
        yield event
