"""Replicates a bucket: rounds and applies, until the seqnos at the start are applied, or forever.

``run`` is what ``dcplake run`` and ``jobs/replicate.py`` call. It can be killed at any instant and
started again: each step begins by reading what is durable.
"""

import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Final
from uuid import uuid4

from dcp.client.probe import ClusterView
from dcp.lake.config.settings import RoundSettings, Settings
from dcp.lake.receive.remembered_nodes import remembered_nodes, remembered_text
from dcp.lake.receive.source_access import query_cluster, source_access
from dcp.lake.rounds.observer import Observer
from dcp.lake.run.driver import Driver, RunReport
from dcp.lake.run.large_load import is_large_load
from dcp.lake.run.stop_after_round import stop_on_signals
from dcp.lake.tables.lake_identity import LakeIdentity
from dcp.lake.tables.location import LakeLocation
from dcp.lake.tables.opening import lake_locked, spark_of
from dcp.lake.tables.spark_table import StartSpark
from dcp.lake.tables.tables import LakeTables, create_lake

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_AFTER_ROUND_SECONDS: Final = 60.0
"""How long a run that is asked to stop may take after its round's time: to commit and to apply."""


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
        QualityError: a run with ``once`` ends with an apply that ``quality.gate`` holds back.

    """
    with (
        lake_locked(settings, "dcplake run", makes_lake=True) as location,
        stopping(stop, settings.round) as stopped,
    ):
        access = source_access(settings)
        high_seqnos: dict[int, int] = {}
        start_spark = spark_of(
            settings,
            spark,
            is_long=lambda: not once or is_large_load(location, high_seqnos),
            stop=stopped,
        )
        cluster = query_cluster(
            access, remembered_nodes(start_spark, location, settings.source.bucket)
        )
        high_seqnos.update(cluster.high_seqnos)
        lake = open_or_create(start_spark, settings, location, cluster)
        with closing(Driver(lake, settings, access, observer or Observer())) as driver:
            return driver.once(cluster, stopped) if once else driver.continuously(stopped)


def open_or_create(
    start_spark: StartSpark, settings: Settings, location: LakeLocation, cluster: ClusterView
) -> LakeTables:
    """Return the lake of this bucket, made if it is not there."""
    identity = LakeIdentity(
        lake_id=uuid4().hex,
        bucket=settings.source.bucket,
        bucket_uuid=cluster.map.bucket_uuid,
        vbucket_count=cluster.map.vbucket_count,
        cluster_uuid=cluster.map.cluster_uuid,
    )
    return create_lake(
        start_spark,
        location,
        identity,
        horizon_hours=settings.lake.horizon_hours,
        deletion_vectors=settings.lake.deletion_vectors,
        nodes=remembered_text(cluster.map, tls=settings.source.connection_string().tls),
    )


@contextmanager
def stopping(stop: threading.Event | None, rule: RoundSettings) -> Iterator[threading.Event]:
    """Give the event that ends a run: the one given, or one that SIGTERM and SIGINT set."""
    if stop is not None:
        yield stop
        return
    with stop_on_signals(rule.target_seconds + _AFTER_ROUND_SECONDS) as event:
        yield event
