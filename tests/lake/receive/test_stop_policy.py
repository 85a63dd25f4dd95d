"""The end of a vbucket in a round: only an answer proves it; silence counts while we listen."""

from dataclasses import dataclass, field
from math import inf
from typing import cast

import pytest

from dcp.client.addresses import NodeAddress
from dcp.client.consumer import Consumer
from dcp.lake.receive.stop_policy import LONGEST_WAIT_SECONDS, StopPolicy, VbucketStop
from dcp.lake.rounds.round_plan import StreamPlan, TaskBudget
from dcp.lake.rounds.stream_result import StreamResult
from dcp.lake.tables.round_record import Outcome
from dcp.lake.tables.vbucket_state import LakeVbucketState
from dcp.protocol.position import Position
from dcp.wire.vocabulary import SnapshotFlag

NODE, OTHER_NODE = NodeAddress("a", 1), NodeAddress("b", 2)
QUIET, DEADLINE = 10.0, 30.0
DISK, MEMORY = SnapshotFlag.DISK | SnapshotFlag.CHECKPOINT, SnapshotFlag.MEMORY


@dataclass
class FakeStreams:
    """A consumer that answers from fields."""

    open: set[int] = field(default_factory=lambda: {0, 1})
    part: tuple[int, float] | None = None
    asked: list[NodeAddress] = field(default_factory=list)

    def is_streaming(self, vbucket: int) -> bool:
        return vbucket in self.open

    def trouble(self, vbucket: int) -> str:
        return "" if vbucket in self.open else "refused with EBUSY"

    def part_heard(self, node: NodeAddress) -> tuple[int, float] | None:
        return self.part

    def request_high_seqnos(self, node: NodeAddress) -> bool:
        self.asked.append(node)
        return True


def result(
    seqno: int = 0, *, snap_end: int | None = None, vbucket: int = 0, node: NodeAddress = NODE
) -> StreamResult:
    """Return a stream that has stood at ``seqno`` since the round began."""
    position = Position(0xAB if seqno else 0, seqno, seqno, seqno, seqno)
    if snap_end is not None:
        position = Position(0xAB, seqno, 0, snap_end, 0)
    plan = StreamPlan(LakeVbucketState(vbucket, 0, position), node, 100)
    return StreamResult(plan, lambda _: position, node=node)


class Task:
    """One task's policy, and a clock that goes on in the steps of one that listens."""

    def __init__(self, *results: StreamResult, held: dict[int, int] | None = None) -> None:
        """``held`` is what nodes answer, a second after they were asked; None: they do not."""
        self.results = list(results)
        self.held = held
        self.answers_at = inf
        self.streams = FakeStreams()
        self.now = 0.0
        self.policy = StopPolicy(TaskBudget(1000, 300.0), QUIET, DEADLINE)
        self.policy.begin(0.0)
        for each in results:
            self.open(each)

    def open(self, opened: StreamResult) -> None:
        assert opened.node is not None
        self.policy.opened(opened.node, opened.plan.vbucket)

    def listen(self, until: float, moving: int | None = None) -> list[VbucketStop]:
        """Let time go on and return what ended; ``moving`` gets something all the time."""
        stops: list[VbucketStop] = []
        while self.now < until:
            self.now += LONGEST_WAIT_SECONDS
            self.policy.listened(self.now)
            for each in self.results:
                if each.plan.vbucket == moving and each.node is not None:
                    self.policy.moved(each.node, [moving])
            if self.now >= self.answers_at and self.held is not None:
                self.policy.answered(self.streams.asked[-1], self.held)
                self.answers_at = inf
            questions = len(self.streams.asked)
            found = list(self.policy.stops(self.results, cast("Consumer", self.streams)))
            if len(self.streams.asked) > questions:
                self.answers_at = self.now + 1.0
            ended = {each.vbucket for each in found}
            self.results = [each for each in self.results if each.plan.vbucket not in ended]
            stops += found
        return stops

    def out_of_budget(self, round_number: int = 1) -> list[VbucketStop]:
        consumer = cast("Consumer", self.streams)
        return list(self.policy.out_of_budget(self.results, consumer, round_number))


def test_silence_alone_ends_nothing_and_an_answer_does() -> None:
    """A vbucket at position 0 looks complete, and its node may be dead."""
    task = Task(result())
    assert task.listen(QUIET - 1) == []
    assert task.streams.asked == []
    assert task.listen(QUIET + 6) == []
    assert task.streams.asked == [NODE], "asked once"
    task.policy.answered(NODE, {0: 0})
    assert task.listen(QUIET + 7) == [VbucketStop(0, Outcome.CAUGHT_UP)]


