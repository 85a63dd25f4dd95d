"""P1 to P5 where a driver receives and applies at once: killed and stopped at pairs of steps.

Both threads are held, each at a step of its own, when the process is killed. What a killed driver
leaves is what is on the disk: a copy of the lake is taken while all its processes are stopped.
"""

import os
import shutil
import signal
import threading
from collections.abc import Iterator
from copy import copy
from functools import partial
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from dcp.lake.adapters.spark_store import SparkStore
from dcp.lake.change_log import stop_points
from dcp.lake.change_log.applied import replica_status
from dcp.lake.change_log.changes import latest_round
from dcp.lake.change_log.stop_points import VARIABLE
from dcp.lake.rounds.lake_state import tasks_at_once
from dcp.lake.run.replicate import run
from dcp.lake.store.location import LakeLocation
from dcp.lake.tables.lake_tables import DOCS, LakeTables, replicas_in
from dcp.producer.cluster import ProducerCluster
from dcp.producer.cluster_settings import ClusterSettings
from dcp.threads import in_thread
from tests.client.drained import wait_for
from tests.lake.driver_host import DriverHost
from tests.lake.held_steps import STEPS_ON_DISK, held_files, stops_at
from tests.lake.receiving import lake_of, overrides_of, settings_for
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

    from dcp.lake.config.settings import Settings

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
VBUCKETS = 4
PATIENCE_SECONDS = 120.0
APPLY_STEPS = [step for step in STEPS_ON_DISK if not step.startswith(("round.", "erase."))]
ROUND_STEPS = ["round.received", "round.committed", "round.committed:2"]
"""What a round has received is on the disk, and not in the log."""


@pytest.fixture
def cluster() -> Iterator[ProducerCluster]:
    with ProducerCluster(ClusterSettings(nodes=2, vbuckets=VBUCKETS, seed=5)) as cluster:
        yield cluster


