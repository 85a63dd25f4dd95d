"""The batch of a task: each reason to flush it alone, and when its bytes are released."""

import threading
from collections.abc import Callable

import pytest

from dcp.client.delivery import Delivery, Receipt, ReceiptState
from dcp.client.stats import StageStats
from dcp.lake.config.flow_control_settings import FlowControlSettings
from dcp.lake.receive.batch_flusher import BatchFlusher
from dcp.lake.receive.batches import BatchBuilder
from dcp.lake.tables.schema import RowKind
from dcp.protocol.window import FlowControl, Window
from dcp.protocol.window_policies import FlowSettings

FLOW = FlowControlSettings(
    window_bytes=100_000, batch_bytes=5000, batch_rows=5, batch_seconds=2.0, ack_fraction=0.2
)
STREAM = 7


class Desk:
    """A batch flusher with a clock, and connections whose deliveries come one at a time."""

    def __init__(self) -> None:
        self.now = 100.0
        self.batches = BatchBuilder(1, FLOW.batch_rows, FLOW.batch_bytes)
        self.flusher = BatchFlusher(FLOW, self.batches, lambda: self.now)
        self.flows: dict[str, FlowControl] = {}

    def wait(self, seconds: float) -> float:
        self.now += seconds
        return self.now

    def take_in(
        self,
        frame_bytes: int,
        rows: int,
        *,
        name: str = "a",
        window: int = 100_000,
        stream: int = 0,
    ) -> Delivery:
        """Take in so many bytes and rows; ``stream`` is the size of the window of their stream."""
        flow = self.flows.setdefault(name, FlowControl(FlowSettings(window_bytes=window), self.now))
        flow.receive(frame_bytes, self.now)
        shares = flow.deliver()
        if stream:
            of_stream = flow.streams.setdefault(STREAM, Window(STREAM, stream, self.now))
            of_stream.receive(frame_bytes, self.now)
            shares = (*shares, (of_stream, of_stream.deliver()))
        receipt = Receipt(shares, flow, threading.Lock(), lambda _: None)
        delivery = Delivery(None, [], receipt, frame_bytes, {}, name)
        delivery.take()
        self.flusher.add(delivery)
        for _ in range(rows):
            self.batches.add_event(RowKind.SNAPSHOT_MARKER, 0)
        return delivery


REASONS: dict[str, tuple[Callable[[Desk], object], Callable[[Desk], object]]] = {
    "it has no rows": (lambda desk: None, lambda desk: desk.take_in(10, 0)),
    "it has batch_rows rows": (lambda desk: desk.take_in(10, 4), lambda desk: desk.take_in(10, 1)),
    "it has batch_bytes bytes, of all connections": (
        lambda desk: (desk.take_in(2500, 1), desk.take_in(2499, 1, name="b")),
        lambda desk: desk.take_in(1, 1),
    ),
    "it holds its part of a connection's window": (
        lambda desk: (desk.take_in(999, 1, window=2000), desk.take_in(1000, 1, name="b")),
        lambda desk: desk.take_in(1, 1),
    ),
    "it holds its part of a stream's window": (
        lambda desk: desk.take_in(999, 1, stream=2000),
        lambda desk: desk.take_in(1, 1, stream=2000),
    ),
    "batch_seconds are over": (
        lambda desk: (desk.take_in(10, 1), desk.wait(1.9), desk.take_in(10, 1)),
        lambda desk: desk.wait(0.1),
    ),
    "its window has shrunk": (
        lambda desk: desk.take_in(1000, 1),
        lambda desk: desk.flows["a"].connection.resize(2000, 2000, desk.now),
    ),
}


@pytest.mark.parametrize("reason", REASONS)
def test_each_reason_alone_makes_it_due(reason: str) -> None:
    desk = Desk()
    before, last = REASONS[reason]
    before(desk)
    assert not desk.flusher.is_due()
    last(desk)
    assert desk.flusher.is_due()
    list(desk.flusher.flush())
    assert not desk.flusher.is_due(), "it is gone"
    assert all(flow.connection.unreleased_bytes == 0 for flow in desk.flows.values())


def test_nothing_is_released_before_the_last_batch_was_taken() -> None:
    desk = Desk()
    deliveries = [desk.take_in(1000, 8), desk.take_in(500, 4, name="b", stream=20_000)]
    assert desk.flusher.due_at == 102.0
    handed_over = desk.flusher.flush()
    for rows in (5, 5, 2):
        assert next(handed_over).num_rows == rows
        assert {each.receipt.state for each in deliveries if each.receipt} == {ReceiptState.GIVEN}
        assert desk.flusher.is_empty and not desk.flusher.is_due()
        assert desk.flusher.stats(9000) == (
            StageStats("batches", 1, 1),
            StageStats("staging", 9000, 1500),
        )
    assert next(handed_over, None) is None
    for flow in desk.flows.values():
        for window in (flow.connection, *flow.streams.values()):
            assert window.received == window.taken == window.given == window.released > 0
    assert desk.flusher.stats(9000)[0].in_use == 0
    assert desk.flusher.taken_bytes == 1500, "it only grows"


def test_a_delivery_without_rows_goes_back_at_once() -> None:
    desk = Desk()
    delivery = desk.take_in(700, 0)
    assert desk.flusher.is_due()
    assert list(desk.flusher.flush()) == []
    assert delivery.receipt is not None
    assert delivery.receipt.state is ReceiptState.RELEASED
    assert desk.flows["a"].connection.released == 700


def test_what_the_consumer_itself_reports_holds_nothing() -> None:
    desk = Desk()
    desk.flusher.add(Delivery(None, []))
    assert desk.flusher.is_empty and not desk.flusher.is_due()
