"""The chain of credits from Spark back to the producer, with real sockets, measured at each link.

A sink that does not ask for the next batch is felt by the producer as acknowledgements that do not
come. And whatever way a task ends, nothing is held at its end.
"""

import logging
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from time import monotonic, sleep

import psutil
import pytest

from dcp.client.consumer import Consumer
from dcp.client.delivery import Delivery
from dcp.errors import LocalProtocolError
from dcp.lake.config.flow_control_settings import FlowControlSettings
from dcp.lake.config.memory import DOCUMENT_BYTES, MEBIBYTE
from dcp.lake.config.settings import Settings
from dcp.lake.receive.batch_flusher import BatchFlusher
from dcp.lake.receive.source_access import query_cluster, source_access
from dcp.lake.receive.task_receiver import TaskReceiver
from dcp.lake.rounds.lake_state import LakeState
from dcp.lake.rounds.round_plan import RoundPlan
from dcp.lake.rounds.round_planner import plan_round
from dcp.lake.task_board.board_files import read_board
from dcp.lake.task_board.board_folder import BoardFolder
from dcp.lake.task_board.task_stats import Connection, TaskStats
from dcp.producer.cluster import ProducerCluster
from dcp.producer.cluster_settings import ClusterSettings
from dcp.producer.faults import Corruption
from dcp.protocol.window import Window
from tests.client.drained import wait_for
from tests.lake.receive.test_bounded_memory import Source, settings_of, source_of
from tests.lake.receiving import PASSWORD, USER, RoundsInProcess, item_rows, settings_for

WINDOW_BYTES = MEBIBYTE
BATCH_BYTES = 512 * 1024


def _settings(source: Source, folder: Path) -> Settings:
    flow = FlowControlSettings(
        window_bytes=WINDOW_BYTES, batch_bytes=BATCH_BYTES, stats_folder=str(folder / "stats")
    )
    return replace(settings_of(source, folder), flow_control=flow)


def _sampled(board: BoardFolder, until: Callable[[TaskStats], bool]) -> TaskStats:
    end = monotonic() + 90
    samples: list[TaskStats] = []
    while monotonic() < end:
        samples = read_board(board)
        if samples and until(samples[0]):
            return samples[0]
        sleep(0.1)
    raise AssertionError(f"found {samples} after 90 s")


def _until_still(source: Source) -> dict[str, int]:
    """Return the producer's counters once its window is full and nothing was sent for a second."""
    end, told, since = monotonic() + 90, source.counters(), monotonic()
    while monotonic() - since < 1.0 or told["unacked_bytes"] < WINDOW_BYTES:
        assert monotonic() < end, f"the producer still sends after 90 s: {told}"
        sleep(0.05)
        now = source.counters()
        if now["bytes_sent"] != told["bytes_sent"]:
            since = monotonic()
        told = now
    return told


MOST_BYTES = WINDOW_BYTES + DOCUMENT_BYTES
"""What a window lets pass: its size and one message."""


def _require_bounds(sample: TaskStats) -> None:
    """No stage holds more than its window lets pass; each byte is held once."""
    (connection,) = sample.connections
    assert connection.window is not None
    assert connection.window.in_use <= MOST_BYTES
    assert 0 <= connection.window.overshoot_bytes <= DOCUMENT_BYTES
    assert connection.acknowledged_bytes <= connection.released_bytes <= connection.received_bytes
    stages = {each.name: each for each in (*connection.stages, *sample.stages)}
    for name in ("handover", "batch", "spark"):
        assert 0 <= stages[name].in_use <= MOST_BYTES, stages[name]
    for name in ("frame", "buffers", "batches"):
        assert 0 <= stages[name].in_use <= stages[name].size, stages[name]
    assert stages["staging"].in_use <= stages["staging"].size + MOST_BYTES


def _unreleased_bytes(connection: Connection) -> int:
    """Return what the stages hold that received bytes pass one after the other."""
    passed = ("handover", "batch", "spark")
    return sum(stage.in_use for stage in connection.stages if stage.name in passed)


