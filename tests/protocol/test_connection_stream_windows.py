"""Windows of single streams at the consumer: the document's walk-throughs, charges and acks."""

import pytest

from dcp.protocol import events as e
from dcp.protocol.bootstrap import BootstrapSettings, control_step
from dcp.protocol.connection import ConsumerConnection
from dcp.protocol.window import CONNECTION
from dcp.types import U32_MAX
from dcp.wire import messages as m
from dcp.wire.codec import decode, encode
from dcp.wire.frame import Frame
from dcp.wire.framing import FrameSplitter
from dcp.wire.vocabulary import Opcode, Status
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
    stream_end,
)

KIB = 1024
VBUCKETS = (7, 8)
MARKER = 44
HEAD = 24 + 31 + 1 + 6
"""Bytes of a mutation of ``sized`` but for its value."""


def sized(opaque: int, seqno: int, vbucket: int, frame_bytes: int) -> Frame:
    """Return a mutation of so many bytes."""
    value = b"x" * (frame_bytes - HEAD)
    return mutation(opaque, seqno, vbucket, value, key=b"k%05d" % seqno)


def acks(connection: ConsumerConnection) -> list[tuple[int, int]]:
    """Return (opaque, bytes) of the acknowledgements that are to be sent, and all that is."""
    block = FrameSplitter().feed(connection.bytes_to_send())
    found = []
    for index in range(len(block)):
        frame = block.frame(index)
        body = decode(frame)
        assert isinstance(body, m.BufferAck)
        found.append((frame.opaque, body.bytes))
    return found


def charges(connection: ConsumerConnection) -> dict[int, int]:
    """Return what came since the last time, by the opaques of streams with a window."""
    shares = connection.flow.deliver()
    return {window.opaque: count for window, count in shares if window.opaque != CONNECTION}


class Receiver:
    """A connection with two streams; ``take`` lets one of them send messages of 1 KiB."""

    def __init__(self, window_bytes: int, stream_window_bytes: int, **refused: bytes) -> None:
        server = ScriptedServer(refused_controls=frozenset(refused.values()))
        self.connection, self.server = ready_connection(
            server, window_bytes=window_bytes, stream_window_bytes=stream_window_bytes
        )
        self.opaques = [open_stream(self.connection, server, vbucket) for vbucket in VBUCKETS]
        self._seqnos = [0, 0]

    def take(self, stream: int, count: int, now: float = 0.0) -> dict[int, int]:
        """Receive marker and mutation as the first KiB, then mutations; return the charges."""
        opaque, vbucket = self.opaques[stream], VBUCKETS[stream]
        frames = []
        for _ in range(count):
            self._seqnos[stream] += 1
            seqno = self._seqnos[stream]
            is_first = seqno == 1
            if is_first:
                frames.append(marker(opaque, 0, 10_000, vbucket=vbucket))
            frames.append(sized(opaque, seqno, vbucket, KIB - (MARKER if is_first else 0)))
        self.connection.receive(block_of(*frames), now)
        return charges(self.connection)

    def unacked(self) -> tuple[int, int, int]:
        windows = [self.connection.flow.streams.get(opaque) for opaque in self.opaques]
        one, two = (0 if window is None else window.unacked_bytes for window in windows)
        return self.connection.flow.connection.unacked_bytes, one, two


# --- the document's walk-throughs


def test_a_connection_of_100_kb_that_acknowledges_40_kb() -> None:
    """The window is full; 40 KB of it are processed, acknowledged with opaque 0, and come again."""
    receiver = Receiver(102_400, 0)
    assert receiver.take(0, 50) == receiver.take(1, 50) == {}
    for _ in range(3):
        assert receiver.unacked()[0] == 102_400
        release(receiver.connection, 40_960, 1.0)
        assert acks(receiver.connection) == [(0, 40_960)]
        assert receiver.unacked()[0] == 61_440
        receiver.take(0, 40)


def test_streams_of_10_kb_that_acknowledge_5_kb() -> None:
    receiver = Receiver(0, 10_240)
    one, two = receiver.opaques
    assert receiver.take(0, 10) == {one: 10_240}
    assert receiver.take(1, 10) == {two: 10_240}
    for _ in range(3):
        assert receiver.unacked()[1:] == (10_240, 10_240)
        release(receiver.connection, 5_120, 1.0, {one: 5_120})
        assert acks(receiver.connection) == [(one, 5_120)]
        assert receiver.unacked()[1:] == (5_120, 10_240)
        assert receiver.take(0, 5) == {one: 5_120}


# --- charges and acknowledgements


