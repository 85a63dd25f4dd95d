"""P3, P5, P7 with real processes: drivers and Python workers killed or paused at named steps.

The producer lives in the test's process, so that its counters tell what was sent and when. A driver
is ``jobs/replicate.py`` in a process of its own; what is left is gone on with in this process.
"""

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from dcp.errors import FencedError, StoppedError
from dcp.lake.log.applied import applied_of
from dcp.lake.log.changes import latest_round
from dcp.lake.log.stop_points import FILE_VARIABLE, VARIABLE
from dcp.lake.run.run import run
from dcp.lake.tables.history import WHOLE, history
from dcp.lake.tables.tables import AUDIT_TABLE, LakeTables
from dcp.producer.cluster import ProducerCluster
from dcp.server.model.cluster_settings import ClusterSettings
from tests.lake.held_lakes import STEPS_ON_DISK, copies_at, held_files, stops_at
from tests.lake.job_process import Job
from tests.lake.receiving import SMALL_FLOW, lake_of, settings_for
from tests.lake.replicas import (
    complete_seqnos,
    require_every_version_exact,
    require_live_exact,
    require_no_row_twice,
    source_rows,
    table_rows,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
VBUCKETS = 4
COMMITTED = {"round.received": 0, "round.planned:2": 1}
"""Rounds of a run that are durable at its first steps; later there are two."""


@pytest.fixture
def cluster() -> Iterator[ProducerCluster]:
    with ProducerCluster(ClusterSettings(nodes=2, vbuckets=VBUCKETS, seed=5)) as cluster:
        yield cluster


def fill(cluster: ProducerCluster, count: int, start: int = 0, batch_size: int = 10_000) -> None:
    """Write documents; a crash of the producer loses whole batches of them."""
    for first in range(start, start + count, batch_size):
        with cluster.batch():
            for number in range(first, min(first + batch_size, start + count)):
                cluster.set(b"key-%d" % number, b'{"n": %d}' % number)


def change(cluster: ProducerCluster) -> None:
    fill(cluster, 60, start=20, batch_size=1)
    for number in range(10):
        cluster.delete(b"key-%d" % number)


def require_exact_and_whole(lake: LakeTables, cluster: ProducerCluster) -> None:
    """Every version exact, no row twice, and the newest one what the bucket holds now."""
    require_every_version_exact(lake, cluster)
    require_no_row_twice(lake)
    require_as_the_bucket(lake, cluster)


def sent_since(cluster: ProducerCluster, before: dict[int, list[int]]) -> set[tuple[int, int]]:
    return {
        (vbucket, seqno)
        for vbucket, seqnos in cluster.counters().seqnos_sent.items()
        for seqno in seqnos[len(before.get(vbucket, [])) :]
    }


def test_a_driver_killed_at_each_step_while_a_rollback_is_in_flight(
    spark: "SparkSession", cluster: ProducerCluster, tmp_path: Path
) -> None:
    """The first round of the run gets the order, the second begins the epoch and is undone."""
    fill(cluster, 80, batch_size=1)
    settings = settings_for(cluster, tmp_path)
    run(settings, once=True, spark=spark)
    for node in (0, 1):
        cluster.crash_restart(node, lost_seqnos=7)
    change(cluster)
    lake = lake_of(settings, spark)
    before = latest_round(lake)
    steps = [*COMMITTED, "round.committed:2", *STEPS_ON_DISK[3:]]
    job = Job(settings, tmp_path, **stops_at(tmp_path, steps))
    try:
        copies = list(copies_at(job, held_files(tmp_path, steps), tmp_path / "lake"))
    finally:
        job.end()
    assert job.process.returncode == -signal.SIGKILL
    for step, folder in zip(steps, [*copies, tmp_path], strict=True):
        print(f"step {step}")
        left = settings_for(cluster, folder)
        lake = lake_of(left, spark)
        committed = COMMITTED.get(step, 2)
        assert latest_round(lake) == before + committed
        sent = cluster.counters().seqnos_sent
        run(left, once=True, spark=spark)
        assert latest_round(lake) == before + 2
        if committed == 2:
            assert not sent_since(cluster, sent), "the producer sent again what was durable"
        require_as_the_bucket(lake, cluster)
        require_every_version_exact(lake, cluster)
        require_no_row_twice(lake)
        require_whole_audit(lake)
    require_live_exact(lake, cluster, latest_round(lake))


def require_as_the_bucket(lake: LakeTables, cluster: ProducerCluster) -> None:
    """The newest version is what the bucket holds now."""
    high = {vbucket: cluster.high_seqno(vbucket) for vbucket in range(VBUCKETS)}
    assert complete_seqnos(lake, latest_round(lake)) == high
    assert table_rows(lake, None) == source_rows(cluster, high)


def require_whole_audit(lake: LakeTables) -> None:
    """Each apply that took rows back has its audit, once."""
    commits = history(lake.table("docs"), WHOLE)
    undoing = [applied_of("docs", commit) for commit in commits if commit.is_apply]
    expected = {applied.version for applied in undoing if applied.undone}
    assert len(expected) == 1
    rows = lake.table(AUDIT_TABLE).rows("version, vbucket, key", "true")
    assert {row["version"] for row in rows} == expected
    assert len({tuple(row.values()) for row in rows}) == len(rows)


def test_a_python_worker_killed_in_mid_stream(
    spark: "SparkSession",
    cluster: ProducerCluster,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Spark tries the task again; its first attempt's rows are not in the commit."""
    fill(cluster, 200)
    settings = settings_for(cluster, tmp_path)
    killed = tmp_path / "killed"
    of_workers = spark.sparkContext.environment
    monkeypatch.setitem(of_workers, VARIABLE, "round.received=kill")
    monkeypatch.setitem(of_workers, FILE_VARIABLE, str(killed))
    run(settings, once=True, spark=spark)
    assert killed.exists(), "no worker was killed"
    require_exact_and_whole(lake_of(settings, spark), cluster)


def test_sigint_ends_a_driver_after_the_round_under_way(
    spark: "SparkSession", cluster: ProducerCluster, tmp_path: Path
) -> None:
    """Spark installs a handler of its own when it starts; SIGTERM it leaves alone."""
    fill(cluster, 200)
    settings = settings_for(
        cluster,
        tmp_path,
        flow_control=SMALL_FLOW,
        round={"target_bytes": 1500},
    )
    paused = tmp_path / "paused"
    job = Job(settings, tmp_path, **{VARIABLE: "round.committed=pause", FILE_VARIABLE: str(paused)})
    try:
        job.wait_for(paused)
        job.process.send_signal(signal.SIGINT)
        paused.unlink()
        assert job.wait() == StoppedError.exit_code, job.output()
    finally:
        job.end()
    assert "asked to stop" in job.output()
    assert "Traceback" not in job.output()
    lake = lake_of(settings, spark)
    assert latest_round(lake) == 1
    require_every_version_exact(lake, cluster)
    run(settings_for(cluster, tmp_path), once=True, spark=spark)
    require_exact_and_whole(lake, cluster)


def test_two_drivers_started_at_once(
    spark: "SparkSession", cluster: ProducerCluster, tmp_path: Path
) -> None:
    """P7: at least one goes on; the other does too (it came later) or stops, saying why."""
    fill(cluster, 80)
    settings = settings_for(cluster, tmp_path, lake={"root": str(tmp_path / "lake"), "lock": False})
    folders = [tmp_path / "first", tmp_path / "second"]
    for folder in folders:
        folder.mkdir()
    jobs = [Job(settings, folder) for folder in folders]
    codes = [job.wait() for job in jobs]
    assert 0 in codes, [job.output() for job in jobs]
    assert set(codes) <= {0, FencedError.exit_code}, [job.output() for job in jobs]
    for job, code in zip(jobs, codes, strict=True):
        assert (code == 0) == ("dcplake run:" not in job.output()), job.output()
    run(settings, once=True, spark=spark)
    require_exact_and_whole(lake_of(settings, spark), cluster)
