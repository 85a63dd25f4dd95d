"""Windows of tasks that come and go, as the producer has them: real processes, real connections."""

import itertools
import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from dcp.lake.executor_windows import register_folder
from dcp.lake.flow_control_settings import FlowControlSettings
from dcp.lake.run import lake_location, run
from dcp.lake.tables import open_lake
from dcp.lake.window_bounds import policy_settings, windows_one_by_one
from dcp.lake.window_register import WindowRegister
from dcp.producer.cluster import ProducerCluster
from dcp.producer.send_window import SendWindow
from dcp.producer.settings import ClusterSettings
from tests.client.drained import USERS, wait_for
from tests.lake.receiving import RoundsInProcess, documents_at, settings_for, source_at
from tests.lake.replicas import require_live_exact, require_no_row_twice

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).resolve().parents[2]
QUOTA = 1_200_000_000
ROWS = 300
LEAST = 4096


def start(cluster: ProducerCluster, folder: Path, vbucket: int) -> "subprocess.Popen[str]":
    arguments = [str(folder), str(QUOTA), cluster.seeds[0], str(vbucket), str(ROWS)]
    return subprocess.Popen(
        [sys.executable, "-m", "tests.lake.window_consumer", *arguments],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )


def windows(cluster: ProducerCluster) -> list[int]:
    """Return the windows of all connections as the producer was told them."""
    with cluster.bucket.lock:
        connections = list(cluster.bucket.dcp_connections.values())
    return [each.flow.window_bytes for each in connections]


def write(cluster: ProducerCluster, first: int, last: int) -> None:
    """Give each vbucket the documents of these numbers."""
    with cluster.batch():
        for vbucket in range(cluster.settings.vbuckets):
            keys = (b"key-%d" % number for number in itertools.count())
            own = (key for key in keys if cluster.vbucket_of(key) == vbucket)
            for key in itertools.islice(own, first, last):
                cluster.set(key, b"value " * 20)


