"""``dcplake backfill``: vbuckets from replicas, killed, beside a run, and where it cannot be."""

import os
import shutil
import signal
import threading
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from dcp.errors import ConfigError, IncompleteRunError, StoppedError
from dcp.lake.change_log.applied import applied_of
from dcp.lake.change_log.changes import latest_round
from dcp.lake.change_log.control import (
    CONTROL,
    Control,
    ControlRequest,
    RequestAction,
    RequestState,
)
from dcp.lake.config.settings import ApplySettings, ApplyWhen
from dcp.lake.config.table_names import CONTROL_TABLE
from dcp.lake.rounds.backfill_plan import REPLICAS, SETTINGS
from dcp.lake.rounds.observer import Observer, RoundProgress
from dcp.lake.rounds.round_plan import RoundPlan
from dcp.lake.run.backfill_command import backfill, cancel_backfill
from dcp.lake.run.control_requests import ask
from dcp.lake.run.driver_backfills import requested_backfill
from dcp.lake.run.preview import preview, preview_backfill
from dcp.lake.run.replicate import run
from dcp.lake.tables.history import history
from dcp.lake.tables.lake_tables import DOCS
from dcp.producer.cluster import ProducerCluster
from dcp.producer.cluster_settings import ClusterSettings
from tests.lake.driver_host import DriverHost
from tests.lake.receiving import lake_of, overrides_of, settings_for
from tests.lake.replicas import (
    Rows,
    require_every_version_exact,
    require_no_row_twice,
    source_rows,
    table_rows,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from dcp.lake.config.settings import Settings
    from dcp.lake.rounds.backfill_plan import BackfillReport
    from dcp.lake.rounds.round_report import RoundReport

VBUCKETS = 6
RATE = 0.015
"""Megabytes per second: what one vbucket of the tests takes two seconds for."""


def cluster_of(nodes: int, replicas: int, checkpoint_items: int = 10_000) -> ProducerCluster:
    chosen = ClusterSettings(
        nodes=nodes,
        vbuckets=VBUCKETS,
        replicas=replicas,
        seed=5,
        checkpoint_items=checkpoint_items,
    )
    return ProducerCluster(chosen)


def quick(cluster: ProducerCluster, folder: Path) -> "Settings":
    return settings_for(
        cluster,
        folder,
        round={
            "quiet_seconds": 0.3,
            "node_deadline_seconds": 4.0,
            "minimum_interval_seconds": 0.2,
        },
        source={"connect_timeout_seconds": 2.0, "bootstrap_timeout_seconds": 2.0},
    )


def fill(cluster: ProducerCluster, numbers: range, value: bytes = b"x" * 500) -> None:
    with cluster.batch():
        for number in numbers:
            cluster.set(b"key-%d" % number, b'{"v": "%s"}' % value)


def source(cluster: ProducerCluster) -> Rows:
    return source_rows(cluster, {vb: cluster.high_seqno(vb) for vb in range(VBUCKETS)})


@pytest.mark.usefixtures("lakes_in_memory")
def test_a_new_lake_is_filled_though_an_active_node_is_gone(tmp_path: Path) -> None:
    with cluster_of(3, 2) as cluster:
        fill(cluster, range(300))
        cluster.wait_until_replicated()
        cluster.kill_node(0)
        settings = quick(cluster, tmp_path)
        estimate = preview_backfill(settings, None, REPLICAS)
        assert (estimate.documents, len(estimate.seqnos), estimate.left_out) == (300, 2, ())
        request = backfill(settings, None, REPLICAS)
        assert request.state is RequestState.DONE, request
        lake = lake_of(settings)
        assert table_rows(lake, None) == source(cluster)

        # Another lake, and no other node: what node 1 alone has, active, nobody reads.
        cluster.kill_node(2)
        settings = replace(settings, lake=replace(settings.lake, root=str(tmp_path / "other")))
        with pytest.raises(
            IncompleteRunError, match=r"left out: vbuckets .*: no replica vbucket \("
        ):
            backfill(settings, None, REPLICAS)
        expected = {
            vb: rows for vb, rows in source(cluster).items() if cluster.vbucket_owner(vb) != 1
        }
        assert 0 < len(expected) < VBUCKETS
        assert table_rows(lake_of(settings), None) == expected


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_backfill_that_was_killed_goes_on_in_a_run_while_documents_change(
    spark: "SparkSession", tmp_path: Path, host: DriverHost
) -> None:
    with cluster_of(3, 2) as cluster:
        settings = quick(cluster, tmp_path)
        for value in (b"x" * 5000, b"x" * 500):  # each document is there once, and has become small
            fill(cluster, range(600), value)
            cluster.wait_until_replicated()
            run(settings, once=True, spark=spark)
        lake = lake_of(settings, spark)
        before = table_rows(lake, None)
        estimate = preview_backfill(settings, None, REPLICAS, RATE)
        assert estimate.documents == 600
        assert estimate.frame_bytes is not None
        assert 600 * 500 < estimate.frame_bytes < 600 * 700
        assert estimate.seconds == pytest.approx(estimate.frame_bytes / (RATE * 1e6))

        settings = left_by_a_kill(host, settings, tmp_path / "left")
        lake = lake_of(settings, spark)
        control = Control(lake)
        [begun] = control.requests()
        assert begun.state is RequestState.BEGUN
        assert table_rows(lake, None).keys() == before.keys(), "what was published is there"

        over = threading.Event()
        [held] = host.begin(["run", *overrides_of(settings)], ["round.planned"])
        writer = threading.Thread(target=change_until, args=(cluster, over))
        writer.start()
        seen: list[BackfillReport] = []
        observer = Observer()
        observer.backfill = seen.append  # type: ignore[assignment,method-assign]  # one call alone
        try:
            host.wait_for(held)
            held.unlink()
            cluster.failover(0)
            request = backfill(settings, None, REPLICAS, RATE, observer=observer)
            # Unless the run had carried out the one that was begun: then this is another.
            assert request.state is RequestState.DONE
            assert {each.state for each in control.requests()} == {RequestState.DONE}
            assert begun.id in {each.id for each in control.requests()}
            assert seen
            assert {report.vbuckets for report in seen} == {VBUCKETS}
        finally:
            over.set()
            writer.join()
            os.kill(host.pid, signal.SIGTERM)
            ended = host.ended([held])
        assert ended.code == 0, ended.output
        run(settings, once=True, spark=spark)
        assert table_rows(lake, None) == source(cluster)
        assert require_every_version_exact(lake, cluster) > 1
        require_no_row_twice(lake)


def left_by_a_kill(host: DriverHost, settings: "Settings", root: Path) -> "Settings":
    """Let a driver begin a backfill; return the settings of a lake as a kill would leave it then.

    That is a copy, taken after the first round while the driver stands still.
    """
    words = ["backfill", "--megabytes-per-second", str(RATE), *overrides_of(settings)]
    [held] = host.begin(words, ["round.committed"])
    host.wait_for(held)
    host.stop()
    shutil.copytree(settings.lake.root, root)
    host.wake()
    os.kill(host.pid, signal.SIGTERM)
    assert host.ended([held]).code == StoppedError.exit_code
    return replace(settings, lake=replace(settings.lake, root=str(root)))


class OneRound(Observer):
    """Stops a run after its first round."""

    def __init__(self) -> None:
        self.stop = threading.Event()
        self.plans: list[RoundPlan] = []

    def planned(self, plan: RoundPlan, progress: RoundProgress | None) -> None:
        self.plans.append(plan)

    def committed(self, report: "RoundReport") -> None:
        self.stop.set()


@pytest.mark.usefixtures("lakes_in_memory")
def test_plan_shows_what_the_next_round_reads_for_an_open_backfill(tmp_path: Path) -> None:
    with cluster_of(2, 1) as cluster:
        # More than the windows of two nodes, so that no round reads all.
        fill(cluster, range(60), b"x" * 20_000)
        cluster.wait_until_replicated()
        settings = quick(cluster, tmp_path)
        run(settings, once=True)
        control = Control(lake_of(settings))
        asked = requested_backfill(None, REPLICAS)
        control.write(asked, RequestState.REQUESTED)
        settings = replace(
            settings,
            round=replace(settings.round, tasks=1, target_bytes=1),
            flow_control=replace(
                settings.flow_control, window_bytes=64 * 1024, batch_bytes=32 * 1024
            ),
        )
        for state in (RequestState.REQUESTED, RequestState.BEGUN):
            plan = preview(settings)
            assert isinstance(plan, RoundPlan), str(plan)
            assert "seqnos; backfill from replica vbuckets; " in str(plan)
            assert control.request(asked.id).state is state, "a plan writes nothing"
            one = OneRound()
            with pytest.raises(StoppedError):
                run(settings, once=True, observer=one, stop=one.stop)
            assert [each.streams for each in one.plans] == [plan.streams]


def change_until(cluster: ProducerCluster, over: threading.Event) -> None:
    number = 0
    while not over.wait(0.1):
        fill(cluster, range(number, number + 10), b"later")
        cluster.delete(b"key-%d" % number)
        number = (number + 7) % 700


@pytest.mark.usefixtures("lakes_in_memory")
def test_a_replica_that_is_behind_or_ahead_of_the_promoted_node(tmp_path: Path) -> None:
    with cluster_of(3, 2) as cluster:
        fill(cluster, range(100))
        cluster.wait_until_replicated()
        settings = quick(cluster, tmp_path)
        run(settings, once=True)
        lake = lake_of(settings)

        # Behind: nothing begins, the tables are not touched.
        cluster.pause_replication()
        fill(cluster, range(50), b"not replicated")
        run(settings, once=True)
        held = table_rows(lake, None)
        with pytest.raises(
            IncompleteRunError, match=r"replica vbucket behind \(127.* holds seqnos up to"
        ):
            backfill(settings, {0, 1}, REPLICAS)
        assert table_rows(lake, None) == held == source(cluster)

        # From the nodes of the settings the same is possible at once.
        assert backfill(settings, {0, 1}, SETTINGS).state is RequestState.DONE
        assert table_rows(lake, None) == held

        # The lake is ahead of a node that is promoted: its rows are taken back, then rebuilt.
        cluster.failover(0)
        cluster.resume_replication()
        fill(cluster, range(60, 70), b"after the failover")
        cluster.wait_until_replicated()
        backfill(settings, None, REPLICAS)
        run(settings, once=True)
        assert table_rows(lake, None) == source(cluster)
        require_every_version_exact(lake, cluster)


@pytest.mark.usefixtures("lakes_in_memory")
def test_a_lake_is_paused_and_a_resync_is_asked_of_its_driver(tmp_path: Path) -> None:
    with cluster_of(1, 0) as cluster:
        fill(cluster, range(30))
        settings = quick(cluster, tmp_path)
        run(settings, once=True)
        lake = lake_of(settings)
        fill(cluster, range(5), b"received")
        received = source(cluster)
        run(replace(settings, apply=ApplySettings(when=ApplyWhen.NEVER)), once=True)
        paused = ask(settings, RequestAction.PAUSE)
        fill(cluster, range(10), b"later")
        with pytest.raises(StoppedError, match=f"paused by .*{paused.id}.*dcplake resume"):
            run(settings, once=True)
        assert latest_round(lake) == 2
        assert table_rows(lake, None) == received, "what was received is applied"
        ask(settings, RequestAction.RESUME)
        asked = ask(settings, RequestAction.RESYNC, [2, 3])
        with pytest.raises(ConfigError, match=r"vbuckets: found 6, expected some of 0-5"):
            ask(settings, RequestAction.RESYNC, [6])
        control, wrong = Control(lake), ControlRequest.new(RequestAction.RESYNC, "6", {})
        control.write(wrong, RequestState.REQUESTED)
        run(settings, once=True)
        assert {each.state for each in control.requests()} == {
            RequestState.DONE,
            RequestState.REFUSED,
        }
        assert control.request(asked.id).state is RequestState.DONE
        assert "vbuckets: found 6, expected some of 0-5" in control.request(wrong.id).detail
        assert table_rows(lake, None) == source(cluster)
        commits = history(lake.table(DOCS.name), 100)
        applied = [applied_of(DOCS.name, commit) for commit in commits if commit.is_apply]
        assert {undo.vbucket for each in applied for undo in each.undone} == {2, 3}


@pytest.mark.usefixtures("lakes_in_memory")
def test_a_backfill_that_is_cancelled_before_it_begins_tells_no_documents_of_another(
    tmp_path: Path,
) -> None:
    with cluster_of(2, 1) as cluster:
        fill(cluster, range(60))
        cluster.wait_until_replicated()
        settings = quick(cluster, tmp_path)
        run(settings, once=True)
        control = Control(lake_of(settings))
        first, second = (requested_backfill(None, REPLICAS) for _ in range(2))
        for asked in (first, second, ControlRequest(id=second.id, action=RequestAction.CANCEL)):
            control.write(asked, RequestState.REQUESTED)
        run(settings, once=True)
        details = [control.request(each.id).detail for each in (first, second)]
        assert [detail.partition(" ")[0] for detail in details] == ["60", "0"]


@pytest.mark.usefixtures("lakes_in_memory")
def test_requests_of_others_are_refused_by_name_and_one_is_cancelled(tmp_path: Path) -> None:
    with cluster_of(2, 1) as cluster:
        fill(cluster, range(60))
        cluster.wait_until_replicated()
        settings = quick(cluster, tmp_path)
        run(settings, once=True)
        with pytest.raises(ConfigError, match="found no backfill that is open"):
            cancel_backfill(settings)
        stopped = threading.Event()
        stopped.set()
        with pytest.raises(StoppedError, match="stays open"):
            backfill(settings, {3}, REPLICAS, stop=stopped)
        lake = lake_of(settings)
        control = Control(lake)
        bad = {
            "a": (
                "skip",
                "0",
                None,
                "action: found 'skip', expected one of backfill, erase",
            ),
            "i": ("seek", "0", None, "found seek, which dcplake does not have: dcplake resync"),
            "l": ("backfill", None, '{"collections": ["c"]}', "a backfill reads whole vbuckets"),
            "b": ("backfill", "0-6", None, "vbuckets: found 6, expected some of 0-5"),
            "c": ("backfill", "x", None, "vbuckets: found 'x', expected some of 0-5"),
            "d": ("backfill", None, '{"from": "disk"}', "from: found 'disk', expected"),
            "e": ("backfill", None, '{"megabytes_per_second": 0}', "found 0, expected 0.01 to 1"),
            "g": ("backfill", None, '{"megabytes_per_second": Infinity}', "found inf, expected 0"),
            "f": ("backfill", None, "[1]", "options: found '[1]', expected a JSON object"),
            "m": ("backfill", None, "[" * 2000, "expected a JSON object"),
            "h": ("pause", None, '{"x": 1}', "options: found '{\"x\": 1}', expected null"),
            "nobody": ("cancel", None, None, "cancel: found no request of id 'nobody' before it"),
        }
        backfill(settings, {3}, REPLICAS)  # which makes the table

        def insert(name: str, action: str, vbuckets: str | None, options: str | None) -> None:
            row = {"id": name, "time": datetime.now(UTC), "who": "ann", "action": action}
            row |= {"vbuckets": vbuckets, "options": options}
            lake.table(CONTROL_TABLE).append(pa.Table.from_pylist([row], CONTROL), {})

        for name, (action, vbuckets, options, _) in bad.items():
            insert(name, action, vbuckets, options)
        run(settings, once=True)
        found = {each.id: each for each in control.requests()}
        for name, (*_, detail) in bad.items():
            assert found[name].state is RequestState.REFUSED
            assert detail in found[name].detail
        insert("sql", "backfill", "3", '{"megabytes_per_second": 20}')
        same = backfill(settings, {3}, REPLICAS, 20.0)
        assert (same.id, same.state) == ("sql", RequestState.DONE)
        cluster.pause_replication()
        fill(cluster, range(60), b"not replicated")
        run(settings, once=True)
        control.write(requested_backfill({4}, REPLICAS), RequestState.REQUESTED)
        with pytest.raises(ConfigError, match=r"found the backfill \w+ open \(vbuckets 4"):
            backfill(settings, {3}, REPLICAS)
        asked, newest = cancel_backfill(settings), latest_round(lake)
        with pytest.raises(ConfigError, match="found no backfill that is open"):
            cancel_backfill(settings)
        run(settings, once=True)
        assert latest_round(lake) == newest, "it was cancelled before it began"
        assert control.request(asked.id).state is RequestState.CANCELLED