def test_a_node_that_does_not_answer_is_reported() -> None:
    task = Task(result())
    assert task.listen(29.9 - LONGEST_WAIT_SECONDS) == []
    (stop,) = task.listen(DEADLINE)
    assert (stop.outcome, stop.reason) == (Outcome.STOPPED, "node unavailable")
    assert "a:1 sent nothing of it for 30.0 s" in stop.detail


def test_a_node_that_holds_more_is_waited_for_and_then_reported() -> None:
    """A backfill that begins late: the node lives and answers, and its data is still to come."""
    task = Task(result(), held={0: 77})
    assert task.listen(29.9 - LONGEST_WAIT_SECONDS) == []
    assert task.streams.asked == [NODE, NODE], "an answer is no progress"
    (stop,) = task.listen(DEADLINE)
    assert (stop.outcome, stop.reason) == (Outcome.STOPPED, "waiting for data")
    assert stop.detail == (
        "a:1 sent nothing of it for 30.0 s at seqno 0, and says that it holds seqnos up to 77"
    )


def test_a_question_just_asked_for_another_vbucket_is_no_missing_answer() -> None:
    task = Task(result(), result(vbucket=1), held={0: 77, 1: 77})
    task.listen(0.5)
    task.policy.moved(NODE, [0])
    assert [stop.vbucket for stop in task.listen(DEADLINE)] == [1]
    assert len(task.streams.asked) == 3, "the last one is not answered yet"
    assert [stop.reason for stop in task.listen(DEADLINE + 0.5)] == ["waiting for data"]


@pytest.mark.parametrize("comes", ["a marker", "rows"])
def test_what_comes_late_begins_the_time_anew(comes: str) -> None:
    task = Task(result(), held={0: 77})
    assert task.listen(29.0) == []
    if comes == "a marker":
        task.policy.snapshot_started(0, MEMORY)
    else:
        task.policy.moved(NODE, [0])
    assert task.listen(58.0) == []
    task.results[0].position_of = result(77).position_of
    assert task.listen(58.25) == [VbucketStop(0, Outcome.CAUGHT_UP)]


@pytest.mark.parametrize("life", ["part of a document", "a sink that holds us", "a machine asleep"])
def test_what_is_no_silence(life: str) -> None:
    task = Task(result())
    if life == "part of a document":
        task.listen(9.0)
        task.streams.part = (0, 1.0)
        task.listen(9.25)
    elif life == "a sink that holds us":
        for _ in range(400):
            task.policy.listened(task.now)
            task.now += LONGEST_WAIT_SECONDS
            task.policy.resumed_reading(task.now)
    else:
        task.now = 100.0
    begins_at = task.now
    assert task.listen(begins_at + QUIET - 1) == []
    assert task.streams.asked == []
    assert task.listen(begins_at + QUIET) == []
    assert task.streams.asked == [NODE]


def test_a_sink_that_holds_us_again_and_again_excuses_no_vbucket_for_ever() -> None:
    task = Task(result(), result(vbucket=1), held={0: 77})
    found: list[VbucketStop] = []
    for second in range(100):
        found += task.listen(second + 0.5, moving=1)
        task.now = second + 1.0
        task.policy.resumed_reading(task.now)
    assert [(stop.vbucket, stop.reason) for stop in found] == [(0, "waiting for data")]


def test_a_snapshot_whose_end_does_not_come_is_reported() -> None:
    task = Task(result(5, snap_end=9), held={0: 5})
    (stop,) = task.listen(DEADLINE)
    assert stop.reason == "waiting for snapshot end"
    assert "at seqno 5 of a snapshot that ends at 9, and says that it holds" in stop.detail


INSIDE = result(5, snap_end=9)
TURNS = {
    # the vbucket; whether it got something since its stream opened; the snapshot of the other
    # vbucket, which goes on and on, and its node; whether that excuses the first one
    "from memory": (result(), False, MEMORY, NODE, False),
    "from disk": (result(), False, DISK, NODE, True),
    "from the disk of another node": (result(), False, DISK, OTHER_NODE, False),
    "between two snapshots": (result(5), True, DISK, NODE, True),
    "resumed inside a snapshot": (INSIDE, False, DISK, NODE, True),
    "inside a snapshot": (INSIDE, True, DISK, NODE, False),
}