def test_a_killed_task_leaves_its_window_to_the_others(tmp_path: Path) -> None:
    folder = tmp_path / "mine" / "windows-0"
    with ProducerCluster(ClusterSettings(vbuckets=3, users=USERS, seed=3)) as cluster:
        write(cluster, 0, 100)
        tasks: list[subprocess.Popen[str]] = []
        try:
            for vbucket, shared in enumerate((52_428_800, 30_000_000, 20_000_000)):
                tasks.append(start(cluster, folder, vbucket))
                expected = [shared] * len(tasks)
                wait_for(f"{expected}", lambda: windows(cluster) == expected)  # noqa: B023
            write(cluster, 100, 200)
            tasks[2].send_signal(signal.SIGKILL)
            wait_for("larger windows", lambda: windows(cluster) == [30_000_000] * 2)
            write(cluster, 200, ROWS)
            said = [task.communicate(timeout=90)[0] for task in tasks]
        finally:
            for task in tasks:
                task.kill()
                task.wait()
        # The third may have been killed before it said anything.
        told = [json.loads(text.splitlines()[-1]) for text in said[:2]]
        assert [rows for rows, _ in told] == [ROWS, ROWS], "nothing is lost or twice"
        assert windows(cluster) == []
    assert not folder.exists()


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ("static", {LEAST}),
        ("dynamic", {20_971, LEAST}),
        ("aggressive", {52_428, 26_214}),
        ("ratio", {52_428, 26_214}),
        ("none", set()),
    ],
)
def test_a_task_brings_everything_whatever_the_policy(
    policy: str, expected: set[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No batch is full before its window is, and no time is over: nothing may wait for these."""
    told: set[int] = set()
    set_window = SendWindow.set_window

    def recorded(flow: SendWindow, window_bytes: int) -> None:
        told.add(window_bytes)
        set_window(flow, window_bytes)

    monkeypatch.setattr(SendWindow, "set_window", recorded)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    flow = {
        "window_policy": policy,
        "window_bytes": LEAST,
        "window_quota_bytes": 1 << 20,
        "window_percent": 2.0,
        "window_threshold_percent": 3.0,
        "batch_bytes": 3000,
        "batch_seconds": 60.0,
        "ack_seconds": 60.0,
        "allow_no_flow_control": True,
    }
    with ProducerCluster(ClusterSettings(nodes=2, vbuckets=4, seed=5)) as cluster:
        with cluster.batch():
            for number in range(500):
                cluster.set(b"key-%d" % number, b'{"n": %d}' % number + b" " * 300)
        rounds = RoundsInProcess(settings_for(cluster, tmp_path, flow_control=flow))
        rows = rounds.run()
        for vbucket in range(4):
            high = cluster.high_seqno(vbucket)
            assert documents_at(rows, vbucket, high) == source_at(cluster, vbucket, high)
    assert told == expected
    assert not list(tmp_path.glob("dcplake-*/windows-*")), "nothing is left behind"


def test_a_batch_that_a_smaller_window_cannot_hold_is_handed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others come while a batch is half full: without time the node would wait for it, and it too.

    No ack counts before the window has shrunk.
    """
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with ProducerCluster(ClusterSettings(nodes=1, vbuckets=4, seed=5)) as cluster:
        with cluster.batch():
            for number in range(500):
                cluster.set(b"key-%d" % number, b'{"n": %d}' % number + b" " * 300)
        numbers = {"batch_bytes": 30_000, "batch_seconds": 60.0, "ack_seconds": 60.0}
        shared = {"window_policy": "ratio", "window_quota_bytes": 1 << 20}
        settings = settings_for(cluster, tmp_path, flow_control=numbers | shared)
        rounds = RoundsInProcess(settings)
        others = WindowRegister(
            register_folder(settings.flow_control),
            policy_settings(settings.flow_control),
            settings.flow_control.window_quota_bytes,
        )
        told: list[int] = []
        withheld: list[int] = []
        set_window, acknowledge = SendWindow.set_window, SendWindow.acknowledge

        def recorded(flow: SendWindow, window_bytes: int) -> None:
            told.append(window_bytes)
            set_window(flow, window_bytes)
            if window_bytes != LEAST:
                others.declare([f"other {number}" for number in range(20)])
            while window_bytes == LEAST and withheld:
                acknowledge(flow, withheld.pop())

        def counted(flow: SendWindow, frame_bytes: int) -> int:
            if LEAST in told:
                return acknowledge(flow, frame_bytes)
            withheld.append(frame_bytes)
            return 0

        monkeypatch.setattr(SendWindow, "set_window", recorded)
        monkeypatch.setattr(SendWindow, "acknowledge", counted)
        rows = rounds.run()
        others.leave()
        for vbucket in range(4):
            high = cluster.high_seqno(vbucket)
            assert documents_at(rows, vbucket, high) == source_at(cluster, vbucket, high)
        assert {row["outcome"] for row in _statuses(rows)} == {"reached"}
    assert told == [52_428, LEAST]


def _statuses(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [json.loads(row["detail"]) for row in rows if row["kind"] == "status"]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_round_with_shared_windows_brings_everything(
    spark: "SparkSession", tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No ack counts before the first task knows of the second: however far apart they start."""
    told: list[int] = []
    withheld: dict[SendWindow, int] = {}
    set_window, acknowledge = SendWindow.set_window, SendWindow.acknowledge
    alone, with_another = 52_428, 26_214

    def recorded(flow: SendWindow, window_bytes: int) -> None:
        told.append(window_bytes)
        set_window(flow, window_bytes)
        if told.count(with_another) == 2:  # what each connection says next wakes it
            for each, frame_bytes in withheld.items():
                acknowledge(each, frame_bytes)
            withheld.clear()

    def counted(flow: SendWindow, frame_bytes: int) -> int:
        if told.count(with_another) >= 2:
            return acknowledge(flow, frame_bytes)
        withheld[flow] = withheld.get(flow, 0) + frame_bytes
        return 0

    monkeypatch.setattr(SendWindow, "set_window", recorded)
    monkeypatch.setattr(SendWindow, "acknowledge", counted)
    shared = {
        "window_policy": "aggressive",
        "window_bytes": LEAST,
        "batch_bytes": 1024,
        "window_quota_bytes": 1 << 20,
    }
    with ProducerCluster(ClusterSettings(nodes=2, vbuckets=4, seed=5)) as cluster:
        with cluster.batch():
            for number in range(1000):
                cluster.set(b"key-%d" % number, b'{"n": %d}' % number + b" " * 300)
        # The first task's full window must not pass for a silent node.
        patient = {"tasks": 2, "node_deadline_seconds": 120.0, "target_seconds": 240.0}
        settings = settings_for(cluster, tmp_path, flow_control=shared, round=patient)
        run(settings, once=True, spark=spark)
        lake = open_lake(lambda: spark, lake_location(settings))
        require_live_exact(lake, cluster, 1)
        require_no_row_twice(lake)
    sizes = windows_one_by_one(FlowControlSettings(**shared), 4)  # type: ignore[arg-type]
    assert sizes == [52_428, 26_214, 17_476, 13_107]
    in_tasks = [each for each in told if each != LEAST]  # the driver's own connections
    assert set(in_tasks) <= set(sizes)
    assert {alone, with_another} <= set(in_tasks), "alone, then shared"
