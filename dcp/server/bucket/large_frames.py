"""Bounds the memory of large frames that clients are sending: all connections share a quota.

A frame needs room for the bytes that have arrived; announcing a size in its header costs nothing.
The first ``LARGE_FRAME_BYTES`` of a frame are free. Beyond that:

- One frame has a reserved room as large as the largest frame, so it always completes. That goes
  alternately to the frame with the fewest missing bytes and to the oldest, so none starves.
- The others share the rest. A frame that lacks over half of the free room gets at most a quarter,
  so small frames fit beside large ones.
- A frame without room waits, and its connection is not read.

While others wait, a client must send ``LEAST_BYTES`` within its patience, or is closed. The
patience is ``patience_seconds`` divided by one more than the number of waiting clients. Time is an
argument: the module has no clock and no I/O.

    granted to all   <=   quota + connections * (LARGE_FRAME_BYTES + one read)
"""

from collections.abc import Callable, Iterator
from itertools import count
from typing import Final

from dcp.wire.framing import LARGE_FRAME_BYTES
from dcp.wire.vocabulary import MAX_FRAME_BYTES

QUOTA_BYTES: Final = 64 * 1024 * 1024
LEAST_BYTES: Final = 256 * 1024
"""Bytes of a frame that a client must send within the patience."""
LEAST_PATIENCE_SECONDS: Final = 1.0
"""Lower limit of the patience, however many clients wait: networks have hiccups."""


class LargeFrames:
    """The room that all connections share."""

    def __init__(self, patience_seconds: float, quota_bytes: int = QUOTA_BYTES) -> None:
        """Raise ValueError if the quota is below the largest frame, which could never complete."""
        if quota_bytes < MAX_FRAME_BYTES:
            raise ValueError(
                f"quota of large frames: found {quota_bytes}, expected {MAX_FRAME_BYTES} or more"
            )
        self.patience_seconds = patience_seconds
        self.shared_bytes = 0
        """Bytes granted to all frames except the one with a reserved room."""
        # The rest of the quota is the reserved room.
        self._quota_bytes = quota_bytes - MAX_FRAME_BYTES
        self._waiting: dict[FrameRoom, None] = {}
        self._first: FrameRoom | None = None
        self._takes_oldest = False
        self._numbers: Iterator[int] = count()

    @property
    def granted_bytes(self) -> int:
        return self.shared_bytes + (self._first.granted_bytes if self._first else 0)

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def shared_patience_seconds(self) -> float:
        """Seconds in which a frame must make progress; fewer if more clients wait."""
        patience = self.patience_seconds
        return min(patience, max(LEAST_PATIENCE_SECONDS, patience / (1 + self.waiting)))

    def next_number(self) -> int:
        return next(self._numbers)

    def ask(self, room: "FrameRoom", now: float) -> None:
        """Grant a frame room for its arrived bytes, now or later."""
        self._waiting[room] = None
        if not self._share(room, now) and self._first is None:
            self._choose_first(now)

    def leave(self, room: "FrameRoom", now: float) -> None:
        self._waiting.pop(room, None)
        if self._first is room:
            self._first = None
        else:
            self.shared_bytes -= room.granted_bytes
        for waiting in list(self._waiting):
            self._share(waiting, now)
        if self._first is None and self._waiting:
            self._choose_first(now)

    def _share(self, room: "FrameRoom", now: float) -> bool:
        if room is not self._first:
            free_bytes = self._quota_bytes - self.shared_bytes
            # This leaves room for a read beyond the frame's end.
            lacking_bytes = room.frame_bytes - room.granted_bytes
            if lacking_bytes > free_bytes // 2 and room.asked_bytes > free_bytes // 4:
                return False
            self.shared_bytes += room.asked_bytes - room.granted_bytes
        self._grant(room, now)
        return True

    def _choose_first(self, now: float) -> None:
        # The frame that completes soonest and the oldest frame alternate, so neither small nor
        # large frames starve.
        if self._takes_oldest:
            room = min(self._waiting, key=lambda each: each.number)
        else:
            room = min(self._waiting, key=lambda each: (each.lacking_bytes, each.number))
        self._takes_oldest = not self._takes_oldest
        self._first = room
        self.shared_bytes -= room.granted_bytes
        self._grant(room, now)
        for waiting in list(self._waiting):
            self._share(waiting, now)

    def _grant(self, room: "FrameRoom", now: float) -> None:
        del self._waiting[room]
        room.granted(now)


class FrameRoom:
    """One connection's room, for one frame at a time.

    ``on_room`` is called when a waiting frame gets its room.
    """

    def __init__(self, frames: LargeFrames, on_room: Callable[[], None]) -> None:
        self.number = 0
        self.granted_bytes = self.asked_bytes = self.frame_bytes = 0
        self._frames = frames
        self._on_room = on_room
        self._new_bytes = 0
        self._since = self._waits_since = 0.0
        self._is_whole = self._is_warned = False

    @property
    def lacking_bytes(self) -> int:
        """Bytes of the frame that have not arrived yet."""
        return max(0, self.frame_bytes - LARGE_FRAME_BYTES - self.asked_bytes)

    @property
    def is_waiting(self) -> bool:
        """True if the frame waits for room; the connection must not be read then."""
        return self.asked_bytes > self.granted_bytes

    def brought(self, arrived_bytes: int, frame_bytes: int, now: float) -> None:
        """Note that ``arrived_bytes`` of a frame are here; check ``is_waiting`` afterwards."""
        asked_bytes = arrived_bytes - LARGE_FRAME_BYTES
        if frame_bytes <= LARGE_FRAME_BYTES or asked_bytes <= self.asked_bytes:
            return
        if not self.asked_bytes:
            self.number, self.frame_bytes = self._frames.next_number(), frame_bytes
            self._restart(now)
        self._new_bytes += asked_bytes - self.asked_bytes
        if self._new_bytes >= LEAST_BYTES:
            self._restart(now)
        self.asked_bytes, self._waits_since = asked_bytes, now
        self._frames.ask(self, now)

    def _restart(self, now: float) -> None:
        self._since, self._new_bytes, self._is_warned = now, 0, False

    def granted(self, now: float) -> None:
        """Called by ``LargeFrames``: the frame has room for all its arrived bytes."""
        self.granted_bytes = self.asked_bytes
        # The client did not cause the wait for room, so it does not count against its patience.
        self._since += now - self._waits_since
        self._on_room()

    def whole(self, now: float) -> None:
        """Note that the frame is complete: the time until it is processed is not the client's."""
        self._is_whole = True
        self._restart(now)

    def let_go(self, now: float) -> None:
        if self.asked_bytes:
            self._frames.leave(self, now)
        self.granted_bytes = self.asked_bytes = self.frame_bytes = 0
        self._is_whole = self._is_warned = False

    def is_overdue(self, now: float) -> bool:
        """Return True if the client holds up others and must be closed; call it repeatedly."""
        frames = self._frames
        if self.is_waiting or not self.granted_bytes or not frames.waiting:
            return False
        patience = frames.shared_patience_seconds
        if self._is_whole:
            # A complete frame waits for its turn here; the number of other clients must not shorten
            # that.
            patience = frames.patience_seconds
        # Only the second overdue call in a row counts. Between the two, all bytes that wait in the
        # socket are read, so no client is closed because this process was too slow.
        was_warned = self._is_warned
        self._is_warned = now - self._since >= patience
        return was_warned and self._is_warned