class Scene:
    """A lake with an apply pending, and a driver that begins with it; without Spark in memory."""

    def __init__(
        self, spark: "SparkSession | None", cluster: ProducerCluster, folder: Path
    ) -> None:
        self.spark, self.cluster, self.folder = spark, cluster, folder
        self.settings = self._settings("every_round")
        self._written = 0
        self.write(80)
        run(self.settings, once=True, spark=spark)
        self.lake: LakeTables = self._opened()

    def _opened(self) -> LakeTables:
        return lake_of(self.settings, self.spark)

    def _settings(self, when: str) -> "Settings":
        return settings_for(
            self.cluster,
            self.folder,
            apply={"when": when},
            round={"minimum_interval_seconds": 0.2},
        )

    def write(self, count: int) -> None:
        """Change some documents, add some, and delete one."""
        for number in range(self._written // 2, self._written // 2 + count):
            self.cluster.set(b"key-%d" % number, b'{"n": %d}' % self._written)
        self.cluster.delete(b"key-%d" % (self._written // 2))
        self._written += count

    def lose_and_go_on(self) -> int:
        """Let both nodes lose what was published; receive that and apply nothing of it."""
        for node in (0, 1):
            self.cluster.crash_restart(node, lost_seqnos=7)
        return self.go_on()

    def go_on(self) -> int:
        """Receive some changes and apply none of them; return the newest round."""
        self.write(30)
        run(self._settings("never"), once=True, spark=self.spark)
        return latest_round(self.lake)

    def hold(self, host: DriverHost, *steps: str) -> dict[str, Path]:
        """Start a run that is held at these steps, the first one of an apply, the second of a
        round; return the files of all when it is held at both.
        """
        files = host.begin(["run", *overrides_of(self.settings)], steps)
        host.wait_for(files[0])
        self.write(20)
        host.wait_for(files[1])
        return dict(zip(steps, files, strict=True))

    def left_in(self, folder: Path) -> "Scene":
        """Return this scene with the copy of its lake in a folder."""
        left = copy(self)
        left.folder = folder
        left.settings = left._settings("every_round")
        left.lake = left._opened()
        return left

    def has_round(self, number: int) -> bool:
        return latest_round(self.lake) >= number

    def require_exact(self) -> None:
        require_every_version_exact(self.lake, self.cluster)
        require_no_row_twice(self.lake)

    def require_live_exact(self) -> None:
        require_live_exact(self.lake, self.cluster, latest_round(self.lake))

    def has_everything(self) -> bool:
        """Whether the newest round holds all that was written: no further one comes then."""
        return complete_seqnos(self.lake, latest_round(self.lake)) == self.high_seqnos()

    def high_seqnos(self) -> dict[int, int]:
        return {vbucket: self.cluster.high_seqno(vbucket) for vbucket in range(VBUCKETS)}

    def require_as_the_bucket(self) -> None:
        assert self.has_everything()
        held = table_rows(self.lake, None)
        assert held == source_rows(self.cluster, self.high_seqnos())


def test_sigint_ends_the_round_and_the_apply_under_way(
    spark: "SparkSession", cluster: ProducerCluster, tmp_path: Path, host: DriverHost
) -> None:
    scene = Scene(spark, cluster, tmp_path)
    pending = scene.lose_and_go_on()
    held = scene.hold(host, "apply.planned", "round.received")
    os.kill(host.pid, signal.SIGINT)
    ended = host.ended(held.values())
    assert ended.code == 0, ended.output
    assert "Traceback" not in ended.output
    assert latest_round(scene.lake) == pending + 1
    assert replica_status(scene.lake, DOCS).round == pending + 1
    scene.require_exact()
    run(scene.settings, once=True, spark=spark)  # that round may have begun amid the writes
    scene.require_as_the_bucket()


def test_killed_at_steps_of_rounds_while_an_apply_is_at_each_of_its_own(
    spark: "SparkSession", cluster: ProducerCluster, tmp_path: Path, host: DriverHost
) -> None:
    """One run serves all pairs: a round goes by while the apply is held at one of its steps."""
    scene = Scene(spark, cluster, tmp_path)
    pending = scene.lose_and_go_on()
    # `apply.planned` and `round.planned` leave nothing on the disk: what the other thread leaves
    # beside them, `test_crashes` goes on from.
    pairs = [*zip(APPLY_STEPS, ROUND_STEPS, strict=True)]
    held = scene.hold(host, *pairs[0], *APPLY_STEPS[1:], *(step for _, step in pairs[1:]))
    lefts: list[Scene] = []

    def go_on(step: str, following: str) -> None:
        """Let the thread that is held at a step go on to the following one."""
        host.wait_for(held[following], [held[step]])
        host.receiving.touch()

    def kill() -> None:
        host.stop()
        folder = tmp_path / f"left-{len(lefts)}"
        shutil.copytree(str(scene.settings.lake.root), folder / "lake")
        host.wake()
        lefts.append(scene.left_in(folder))

    for (applying, receiving), (next_applying, next_receiving) in pairwise(pairs):
        kill()
        scene.write(20)  # for the next round
        go_on(receiving, next_receiving)
        go_on(applying, next_applying)
    kill()
    os.kill(host.pid, signal.SIGINT)
    assert host.ended(held.values()).code == 0
    for (applying, receiving), left in zip(pairs, lefts, strict=True):
        print(f"apply at {applying}, round at {receiving}")
        step, _, count = receiving.partition(":")
        committed = int(count or 1) - (step != "round.committed")
        assert latest_round(left.lake) == pending + committed
        assert (replica_status(left.lake, DOCS).round == pending) == (applying != "apply.planned")
        run(left.settings, once=True, spark=spark)
        left.require_as_the_bucket()
        left.require_exact()
    lefts[-1].require_live_exact()


@pytest.mark.usefixtures("lakes_in_memory")
def test_a_slow_apply_delays_no_round(
    cluster: ProducerCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rounds go on while a table's apply does not end."""
    scene = Scene(None, cluster, tmp_path)
    pending = scene.go_on()
    steps = ["apply.planned", "round.planned"]
    applying, receiving = held_files(tmp_path, steps)
    monkeypatch.setattr(stop_points, "_reached", {})
    for name, value in stops_at(tmp_path, steps).items():
        monkeypatch.setenv(name, value)
    stop = threading.Event()
    running = in_thread(partial(run, scene.settings, once=False, stop=stop))
    try:
        wait_for("an apply that stands still", applying.exists, PATIENCE_SECONDS)
        scene.write(20)
        wait_for("a round that begins", receiving.exists, PATIENCE_SECONDS)
        receiving.unlink()
        for wanted in range(pending + 1, pending + 4):
            wait_for(f"round {wanted}", partial(scene.has_round, wanted), PATIENCE_SECONDS)
            wait_for("all that was written", scene.has_everything, PATIENCE_SECONDS)
            scene.write(10)
        assert replica_status(scene.lake, DOCS).round < pending
        applying.unlink()
        wait_for(
            "the apply",
            lambda: replica_status(scene.lake, DOCS).round > pending + 1,
            PATIENCE_SECONDS,
        )
    finally:
        for file in (applying, receiving):
            file.unlink(missing_ok=True)
        stop.set()
        running.result(PATIENCE_SECONDS)
    scene.require_exact()


@pytest.mark.usefixtures("lakes_in_memory")
def test_tables_of_two_collections_are_applied_to_at_once(
    cluster: ProducerCluster,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One table's apply stands still; the other's, of the same round, is committed meanwhile."""
    cluster.create_scope("s")
    cluster.create_collection("s", "c")
    for number in range(20):
        cluster.set(b"key-%d" % number, b"1")
        cluster.set(b"key-%d" % number, b"2", collection="s.c")
    held = tmp_path / "held"
    monkeypatch.setattr(stop_points, "_reached", {})
    monkeypatch.setenv(VARIABLE, f"apply.planned=pause@{held}")
    settings = settings_for(cluster, tmp_path)
    running = in_thread(partial(run, settings, once=True, stop=threading.Event()))
    wait_for("an apply that stands still", held.exists, PATIENCE_SECONDS)
    lake = lake_of(settings)
    tables = replicas_in(lake)

    def rounds() -> list[int]:
        return sorted(replica_status(lake, each).round for each in tables)

    wait_for("the other one's apply", lambda: rounds() == [0, 1], PATIENCE_SECONDS)
    held.unlink()
    assert len(running.result(PATIENCE_SECONDS).applied) == 2
    assert rounds() == [1, 1]
    found = [table_rows(lake, None, each) for each in tables]
    assert [sum(map(len, by_vbucket.values())) for by_vbucket in found] == [20, 20]


@pytest.mark.parametrize(
    ("master", "alone", "beside"),
    [("local[8]", 8, 4), ("local[3]", 3, 1), ("local[1]", 1, 1), ("spark://host:7077", 0, 0)],
)
def test_a_round_leaves_half_of_one_machine_to_an_apply(
    master: str, alone: int, beside: int
) -> None:
    session: Any = SimpleNamespace(conf={"spark.master": master})
    lake: Any = SimpleNamespace(store=SparkStore(lambda: session, LakeLocation(root="/lake")))
    assert tasks_at_once(lake) == alone
    assert tasks_at_once(lake, beside_apply=True) == beside
