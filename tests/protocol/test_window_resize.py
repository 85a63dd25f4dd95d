"""Another window for an open connection: told once and before acks, then kept or taken back."""

from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dcp.errors import LocalProtocolError
from dcp.protocol import events as e
from dcp.protocol.connection import ConsumerConnection
from dcp.protocol.window import CONNECTION, Window
from dcp.protocol.window_resize import WindowResize
from dcp.server.model.send_window import SendWindow
from dcp.types import U32_MAX
from dcp.wire import messages as m
from dcp.wire.codec import decode
from dcp.wire.frame import Frame
from dcp.wire.framing import FrameSplitter
from dcp.wire.vocabulary import Status
from tests.protocol.scripted import (
    ScriptedServer,
    answer_to,
    block_of,
    converse,
    marker,
    mutation,
    new_connection,
    open_stream,
    ready_connection,
    release,
)

U32_SIZES = st.sampled_from([0, 1, 5, 4096, 10_000, 2**32 - 1])


def said(connection: ConsumerConnection) -> list[tuple[Frame, m.Body]]:
    block = FrameSplitter().feed(connection.bytes_to_send())
    frames = [block.frame(index) for index in range(len(block))]
    return [(frame, decode(frame)) for frame in frames]


def sizes(connection: ConsumerConnection) -> tuple[int, int]:
    """Return the window that is kept to, and the most that the producer may have."""
    return connection.flow.connection.size_bytes, connection.most_window_bytes


def control(size: int) -> m.DcpControl:
    return m.DcpControl(b"connection_buffer_size", str(size).encode())


def with_released(released_bytes: int) -> tuple[ConsumerConnection, int]:
    """Return a connection of window 10,000 that has released so much, none of it acknowledged."""
    connection, server = ready_connection(window_bytes=10_000)
    opaque = open_stream(connection, server)
    connection.receive(block_of(marker(opaque, 0, 9), mutation(opaque, 1, value=b"x" * 5000)), 1.0)
    release(connection, released_bytes, 1.0)
    assert connection.bytes_to_send() == b""
    return connection, opaque


def test_a_smaller_window_is_told_first_and_its_threshold_holds_at_once() -> None:
    connection, _ = with_released(1500)
    connection.resize_window(5000, 2.0)
    assert [body for _, body in said(connection)] == [control(5000), m.BufferAck(1500)]
    assert sizes(connection) == (5000, 10_000)


def test_sizes_wanted_while_an_answer_is_awaited_are_told_one_after_the_other() -> None:
    connection, _ = with_released(0)
    for size in (7000, 6000, 5000):
        connection.resize_window(size, 2.0)
    [(first, body)] = said(connection)
    assert body == control(7000)
    assert connection.receive(block_of(answer_to(first)), 2.0) == []
    [(second, body)] = said(connection)
    assert body == control(5000), "6000 was never needed"
    connection.receive(block_of(answer_to(second)), 2.0)
    assert said(connection) == []
    assert sizes(connection) == (5000, 5000)


def test_a_refused_size_is_taken_back_and_what_is_due_by_the_old_one_leaves() -> None:
    connection, _ = with_released(1900)
    connection.resize_window(20_000, 2.0)
    release(connection, 200, 2.0)  # 2,100: due by 10,000, not by 20,000
    [(frame, body)] = said(connection)
    assert body == control(20_000)
    refusal = answer_to(frame, status=Status.EINVAL)
    [event] = connection.receive(block_of(refusal), 3.0)
    assert isinstance(event, e.WindowRefused)
    assert event.asked_bytes == 20_000
    assert "EINVAL" in event.detail
    connection.tick(3.0)
    assert [body for _, body in said(connection)] == [m.BufferAck(2100)]
    assert sizes(connection) == (10_000, 10_000)
    connection.resize_window(10_000, 3.0)
    assert said(connection) == [], "nothing to tell"


