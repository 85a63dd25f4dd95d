"""A producer's accounts and a task without sockets, threads and clock, for searches that run dry.

Real are the producer's arithmetic, the machine of the consumer's connection with its frames, what
the reader keeps of credits, what the task gathers, when that is due, its credits, its batches, and
how Spark's taking gives back whole deliveries and parts. Made here is only the order of things:
each method is what one thread does at once, and frames are on their way for as long as the search
likes. Time stands: whatever only a clock would set free never comes.
"""

from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa

from dcp.client.delivery import Delivery
from dcp.client.reader_credits import ReaderCredits
from dcp.client.settings import ConnectionSettings
from dcp.client.stream_window_sizes import StreamWindowSizes
from dcp.client.unreleased import Unreleased
from dcp.lake.batches import BatchBuilder
from dcp.lake.flow_control_settings import FlowControlSettings
from dcp.lake.gathering import Gathering
from dcp.lake.histories import Histories
from dcp.lake.task_credits import TaskCredits
from dcp.producer.send_window import SendWindow
from dcp.producer.stream_windows import CONNECTION_OPAQUE, StreamWindows
from dcp.protocol.bootstrap import STREAM_WINDOW
from dcp.protocol.events import Items, SnapshotStarted, StreamWindowChanged, WindowRefused
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


class Connection:
    """Both ends of one connection, and what is on its way between them."""

    def __init__(
        self,
        name: str,
        first_vbucket: int,
        messages: Sequence[Sequence[int]],
        flow: FlowControlSettings,
        window_bytes: int,
        handover: deque[tuple["Connection", Delivery]],
    ) -> None:
        stream_window = flow.stream_window_bytes
        self.name = name
        self.machine, server = ready_connection(
            window_bytes=window_bytes,
            ack_fraction=flow.ack_fraction,
            ack_seconds=60.0,
            stream_window_bytes=stream_window,
        )
        vbuckets = range(first_vbucket, first_vbucket + len(messages))
        self.vbuckets = {open_stream(self.machine, server, each): each for each in vbuckets}
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
        chosen = ConnectionSettings(
            "default", window_bytes=window_bytes, max_frame_bytes=LARGEST_MESSAGE, ack_seconds=60.0
        )
        self.credits = ReaderCredits(chosen)
        self.unreleased = Unreleased(self.credits.handover.account)
        self._handover = handover
        self._splitter = FrameSplitter()
        self._charged = self.machine.charged_bytes
        # What the application's thread knows, as in a NodeLink.
        self.window_bytes = window_bytes
        self.window_wishes = 0
        self.stream_windows = StreamWindowSizes(stream_window)

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
        released_bytes, of_streams = self.unreleased.collect()
        if released_bytes:
            self.credits.handover.release(released_bytes, 0.0)
            self.machine.release(released_bytes, 0.0, of_streams)
        self.credits.follow(self.machine.window, self.machine.most_window_bytes, 0.0)
        assert self.credits.readable_bytes, "a brake against the innocent"
        frames = [self.to_consumer.popleft() for _ in range(min(most_frames, self.on_their_way))]
        events = self.machine.receive(block_of(*frames), 0.0) if frames else []
        charged_bytes = self.machine.charged_bytes - self._charged
        self._charged += charged_bytes
        self.credits.handover.take(charged_bytes, 0.0)
        of_streams_now = self.machine.collect_stream_charges()
        if events:
            serial = self.unreleased.add(charged_bytes, of_streams_now)
            delivery = Delivery(None, events, charged_bytes, {}, self.name, serial, of_streams_now)
            self._handover.append((self, delivery))
        else:
            assert not charged_bytes
        self.machine.tick(0.0)
        self.say()
        return bool(frames or released_bytes)

    @property
    def on_their_way(self) -> int:
        return len(self.to_consumer)

    def resize(self, window_bytes: int) -> None:
        self.window_bytes = window_bytes
        self.window_wishes += 1
        self.machine.resize_window(window_bytes, 0.0)
        self.say()

    def resize_streams(self, window_bytes: int) -> None:
        self.stream_windows.ask(window_bytes)
        self.machine.change_stream_window(window_bytes)
        self.say()

    def say(self) -> None:
        block = self._splitter.feed(self.machine.bytes_to_send())
        self.to_producer += [block.frame(index) for index in range(len(block))]

    def full_share(self) -> float:
        """Return how full its fullest window is, as we count it."""
        shares = [self.machine.unacked_bytes / self.flow.window_bytes]
        if self.machine.stream_window_bytes:
            unacked = map(self.machine.stream_unacked_bytes, self.vbuckets.values())
            shares += [each / self.machine.stream_window_bytes for each in unacked]
        return max(shares)

    def check(self) -> None:
        """Both sides count the same, but for what is on its way."""
        messages = sum(
            len(each.to_bytes()) for each in self.to_consumer if not each.magic.is_response
        )
        said = [(frame.opaque, decode(frame)) for frame in self.to_producer]
        acks = sum(
            body.bytes for opaque, body in said if isinstance(body, m.BufferAck) and not opaque
        )
        assert self.flow.outstanding_bytes == self.machine.unacked_bytes + messages + acks
        if self.streams.is_on and not self.to_consumer and not said:
            for opaque, vbucket in self.vbuckets.items():
                flow = self.streams.flow(opaque)
                assert flow is not None
                assert not flow.over_acked_bytes, "acknowledged more than a stream sent"
                assert flow.outstanding_bytes == self.machine.stream_unacked_bytes(vbucket)


