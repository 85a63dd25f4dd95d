"""A search for windows, batches and acknowledgements that wait for each other for ever.

The clock stands: whatever only time would set free counts as stuck. The accounts are the real ones,
the producer's arithmetic and the consumer's; between them there is no socket, only the order of
things, which is searched too.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from hypothesis import example, given, settings, target
from hypothesis import strategies as st

from dcp.client.delivery import Delivery
from dcp.errors import ConfigError
from dcp.lake.flow_control_settings import FlowControlSettings
from dcp.lake.stream_holdings import StreamHoldings
from dcp.producer.flow_control import FlowControl
from dcp.producer.stream_windows import StreamWindows
from dcp.protocol.flow_control import FlowSettings, ReceiveWindow
from dcp.protocol.stream_accounts import StreamAccounts


@dataclass(frozen=True)
class Sizes:
    """What decides: the windows, when a batch is handed over, when an ack leaves."""

    window: int
    stream_window: int
    ack_fraction: float
    flush: int
    stream_flush: int

    @classmethod
    def of(cls, flow: FlowControlSettings) -> "Sizes":
        return cls(
            flow.window_bytes,
            flow.stream_window_bytes,
            flow.ack_fraction,
            flow.flush_bytes(flow.window_bytes),
            flow.stream_flush_bytes,
        )


@dataclass
class Producer:
    """Streams by opaque, from 1; each has messages left to send."""

    left: dict[int, list[int]]
    flow: FlowControl = field(default_factory=FlowControl)
    streams: StreamWindows = field(default_factory=StreamWindows)

    def begin(self, sizes: Sizes) -> None:
        self.flow.set_window(sizes.window)
        self.streams.set_window(sizes.stream_window)
        for opaque in self.left:
            self.streams.opened(opaque)

    def may_send(self, opaque: int) -> bool:
        has_room = self.flow.room_bytes > 0 and self.streams.room_bytes(opaque) > 0
        return has_room and bool(self.left[opaque])

    def send(self, opaque: int) -> int:
        message = self.left[opaque].pop()
        self.flow.charge(message)
        self.streams.charge(opaque, message)
        return message

    @property
    def is_done(self) -> bool:
        return not any(self.left.values())


@dataclass
class Consumer:
    """Charges, holds rows until the batch is due, then releases and acknowledges all at once."""

    sizes: Sizes
    window: ReceiveWindow = field(init=False)
    accounts: StreamAccounts = field(init=False)
    holdings: StreamHoldings = field(init=False)
    held: list[Delivery] = field(default_factory=list)

    def __post_init__(self) -> None:
        sizes = self.sizes
        flow = FlowSettings(
            sizes.window, sizes.ack_fraction, 60.0, stream_window_bytes=sizes.stream_window
        )
        self.window = ReceiveWindow(flow, 0.0)
        self.accounts = StreamAccounts(flow.of_stream)
        if sizes.stream_window:
            self.accounts.offered()
        self.holdings = StreamHoldings(sizes.stream_flush)

    def receive(self, messages: Sequence[tuple[int, int]]) -> None:
        opaques = np.array([opaque for opaque, _ in messages], np.uint32)
        sizes = np.array([size for _, size in messages], np.int64)
        total = int(sizes.sum())
        self.window = self.window.charge(total)
        self.accounts.charge(opaques, sizes, set(opaques.tolist()), 0.0)
        charges = self.accounts.collect()
        delivery = Delivery(None, [], total, {}, "only", len(self.held), charges)
        self.held.append(delivery)
        self.holdings.add(delivery)

    @property
    def is_due(self) -> bool:
        held_bytes = sum(delivery.frame_bytes for delivery in self.held)
        return bool(self.held) and (held_bytes >= self.sizes.flush or self.holdings.are_due)

    def hand_over(self, producer: Producer) -> None:
        for delivery in self.held:
            self.window = self.window.release(delivery.frame_bytes)
            self.window, acked_bytes = self.window.acknowledge(0.0)
            producer.flow.acknowledge(acked_bytes)
            for opaque, acked_bytes in self.accounts.release(delivery.stream_bytes, 0.0):
                assert producer.streams.acknowledge(opaque, acked_bytes)
        self.held.clear()
        self.holdings.clear()


def fullest(
    sizes: Sizes, messages: Sequence[Sequence[int]], choices: Sequence[tuple[int, int]]
) -> float:
    """Let all streams send all they have; ``choices`` say who, and how much in one block.

    Return how full a window was at most, as a part of it, while the batch was not due: with 1 the
    producer waits for a batch that waits for it.
    """
    producer = Producer({opaque: list(each) for opaque, each in enumerate(messages, 1)})
    producer.begin(sizes)
    consumer = Consumer(sizes)
    turn, found = 0, 0.0
    while not producer.is_done:
        sending = [opaque for opaque in producer.left if producer.may_send(opaque)]
        if not sending:
            return max(found, 1.0)
        block: list[tuple[int, int]] = []
        who, how_many = choices[turn % len(choices)]
        turn += 1
        while sending and len(block) < how_many:
            opaque = sending[(who + len(block)) % len(sending)]
            block.append((opaque, producer.send(opaque)))
            sending = [opaque for opaque in producer.left if producer.may_send(opaque)]
        if block:
            consumer.receive(block)
        if consumer.is_due:
            consumer.hand_over(producer)
        assert producer.flow.outstanding_bytes == consumer.window.unacked_bytes
        found = max(found, consumer.window.unacked_bytes / sizes.window)
        for opaque, account in consumer.accounts.accounts.items():
            flow = producer.streams.flow(opaque)
            assert flow is not None
            assert flow.outstanding_bytes == account.unacked_bytes
            found = max(found, account.unacked_bytes / sizes.stream_window)
    return found


def streams(window: int) -> st.SearchStrategy[list[list[int]]]:
    """Messages of each stream: of any sizes up to more than the window, or all of one size."""
    size = st.one_of(st.integers(24, 400), st.integers(24, window), st.integers(24, 3 * window))
    mixed = st.lists(size, min_size=1, max_size=30)
    equal = st.builds(lambda size, count: [size] * count, size, st.integers(1, 60))
    return st.lists(st.one_of(mixed, equal), min_size=1, max_size=6)


@st.composite
def flows(draw: st.DrawFn) -> FlowControlSettings:
    """Settings that are accepted."""
    ack = draw(st.one_of(st.sampled_from([0.2, 0.5, 0.7, 0.9]), st.floats(0.01, 0.9)))
    window = draw(st.integers(max(4096, int(1100 / (1 - ack))), 40_000))
    stream_window = draw(st.sampled_from([0, 4096, window]) | st.integers(4096, window))
    most = int(window * (1 - ack))
    return FlowControlSettings(
        window_bytes=window,
        stream_window_bytes=stream_window,
        ack_fraction=ack,
        batch_bytes=draw(st.just(most) | st.integers(1024, most)),
    )


@given(st.data())
@settings(max_examples=400)
def test_settings_that_are_accepted_never_stick(data: st.DataObject) -> None:
    flow = data.draw(flows())
    edge = flow.stream_window_bytes or flow.window_bytes
    messages = data.draw(streams(edge))
    choices = data.draw(
        st.lists(st.tuples(st.integers(0, 5), st.integers(1, 8)), min_size=1, max_size=6)
    )
    found = fullest(Sizes.of(flow), messages, choices)
    target(found)
    assert found < 1


@pytest.mark.parametrize(
    ("what", "sizes", "message"),
    [
        ("acks of 90 % beside half a window", Sizes(10_000, 0, 0.9, 5_000, 0), 4_500),
        ("a batch as large as the window", Sizes(10_000, 0, 0.2, 10_000, 0), 1_500),
        ("a batch that looks at no stream", Sizes(2**20, 4096, 0.2, 2**18, 2**20), 400),
        ("a stream's part beside its acks", Sizes(2**20, 4096, 0.9, 2**18, 2048), 1843),
    ],
)
def test_what_is_refused_or_prevented_would_stick(what: str, sizes: Sizes, message: int) -> None:
    """The search finds what it looks for."""
    assert fullest(sizes, [[message] * 50], [(0, 1)]) >= 1, what


@pytest.mark.parametrize(
    ("window", "ack", "most"), [(20_000, 0.75, 5_000), (10_000, 0.2, 8_000), (4_096, 0.5, 2_048)]
)
def test_the_validator_refuses_the_first_byte_too_many(window: int, ack: float, most: int) -> None:
    accepted = FlowControlSettings(window_bytes=window, ack_fraction=ack, batch_bytes=most)
    assert accepted.flush_bytes(window) + int(window * ack) <= window
    with pytest.raises(
        ConfigError, match=f"batch_bytes: found {most + 1}, expected at most {most}"
    ):
        replace(accepted, batch_bytes=most + 1)


@given(
    st.integers(4096, 40_000), st.floats(0.51, 0.9), st.floats(0.01, 0.99), st.integers(24, 2000)
)
@example(10_000, 0.9, 0.5, 4_500)
def test_a_batch_that_fits_exactly_is_the_limit(
    window: int, ack: float, part: float, message: int
) -> None:
    """With room for acks nothing sticks, however large they and the messages are."""
    room = window - int(window * ack)
    flush = max(1, int(room * part))
    assert fullest(Sizes(window, 0, ack, flush, 0), [[message] * 100], [(0, 1)]) < 1