def test_a_refusal_is_not_told_while_a_newer_size_is_under_way() -> None:
    connection, _ = with_released(0)
    connection.resize_window(20_000, 2.0)
    connection.resize_window(5000, 2.0)
    [(first, _)] = said(connection)
    assert connection.receive(block_of(answer_to(first, status=Status.EINVAL)), 2.0) == []
    [(second, body)] = said(connection)
    assert body == control(5000)
    assert connection.receive(block_of(answer_to(second)), 2.0) == []
    assert connection.flow.connection.size_bytes == 5000


def test_off_counts_from_the_answer_on() -> None:
    connection, opaque = with_released(1500)
    connection.resize_window(0, 2.0)
    [(frame, _)] = said(connection)
    assert connection.flow.connection.unacked_bytes > 1500, "the producer has not heard of it yet"
    connection.receive(block_of(answer_to(frame), mutation(opaque, 2, value=b"y" * 100)), 2.0)
    unacked = connection.flow.connection.unacked_bytes
    assert 100 < unacked < 300, "only what came behind the answer"
    connection.resize_window(3000, 2.0)
    [(frame, body)] = said(connection)
    assert body == control(3000)
    connection.receive(block_of(answer_to(frame)), 2.0)
    assert connection.flow.connection.unacked_bytes == unacked, (
        "the debt that a producer begins with"
    )


def test_a_size_wanted_during_the_bootstrap_is_told_behind_it() -> None:
    connection, server = new_connection(), ScriptedServer()
    connection.start(0.0)
    connection.resize_window(4096, 0.0)
    events = converse(connection, server)
    assert any(isinstance(event, e.Ready) for event in events)
    sizes = [
        body.value
        for _, body in server.seen
        if isinstance(body, m.DcpControl) and body.name == b"connection_buffer_size"
    ]
    assert sizes == [b"10000", b"4096"]
    assert connection.most_window_bytes == 4096


@given(st.lists(st.one_of(U32_SIZES, st.booleans()), max_size=30), st.booleans())
def test_sizes_end_with_what_the_producer_was_told(steps: list[int | bool], last: bool) -> None:
    """Whatever is wanted, accepted (True) and refused (False), in any order."""
    resize, producer = WindowResize(10_000, 10_000), 10_000
    for step in [*steps, last, last, last]:
        if not isinstance(step, bool):
            resize = resize.want(step)
        elif resize.asked_bytes is not None:
            producer = resize.asked_bytes if step else producer
            resize = resize.accepted() if step else resize.refused()
        resize = resize.ask()
        assert resize.confirmed_bytes == producer
        assert resize.most_bytes >= producer
        assert resize.window_bytes in (resize.asked_bytes, producer)
        assert not producer or resize.window_bytes, "off only when that is answered"
    assert resize.asked_bytes is None
    assert resize.window_bytes == producer == resize.wanted_bytes


def test_an_answer_that_was_not_asked_for_is_our_mistake() -> None:
    for take in (WindowResize.accepted, WindowResize.refused):
        with pytest.raises(LocalProtocolError, match="found an answer, expected none"):
            take(WindowResize(10, 10))


@pytest.mark.parametrize("size", [-1, U32_MAX + 1])
def test_a_window_that_no_producer_takes_is_refused(size: int) -> None:
    connection, _ = with_released(0)
    with pytest.raises(ValueError, match="window_bytes: found"):
        connection.resize_window(size, 2.0)
    assert said(connection) == []


def test_a_size_that_is_refused_while_it_is_off_leaves_the_debt() -> None:
    connection, opaque = with_released(0)
    connection.resize_window(0, 2.0)
    [(frame, _)] = said(connection)
    connection.receive(block_of(answer_to(frame), mutation(opaque, 2, value=b"y" * 100)), 2.0)
    debt = connection.flow.connection.unacked_bytes
    connection.resize_window(200, 2.0)
    [(frame, body)] = said(connection)
    assert body == control(200)
    release(connection, connection.flow.connection.unreleased_bytes, 2.0)
    assert said(connection) == [], "an acknowledgement would have no meaning if it is refused"
    connection.receive(block_of(answer_to(frame, status=Status.EINVAL)), 2.0)
    assert connection.flow.connection.unacked_bytes == debt
    connection.resize_window(300, 2.0)
    [(frame, _)] = said(connection)
    connection.receive(block_of(answer_to(frame)), 2.0)
    connection.tick(2.0)
    assert [body for _, body in said(connection)] == [m.BufferAck(debt)]


