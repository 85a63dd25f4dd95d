"""The chain of credits from Spark back to the producer, with real sockets, measured at each link.

A sink that does not ask for the next batch is felt by the producer as acknowledgements that do not
come. And whatever way a task ends, it holds nothing at its end.
"""

import logging
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from time import monotonic, sleep

import psutil
import pytest

from dcp.client.consumer import Consumer
from dcp.errors import LocalProtocolError
from dcp.lake.connect import look_at_cluster, source_access
from dcp.lake.ending import Budget
from dcp.lake.flow_control_settings import FlowControlSettings
from dcp.lake.live_board import read_board
from dcp.lake.live_look import TaskLook
from dcp.lake.live_place import LivePlace
from dcp.lake.memory import DOCUMENT_BYTES, MEBIBYTE
from dcp.lake.plan import LakePosition, RoundPlan, plan_round
from dcp.lake.receive import TaskReceiver
from dcp.lake.settings import Settings
from dcp.producer.cluster import ProducerCluster
from dcp.producer.faults import Corruption
from dcp.producer.settings import ClusterSettings
from tests.lake.receiving import PASSWORD, USER, RoundsInProcess, item_rows, settings_for
from tests.lake.test_bounded_memory import Source, settings_of, source_of

WINDOW_BYTES = MEBIBYTE
BATCH_BYTES = 512 * 1024


def _settings(source: Source, folder: Path) -> Settings:
    flow = FlowControlSettings(
        window_bytes=WINDOW_BYTES, batch_bytes=BATCH_BYTES, live_folder=str(folder / "live")
    )
    return replace(settings_of(source, folder), flow_control=flow)


def _look(place: LivePlace, until: Callable[[TaskLook], bool]) -> TaskLook:
    end = monotonic() + 90
    looks: list[TaskLook] = []
    while monotonic() < end:
        looks = read_board(place)
        if looks and until(looks[0]):
            return looks[0]
        sleep(0.1)
    raise AssertionError(f"found {looks} after 90 s")


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


NAMES = {
    *("window", "buffers", "socket", "frame", "handover"),
    *("batch", "spark", "batches", "staging"),
}


def _require_bounds(look: TaskLook) -> None:
    """Each stage held at most its high mark and one message: no message is larger than 20 MiB."""
    (connection,) = look.connections
    assert connection.window is not None
    stages = {each.name: each for each in (connection.window, *connection.stages, *look.stages)}
    assert stages.keys() == NAMES
    for name, stage in stages.items():
        one = DOCUMENT_BYTES + 100 if name in ("window", "handover", "batch", "spark") else 0
        one += 2 * MEBIBYTE if name == "staging" else 0
        assert stage.in_use <= stage.peak <= stage.size + one, stage
        assert stage.second_releases == 0
    assert stages["batches"].peak == 1
    unacked = connection.received_bytes - connection.acked_bytes
    assert unacked == connection.held_bytes + connection.released_bytes
    assert connection.unaccounted_bytes == 0


def test_a_stalled_sink_is_felt_at_the_producer_through_every_stage(tmp_path: Path) -> None:
    """With 20 MiB documents through a window of 1 MiB, the producer in a process of its own."""
    with source_of(250 * MEBIBYTE) as source:
        settings = _settings(source, tmp_path)
        access = source_access(settings)
        place = LivePlace.of(settings)
        plan = plan_round(
            LakePosition("0123456789abcdef", 0), look_at_cluster(access), settings.round, 1
        )
        assert isinstance(plan, RoundPlan)
        budget = Budget(plan.target_bytes, plan.target_seconds)
        receiver = TaskReceiver(plan.tasks[0], 1, budget, access, "dcplake-chain-r1-t0.0")
        batches = receiver.batches()
        rows = sum(next(batches).num_rows for _ in range(3))  # the sink takes some and then stops
        stopped = _until_still(source)
        assert WINDOW_BYTES <= stopped["unacked_bytes"] <= WINDOW_BYTES + DOCUMENT_BYTES

        def all_is_here(each: TaskLook) -> bool:
            (connection,) = each.connections
            unacked = connection.received_bytes - connection.acked_bytes
            return connection.gate != "" and unacked == stopped["unacked_bytes"]

        look = _look(place, all_is_here)
        assert look.connections[0].gate == "spark"
        assert look.connections[0].waits_for == "window full: spark: Spark takes the batch"
        ours, before = psutil.Process(), psutil.Process().memory_full_info().uss
        for _ in range(10):
            sleep(0.2)
            assert source.counters()["bytes_sent"] == stopped["bytes_sent"]
            assert ours.memory_full_info().uss - before < 2 * MEBIBYTE
        later = _look(place, lambda each: each.at > look.at + 1.0)
        _require_bounds(later)
        (connection,) = later.connections
        assert (connection.received_bytes, connection.acked_bytes) == (
            look.connections[0].received_bytes,
            look.connections[0].acked_bytes,
        )
        assert connection.received_bytes - connection.acked_bytes == stopped["unacked_bytes"]
        assert connection.window is not None
        assert connection.window.in_use == stopped["unacked_bytes"]
        assert connection.window.full_seconds > 1.0
        assert later.top_gate == "spark"
        last = later
        for number, batch in enumerate(batches):  # the sink goes on: nothing is lost
            rows += batch.num_rows
            if number % 20 == 0 and (now := read_board(place)):
                last = now[0]
                _require_bounds(last)
        assert source.counters()["items_sent"] == source.documents
        assert rows > source.documents
        assert source.counters()["peak_unacked_bytes"] <= WINDOW_BYTES + DOCUMENT_BYTES
        assert {each.in_use for each in receiver._credits.look(monotonic())} == {0}
        assert read_board(place) == [], "a task that has ended is shown no longer"


