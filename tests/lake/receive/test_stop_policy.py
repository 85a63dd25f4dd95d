"""The end of a vbucket in a round: only an answer proves it; silence counts while we listen."""

from dataclasses import dataclass, field

import pytest

from dcp.client.addresses import NodeAddress
from dcp.lake.receive.stop_policy import StopPolicy, TaskBudget, VbucketStop
from dcp.lake.rounds.round_plan import StreamPlan
from dcp.lake.rounds.stream_result import StreamResult
from dcp.lake.tables.round_record import Outcome
from dcp.lake.tables.vbucket_state import VbucketProgress
from dcp.protocol.position import Position

NODE = NodeAddress("a", 1)
QUIET, DEADLINE = 10.0, 30.0


@dataclass
class FakeStreams:
    """A consumer that answers from fields."""

    open: set[int] = field(default_factory=lambda: {0})
    heard_at: float = 0.0
    connected: bool = True
    asked: list[NodeAddress] = field(default_factory=list)

    def is_streaming(self, vbucket: int) -> bool:
        return vbucket in self.open

    def trouble(self, vbucket: int) -> str:
        return "" if vbucket in self.open else "refused with EBUSY"

    def data_heard_at(self, node: NodeAddress) -> float:
        assert node == NODE
        return self.heard_at

    def request_high_seqnos(self, node: NodeAddress) -> bool:
        if self.connected:
            self.asked.append(node)
        return self.connected


def policy() -> StopPolicy:
    made = StopPolicy(TaskBudget(1000, 300.0), QUIET, DEADLINE)
    made.begin(0.0)
    return made


def result(seqno: int = 0, *, snap_end: int | None = None, target: int = 100) -> StreamResult:
    position = Position(0xAB if seqno else 0, seqno, seqno, seqno, seqno)
    if snap_end is not None:
        position = Position(0xAB, seqno, 0, snap_end, 0)
    plan = StreamPlan(VbucketProgress(0, 0, position), NODE, target)
    made = StreamResult(plan, lambda _: position)
    made.node, made.opened_at = NODE, 0.0
    return made


def found(
    chosen: StopPolicy, one: StreamResult, streams: FakeStreams, now: float
) -> list[VbucketStop]:
    return list(chosen.stops([one], streams, now))


def test_silence_alone_ends_nothing_and_an_answer_does() -> None:
    """A vbucket at position 0 looks complete, and its node may be dead."""
    chosen, streams, one = policy(), FakeStreams(), result()
    assert found(chosen, one, streams, QUIET - 1) == []
    assert streams.asked == []
    for now in (QUIET, QUIET + 1, QUIET + 5):
        assert found(chosen, one, streams, now) == []
    assert streams.asked == [NODE], "asked once"
    chosen.answered(NODE, {0: 0}, QUIET + 6)
    assert found(chosen, one, streams, QUIET + 7) == [VbucketStop(0, Outcome.CAUGHT_UP)]


def test_a_node_that_does_not_answer_is_reported() -> None:
    chosen, streams, one = policy(), FakeStreams(), result()
    for now in (10.0, 20.0, 29.9):
        assert found(chosen, one, streams, now) == []
    (stop,) = found(chosen, one, streams, DEADLINE)
    assert (stop.outcome, stop.reason) == (Outcome.STOPPED, "node unavailable")
    assert "a:1 sent nothing for 30.0 s" in stop.detail


def test_a_node_that_holds_more_is_waited_for_and_then_reported() -> None:
    """A backfill that begins late: the node lives and answers, and its data is still to come."""
    chosen, streams, one = policy(), FakeStreams(), result()
    for now in (10.0, 20.0):
        assert found(chosen, one, streams, now) == []
        chosen.answered(NODE, {0: 77}, now + 0.1)
        chosen.received(NODE, 0, now + 0.1)  # the answer itself is no progress
    (stop,) = found(chosen, one, streams, DEADLINE)
    assert (stop.outcome, stop.reason) == (Outcome.STOPPED, "waiting for data")
    assert "holds seqnos up to 77" in stop.detail


def test_data_that_comes_late_begins_the_time_anew() -> None:
    chosen, streams, one = policy(), FakeStreams(), result()
    assert found(chosen, one, streams, 10.0) == []
    chosen.answered(NODE, {0: 77}, 10.1)
    chosen.received(NODE, 500, 29.0)
    assert found(chosen, one, streams, 58.0) == []
    one.position_of = result(77).position_of
    assert found(chosen, one, streams, 59.5) == [VbucketStop(0, Outcome.CAUGHT_UP)]


@pytest.mark.parametrize("life", ["part of a document", "a sink that holds us"])
def test_what_is_no_silence(life: str) -> None:
    chosen, streams, one = policy(), FakeStreams(), result()
    if life == "part of a document":
        streams.heard_at = 100.0
    else:
        chosen.resumed_reading(100.0)
    assert found(chosen, one, streams, 100.0 + QUIET - 1) == []
    assert streams.asked == []
    assert found(chosen, one, streams, 100.0 + QUIET) == []
    assert streams.asked == [NODE]


def test_a_snapshot_whose_end_does_not_come_is_reported() -> None:
    chosen, streams, one = policy(), FakeStreams(), result(5, snap_end=9)
    assert found(chosen, one, streams, 20.0) == []
    chosen.answered(NODE, {0: 5}, 20.1)
    (stop,) = found(chosen, one, streams, DEADLINE)
    assert stop.reason == "waiting for snapshot end"
    assert "at seqno 5 of a snapshot that ends at 9" in stop.detail


def test_without_a_stream_the_consumer_judges() -> None:
    chosen, streams, one = policy(), FakeStreams(open=set()), result()
    chosen.answered(NODE, {0: 0}, 1.0)
    assert found(chosen, one, streams, 1000.0) == []


def test_an_answer_of_before_the_stream_proves_nothing() -> None:
    chosen, streams, one = policy(), FakeStreams(), result()
    chosen.answered(NODE, {0: 0}, 1.0)
    one.opened_at = 2.0
    assert found(chosen, one, streams, 3.0) == []


def test_the_end_of_a_budget_tells_what_has_no_stream() -> None:
    chosen, streams = policy(), FakeStreams()
    assert chosen.ends_at == 300.0
    assert list(chosen.out_of_budget([0, 1], streams)) == [
        VbucketStop(0, Outcome.BUDGET),
        VbucketStop(1, Outcome.BUDGET, "no stream", "refused with EBUSY"),
    ]