def test_a_stalled_sink_is_felt_at_the_producer_through_every_stage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With 20 MiB documents through a window of 1 MiB, the producer in a process of its own."""
    with source_of(250 * MEBIBYTE) as source:
        settings = _settings(source, tmp_path)
        access = source_access(settings)
        board = BoardFolder.of(settings)
        plan = plan_round(
            LakeState("0123456789abcdef", 0),
            query_cluster(access),
            settings.round,
            settings.flow_control,
            1,
        )
        assert isinstance(plan, RoundPlan)
        held = _Recorded(monkeypatch)
        receiver = TaskReceiver(plan.tasks[0], 1, plan.budget, access, "dcplake-chain-r1-t0.0")
        batches = receiver.batches()
        rows = sum(next(batches).num_rows for _ in range(3))  # the sink takes some and then stops
        stopped = _until_still(source)
        assert WINDOW_BYTES <= stopped["unacked_bytes"] <= MOST_BYTES

        def all_is_here(each: TaskStats) -> bool:
            (connection,) = each.connections
            unacked = connection.received_bytes - connection.acknowledged_bytes
            return connection.bottleneck != "" and unacked == stopped["unacked_bytes"]

        sample = _sampled(board, all_is_here)
        assert sample.connections[0].bottleneck == "spark"
        assert sample.connections[0].waits_for == "Spark (buffer full)"
        ours, before = psutil.Process(), psutil.Process().memory_full_info().uss
        for _ in range(10):
            sleep(0.2)
            assert source.counters()["bytes_sent"] == stopped["bytes_sent"]
            assert ours.memory_full_info().uss - before < 2 * MEBIBYTE
        later = _sampled(board, lambda each: each.at > sample.at + timedelta(seconds=1))
        _require_bounds(later)
        (connection,) = later.connections
        assert (connection.received_bytes, connection.acknowledged_bytes) == (
            sample.connections[0].received_bytes,
            sample.connections[0].acknowledged_bytes,
        )
        assert (
            _unreleased_bytes(connection) == connection.received_bytes - connection.released_bytes
        )
        assert connection.window is not None
        assert connection.window.in_use == stopped["unacked_bytes"]
        assert connection.window.full_seconds > 1.0
        assert later.top_bottleneck == "spark"
        for number, batch in enumerate(batches):  # the sink goes on: nothing is lost
            rows += batch.num_rows
            if number % 20 == 0 and (now := read_board(board)):
                _require_bounds(now[0])
        assert source.counters()["items_sent"] == source.documents
        assert rows > source.documents
        assert source.counters()["peak_unacked_bytes"] <= MOST_BYTES
        held.require_all_back()
        assert read_board(board) == [], "a task that has ended is shown no longer"


@pytest.fixture
def cluster() -> Iterator[ProducerCluster]:
    settings = ClusterSettings(vbuckets=4, nodes=2, users={USER: PASSWORD}, seed=3)
    with ProducerCluster(settings) as made:
        for number in range(2000):
            made.set(b"key-%d" % number, b'{"n":"%s"}' % (b"x" * (number % 400)))
        yield made


class _Recorded:
    """Consumers of tasks, and the windows of all that tasks took in: what do they hold at the end?

    Windows are here also of connections that were lost.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.made: list[Consumer] = []
        self.windows: set[Window] = set()
        first, take_in = Consumer.__init__, BatchFlusher.add

        def recorded(consumer: Consumer, *arguments: object, **named: object) -> None:
            first(consumer, *arguments, **named)  # type: ignore[arg-type]
            self.made.append(consumer)

        def noted(flusher: BatchFlusher, delivery: Delivery) -> None:
            take_in(flusher, delivery)
            self.windows.update(delivery.receipt.windows if delivery.receipt else ())

        monkeypatch.setattr(Consumer, "__init__", recorded)
        monkeypatch.setattr(BatchFlusher, "add", noted)

    def require_all_back(self) -> None:
        assert self.windows
        for window in self.windows:
            assert window.taken == window.given == window.released <= window.received

    def require_nothing_held(self, cluster: ProducerCluster) -> None:
        """No thread, no buffer, nothing in the queue; and no producer waits for anything."""
        assert len(self.made) == 1
        for link in self.made[0]._links._links.values():
            if link.connection is not None:
                link.connection._reader.join()
                assert not link.connection._reader._thread.is_alive()
        assert not self.made[0]._queue._entries
        assert self.made[0].buffer_stats().in_use == 0
        wait_for("the end of all connections", lambda: not cluster.bucket.dcp_connections)