@pytest.mark.parametrize("marked", [False, True], ids=["no marker yet", "marked"])
@pytest.mark.parametrize(
    ("first", "has_moved", "flags", "node", "excused"), TURNS.values(), ids=TURNS
)
def test_only_a_vbucket_that_may_wait_for_its_turn_is_excused_by_others(
    first: StreamResult,
    has_moved: bool,
    flags: SnapshotFlag,
    node: NodeAddress,
    excused: bool,
    marked: bool,
) -> None:
    """A node reads its disk for one vbucket after the other, perhaps behind all their markers."""
    task = Task(first, result(vbucket=1, node=node), held={0: 77})
    if marked:
        task.policy.snapshot_started(0, DISK)
    if has_moved:
        task.policy.moved(NODE, [0])
    task.policy.snapshot_started(1, flags)
    if excused:
        assert task.listen(200.0, moving=1) == []
        detail = "a:1 reads its disk for other vbuckets first"
        waits = VbucketStop(0, Outcome.BUDGET, "waiting for its turn", detail)
        assert waits in task.out_of_budget()
        task.policy.snapshot_started(1, MEMORY)  # its turn comes, and its time begins
    begins_at = task.now
    assert task.listen(begins_at + DEADLINE - 1, moving=1) == []
    (stop,) = task.listen(begins_at + DEADLINE, moving=1)
    assert (stop.vbucket, stop.outcome) == (0, Outcome.STOPPED)
    assert stop.reason == ("waiting for snapshot end" if first is INSIDE else "waiting for data")


def test_parts_of_a_document_are_of_its_vbucket_and_keep_others_waiting_for_their_turn() -> None:
    task = Task(result(), result(vbucket=1), held={0: 77, 1: 77})
    task.policy.snapshot_started(1, DISK)
    stops: list[VbucketStop] = []
    for second in range(100):
        task.streams.part = (1, float(second))
        stops += task.listen(second + 1.0)
    assert stops == []
    task.policy.snapshot_started(1, MEMORY)
    for second in range(100, 140):
        task.streams.part = (1, float(second))
        stops += task.listen(second + 1.0)
    assert [stop.vbucket for stop in stops] == [0]


def test_a_vbucket_that_waits_for_its_turn_may_prove_empty() -> None:
    task = Task(result(), result(vbucket=1), held={0: 0, 1: 77})
    task.policy.snapshot_started(1, DISK)
    assert task.listen(QUIET, moving=1) == []
    assert task.listen(QUIET + 1, moving=1) == [VbucketStop(0, Outcome.CAUGHT_UP)]


def test_without_a_stream_the_consumer_judges() -> None:
    task = Task(result())
    task.streams.open.clear()
    task.policy.answered(NODE, {0: 0})
    assert task.listen(1000.0) == []


def test_an_answer_of_before_the_stream_proves_nothing() -> None:
    task = Task(result())
    task.policy.answered(NODE, {0: 0})
    task.listen(1.0)
    task.open(task.results[0])
    assert task.listen(1.0 + QUIET) == []


def test_the_end_of_a_budget_tells_why_nothing_came() -> None:
    """What the round brought further has no reason, nor what was not silent for long."""
    moved, missing = result(vbucket=1), result(vbucket=2)
    moved.position_of = result(7).position_of
    task = Task(result(), moved, missing, result(5, snap_end=9, vbucket=3))
    task.streams.open = {0, 1, 3}
    assert task.policy.ends_at == 300.0
    task.listen(2.0)
    without_reason = [VbucketStop(vbucket, Outcome.BUDGET) for vbucket in (0, 1, 3)]
    assert [each for each in task.out_of_budget() if not each.reason] == without_reason
    named = [each.vbucket for each in task.out_of_budget(round_number=4) if each.reason]
    assert named == [0, 2, 3], "rounds that are too short to ask bring nothing of them"
    task.listen(QUIET)
    nothing = "a:1 sent nothing of it for 10.0 s at seqno"
    unasked = "and did not say what it holds"
    assert task.out_of_budget() == [
        VbucketStop(0, Outcome.BUDGET, "waiting for data", f"{nothing} 0, {unasked}"),
        VbucketStop(1, Outcome.BUDGET),
        VbucketStop(2, Outcome.BUDGET, "no stream", "refused with EBUSY"),
        VbucketStop(
            3,
            Outcome.BUDGET,
            "waiting for snapshot end",
            f"{nothing} 5 of a snapshot that ends at 9, {unasked}",
        ),
    ]
