"""Large applies take rows of one snapshot as they are: of no key can there be two."""

from pathlib import Path
from random import Random
from threading import Event, Thread
from typing import TYPE_CHECKING, Any

import pytest

from dcp.lake.apply import applier
from dcp.lake.apply.apply_plan import ApplyPlan, RowBudget
from dcp.lake.apply.planning import plan_apply
from dcp.lake.run.run import run
from dcp.lake.tables.apply_sql import rows_sql
from dcp.lake.tables.tables import LakeTables, ReplicaTable
from dcp.producer.cluster import ProducerCluster
from dcp.server.model.cluster_settings import ClusterSettings
from tests.lake.receiving import SMALL_FLOW, lake_of, settings_for
from tests.lake.replicas import require_every_version_exact
from tests.seeds import seeds

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

VBUCKETS = 4


@pytest.mark.parametrize("seed", seeds(1, first=40, soak_count=2))
def test_what_is_taken_as_it_is_has_each_key_once(
    spark: "SparkSession", tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """A backfill in parts, snapshots that are cut, documents that change while they are read."""
    random, plans = Random(seed), list[ApplyPlan]()

    def planned(
        lake: LakeTables, replica: ReplicaTable, to_round: int, *_: Any
    ) -> ApplyPlan | None:
        plan = plan_apply(lake, replica, to_round, RowBudget(rows=0))
        if plan is not None:
            require_no_key_twice(lake, plan)
            plans.append(plan)
        return plan

    monkeypatch.setattr(applier, "plan_apply", planned)
    with ProducerCluster(ClusterSettings(nodes=2, vbuckets=VBUCKETS, seed=seed)) as cluster:
        settings = settings_for(
            cluster,
            tmp_path,
            flow_control=SMALL_FLOW,
            round={"quiet_seconds": 0.2, "target_bytes": 4_096},
        )

        def write(count: int) -> None:
            for _ in range(count):
                cluster.set(b"key-%d" % random.randrange(300), b"%d" % random.randrange(10**6))

        write(450)
        run(settings, once=True, spark=spark)
        assert all(plan.without_repeats == set(plan.log_slice.vbuckets) for plan in plans)
        assert {vb for plan in plans for vb in plan.without_repeats} == set(range(VBUCKETS))
        assert any(plan.log_slice.first_round < plan.to_round for plan in plans), "in parts"
        cluster.snapshot_cut_after(random.randrange(5, 40))
        write(200)
        stop = Event()
        writing = Thread(target=lambda: write_until(stop, write))
        writing.start()
        try:
            run(settings, once=True, spark=spark)
        finally:
            stop.set()
            writing.join()
        run(settings, once=True, spark=spark)
        lake = lake_of(settings, spark)
        assert require_every_version_exact(lake, cluster) >= 3
    assert any(plan.without_repeats < set(plan.log_slice.vbuckets) for plan in plans)


def write_until(stop: Event, write: Any) -> None:
    while not stop.wait(0.01):
        write(1)


def require_no_key_twice(lake: LakeTables, plan: ApplyPlan) -> None:
    ranges = [each for each in plan.log_slice.ranges if each.vbucket in plan.without_repeats]
    if ranges:
        rows = rows_sql(lake.changes_sql, plan.collection_id, plan.log_slice, ranges)
        twice = lake.spark.sql(
            f"SELECT c.vbucket, c.key, count(*) AS rows {rows} "
            "GROUP BY c.vbucket, c.key HAVING count(*) > 1"
        ).collect()
        assert twice == []
