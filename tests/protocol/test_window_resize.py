"""Another window for a live connection: told once and before acks, then kept or taken back."""

from hypothesis import given
from hypothesis import strategies as st

from dcp.protocol import events as e
from dcp.protocol.connection import ClientConnection
from dcp.protocol.receive_window import FlowSettings, ReceiveWindow
from dcp.protocol.window_resize import WindowResize
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
)

U32_SIZES = st.sampled_from([0, 1, 5, 4096, 10_000, 2**32 - 1])


def said(connection: ClientConnection) -> list[tuple[Frame, m.Body]]:
    block = FrameSplitter().feed(connection.bytes_to_send())
    frames = [block.frame(index) for index in range(len(block))]
    return [(frame, decode(frame)) for frame in frames]


def control(size: int) -> m.DcpControl:
    return m.DcpControl(b"connection_buffer_size", str(size).encode())


def with_released(released_bytes: int) -> tuple[ClientConnection, int]:
    """Return a connection of window 10,000 that has released so much, none of it acknowledged."""
    connection, server = ready_connection(window_bytes=10_000)
    opaque = open_stream(connection, server)
    connection.receive(block_of(marker(opaque, 0, 9), mutation(opaque, 1, value=b"x" * 5000)), 1.0)
    connection.release(released_bytes, 1.0)
    assert connection.bytes_to_send() == b""
    return connection, opaque


def test_a_smaller_window_is_told_first_and_its_threshold_holds_at_once() -> None:
    connection, _ = with_released(1500)
    connection.resize_window(5000, 2.0)
    assert [body for _, body in said(connection)] == [control(5000), m.BufferAck(1500)]
    assert (connection.window_bytes, connection.most_window_bytes) == (5000, 10_000)


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
    assert (connection.window_bytes, connection.most_window_bytes) == (5000, 5000)


def test_a_refused_size_is_taken_back_and_what_is_due_by_the_old_one_leaves() -> None:
    connection, _ = with_released(1900)
    connection.resize_window(20_000, 2.0)
    connection.release(200, 2.0)  # 2,100: due by 10,000, not by 20,000
    [(frame, body)] = said(connection)
    assert body == control(20_000)
    refusal = answer_to(frame, status=Status.EINVAL)
    [event] = connection.receive(block_of(refusal), 3.0)
    assert isinstance(event, e.WindowRefused)
    assert (event.asked_bytes, event.kept_bytes) == (20_000, 10_000)
    assert "EINVAL" in event.detail
    connection.tick(3.0)
    assert [body for _, body in said(connection)] == [m.BufferAck(2100)]
    assert (connection.window_bytes, connection.most_window_bytes) == (10_000, 10_000)
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
    assert connection.window_bytes == 5000


def test_off_counts_from_the_answer_on() -> None:
    connection, opaque = with_released(1500)
    connection.resize_window(0, 2.0)
    [(frame, _)] = said(connection)
    assert connection.unacked_bytes > 1500, "the producer has not heard of it yet"
    connection.receive(block_of(answer_to(frame), mutation(opaque, 2, value=b"y" * 100)), 2.0)
    unacked = connection.unacked_bytes
    assert 100 < unacked < 300, "only what came behind the answer"
    connection.resize_window(3000, 2.0)
    [(frame, body)] = said(connection)
    assert body == control(3000)
    connection.receive(block_of(answer_to(frame)), 2.0)
    assert connection.unacked_bytes == unacked, "the debt that a producer begins with"


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
def test_the_account_ends_with_what_the_producer_was_told(
    steps: list[int | bool], last: bool
) -> None:
    """Whatever is wanted, accepted and refused, in any order."""
    resize, window = WindowResize(10_000, 10_000), ReceiveWindow(FlowSettings(10_000), 0.0)
    producer = 10_000
    for step in [*steps, last, last, last]:
        if not isinstance(step, bool):
            resize = resize.want(step)
        elif resize.asked_bytes is not None:
            if step:
                producer = resize.asked_bytes
            answered = resize.accepted(window) if step else resize.refused(window)
            resize, window = answered
        resize, window, _ = resize.ask(window)
        assert resize.told_bytes == producer
        assert resize.most_bytes >= producer
        assert resize.asked_bytes is None or window.settings.window_bytes in (
            resize.asked_bytes,
            resize.told_bytes,
        )
    if resize.asked_bytes is None:
        assert window.settings.window_bytes == producer == resize.wanted_bytes
