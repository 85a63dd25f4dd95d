"""One participant of a round is cut or stalled, the others go on, and nothing is lost or twice.

Real tasks and sockets, each task in a thread of its own; the sink is the test, as Spark's writers
and Delta are for a task no more than someone who asks for the next batch. What is durable in the
end is compared with what the producer holds.
"""

import threading
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from pathlib import Path
from random import Random

import pyarrow as pa
import pytest

from dcp.lake.rounds.round_plan import RoundPlan, TaskPlan
from dcp.producer.cluster import ProducerCluster
from dcp.producer.cluster_settings import ClusterSettings
from tests.client.consuming import consuming, settings
from tests.client.drained import USERS, Drained, assert_same_state, caught_up, wait_for
from tests.lake.receiving import (
    QUICK_ROUND,
    QUICK_SOURCE,
    SMALL_FLOW,
    RoundsInProcess,
    documents_at,
    item_rows,
    settings_for,
    source_at,
)
from tests.seeds import seeds

VBUCKETS = 8
WAIT_SECONDS = 90.0


class RunningTask:
    """One task of a round and its sink, which takes ``most`` batches, and more when it may."""

    def __init__(self, rounds: RoundsInProcess, plan: RoundPlan, task: TaskPlan, most: int) -> None:
        self.batches: list[pa.RecordBatch] = []
        self.is_done = False
        self.error: BaseException | None = None
        self._receiver = rounds.receiver(plan, task)
        self._most = most
        self._may_go_on = threading.Event()
        self._is_cut = False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    @property
    def has_stopped(self) -> bool:
        """Whether it took as many batches as it was to, or all that there were."""
        return self.is_done or len(self.batches) >= self._most

    def go_on(self) -> None:
        self._may_go_on.set()

    def cut(self) -> None:
        """Let it be killed, as Spark does: what it brought is nobody's."""
        self._is_cut = True
        self.go_on()

    def join(self) -> list[pa.RecordBatch]:
        self._thread.join(WAIT_SECONDS)
        assert not self._thread.is_alive(), f"after {len(self.batches)} batches"
        if self.error is not None:
            raise self.error
        return self.batches

    def _run(self) -> None:
        try:
            batches = self._receiver.batches()
            assert isinstance(batches, Generator)
            with closing(batches):
                for batch in batches:
                    self.batches.append(batch)
                    if len(self.batches) >= self._most:
                        self._may_go_on.wait()
                    if self._is_cut:
                        return
        except BaseException as error:
            self.error = error
        finally:
            self.is_done = True


ALL = 10**9


class World:
    """A cluster of two nodes that holds some documents, and a lake."""

    def __init__(self, cluster: ProducerCluster, folder: Path, seed: int) -> None:
        self.cluster = cluster
        self.random = Random(seed)
        self._folder = folder
        self._written = 0
        self.write(1200)
        self.rounds = self.lake(1)

    def lake(self, slots: int) -> RoundsInProcess:
        quick = {"quiet_seconds": 0.3, **QUICK_ROUND}
        chosen = settings_for(
            self.cluster, self._folder, flow_control=SMALL_FLOW, source=QUICK_SOURCE, round=quick
        )
        self.rounds = RoundsInProcess(chosen, slots)
        return self.rounds

    def write(self, count: int) -> None:
        with self.cluster.batch():
            for _ in range(count):
                self._written += 1
                key = b"key-%d" % self.random.randrange(800)
                self.cluster.set(key, b'{"n": %d}' % self._written + b" " * 100)

    def begin(self, plan: RoundPlan, most: list[int]) -> list[RunningTask]:
        """Start the tasks of a round; each takes so many batches at first."""
        return [
            RunningTask(self.rounds, plan, task, count)
            for task, count in zip(plan.tasks, most, strict=True)
        ]

    def plan(self) -> RoundPlan:
        plan = self.rounds.plan()
        assert plan is not None
        return plan

    def some(self) -> int:
        """Return after how many batches it happens."""
        return self.random.randrange(1, 12)

    def require_exact(self) -> None:
        """Run rounds to the end; what is durable then is what the producer holds."""
        for _ in range(12):
            plan = self.rounds.plan()
            if plan is None:
                break
            self.rounds.run(plan)
        places = Counter((row["vbucket"], row["seqno"]) for row in item_rows(self.rounds.rows))
        assert {place: count for place, count in places.items() if count > 1} == {}
        for vbucket in range(VBUCKETS):
            high = self.cluster.high_seqno(vbucket)
            held = source_at(self.cluster, vbucket, high)
            assert documents_at(self.rounds.rows, vbucket, high) == held, f"vbucket {vbucket}"

    def others_get_all(self) -> None:
        """Let another consumer of the same nodes, who knows nothing of the lake, read all."""
        with consuming(self.cluster, chosen=settings(window_bytes=4096)) as consumer:
            assert_same_state(self.cluster, Drained().run(consumer, caught_up(self.cluster)))


