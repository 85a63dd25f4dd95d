"""A producer's accounts and a task without sockets, threads and clock, for searches that run dry.

Real are the producer's arithmetic, the machine of the consumer's connection with its frames and
windows, the receipts of deliveries, what the task gathers, when that is due, and its batches. Made
here is only the order of things: each method is what one thread does at once, and frames are on
their way for as long as the search likes. Time stands: whatever only a clock would set free never
comes.
"""

import threading
from collections import Counter, deque
from collections.abc import Iterator, Sequence

import pyarrow as pa
from hypothesis import strategies as st

from dcp.client.delivery import Delivery, Receipt
from dcp.client.settings import ConnectionSettings
from dcp.lake.config.flow_control_settings import FlowControlSettings
from dcp.lake.receive.batch_flusher import BatchFlusher
from dcp.lake.receive.batches import BatchBuilder
from dcp.lake.tables.schema import RowKind
from dcp.protocol.events import Items, SnapshotStarted
from dcp.protocol.negotiation import STREAM_WINDOW
from dcp.server.model.send_window import SendWindow
from dcp.server.streams.stream_windows import CONNECTION_OPAQUE, StreamWindows
from dcp.wire import messages as m
from dcp.wire.codec import decode
from dcp.wire.frame import Frame
from dcp.wire.framing import FrameSplitter
from dcp.wire.vocabulary import Status
from tests.protocol.scripted import (
    answer_to,
    block_of,
    marker,
    mutation,
    open_stream,
    ready_connection,
)

LEAST_MESSAGE = 128
LARGEST_MESSAGE = 80_000
_ACK_SECONDS = 60.0
_HEAD = 24 + 31 + 1 + 6
_MARKER = 44
_LAST_SEQNO = 99_999
_BLOCK = 8
"""Frames that a read brings where the search does not say it."""


def frames_of(opaque: int, vbucket: int, seqno: int, message_bytes: int) -> list[Frame]:
    """Return a mutation of so many bytes; the first one of a stream together with its marker."""
    begins = [marker(opaque, 0, _LAST_SEQNO, vbucket=vbucket)] if seqno == 1 else []
    value = b"x" * (message_bytes - _HEAD - _MARKER * len(begins))
    return [*begins, mutation(opaque, seqno, vbucket, value, key=b"k%05d" % seqno)]


@st.composite
def flows(draw: st.DrawFn) -> FlowControlSettings:
    """Settings that are accepted, with windows of a few messages."""
    ack = draw(st.one_of(st.sampled_from([0.2, 0.5, 0.7, 0.9]), st.floats(0.01, 0.9)))
    window = draw(st.integers(max(4096, int(1100 / (1 - ack))), 40_000))
    stream_window = draw(st.sampled_from([0, 4096, window]) | st.integers(4096, window))
    most = int(window * (1 - ack))
    return FlowControlSettings(
        window_bytes=window,
        stream_window_bytes=stream_window,
        ack_fraction=ack,
        batch_rows=draw(st.sampled_from([1, 2, 5, 10_000])),
        batch_bytes=draw(st.just(most) | st.integers(1024, most)),
    )


