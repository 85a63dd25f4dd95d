"""The streams of a connection that are asked next for something to send.

Those that may have something are ready, and take turns. One whose own window is full is passed over
until that changes, and holds up no other (kv_engine ``dcp/producer.cc``: the ready list).
"""

from collections import OrderedDict
from collections.abc import Collection, Iterator

from dcp.producer.streams.stream import ActiveStream


class ReadyList:
    """Streams that are ready, and streams whose windows are full, by opaque."""

    def __init__(self) -> None:
        self._ready: OrderedDict[ActiveStream, None] = OrderedDict()
        self._full: dict[int, dict[ActiveStream, None]] = {}

    def __bool__(self) -> bool:
        return bool(self._ready)

    def __iter__(self) -> Iterator[ActiveStream]:
        """Yield the streams that are ready, the one whose turn it is first."""
        return iter(self._ready)

    def wake(self, stream: ActiveStream) -> None:
        """Let a stream have its turn."""
        self._ready.setdefault(stream)

    def end_turn(self, stream: ActiveStream) -> None:
        """Let a ready stream wait for its next turn."""
        self._ready.move_to_end(stream)

    def drop(self, stream: ActiveStream) -> None:
        """Ask a stream no more until it is woken: it has nothing now."""
        self._ready.pop(stream, None)

    def wait_for_window(self, stream: ActiveStream) -> None:
        """Pass over a ready stream until its window changes."""
        del self._ready[stream]
        self._full.setdefault(stream.opaque, {})[stream] = None

    def window_changed(self, opaque: int) -> None:
        """Let the streams of an opaque have their turns again."""
        for stream in self._full.pop(opaque, {}):
            self.wake(stream)

    def remove(self, stream: ActiveStream) -> None:
        """Forget a stream that is over."""
        self.drop(stream)
        waiting = self._full.get(stream.opaque, {})
        waiting.pop(stream, None)
        if not waiting:
            self._full.pop(stream.opaque, None)

    def clear(self) -> None:
        """Forget all streams."""
        self._ready.clear()
        self._full.clear()

    @property
    def full_windows(self) -> Collection[int]:
        """The opaques of the streams that are passed over because their own windows are full."""
        return self._full.keys()

    def waits_for_window(self, stream: ActiveStream) -> bool:
        """Return whether a stream is skipped because its own window is full."""
        return stream in self._full.get(stream.opaque, ())

    def has(self, stream: ActiveStream) -> bool:
        """Return whether a stream waits for its turn or window: it may have something to send."""
        return stream in self._ready or self.waits_for_window(stream)
