"""The streams of a connection that are asked next for something to send.

Those that may have something are ready, and take turns. One whose own window is full is passed over
until that changes, and holds up no other (kv_engine ``dcp/producer.cc``: the ready list).

In sequential order one stream at a time sends a snapshot from disk, to its end. The others begin
theirs, so that all snapshots are of about the same time, and wait for that turn behind their
markers; streams from memory go on (kv_engine ``dcp/backfill-manager.cc``: ScheduleOrder). It is
passed on where the stream closes, has nothing to send, or its own window is full.
"""

from collections import OrderedDict
from collections.abc import Collection, Iterator

from dcp.server.streams.stream import ActiveStream, ActiveStreamPhase


class ReadyList:
    """Streams that are ready, streams that wait for the disk, and, by opaque, for their windows."""

    def __init__(self) -> None:
        self.is_sequential = False
        self._ready: OrderedDict[ActiveStream, None] = OrderedDict()
        self._full: dict[int, dict[ActiveStream, None]] = {}
        self._reading: ActiveStream | None = None
        self._waiting: OrderedDict[ActiveStream, None] = OrderedDict()

    def __bool__(self) -> bool:
        return bool(self._ready)

    def __iter__(self) -> Iterator[ActiveStream]:
        """Yield the streams that are ready, the one whose turn it is first."""
        return iter(self._ready)

    def order_backfills(self, *, is_sequential: bool) -> None:
        """Read one vbucket's snapshot from disk to its end before the next, or all in turns."""
        self.is_sequential = is_sequential
        for stream in (*self._waiting, *self._ready):
            self.wake(stream)

    def wake(self, stream: ActiveStream) -> None:
        """Let a stream have its turn."""
        self._ready.setdefault(stream)
        self._wait_for_disk(stream)

    def end_turn(self, stream: ActiveStream) -> None:
        """Let a ready stream wait for its next turn."""
        self._ready.move_to_end(stream)
        self._wait_for_disk(stream)

    def drop(self, stream: ActiveStream) -> None:
        """Ask a stream no more until it is woken: it has nothing now."""
        self._ready.pop(stream, None)
        self._waiting.pop(stream, None)
        self._pass_on(stream)

    def wait_for_window(self, stream: ActiveStream) -> None:
        """Pass over a ready stream until its window changes."""
        self.drop(stream)
        self._full.setdefault(stream.opaque, {})[stream] = None

    def window_changed(self, opaque: int) -> None:
        """Let the streams of an opaque have their turns again."""
        for stream in self._full.pop(opaque, {}):
            self.wake(stream)
            if stream in self._waiting:  # it was being read when its window became full
                self._waiting.move_to_end(stream, last=False)

    def _wait_for_disk(self, stream: ActiveStream) -> None:
        """Let a ready stream wait while another one reads the disk."""
        is_backfilling = self.is_sequential and stream.phase is ActiveStreamPhase.BACKFILLING
        if not (is_backfilling and stream.is_inside_snapshot):
            self._waiting.pop(stream, None)
            self._pass_on(stream)
        elif self._reading in (None, stream):
            self._reading = stream
        else:
            del self._ready[stream]
            self._waiting.setdefault(stream)

    def _pass_on(self, stream: ActiveStream) -> None:
        """Let the next stream read the disk, if it was this one's turn."""
        if self._reading is stream:
            self._reading = None
            if self._waiting:
                self._reading, _ = self._waiting.popitem(last=False)
                self._ready[self._reading] = None

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
        self._waiting.clear()
        self._reading = None

    @property
    def full_windows(self) -> Collection[int]:
        """The opaques of the streams that are passed over because their own windows are full."""
        return self._full.keys()

    def waits_for_window(self, stream: ActiveStream) -> bool:
        """Return whether a stream is skipped because its own window is full."""
        return stream in self._full.get(stream.opaque, ())

    def has(self, stream: ActiveStream) -> bool:
        """Return whether a stream waits for anything: it may have something to send."""
        is_there = stream in self._ready or stream in self._waiting
        return is_there or self.waits_for_window(stream)