class Connection:
    """Both ends of one connection, and what is on its way between them."""

    def __init__(
        self,
        name: str,
        first_vbucket: int,
        messages: Sequence[Sequence[int]],
        flow: FlowControlSettings,
        window_bytes: int,
        handover: deque[Delivery],
    ) -> None:
        stream_window = flow.stream_window_bytes
        self.name = name
        self.protocol, server = ready_connection(
            window_bytes=window_bytes,
            ack_fraction=flow.ack_fraction,
            ack_seconds=_ACK_SECONDS,
            stream_window_bytes=stream_window,
        )
        vbuckets = range(first_vbucket, first_vbucket + len(messages))
        self.vbuckets = {open_stream(self.protocol, server, each): each for each in vbuckets}
        self.left = dict(zip(self.vbuckets, map(list, messages), strict=True))
        self._seqnos: Counter[int] = Counter()
        self.flow = SendWindow()
        self.flow.set_window(window_bytes)
        self.streams = StreamWindows()
        self.streams.set_window(stream_window)
        for opaque in self.left:
            self.streams.opened(opaque)
        self.refusals = 0
        self.to_producer: deque[Frame] = deque()
        self.to_consumer: deque[Frame] = deque()
        self.reader_hurries = False
        """Whether the reader wakes up at each release, not some time later."""
        self.was_off = False
        """Whether its window was switched off once: then only the reader bounds what is held."""
        self.largest_delivery = 0
        self._settings = ConnectionSettings(
            "default", window_bytes=window_bytes, max_frame_bytes=LARGEST_MESSAGE
        )
        self._limit_bytes = 0
        self._handover = handover
        self._splitter = FrameSplitter()

    # The producer

    def may_send(self, opaque: int) -> bool:
        has_room = self.flow.room_bytes > 0 and self.streams.room_bytes(opaque) > 0
        return has_room and bool(self.left[opaque])

    def send(self, turn: int = 0) -> bool:
        """Let one stream that may send say its next message."""
        able = [opaque for opaque in self.left if self.may_send(opaque)]
        if not able:
            return False
        opaque = able[turn % len(able)]
        self._seqnos[opaque] += 1
        message = self.left[opaque].pop()
        frames = frames_of(opaque, self.vbuckets[opaque], self._seqnos[opaque], message)
        self.flow.charge(message)
        self.streams.charge(opaque, message)
        self.to_consumer += frames
        return True

    def producer_takes(self) -> bool:
        """Take one thing that the consumer said."""
        if not self.to_producer:
            return False
        frame = self.to_producer.popleft()
        body = decode(frame)
        if isinstance(body, m.BufferAck):
            if frame.opaque == CONNECTION_OPAQUE:
                assert not self.flow.acknowledge(body.bytes), "acknowledged more than was sent"
            else:
                assert self.streams.acknowledge(frame.opaque, body.bytes)
            return True
        assert isinstance(body, m.DcpControl)
        if self.refusals:
            self.refusals -= 1
            self.to_consumer.append(answer_to(frame, status=Status.EINVAL))
            return True
        window = self.streams if body.name.decode() == STREAM_WINDOW else self.flow
        window.set_window(int(body.value))
        self.to_consumer.append(answer_to(frame))
        return True

    # The consumer's reader

    def reader_turns(self, most_frames: int = 1) -> bool:
        """Do one round of the reader; it never stops because of a node that keeps to its window."""
        protocol, window = self.protocol, self.protocol.flow.connection
        protocol.acknowledge(0.0)
        moved = self.say()
        limit_bytes = self._settings.unreleased_limit_bytes(protocol.most_window_bytes)
        self._limit_bytes = max(self._limit_bytes, limit_bytes)
        if window.unreleased_bytes >= self._limit_bytes:
            assert self.was_off, "a brake against the innocent"
            return moved
        on_their_way = len(self.to_consumer)
        frames = [self.to_consumer.popleft() for _ in range(min(most_frames, on_their_way))]
        events = protocol.receive(block_of(*frames), 0.0) if frames else []
        protocol.tick(0.0)
        frame_bytes = window.received - window.delivered
        if events or frame_bytes:
            receipt = Receipt(protocol.flow.deliver(), protocol.flow, threading.Lock(), self._wake)
            self._handover.append(Delivery(None, events, receipt, frame_bytes, {}, self.name))
            self.largest_delivery = max(self.largest_delivery, frame_bytes)
        self.say()
        return moved or bool(frames)

    def _wake(self, _: bool) -> None:
        if self.reader_hurries:
            self.reader_turns(0)

    def resize(self, window_bytes: int) -> None:
        self.was_off |= window_bytes == 0
        self.protocol.resize_window(window_bytes, 0.0)
        self.say()

    def resize_streams(self, window_bytes: int) -> None:
        self.protocol.change_stream_window(window_bytes)
        self.say()

    def say(self) -> bool:
        block = self._splitter.feed(self.protocol.bytes_to_send())
        self.to_producer += [block.frame(index) for index in range(len(block))]
        return len(block) > 0

    def full_share(self) -> float:
        """Return how full its fullest window is, as we count it."""
        flow = self.protocol.flow
        windows = [flow.connection, *flow.streams.values()]
        return max(each.unacked_bytes / each.size_bytes for each in windows if each.size_bytes)

    def check(self) -> None:
        """Both sides count the same, but for what is on its way."""
        flow = self.protocol.flow
        said = [(frame.opaque, decode(frame)) for frame in self.to_producer]
        if self.protocol._state.resize.asked_bytes != 0:  # else the producer may have forgotten
            messages = sum(
                len(each.to_bytes()) for each in self.to_consumer if not each.magic.is_response
            )
            acks = sum(
                body.bytes for opaque, body in said if isinstance(body, m.BufferAck) and not opaque
            )
            assert self.flow.outstanding_bytes == flow.connection.unacked_bytes + messages + acks
        if self.streams.is_on and not self.to_consumer and not said:
            for opaque in self.vbuckets:
                sent = self.streams.flow(opaque)
                assert sent is not None
                assert not sent.over_acked_bytes, "acknowledged more than a stream sent"
                window = flow.streams.get(opaque)
                assert sent.outstanding_bytes == (window.unacked_bytes if window else 0)

    def require_all_back(self) -> None:
        """Once nothing is left and the time of acknowledgements is over, nothing is outstanding."""
        self.protocol.acknowledge(2 * _ACK_SECONDS)
        self.say()
        while self.producer_takes():
            pass
        self.check()
        assert not any(self.left.values()), f"{self.name} waits for ever with {self.left}"
        assert self.protocol.flow.connection.unreleased_bytes == 0
        assert not self.flow.window_bytes or self.flow.outstanding_bytes == 0
        for opaque in self.vbuckets if self.streams.is_on else ():
            sent = self.streams.flow(opaque)
            assert sent is not None
            assert sent.outstanding_bytes == 0