def test_each_window_is_acknowledged_for_itself() -> None:
    receiver = Receiver(100 * KIB, 10 * KIB)
    one, two = receiver.opaques
    receiver.take(0, 10)
    receiver.take(1, 10)
    connection = receiver.connection
    release(connection, 2 * KIB, 1.0, {one: 2 * KIB})
    assert acks(receiver.connection) == [], "exactly a fifth is no more than a fifth"
    release(connection, 2 * KIB, 1.0, {one: 1, two: 2 * KIB - 1})
    assert acks(receiver.connection) == [(one, 2 * KIB + 1)]
    release(connection, 16 * KIB, 1.0, {one: 8 * KIB - 1, two: 8 * KIB + 1})
    assert acks(receiver.connection) == [(one, 8 * KIB - 1), (two, 10 * KIB)]
    assert receiver.unacked() == (20 * KIB, 0, 0)
    assert receiver.connection.next_deadline() == pytest.approx(5.0)
    receiver.connection.tick(5.1)
    assert acks(receiver.connection) == [(0, 20 * KIB)]


def test_the_clock_of_each_stream_is_its_own() -> None:
    receiver = Receiver(0, 10 * KIB)
    one, two = receiver.opaques
    receiver.take(0, 1, now=1.0)
    receiver.take(1, 1, now=3.0)
    release(receiver.connection, 0, 4.0, {one: 10, two: 20})
    assert acks(receiver.connection) == []
    for now, expected in ((5.9, []), (6.1, [(one, 10)]), (7.9, []), (8.1, [(two, 20)])):
        receiver.connection.tick(now)
        assert acks(receiver.connection) == expected, now
    release(receiver.connection, 0, 9.0, {one: 5, two: 5})
    deadline = receiver.connection.next_deadline()
    assert deadline == pytest.approx(11.1)
    receiver.connection.tick(13.2)
    assert acks(receiver.connection) == [(one, 5), (two, 5)]


def test_a_message_larger_than_the_window_is_acknowledged_at_once() -> None:
    receiver = Receiver(0, KIB)
    receiver.take(0, 1)
    opaque = receiver.opaques[0]
    receiver.connection.receive(block_of(sized(opaque, 2, 7, 20 * KIB * KIB)), 0.0)
    charged = charges(receiver.connection)
    assert charged == {opaque: 20 * KIB * KIB}
    release(receiver.connection, 0, 0.0, charged)
    assert acks(receiver.connection) == [(opaque, 20 * KIB * KIB)]


def test_only_messages_of_streams_are_charged() -> None:
    receiver = Receiver(KIB, KIB)
    connection = receiver.connection
    connection.receive(block_of(encode(m.Empty(), Opcode.DCP_NOOP)), 0.0)
    connection.request_cluster_config()
    converse(connection, receiver.server)
    assert receiver.unacked() == (0, 0, 0)
    assert charges(connection) == {}


def test_charges_are_collected_once() -> None:
    receiver = Receiver(0, KIB)
    receiver.take(0, 1)
    assert charges(receiver.connection) == {}


@pytest.mark.parametrize("announced", [True, False])
def test_a_stream_that_ended_returns_its_bytes(announced: bool) -> None:
    """What the application holds of it is released later, to the connection alone."""
    receiver = Receiver(100 * KIB, 10 * KIB)
    opaque = receiver.opaques[0]
    receiver.take(0, 10)
    window = receiver.connection.flow.streams[opaque]
    release(receiver.connection, KIB, 0.0, {opaque: KIB})
    if announced:
        receiver.connection.receive(block_of(stream_end(opaque)), 0.0)
    else:
        receiver.connection.close_stream(VBUCKETS[0])
        close = FrameSplitter().feed(receiver.connection.bytes_to_send()).frame(0)
        receiver.connection.receive(block_of(answer_to(close, status=1)), 0.0)
    assert receiver.unacked() == (10 * KIB + (28 if announced else 0), 0, 0)
    flow = receiver.connection.flow
    flow.release([(flow.connection, 9 * KIB), (window, 9 * KIB)])
    receiver.connection.tick(20.0)
    assert acks(receiver.connection) == [(0, 10 * KIB)], "nothing for a stream that is over"


def test_what_is_late_of_a_closed_stream_is_in_the_connections_window_only() -> None:
    receiver = Receiver(100 * KIB, 10 * KIB, control=b"send_stream_end_on_client_close_stream")
    receiver.take(0, 1)
    receiver.connection.close_stream(VBUCKETS[0])
    converse(receiver.connection, receiver.server)
    assert receiver.take(0, 3) == {}
    assert receiver.unacked() == (4 * KIB, 0, 0)


def test_a_server_that_refuses_them_leaves_the_connections_window() -> None:
    receiver = Receiver(10 * KIB, KIB, control=b"stream_buffer_size")
    assert not receiver.connection.flow.counts_streams
    assert receiver.take(0, 5) == {}
    release(receiver.connection, 5 * KIB, 0.0)
    assert acks(receiver.connection) == [(0, 5 * KIB)]


