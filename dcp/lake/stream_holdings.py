"""How much of each stream's window the rows of an unfinished batch hold.

A batch gathers rows of many streams. Where each has a window of its own, the batch may be far from
full while one of them has filled its window and waits for it: so it is handed over as soon as it
holds ``flush_bytes`` of any stream.
"""

from collections import Counter

from dcp.client.delivery import Delivery


class StreamHoldings:
    """Held bytes by connection and opaque; nothing where streams have no windows."""

    def __init__(self, flush_bytes: int) -> None:
        self._flush_bytes = flush_bytes
        self._held: Counter[tuple[str, int]] = Counter()
        self.are_due = False
        """Whether one stream's part of the batch is as large as it may be."""

    def add(self, delivery: Delivery) -> None:
        """Take note of a delivery that the batch holds."""
        for opaque, frame_bytes in delivery.stream_bytes.items():
            stream = delivery.connection_name, opaque
            self._held[stream] += frame_bytes
            self.are_due = self.are_due or self._held[stream] >= self._flush_bytes

    def clear(self) -> None:
        """Begin anew: the batch was handed over."""
        self._held.clear()
        self.are_due = False