class Task:
    """The application's thread: what it gathers, and Spark, which takes one batch at a time."""

    def __init__(self, flow: FlowControlSettings) -> None:
        self.connections: list[Connection] = []
        self.handover: deque[Delivery] = deque()
        self.batches = BatchBuilder(1, flow.batch_rows, flow.batch_bytes)
        self.flusher = BatchFlusher(flow, self.batches, lambda: 0.0)
        self.most_batches = 0
        """The most that one hand-over took."""
        self._departing: Iterator[pa.RecordBatch] | None = None
        self._taken = 0

    def add(
        self, messages: Sequence[Sequence[int]], flow: FlowControlSettings, window_bytes: int
    ) -> Connection:
        """Connect to one node more."""
        number = len(self.connections)
        name = f"own {number}"
        made = Connection(name, 8 * number, messages, flow, window_bytes, self.handover)
        self.connections.append(made)
        return made

    def turn(self) -> bool:
        """Do one thing; while Spark has a batch nothing else is done."""
        if self._departing is not None:
            if next(self._departing, None) is None:
                self._departing = None
            else:
                self._taken += 1
                self.most_batches = max(self.most_batches, self._taken)
            return True
        if self.flusher.is_due():
            self.hand_over()
            return True
        if self.handover:
            self._take(self.handover.popleft())
            return True
        return False

    def hand_over(self) -> None:
        self._departing, self._taken = self.flusher.flush(), 0

    def _take(self, delivery: Delivery) -> None:
        delivery.take()
        told = [each for each in delivery.events if isinstance(each, Items | SnapshotStarted)]
        if not told:
            delivery.release()
            return
        self.flusher.add(delivery)
        for event in told:
            if isinstance(event, Items):
                self.batches.add_documents(event.columns)
            else:
                self.batches.add_event(RowKind.SNAPSHOT_MARKER, event.vbucket)

    def come_to_rest(self, *, sending: bool = True) -> None:
        """Do all that needs no time, until nothing is left of it."""
        moved = True
        while moved:
            moved = self.turn()
            for each in self.connections:
                moved |= sending and each.send()
                moved |= each.producer_takes()
                moved |= each.reader_turns(_BLOCK)

    def require_all_back(self) -> None:
        """Nothing is left at rest, and all bytes come back once time goes on."""
        self.come_to_rest()
        for each in self.connections:
            assert not any(each.left.values()), f"{each.name} waits for ever with {each.left}"
        self.hand_over()
        self.come_to_rest()
        for each in self.connections:
            each.require_all_back()
