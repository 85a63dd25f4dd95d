"""What a task gathers for Spark: when it is due, and what comes back as Spark takes it.

A batch is handed over when one of these is so; each alone would leave somebody waiting:

    it has no rows                              nothing would come of it: its bytes go back at once
    it has ``batch_rows`` rows                  Spark takes no more at once
    it holds its part of the smallest window    that node has no room, and waits for the batch
    it holds its part of a stream's window      that stream waits likewise
    ``batch_seconds`` are over                  rows would wait for those that do not come

Windows may change at any time, so they are asked for anew each time. All that was gathered is
handed over then, one batch after the other; what Spark has taken is released, whole deliveries and
documents of the next one. Nothing is gathered meanwhile. Nothing here knows of sockets or Spark.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Protocol

import pyarrow as pa

from dcp.client.delivery import Delivery
from dcp.lake.batches import BatchBuilder, Departure
from dcp.lake.flow_control_settings import FlowControlSettings
from dcp.lake.stream_holdings import StreamHoldings
from dcp.lake.task_credits import TaskCredits


class Source(Protocol):
    """Where deliveries come from, and go back to: a ``Consumer``."""

    @property
    def least_window_bytes(self) -> int | None:
        """The smallest window of a connection; None: none has flow control."""
        ...

    @property
    def least_stream_window_bytes(self) -> int | None:
        """The smallest window that a stream may have of its own; None: none has one."""
        ...

    def release(self, delivery: Delivery) -> None:
        """Take back what is left of a delivery."""
        ...

    def release_part(
        self, delivery: Delivery, frame_bytes: int, stream_bytes: Mapping[int, int]
    ) -> None:
        """Take back some documents of a delivery."""
        ...


class Gathering:
    """The rows of one task and the deliveries that they came with, until Spark has taken them."""

    def __init__(
        self,
        flow: FlowControlSettings,
        batches: BatchBuilder,
        credits: TaskCredits,
        clock: Callable[[], float],
    ) -> None:
        """Begin with nothing; rows are added to ``batches`` by who reads the deliveries."""
        self._flow = flow
        self._batches = batches
        self._credits = credits
        self._clock = clock
        self._of_streams = StreamHoldings()
        self._began_at = 0.0

    @property
    def is_empty(self) -> bool:
        """Whether no delivery is here, not even one without bytes."""
        return not self._credits.is_holding

    @property
    def due_at(self) -> float:
        """When what is here is due at the latest."""
        return self._began_at + self._flow.batch_seconds

    def take_in(self, delivery: Delivery, now: float) -> None:
        """Take a delivery in; its rows follow."""
        if self.is_empty:
            self._began_at = now
        self._credits.take_in(delivery, now)
        self._of_streams.add(delivery)
        self._batches.deliveries += 1

    def is_due(self, source: Source, now: float) -> bool:
        """Whether it must be handed over now."""
        return not self.is_empty and (
            self._batches.rows == 0
            or self._batches.rows >= self._flow.batch_rows
            or self._fills_a_connection(source.least_window_bytes, now)
            or self._fills_a_stream(source.least_stream_window_bytes)
            or now >= self.due_at
        )

    def _fills_a_connection(self, window_bytes: int | None, now: float) -> bool:
        return self._credits.batch_is_full(self._flow.flush_bytes(window_bytes), now)

    def _fills_a_stream(self, window_bytes: int | None) -> bool:
        held_bytes = self._of_streams.largest_bytes
        return window_bytes is not None and held_bytes >= self._flow.flush_bytes(window_bytes)

    def hand_over(self, source: Source) -> Iterator[pa.RecordBatch]:
        """Yield all that is here, no more at once than Spark's account admits.

        Who asks for the next one has taken the last.
        """
        self._of_streams.clear()
        while self._credits.is_holding:
            deliveries = self._credits.hand_over(self._clock())
            for each in self._batches.flush(deliveries):
                self._credits.offer(self._clock())
                yield each.rows
                self._leave(each, source)
            for delivery in self._credits.leave(None, self._clock()):
                source.release(delivery)

    def _leave(self, taken: Departure, source: Source) -> None:
        """Release what Spark has taken: whole deliveries, and documents of the next one."""
        now = self._clock()
        for delivery in self._credits.leave(taken.deliveries, now):
            source.release(delivery)
        if part_bytes := taken.part_bytes:
            delivery = self._credits.leave_part(part_bytes, now)
            of_streams = taken.part_of_streams if delivery.stream_bytes else {}
            source.release_part(delivery, part_bytes, of_streams)