@pytest.fixture
def cluster() -> Iterator[ProducerCluster]:
    settings = ClusterSettings(vbuckets=4, nodes=2, users={USER: PASSWORD}, seed=3)
    with ProducerCluster(settings) as made:
        for number in range(2000):
            made.set(b"key-%d" % number, b'{"n":"%s"}' % (b"x" * (number % 400)))
        yield made


class _Recorded:
    """Consumers of a task, so that a test can look at what their connections hold at the end."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.made: list[Consumer] = []
        first = Consumer.__init__

        def recorded(consumer: Consumer, *arguments: object, **named: object) -> None:
            first(consumer, *arguments, **named)  # type: ignore[arg-type]
            self.made.append(consumer)

        monkeypatch.setattr(Consumer, "__init__", recorded)

    def require_nothing_held(self, receiver: TaskReceiver) -> None:
        assert {each.in_use for each in receiver._credits.look(monotonic())} == {0}
        assert len(self.made) == 1
        for link in self.made[0]._links._links.values():
            if link.connection is None:
                continue
            reader = link.connection._reader
            reader.join()
            credits = reader._credits
            for queue in (credits.socket, credits.frame, credits.handover, credits.window):
                assert (queue.account.in_use, queue.account.second_releases) == (0, 0)
            assert reader._credits.socket.account.taken_total > 0
        assert not self.made[0]._handover._entries
        assert self.made[0].look_at_buffers().in_use == 0


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
    flow = {"window_bytes": 40_000, "batch_bytes": 8_000, "live_folder": str(tmp_path / "live")}
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
        assert receiver._credits.spark.in_use > 0
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

            monkeypatch.setattr(receiver._batches, "add_items", broken)
            with pytest.raises(ValueError, match="a bug of ours"):
                list(batches)
    held.require_nothing_held(receiver)
    assert read_board(LivePlace.of(rounds.settings)) == []


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
    held.require_nothing_held(receiver)
    cluster.crash_restart(0, lost_seqnos=20)
    held.made.clear()
    plan = rounds.plan()
    assert plan is not None
    receiver = rounds.receiver(plan, plan.tasks[0])
    rows = rounds.keep(plan, list(receiver.batches()))
    assert [row["kind"] for row in rows if row["kind"] == "rollback"]
    held.require_nothing_held(receiver)


def test_documents_are_released_as_spark_takes_them_not_with_their_delivery(
    cluster: ProducerCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flow = {"window_bytes": 100_000, "batch_bytes": 40_000, "batch_rows": 10}
    rounds = RoundsInProcess(settings_for(cluster, tmp_path, flow_control=flow))
    plan = rounds.plan()
    assert plan is not None
    made = _Recorded(monkeypatch)
    receiver = rounds.receiver(plan, plan.tasks[0])
    left: dict[tuple[str, int], list[int]] = {}
    batches = []
    for batch in receiver.batches():
        batches.append(batch)
        if not receiver._credits._leaving:
            continue
        head = receiver._credits._leaving[0]
        name, serial = head.delivery.connection_name, head.delivery.serial
        link = made.made[0]._links.by_name(name)
        if link is not None and link.connection is not None:
            held = link.connection._reader._unreleased._held[serial]
            assert held.frame_bytes == head.credit.amount, "one for the task and its connection"
            left.setdefault((name, serial), []).append(held.frame_bytes)
    assert max(len(set(each)) for each in left.values()) > 5, "part by part"
    assert len(item_rows(rounds.keep(plan, batches))) == 2000
    made.require_nothing_held(receiver)
