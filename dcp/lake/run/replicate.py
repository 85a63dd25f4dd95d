"""Replicates a bucket: rounds and applies, up to the seqnos at the start or forever.

``run`` is ``dcplake run``. ``apply_pending`` is ``dcplake apply``, for runs with ``apply.when`` =
never. Both can be killed at any moment and started again: each step begins by reading the durable
state.
"""

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Final
from uuid import uuid4

from dcp.client.probe import ProbedCluster
from dcp.lake.adapters.opening import (
    NeedsSparkError,
    opened_lake,
    opened_store,
)
from dcp.lake.change_log.changes import latest_round
from dcp.lake.change_log.round_queries import states_at
from dcp.lake.config.settings import ApplyWhen, RoundSettings, Settings
from dcp.lake.receive.remembered_nodes import remembered_nodes, remembered_text
from dcp.lake.receive.source_access import query_cluster, source_access
from dcp.lake.rounds.observer import Observer
from dcp.lake.run.driver import Driver, RunReport
from dcp.lake.run.stop_after_round import stop_on_signals
from dcp.lake.spark.jvm_options import MANY_CHANGES
from dcp.lake.store.lake_store import LakeStore
from dcp.lake.tables.applied_version import AppliedVersion
from dcp.lake.tables.lake_tables import LakeIdentity, LakeTables, create_lake, find_lake

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_AFTER_ROUND_SECONDS: Final = 60.0
"""A stopping run may take this long after its round's time, to commit and to apply."""


def run(
    settings: Settings,
    *,
    once: bool,
    observer: Observer | None = None,
    stop: threading.Event | None = None,
    spark: "SparkSession | None" = None,
) -> RunReport:
    """Replicate: with ``once`` all that the cluster had at the start, otherwise until ``stop``.

    Without ``stop``, SIGTERM and SIGINT end a run after the running round. A second signal ends it
    at once, which loses nothing durable. Without ``spark`` the run builds a session, or takes one
    over.

    Raises:
        IncompleteRunError: some vbuckets could not be read; all others are applied.
        StoppedError: a run with ``once`` was asked to stop before its end.
        FencedError: another driver works on the lake.
        AuthenticationError, BucketError, NodeUnavailableError: the cluster cannot be read at all.
        LakeError: the lake holds another bucket, or somebody changed its tables.
        QualityError: a run with ``once`` ends with an apply that ``quality.gate`` withholds.
    """

    def is_long(high_seqnos: Mapping[int, int]) -> bool:
        return not once or is_large_load(settings, high_seqnos)

    with (
        stopping(stop, settings.round) as stopped,
        driving(settings, "dcplake run", observer, stopped, is_long, spark=spark) as (
            driver,
            cluster,
        ),
    ):
        return driver.once(cluster, stopped) if once else driver.continuously(stopped)


def is_large_load(settings: Settings, high_seqnos: Mapping[int, int]) -> bool:
    """Return whether the log lacks so many changes that Java's best compiler pays (`jvm_options`).

    The question comes before Spark starts, so the answer for a lake that only Spark can read is no.
    ``high_seqnos`` are the cluster's, by vbucket.
    """
    if sum(high_seqnos.values()) < MANY_CHANGES:
        return False  # without requests to a store
    try:
        with opened_store(settings, starts_spark=False) as store:
            lake = find_lake(store)
            states = {} if lake is None else states_at(lake, latest_round(lake))
    except NeedsSparkError:
        return False
    seqnos = {vbucket: state.position.seqno for vbucket, state in states.items()}
    missing = (max(0, high - seqnos.get(vbucket, 0)) for vbucket, high in high_seqnos.items())
    return sum(missing) >= MANY_CHANGES


@contextmanager
def driving(
    settings: Settings,
    command: str,
    observer: Observer | None,
    stop: threading.Event,
    is_long: Callable[[Mapping[int, int]], bool],
    *,
    check: Callable[[ProbedCluster], object] = lambda _: None,
    spark: "SparkSession | None" = None,
) -> Iterator[tuple[Driver, ProbedCluster]]:
    """Drive the lake within the context; make it if it is missing.

    Gives the driver and the cluster's state. ``is_long`` gets the high seqnos when Spark starts
    (`jvm_options`). ``check`` may refuse the cluster before a lake is made.

    Raises:
        ConfigError: there is no key for the hashes of `[privacy]`.
        LakeLockedError: another process drives the lake.
    """
    settings.privacy.require_key()  # here already: a task without it would be tried again
    access = source_access(settings)
    highs: dict[int, int] = {}
    with opened_store(
        settings,
        spark,
        writer=command,
        makes_lake=True,
        is_long=lambda: is_long(highs),
        stop=stop,
    ) as store:
        cluster = query_cluster(access, remembered_nodes(store, settings.source.bucket))
        highs.update(cluster.high_seqnos)
        check(cluster)
        lake = open_or_create(store, settings, cluster)
        with closing(Driver(lake, settings, access, observer or Observer())) as driver:
            yield driver, cluster


def apply_pending(settings: Settings, *, observer: Observer) -> list[AppliedVersion]:
    """Bring every replica table to the newest round, whatever ``apply.when`` says.

    It does not need the cluster, unless ``policy.persist_to`` asks for the seqnos on disks.

    Returns:
        The new versions; none if nothing waits.

    Raises:
        LakeError: there is no lake, or somebody changed its tables.
        FencedError: another driver works on the lake.
        IncompleteRunError: ``policy.persist_to`` holds the apply back.
        QualityError: ``quality.gate`` holds an apply back.
    """
    settings = replace(settings, apply=replace(settings.apply, when=ApplyWhen.EVERY_ROUND))
    with (
        opened_lake(settings, writer="dcplake apply") as lake,
        lake.read_once(),
        closing(Driver(lake, settings, source_access(settings), observer)) as driver,
    ):
        return driver.apply_received()


def open_or_create(store: LakeStore, settings: Settings, cluster: ProbedCluster) -> LakeTables:
    return create_lake(
        store,
        LakeIdentity(uuid4().hex, settings.source.bucket).in_cluster(cluster.map),
        horizon_hours=settings.lake.horizon_hours,
        deletion_vectors=settings.lake.deletion_vectors,
        nodes=remembered_text(cluster.map, tls=settings.source.connection_string().tls),
    )


@contextmanager
def stopping(stop: threading.Event | None, rule: RoundSettings) -> Iterator[threading.Event]:
    """Give the event that ends a run: ``stop``, or one that SIGTERM and SIGINT set."""
    if stop is not None:
        yield stop
        return
    with stop_on_signals(rule.target_seconds + _AFTER_ROUND_SECONDS) as event:
        yield event
