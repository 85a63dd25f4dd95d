"""Large applies take rows of one snapshot as they are: of no key can there be two."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random
from threading import Event, Thread
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from dcp.lake.adapters.apply_sql import rows_sql
from dcp.lake.apply import applier
from dcp.lake.apply.merge_plan import MergePlan, RowBudget
from dcp.lake.apply.merge_planner import plan_merge
from dcp.lake.config.settings import ApplySettings, ApplyWhen
from dcp.lake.run.replicate import run
from dcp.lake.store.merge import LogRows
from dcp.lake.tables.lake_tables import LakeTables, ReplicaTable
from dcp.producer.cluster import ProducerCluster
from dcp.producer.cluster_settings import ClusterSettings
from tests.lake.receiving import SMALL_FLOW, lake_of, settings_for
from tests.lake.replicas import require_every_version_exact
from tests.seeds import seeds

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(600)

VBUCKETS = 4
NOTHING = RowBudget(rows=0)
"""So that even few rows are too many for the driver to hold."""
PLACES = pa.schema([("vbucket", pa.int32()), ("key", pa.string())])


@pytest.fixture
def cluster() -> Iterator[ProducerCluster]:
    with ProducerCluster(ClusterSettings(nodes=2, vbuckets=VBUCKETS, seed=40)) as running:
        yield running


def write(cluster: ProducerCluster, random: Random, count: int) -> None:
    for _ in range(count):
        cluster.set(b"key-%d" % random.randrange(300), b"%d" % random.randrange(10**6))


@pytest.mark.usefixtures("lakes_in_memory")
@pytest.mark.parametrize("seed", seeds(3, first=40, soak_count=6))
def test_what_is_taken_as_it_is_has_each_key_once(
    cluster: ProducerCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """A backfill in parts, snapshots that are cut, documents that change while they are read."""
    random, plans = Random(seed), list[MergePlan]()

    def planned(
        lake: LakeTables, replica: ReplicaTable, to_round: int, *_: Any
    ) -> MergePlan | None:
        large = plan_merge(lake, replica, to_round, NOTHING)
        if large is not None:
            require_no_key_twice(lake, log_rows(large))
            plans.append(large)
        return plan_merge(lake, replica, to_round)

    monkeypatch.setattr(applier, "plan_merge", planned)
    settings = settings_for(
        cluster,
        tmp_path,
        flow_control=SMALL_FLOW,
        round={"quiet_seconds": 0.2, "target_bytes": 4_096},
    )
    write(cluster, random, 450)
    run(settings, once=True)
    assert all(log_rows(plan).without_repeats == set(plan.log_slice.vbuckets) for plan in plans)
    assert {vb for plan in plans for vb in log_rows(plan).without_repeats} == set(range(VBUCKETS))
    assert any(plan.log_slice.first_round < plan.to_round for plan in plans), "in parts"
    cluster.snapshot_cut_after(random.randrange(5, 40))
    write(cluster, random, 200)
    stop = Event()
    writing = Thread(target=lambda: write_until(stop, cluster, random))
    writing.start()
    try:
        run(settings, once=True)
    finally:
        stop.set()
        writing.join()
    run(settings, once=True)
    assert require_every_version_exact(lake_of(settings), cluster) >= 3
    assert any(log_rows(plan).without_repeats < set(plan.log_slice.vbuckets) for plan in plans)


@pytest.mark.slow
def test_spark_takes_some_vbuckets_as_they_are_and_chooses_in_others(
    cluster: ProducerCluster,
    spark: "SparkSession",
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    random, plans = Random(40), list[MergePlan]()

    def planned(
        lake: LakeTables, replica: ReplicaTable, to_round: int, *_: Any
    ) -> MergePlan | None:
        plan = plan_merge(lake, replica, to_round, NOTHING)
        plans.extend([] if plan is None else [plan])
        return plan

    monkeypatch.setattr(applier, "plan_merge", planned)
    settings = settings_for(cluster, tmp_path, round={"quiet_seconds": 0.2})
    write(cluster, random, 100)
    run(settings, once=True, spark=spark)
    names = [b"key-%d" % number for number in range(300)]
    first, other = ([key for key in names if cluster.vbucket_of(key) == vb] for vb in (0, 1))
    for key in (first[0], first[1], other[0]):
        cluster.set(key, b"1")
    run(replace(settings, apply=ApplySettings(when=ApplyWhen.NEVER)), once=True, spark=spark)
    cluster.set(first[0], b"2")  # a second snapshot of this vbucket alone
    run(settings, once=True, spark=spark)
    assert [(len(plan.log_slice.vbuckets), log_rows(plan).without_repeats) for plan in plans] == [
        (VBUCKETS, frozenset(range(VBUCKETS))),
        (2, frozenset({1})),
    ]
    assert require_every_version_exact(lake_of(settings, spark), cluster) == 2


def write_until(stop: Event, cluster: ProducerCluster, random: Random) -> None:
    while not stop.wait(0.01):
        write(cluster, random, 1)


def log_rows(plan: MergePlan) -> LogRows:
    assert isinstance(plan.rows, LogRows)
    return plan.rows


def require_no_key_twice(lake: LakeTables, rows: LogRows) -> None:
    ranges = [each for each in rows.log_slice.ranges if each.vbucket in rows.without_repeats]
    if ranges:
        chosen = partial(rows_sql, collection_id=rows.collection_id, log_slice=rows.log_slice)
        found = lake.changes.query(
            lambda name, _: f"SELECT c.vbucket, c.key {chosen(name, ranges=ranges)}",
            PLACES,
            rows.log_version,
        ).to_pylist()
        places = [tuple(row.values()) for row in found]
        assert len(places) == len(set(places))