class Task:
    """The application's thread: what it gathers, and Spark, which takes one batch at a time."""

    counts = True
    """Whether all that Spark has taken must be released at once."""

    def __init__(self, flow: FlowControlSettings, target_bytes: int = 2**40) -> None:
        self.connections: list[Connection] = []
        self.handover: deque[tuple[Connection, Delivery]] = deque()
        flush_bytes = flow.flush_bytes(flow.fixed_window_bytes)
        self.batches = BatchBuilder(1, Histories(), flow.batch_rows, flush_bytes)
        self.credits = TaskCredits(flush_bytes, target_bytes)
        self.gathering = Gathering(flow, self.batches, self.credits, lambda: 0.0)
        self._departing: Iterator[pa.RecordBatch] | None = None
        self._sizes: dict[tuple[int, int], int] = {}
        self._at_spark_bytes = self._taken_bytes = self._released_bytes = 0
        self._parts: Counter[tuple[str, int]] = Counter()
        self.readers_hurry = False
        """Whether readers wake up at each release, not some time later."""

    def turn(self) -> bool:
        """Do one thing; while Spark has a batch nothing else is done."""
        if self._departing is not None:
            self._take_next(self._departing)
            return True
        if self.gathering.is_due(self, 0.0):
            self._departing = self.gathering.hand_over(self)
            return True
        if self.handover:
            self._take(*self.handover.popleft())
            return True
        return False

    def _take(self, connection: Connection, delivery: Delivery) -> None:
        told = [each for each in delivery.events if isinstance(each, Items | SnapshotStarted)]
        for event in delivery.events:
            if isinstance(event, WindowRefused):
                if event.wishes == connection.window_wishes:
                    connection.window_bytes = event.kept_bytes
            elif isinstance(event, StreamWindowChanged):
                connection.stream_windows.answered(
                    event.window_bytes, is_accepted=event.status == Status.SUCCESS
                )
        if not told:
            connection.unreleased.release(delivery.serial)
            return
        self.gathering.take_in(delivery, 0.0)
        for event in told:
            if isinstance(event, Items):
                columns = event.columns
                keys = zip(columns.vbucket.tolist(), columns.seqno.tolist(), strict=True)
                self._sizes.update(zip(keys, columns.frame_bytes.tolist(), strict=True))
                self.batches.add_items(columns)
            else:
                self.batches.add_event("snapshot_marker", event.vbucket)

    def _take_next(self, departing: Iterator[pa.RecordBatch]) -> None:
        """Let Spark ask for the next batch: of the one that it has taken all documents are free."""
        rows = next(departing, None)
        self._taken_bytes += self._at_spark_bytes
        self._at_spark_bytes = 0
        if self.counts:
            assert self._released_bytes >= self._taken_bytes, "Spark took what is still held"
        if rows is None:
            self._departing = None
            return
        keys = zip(rows["vbucket"].to_pylist(), rows["seqno"].to_pylist(), strict=True)
        self._at_spark_bytes = sum(
            self._sizes.pop((vbucket, int(seqno)), 0)
            for vbucket, seqno in keys
            if seqno is not None
        )

    @property
    def least_window_bytes(self) -> int | None:
        return min(each.window_bytes for each in self.connections)

    @property
    def least_stream_window_bytes(self) -> int | None:
        sizes = (each.stream_windows.least_bytes for each in self.connections)
        return min(filter(None, sizes), default=None)

    def release(self, delivery: Delivery) -> None:
        part_bytes = self._parts.pop((delivery.connection_name, delivery.serial), 0)
        self._released_bytes += delivery.frame_bytes - part_bytes
        connection = self._of(delivery)
        connection.unreleased.release(delivery.serial)
        if self.readers_hurry:
            connection.reader_turns(0)

    def release_part(
        self, delivery: Delivery, frame_bytes: int, stream_bytes: Mapping[int, int]
    ) -> None:
        self._parts[delivery.connection_name, delivery.serial] += frame_bytes
        self._released_bytes += frame_bytes
        connection = self._of(delivery)
        connection.unreleased.release_part(delivery.serial, frame_bytes, stream_bytes)
        if self.readers_hurry:
            connection.reader_turns(0)

    def _of(self, delivery: Delivery) -> Connection:
        [found] = [each for each in self.connections if each.name == delivery.connection_name]
        return found

    def come_to_rest(self) -> None:
        """Do all that needs no time, until nothing is left of it."""
        moved = True
        while moved:
            moved = self.turn()
            for each in self.connections:
                moved |= each.send()
                moved |= each.producer_takes()
                moved |= each.reader_turns(_BLOCK)

    def digest(self) -> None:
        """The same, but nothing new is sent."""
        moved = True
        while moved:
            moved = self.turn()
            for each in self.connections:
                moved |= each.producer_takes()
                moved |= each.reader_turns(_BLOCK)
