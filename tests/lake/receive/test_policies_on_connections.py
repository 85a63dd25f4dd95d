"""Windows by policy, as the producer is told them: what the driver planned, real connections."""

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from dcp.lake.run.replicate import run
from dcp.producer.cluster import ProducerCluster
from dcp.producer.cluster_settings import ClusterSettings
from dcp.server.model.send_window import SendWindow
from tests.lake.receiving import RoundsInProcess, documents_at, lake_of, settings_for, source_at
from tests.lake.replicas import require_live_exact, require_no_row_twice

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LEAST = 4096


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """The sizes that a producer is told."""
    found: set[int] = set()
    set_window = SendWindow.set_window

    def recorded(window: SendWindow, window_bytes: int) -> None:
        found.add(window_bytes)
        set_window(window, window_bytes)

    monkeypatch.setattr(SendWindow, "set_window", recorded)
    return found


def fill(cluster: ProducerCluster, documents: int) -> None:
    with cluster.batch():
        for number in range(documents):
            cluster.set(b"key-%d" % number, b'{"n": %d}' % number + b" " * 300)


@pytest.mark.parametrize(
    ("policy", "threshold_percent", "window_bytes"),
    [
        ("static", 3.0, LEAST),
        ("dynamic", 3.0, LEAST),
        ("dynamic", 4.0, 20_971),
        ("aggressive", 3.0, 26_214),
        ("ratio", 3.0, 26_214),
        ("none", 3.0, 0),
    ],
)
def test_a_task_brings_everything_whatever_the_policy(
    policy: str, threshold_percent: float, window_bytes: int, tmp_path: Path, told: set[int]
) -> None:
    """No batch is full before its window is, and no time is over: nothing may wait for these."""
    window = {
        "window_policy": policy,
        "window_bytes": LEAST,
        "window_quota_bytes": 1 << 20,
        "window_percent": 2.0,
        "window_threshold_percent": threshold_percent,
        "batch_bytes": 3000,
        "batch_seconds": 60.0,
        "ack_seconds": 60.0,
        "allow_no_flow_control": True,
    }
    with ProducerCluster(ClusterSettings(nodes=2, vbuckets=4, seed=5)) as cluster:
        fill(cluster, 500)
        rounds = RoundsInProcess(settings_for(cluster, tmp_path, flow_control=window))
        plan = rounds.plan()
        assert plan is not None
        rows = rounds.run(plan)
        for vbucket in range(4):
            high = cluster.high_seqno(vbucket)
            assert documents_at(rows, vbucket, high) == source_at(cluster, vbucket, high)
    [task] = plan.tasks
    windows = task.windows
    assert (windows.policy, windows.connections) == (policy, 2)
    assert windows.window_bytes == window_bytes
    assert told == ({window_bytes} if window_bytes else set())


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_tasks_of_a_round_share_as_planned(
    spark: "SparkSession", tmp_path: Path, told: set[int]
) -> None:
    """A part for each connection of both tasks, whoever comes first."""
    shared = {
        "window_policy": "aggressive",
        "window_bytes": LEAST,
        "batch_bytes": 1024,
        "window_quota_bytes": 1 << 20,
    }
    with ProducerCluster(ClusterSettings(nodes=2, vbuckets=4, seed=5)) as cluster:
        fill(cluster, 1000)
        settings = settings_for(cluster, tmp_path, flow_control=shared, round={"tasks": 2})
        plan = RoundsInProcess(settings, slots=2).plan()
        assert plan is not None
        connections = sum(len(task.nodes) for task in plan.tasks)
        assert len(plan.tasks) == 2 <= connections
        run(settings, once=True, spark=spark)
        lake = lake_of(settings, spark)
        require_live_exact(lake, cluster, 1)
        require_no_row_twice(lake)
    assert told == {52_428 // connections}