# --- against the account of the producer, with messages and answers under way


class Line:
    """A connection, its producer's account of one window, and what is under way between them."""

    def __init__(self, *, of_stream: bool) -> None:
        self.connection, server = ready_connection(
            window_bytes=10_000, stream_window_bytes=10_000 * of_stream
        )
        self.stream = open_stream(self.connection, server)
        self.producer = SendWindow()
        self.producer.set_window(10_000)
        self.opaque = self.stream if of_stream else CONNECTION
        self.to_us: deque[Frame] = deque()
        self.to_producer: deque[tuple[Frame, m.Body]] = deque()
        self.now = 1.0
        self._seqno = 0
        self._send(marker(self.stream, 0, 10_000))
        self.step("receive", 0)

    @property
    def window(self) -> Window:
        flow = self.connection.flow
        return flow.connection if self.opaque == CONNECTION else flow.streams[self.opaque]

    def step(self, what: str, amount: int) -> None:
        connection, flow = self.connection, self.connection.flow
        match what:
            case "send" if not self.producer.is_full:
                self._seqno += 1
                self._send(mutation(self.stream, self._seqno, value=b"x" * amount))
            case "want" if self.opaque == CONNECTION:
                connection.resize_window(amount, self.now)
            case "want":
                connection.change_stream_window(amount)
            case "hear" if self.to_producer:
                self._hear(*self.to_producer.popleft(), is_accepted=amount % 3 > 0)
            case "receive" if self.to_us:
                connection.receive(block_of(self.to_us.popleft()), self.now)
            case "release":
                count = min(amount, self.window.unreleased_bytes)
                flow.release([(each, count) for each in {flow.connection, self.window}])
                connection.acknowledge(self.now)
            case "tick":
                connection.tick(self.now)
            case "arrive":
                self.arrive(amount)
        self.to_producer.extend(said(connection))

    def arrive(self, amount: int = 1) -> None:
        """Let all arrive that is under way."""
        while self.to_us or self.to_producer:
            self.step("hear", amount)
            self.step("receive", 0)

    def _send(self, frame: Frame) -> None:
        self.producer.charge(len(frame.to_bytes()))
        self.to_us.append(frame)

    def _hear(self, frame: Frame, body: m.Body, *, is_accepted: bool) -> None:
        if isinstance(body, m.BufferAck):
            if frame.opaque == self.opaque:
                self.producer.acknowledge(body.bytes)
            return
        assert isinstance(body, m.DcpControl)
        if is_accepted:
            self.producer.set_window(int(body.value))
        status = Status.SUCCESS if is_accepted else Status.EINVAL
        self.to_us.append(answer_to(frame, status=status))


@pytest.mark.parametrize("of_stream", [False, True], ids=["connection", "stream"])
@given(
    script=st.lists(
        st.one_of(
            st.tuples(st.just("want"), st.sampled_from([0, 0, 500, 4000])),
            st.tuples(st.just("arrive"), st.sampled_from([0, 1])),
            st.tuples(
                st.sampled_from(["send", "hear", "receive", "release"]), st.integers(0, 1500)
            ),
        ),
        max_size=50,
    )
)
def test_both_sides_count_the_same_whatever_is_under_way(
    of_stream: bool, script: list[tuple[str, int]]
) -> None:
    line = Line(of_stream=of_stream)
    for step in script:
        line.step(*step)
    line.arrive()
    assert line.window.unacked_bytes == line.producer.outstanding_bytes
    line.step("release", line.window.unreleased_bytes)
    line.now += 6
    line.step("tick", 0)
    line.arrive()
    assert line.window.unacked_bytes == line.producer.outstanding_bytes
    assert not line.producer.window_bytes or not line.producer.outstanding_bytes, "it would stall"
    assert line.producer.over_acked_bytes == 0