# --- sizes that change


def told(receiver: Receiver) -> Frame:
    """Return the control that is being sent."""
    block = FrameSplitter().feed(receiver.connection.bytes_to_send())
    assert len(block) == 1
    return block.frame(0)


def messages(receiver: Receiver, *seqnos: int) -> list[Frame]:
    """Messages of the first stream, a KiB each."""
    return [sized(receiver.opaques[0], seqno, VBUCKETS[0], KIB) for seqno in seqnos]


def test_a_smaller_window_makes_acks_due_when_it_is_answered() -> None:
    receiver = Receiver(100 * KIB, 50 * KIB)
    opaque = receiver.opaques[0]
    receiver.take(0, 20)
    release(receiver.connection, 9 * KIB, 1.0, {opaque: 9 * KIB})
    assert acks(receiver.connection) == []
    receiver.connection.change_stream_window(10 * KIB)
    control = told(receiver)
    assert decode(control) == m.DcpControl(b"stream_buffer_size", b"10240")
    changed = receiver.connection.receive(block_of(answer_to(control)), 1.0)
    assert changed == [e.StreamWindowChanged(10 * KIB, 0)]
    deadline = receiver.connection.next_deadline()
    assert deadline is not None
    assert deadline <= 1.0
    receiver.connection.tick(1.0)
    assert acks(receiver.connection) == [(opaque, 9 * KIB)]


def test_what_comes_behind_the_answer_to_0_counts_anew() -> None:
    """All in one block: what was charged before it is forgotten, what comes behind it is not."""
    receiver = Receiver(1000 * KIB, 10 * KIB)
    opaque = receiver.opaques[0]
    before = receiver.take(0, 4)
    receiver.connection.change_stream_window(0)
    control = told(receiver)
    release(receiver.connection, 3 * KIB, 1.0, {opaque: 3 * KIB})
    assert acks(receiver.connection) == [], "the producer may have switched off already"
    block = block_of(*messages(receiver, 5, 6), answer_to(control), *messages(receiver, 7, 8, 9))
    events = receiver.connection.receive(block, 1.0)
    assert e.StreamWindowChanged(0, 0) in events
    assert receiver.unacked()[1] == 3 * KIB
    assert (before, charges(receiver.connection)) == ({opaque: 4 * KIB}, {opaque: 5 * KIB})
    release(receiver.connection, 3 * KIB, 2.0, {opaque: 3 * KIB})  # the forgotten come first
    assert receiver.unacked()[1] == 3 * KIB
    release(receiver.connection, 2 * KIB, 2.0, {opaque: 2 * KIB})
    assert acks(receiver.connection) == []
    receiver.connection.change_stream_window(5 * KIB)
    receiver.connection.receive(block_of(answer_to(told(receiver))), 3.0)
    receiver.connection.tick(3.0)
    assert acks(receiver.connection) == [(opaque, 2 * KIB)], "they were counted while it was off"
    release(receiver.connection, KIB, 9.0, {opaque: KIB})
    receiver.connection.tick(20.0)
    assert acks(receiver.connection) == [(0, 9 * KIB), (opaque, KIB)]


def test_sizes_that_follow_each_other_at_once() -> None:
    receiver = Receiver(1000 * KIB, 10 * KIB)
    opaque = receiver.opaques[0]
    charged = receiver.take(0, 9)
    controls = []
    for size in (20 * KIB, 0, 5 * KIB):
        receiver.connection.change_stream_window(size)
        controls.append(answer_to(told(receiver)))
    receiver.connection.receive(block_of(controls[0]), 1.0)
    release(receiver.connection, 9 * KIB, 1.0, charged)
    assert acks(receiver.connection) == [], "0 is under way"
    receiver.connection.receive(block_of(controls[1], *messages(receiver, 10), controls[2]), 2.0)
    release(receiver.connection, KIB, 2.0, {opaque: KIB})
    receiver.connection.tick(3.0)
    assert acks(receiver.connection) == [], "a fifth of 5 KiB is no more than a fifth"
    receiver.connection.tick(7.1)
    assert acks(receiver.connection) == [(0, 10 * KIB), (opaque, KIB)]


def test_a_size_that_is_refused_leaves_the_one_before() -> None:
    receiver = Receiver(1000 * KIB, 10 * KIB)
    opaque = receiver.opaques[0]
    receiver.take(0, 9)
    receiver.connection.change_stream_window(0)
    refusal = answer_to(told(receiver), status=4)
    assert receiver.connection.receive(block_of(refusal), 1.0) == [e.StreamWindowChanged(0, 4)]
    release(receiver.connection, 3 * KIB, 1.0, {opaque: 3 * KIB})
    assert acks(receiver.connection) == [(opaque, 3 * KIB)]


