"""Collects a task's rows into batches for Spark, and decides when to flush them.

The rows are flushed as soon as one of these holds:

    there are none                              only bytes are to be released: that happens at once
    there are ``batch_rows``                    Spark takes no more at once
    there are ``batch_bytes``, as sent          likewise; rows that inflate to more are more batches
    they hold too much of a connection's window the node has no room, and waits for the flush
    they hold too much of a stream's window     the stream waits likewise (``flush_bytes``)
    ``batch_seconds`` are over                  a node that sends little would delay its rows

A flush gives Spark all collected rows, one batch after the other. It releases their deliveries when
Spark has taken the last batch. So a node waits only for the rows that Spark holds. A document
larger than a batch passes, and so does a delivery larger than its window. This module uses neither
sockets nor Spark.
"""

from collections.abc import Callable, Iterator

import pyarrow as pa

from dcp.client.delivery import Delivery, Receipt
from dcp.client.stats import StageStats
from dcp.lake.config.flow_control_settings import FlowControlSettings
from dcp.lake.receive.batches import BatchBuilder
from dcp.protocol.window import CONNECTION, Window


class BatchFlusher:
    def __init__(
        self, flow: FlowControlSettings, batches: BatchBuilder, clock: Callable[[], float]
    ) -> None:
        """The caller adds rows to ``batches``."""
        self._flow = flow
        self._batches = batches
        self._clock = clock
        self._receipts: list[Receipt] = []
        self._connections: set[Window] = set()
        self._gathered: set[Window] = set()
        self._began_at = 0.0
        self._is_offered = False

    @property
    def is_empty(self) -> bool:
        """True if no delivery is held, not even one without bytes."""
        return not self._receipts

    @property
    def taken_bytes(self) -> int:
        connections = tuple(self._connections)  # at once: asked by the board's thread, too
        return sum(window.taken for window in connections)

    @property
    def due_at(self) -> float:
        return self._began_at + self._flow.batch_seconds

    def add(self, delivery: Delivery) -> None:
        if delivery.receipt is None:
            return
        if self.is_empty:
            self._began_at = self._clock()
        self._receipts.append(delivery.receipt)
        for window in delivery.receipt.windows:
            self._gathered.add(window)
            if window.opaque == CONNECTION:
                self._connections.add(window)

    def is_due(self) -> bool:
        return not self.is_empty and (
            self._batches.rows == 0
            or self._batches.rows >= self._flow.batch_rows
            or sum(window.taken - window.given for window in self._connections)
            >= self._flow.batch_bytes
            or any(map(self._holds_enough, self._gathered))
            or self._clock() >= self.due_at
        )

    def _holds_enough(self, window: Window) -> bool:
        return window.taken - window.given >= self._flow.flush_bytes(window.size_bytes)

    def flush(self) -> Iterator[pa.RecordBatch]:
        """Yield all held batches. The request for the next batch shows that Spark took the last
        one.
        """
        receipts, self._receipts = self._receipts, []
        self._gathered.clear()
        for receipt in receipts:
            receipt.give()
        for rows in self._batches.flush():
            self._is_offered = True
            yield rows
            self._is_offered = False
        for receipt in receipts:
            receipt.release()

    def stats(self, target_bytes: int) -> tuple[StageStats, ...]:
        """Return, from any thread, the batches that Spark has not taken, and the round's budget."""
        return (
            StageStats("batches", 1, int(self._is_offered)),
            StageStats("staging", target_bytes, self.taken_bytes),
        )