@pytest.fixture(params=seeds(2))
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    chosen = ClusterSettings(nodes=2, vbuckets=VBUCKETS, users=_users(), seed=request.param)
    with ProducerCluster(chosen) as cluster:
        yield World(cluster, tmp_path, request.param)


def _users() -> dict[str, str]:
    return {"Administrator": "password", **USERS}


NODE_FAULTS: dict[str, Callable[[ProducerCluster], None]] = {
    "dies": lambda cluster: cluster.kill_node(1),
    "hangs": lambda cluster: cluster.hang_node(1),
    "cuts a snapshot": lambda cluster: cluster.snapshot_cut_after(5),
    "loses all connections": lambda cluster: cluster.drop_connections(1),
}


@pytest.mark.parametrize("fault", NODE_FAULTS)
def test_a_node_is_cut_or_stalled(world: World, fault: str) -> None:
    """The other node's vbuckets, in the same task, reach their targets in this round."""
    plan = world.plan()
    goals = {v: world.cluster.high_seqno(v) for v in range(VBUCKETS)}
    (task,) = world.begin(plan, [world.some()])
    wait_for("some batches", lambda: task.has_stopped, WAIT_SECONDS)
    NODE_FAULTS[fault](world.cluster)
    task.go_on()
    world.rounds.keep(plan, task.join())
    for vbucket, goal in goals.items():
        if world.cluster.vbucket_owner(vbucket) == 0:
            assert world.rounds.states[vbucket].position.complete_seqno >= goal
        elif fault in ("dies", "hangs"):
            assert world.rounds.states[vbucket].position.complete_seqno < goal, "cut too late"
    world.cluster.faults.clear()
    world.cluster.restore_node(1)
    world.write(200)
    world.require_exact()


def test_a_task_is_stalled(world: World) -> None:
    """Its nodes wait for its windows alone: the other task ends, and so does another consumer."""
    world.lake(2)
    plan = world.plan()
    stalled, other = world.begin(plan, [world.some(), ALL])
    wait_for("some batches", lambda: stalled.has_stopped, WAIT_SECONDS)
    other.join()
    world.others_get_all()
    assert world.cluster.counters().peak_unacked_bytes < 4096 + 200, "a window and a message"
    assert stalled.batches and not stalled.is_done
    world.write(200)
    stalled.go_on()
    world.rounds.keep(plan, [*other.batches, *stalled.join()])
    world.require_exact()


def test_a_task_is_killed_and_begins_again(world: World) -> None:
    """What the first attempt brought is nobody's; the other task's batches are kept."""
    world.lake(2)
    plan = world.plan()
    killed, other = world.begin(plan, [world.some(), ALL])
    wait_for("some batches", lambda: killed.has_stopped, WAIT_SECONDS)
    killed.cut()
    killed.join()
    world.write(200)
    again = RunningTask(world.rounds, plan, plan.tasks[0], ALL)
    world.rounds.keep(plan, [*other.join(), *again.join()])
    wait_for("the ends", lambda: not world.cluster.bucket.dcp_connections, WAIT_SECONDS)
    world.require_exact()


@pytest.mark.parametrize("is_lost", [True, False])
def test_the_sink_of_all_tasks_is_stalled_or_fails(world: World, is_lost: bool) -> None:
    """No task is asked for a batch, as while a write to Delta hangs; others read on meanwhile.

    Then it goes on, or the write fails: the round is lost with all that its tasks brought.
    """
    world.lake(2)
    plan = world.plan()
    tasks = world.begin(plan, [world.some(), world.some()])
    wait_for("some batches", lambda: all(each.has_stopped for each in tasks), WAIT_SECONDS)
    world.write(200)
    world.others_get_all()
    assert world.cluster.counters().peak_unacked_bytes < 4096 + 200
    answered = world.cluster.counters().noops_answered
    wait_for("NOOPs", lambda: world.cluster.counters().noops_answered > answered + 2, WAIT_SECONDS)
    if is_lost:
        for each in tasks:
            each.cut()
            each.join()
        wait_for("the ends", lambda: not world.cluster.bucket.dcp_connections, WAIT_SECONDS)
    else:
        for each in tasks:
            each.go_on()
        world.rounds.keep(plan, [batch for each in tasks for batch in each.join()])
    world.require_exact()
