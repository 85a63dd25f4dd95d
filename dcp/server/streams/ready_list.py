"""Decides which stream of a connection sends next.

Streams that may have something are ready and take turns. A stream with a full window of its own is
skipped until the window changes, so it delays no other (kv_engine ``dcp/producer.cc``).

In sequential order one stream at a time sends its disk snapshot to the end. The others open theirs
at the same time, send the marker, and wait. Streams from memory continue (kv_engine
``dcp/backfill-manager.cc``, ScheduleOrder). The turn ends early if the stream closes, has nothing
to send or fills its own window.
"""

from collections import OrderedDict
from collections.abc import Collection, Iterator

from dcp.server.streams.active_stream import ActiveStream, ActiveStreamPhase


class ReadyList:
    """The streams of one connection that may have something to send."""

    def __init__(self) -> None:
        self.is_sequential = False
        self._ready: OrderedDict[ActiveStream, None] = OrderedDict()
        self._full: dict[int, dict[ActiveStream, None]] = {}
        """Streams that wait for their own windows, by opaque."""
        self._reading: ActiveStream | None = None
        """In sequential order: the stream whose turn it is at the disk."""
        self._waiting: OrderedDict[ActiveStream, None] = OrderedDict()
        """In sequential order: streams that wait for that turn."""

    def __bool__(self) -> bool:
        return bool(self._ready)

    def __iter__(self) -> Iterator[ActiveStream]:
        return iter(self._ready)

    def order_backfills(self, *, is_sequential: bool) -> None:
        """Choose sequential order, or let all backfills take turns."""
        self.is_sequential = is_sequential
        for stream in (*self._waiting, *self._ready):
            self.wake(stream)

    def wake(self, stream: ActiveStream) -> None:
        self._ready.setdefault(stream)
        self._wait_for_disk(stream)

    def end_turn(self, stream: ActiveStream) -> None:
        self._ready.move_to_end(stream)
        self._wait_for_disk(stream)

    def drop(self, stream: ActiveStream) -> None:
        """Skip a stream that has nothing to send, until ``wake``."""
        self._ready.pop(stream, None)
        self._waiting.pop(stream, None)
        self._pass_on(stream)

    def wait_for_window(self, stream: ActiveStream) -> None:
        self.drop(stream)
        self._full.setdefault(stream.opaque, {})[stream] = None

    def window_changed(self, opaque: int) -> None:
        for stream in self._full.pop(opaque, {}):
            self.wake(stream)
            # It had the turn at the disk when its window became full, so it is first in line.
            if stream in self._waiting:
                self._waiting.move_to_end(stream, last=False)

    def _wait_for_disk(self, stream: ActiveStream) -> None:
        is_backfilling = self.is_sequential and stream.phase is ActiveStreamPhase.BACKFILLING
        # A stream without a disk snapshot under way never waits, and passes on its turn.
        if not (is_backfilling and stream.is_inside_snapshot):
            self._waiting.pop(stream, None)
            self._pass_on(stream)
        elif self._reading in (None, stream):
            self._reading = stream
        else:
            del self._ready[stream]
            self._waiting.setdefault(stream)

    def _pass_on(self, stream: ActiveStream) -> None:
        if self._reading is stream:
            self._reading = None
            if self._waiting:
                self._reading, _ = self._waiting.popitem(last=False)
                self._ready[self._reading] = None

    def remove(self, stream: ActiveStream) -> None:
        self.drop(stream)
        waiting = self._full.get(stream.opaque, {})
        waiting.pop(stream, None)
        if not waiting:
            self._full.pop(stream.opaque, None)

    def clear(self) -> None:
        self._ready.clear()
        self._full.clear()
        self._waiting.clear()
        self._reading = None

    @property
    def full_windows(self) -> Collection[int]:
        return self._full.keys()

    def waits_for_window(self, stream: ActiveStream) -> bool:
        return stream in self._full.get(stream.opaque, ())

    def has(self, stream: ActiveStream) -> bool:
        """Return True if the stream may have something to send, now or after a wait."""
        is_there = stream in self._ready or stream in self._waiting
        return is_there or self.waits_for_window(stream)