def test_sizes_that_cannot_be_told() -> None:
    receiver = Receiver(KIB, KIB)
    for size in (-1, U32_MAX + 1):
        with pytest.raises(ValueError, match="window_bytes"):
            receiver.connection.change_stream_window(size)
    assert receiver.connection.bytes_to_send() == b""


# --- windows that come when streams are there already


def late() -> tuple[Receiver, Frame]:
    """A stream without a window that has sent 10 KiB, and the control that is said first."""
    receiver = Receiver(1000 * KIB, 0)
    assert receiver.take(0, 10) == {}
    receiver.connection.change_stream_window(5 * KIB)
    receiver.connection.change_stream_window(10 * KIB)
    control = told(receiver)
    assert decode(control) == m.DcpControl(b"stream_buffer_size", b"0")
    return receiver, control


def test_a_late_window_begins_with_nothing_outstanding() -> None:
    """All in one block: the producer counts what it sends behind its answer to 0."""
    receiver, control = late()
    opaque = receiver.opaques[0]
    block = block_of(*messages(receiver, 11, 12), answer_to(control), *messages(receiver, 13))
    events = receiver.connection.receive(block, 1.0)
    assert not any(isinstance(each, e.StreamWindowChanged) for each in events)
    assert charges(receiver.connection) == {opaque: KIB}
    controls = FrameSplitter().feed(receiver.connection.bytes_to_send())
    sizes = [controls.frame(index) for index in range(len(controls))]
    assert [decode(each) for each in sizes] == [
        m.DcpControl(b"stream_buffer_size", size) for size in (b"5120", b"10240")
    ]
    release(receiver.connection, 13 * KIB, 1.0, {opaque: KIB})
    assert acks(receiver.connection) == []
    answers = [answer_to(each) for each in sizes]
    changed = receiver.connection.receive(block_of(*answers), 1.0)
    assert changed == [e.StreamWindowChanged(5 * KIB, 0), e.StreamWindowChanged(10 * KIB, 0)]
    receiver.connection.tick(7.0)
    assert acks(receiver.connection) == [(0, 13 * KIB), (opaque, KIB)]


@pytest.mark.parametrize("status", [Status.NOT_SUPPORTED, Status.EINVAL])
def test_a_late_window_that_is_refused_changes_nothing(status: int) -> None:
    receiver, control = late()
    refused = block_of(answer_to(control, status=status), *messages(receiver, 11))
    events = receiver.connection.receive(refused, 1.0)
    assert [each for each in events if isinstance(each, e.StreamWindowChanged)] == [
        e.StreamWindowChanged(size, status) for size in (5 * KIB, 10 * KIB)
    ]
    assert receiver.connection.bytes_to_send() == b"", "a size that has a debt is not asked for"
    assert charges(receiver.connection) == {}
    assert not receiver.connection.flow.counts_streams
    receiver.connection.change_stream_window(KIB)
    assert decode(told(receiver)) == m.DcpControl(b"stream_buffer_size", b"0"), "asked again"


@pytest.mark.parametrize("first_bytes", [0, KIB])
def test_a_size_that_is_asked_for_early_follows_the_bootstrap(first_bytes: int) -> None:
    connection = new_connection(mechanisms=("PLAIN",), stream_window_bytes=first_bytes)
    connection.change_stream_window(7)
    assert connection.bytes_to_send() == b""
    connection.start(0.0)
    events = converse(connection, ScriptedServer(mechanisms=b"PLAIN"))
    assert e.StreamWindowChanged(7, 0) in events
    assert (connection.flow.counts_streams, connection.flow.stream_window_bytes) == (True, 7)


@pytest.mark.parametrize("extra_bytes", [0, 2])
def test_prepares_may_be_charged_as_servers_do(extra_bytes: int) -> None:
    connection, server = ready_connection(
        window_bytes=KIB,
        stream_window_bytes=KIB,
        prepare_extra_bytes=extra_bytes,
        settings=BootstrapSettings(
            "b", "n", controls=(control_step("enable_sync_writes", "true"),)
        ),
    )
    opaque = open_stream(connection, server)
    prepare = encode(
        m.Prepare(b"\0k", b"1", 1, 1, 0, 0, 0, 0, 0, 1),
        Opcode.DCP_PREPARE,
        opaque=opaque,
        vbucket=7,
    )
    connection.receive(block_of(marker(opaque, 0, 9), prepare), 0.0)
    length = len(prepare.to_bytes())
    assert length == 55 + 3
    assert connection.flow.connection.unacked_bytes == MARKER + length + extra_bytes
    assert charges(connection) == {opaque: MARKER + length + extra_bytes}
