"""A backfill's task takes no more than its rate, and lets no node send far ahead of it."""

from dataclasses import replace
from pathlib import Path
from time import monotonic

from dcp.lake.rounds.round_plan import BackfillNodes
from dcp.producer.cluster import ProducerCluster
from dcp.producer.cluster_settings import ClusterSettings
from tests.lake.receiving import RoundsInProcess, item_rows, settings_for

RATE = 200_000.0


def test_a_task_keeps_to_its_rate(tmp_path: Path) -> None:
    with ProducerCluster(ClusterSettings(vbuckets=2, seed=3)) as cluster:
        for number in range(300):
            cluster.set(b"key-%d" % number, b"x" * 2000)
        rounds = RoundsInProcess(settings_for(cluster, tmp_path))
        plan = rounds.plan()
        assert plan is not None
        nodes = BackfillNodes(reads_replicas=False, bytes_per_second=RATE)
        tasks = [replace(task, backfill=nodes) for task in plan.tasks]
        begin = monotonic()
        rows = rounds.run(replace(plan, tasks=tuple(tasks)))
        seconds = monotonic() - begin
        counters = cluster.counters()
    assert len(item_rows(rows)) == 300
    assert counters.peak_unacked_bytes < RATE + 3000, "a second ahead, and one message"
    most_ahead = RATE  # the first delivery, of a window at most, waits for nothing
    assert seconds > (counters.bytes_sent - most_ahead) / RATE - 0.5


def test_a_rate_is_shared_by_the_tasks() -> None:
    nodes = BackfillNodes(reads_replicas=True, bytes_per_second=9.0)
    assert nodes.shared_by(3) == replace(nodes, bytes_per_second=3.0)
    unlimited = BackfillNodes(reads_replicas=True)
    assert unlimited.shared_by(3) == unlimited
    assert nodes.shared_by(0) == nodes
