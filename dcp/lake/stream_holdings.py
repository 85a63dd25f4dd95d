"""How much of each stream's window the rows of an unfinished batch hold.

A batch gathers rows of many streams. Where each has a window of its own, the batch may be far from
full while one of them has filled its window and waits for it: so the largest part of one stream
counts. Windows may be switched on or become smaller while the batch holds rows: what a stream was
charged is noted whatever its window is.
"""

from collections import Counter

from dcp.client.delivery import Delivery


class StreamHoldings:
    """Held bytes by connection and opaque; nothing where streams never had windows."""

    def __init__(self) -> None:
        self._held: Counter[tuple[str, int]] = Counter()
        self.largest_bytes = 0
        """What is held of the stream of which most is held."""

    def add(self, delivery: Delivery) -> None:
        """Take note of a delivery that the batch holds."""
        for opaque, frame_bytes in delivery.stream_bytes.items():
            stream = delivery.connection_name, opaque
            self._held[stream] += frame_bytes
            self.largest_bytes = max(self.largest_bytes, self._held[stream])

    def clear(self) -> None:
        """Begin anew: the batch was handed over."""
        self._held.clear()
        self.largest_bytes = 0