EXITS = ["success", "closed by Spark", "error in Spark", "closed elsewhere", "budget", "broken row"]


@pytest.mark.parametrize("exit", EXITS)
def test_nothing_is_held_whatever_way_a_task_ends(
    exit: str,
    cluster: ProducerCluster,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.CRITICAL)
    flow = {"window_bytes": 40_000, "batch_bytes": 8_000, "stats_folder": str(tmp_path / "stats")}
    rounds = RoundsInProcess(settings_for(cluster, tmp_path, flow_control=flow))
    if exit == "budget":
        rounds.with_budget(100_000)
    plan = rounds.plan()
    assert plan is not None
    held = _Recorded(monkeypatch)
    receiver = rounds.receiver(plan, plan.tasks[0])
    batches = receiver.batches()
    if exit in ("success", "budget"):
        rows = rounds.keep(plan, list(batches))
        complete = len(item_rows(rows)) == 2000
        assert complete == (exit == "success")
    else:
        next(batches)
        sleep(0.5)  # what may come has come: every stage holds something
        assert any(window.given > window.released for window in held.windows)
        if exit == "closed by Spark":
            batches.close()  # type: ignore[attr-defined]
        elif exit == "error in Spark":
            with suppress(RuntimeError):
                batches.throw(RuntimeError("the sink broke"))  # type: ignore[attr-defined]
        elif exit == "closed elsewhere":
            held.made[0].close()
            with pytest.raises(LocalProtocolError):
                list(batches)
        else:

            def broken(*_: object) -> None:
                raise ValueError("a bug of ours")

            monkeypatch.setattr(receiver._batches, "add_documents", broken)
            with pytest.raises(ValueError, match="a bug of ours"):
                list(batches)
    if exit in ("success", "budget"):
        held.require_all_back()
    held.require_nothing_held(cluster)
    assert read_board(BoardFolder.of(rounds.settings)) == []


def test_nothing_is_held_after_a_rollback_and_after_connections_that_were_lost(
    cluster: ProducerCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flow = {"window_bytes": 20_000, "batch_bytes": 4_000}
    rounds = RoundsInProcess(settings_for(cluster, tmp_path, flow_control=flow))
    plan = rounds.plan()
    assert plan is not None
    held = _Recorded(monkeypatch)
    receiver = rounds.receiver(plan, plan.tasks[0])
    batches = []
    for number, batch in enumerate(receiver.batches()):
        batches.append(batch)
        if number == 3:
            cluster.snapshot_cut_after(50)
        if number == 9:
            cluster.corrupt(Corruption.BAD_EXTRAS)
    assert len(item_rows(rounds.keep(plan, batches))) == 2000, "nothing lost, nothing twice"
    assert cluster.faults.cuts_done == 1
    assert cluster.faults.corruptions_done == 1
    held.require_all_back()
    held.require_nothing_held(cluster)
    cluster.crash_restart(0, lost_seqnos=20)
    held.made.clear()
    plan = rounds.plan()
    assert plan is not None
    receiver = rounds.receiver(plan, plan.tasks[0])
    rows = rounds.keep(plan, list(receiver.batches()))
    assert [row["kind"] for row in rows if row["kind"] == "rollback"]
    held.require_all_back()
    held.require_nothing_held(cluster)
