"""Bounds the memory of large frames that clients are sending: all connections share a quota.

Room is taken by bytes that have arrived; what a header announces costs nothing. The first
``LARGE_FRAME_BYTES`` of a frame are free. Behind them one frame in the line has a place of its own,
as large as the largest frame: so it can always be completed. The others share the rest; who lacks
more than half of what is still free may have no more than a quarter of that: so a small frame finds
room beside many large ones. Who has brought bytes that there is no room for waits, and is not read.
The place of its own goes by turns to the frame that lacks least and to the oldest, so that neither
small nor large ones starve.

Who has room, while others wait, must bring ``LEAST_BYTES`` of his frame in ``patience_seconds``,
divided by as many as wait and one: else he is closed. No clock, no I/O: time is an argument.

    held by all   <=   quota + connections * (LARGE_FRAME_BYTES + one read)
"""

from collections.abc import Callable, Iterator
from itertools import count
from typing import Final

from dcp.wire.framing import LARGE_FRAME_BYTES
from dcp.wire.vocabulary import MAX_FRAME_BYTES

QUOTA_BYTES: Final = 64 * 1024 * 1024
LEAST_BYTES: Final = 256 * 1024
LEAST_PATIENCE_SECONDS: Final = 1.0
"""Patience does not become shorter than that, however many wait: networks have hiccups."""


class LargeFrames:
    """The room of all connections."""

    def __init__(self, patience_seconds: float, quota_bytes: int = QUOTA_BYTES) -> None:
        """A quota below the largest frame would let that wait for ever."""
        if quota_bytes < MAX_FRAME_BYTES:
            raise ValueError(
                f"quota of large frames: found {quota_bytes}, expected {MAX_FRAME_BYTES} or more"
            )
        self.patience_seconds = patience_seconds
        self.shared_bytes = 0
        """Bytes held by all but the one that has a place of its own."""
        self._quota_bytes = quota_bytes - MAX_FRAME_BYTES
        self._waiting: dict[FrameRoom, None] = {}
        self._first: FrameRoom | None = None
        self._takes_oldest = False
        self._numbers: Iterator[int] = count()

    @property
    def held_bytes(self) -> int:
        """The bytes held by all connections."""
        return self.shared_bytes + (self._first.held_bytes if self._first else 0)

    @property
    def waiting(self) -> int:
        """The number of connections that wait for room."""
        return len(self._waiting)

    @property
    def shared_patience_seconds(self) -> float:
        """The time in which a frame may progress little: the shorter the more others wait."""
        patience = self.patience_seconds
        return min(patience, max(LEAST_PATIENCE_SECONDS, patience / (1 + self.waiting)))

    def next_number(self) -> int:
        """Return how many frames had room before."""
        return next(self._numbers)

    def ask(self, room: "FrameRoom", now: float) -> None:
        """Let a frame hold what it has brought, at once or later."""
        self._waiting[room] = None
        if not self._share(room, now) and self._first is None:
            self._choose_first(now)

    def leave(self, room: "FrameRoom", now: float) -> None:
        """Take back what a frame holds: it was acted on, or its connection is over."""
        self._waiting.pop(room, None)
        if self._first is room:
            self._first = None
        else:
            self.shared_bytes -= room.held_bytes
        for waiting in list(self._waiting):
            self._share(waiting, now)
        if self._first is None and self._waiting:
            self._choose_first(now)

    def _share(self, room: "FrameRoom", now: float) -> bool:
        if room is not self._first:
            free_bytes = self._quota_bytes - self.shared_bytes
            lacking_bytes = room.frame_bytes - room.held_bytes  # and a read beyond its end
            if lacking_bytes > free_bytes // 2 and room.asked_bytes > free_bytes // 4:
                return False
            self.shared_bytes += room.asked_bytes - room.held_bytes
        self._grant(room, now)
        return True

    def _choose_first(self, now: float) -> None:
        if self._takes_oldest:
            room = min(self._waiting, key=lambda each: each.number)
        else:
            room = min(self._waiting, key=lambda each: (each.lacking_bytes, each.number))
        self._takes_oldest = not self._takes_oldest
        self._first = room
        self.shared_bytes -= room.held_bytes
        self._grant(room, now)
        for waiting in list(self._waiting):
            self._share(waiting, now)

    def _grant(self, room: "FrameRoom", now: float) -> None:
        del self._waiting[room]
        room.granted(now)


class FrameRoom:
    """One connection's share, for one frame at a time.

    ``on_room`` is called when a frame that had to wait need not any more.
    """

    def __init__(self, frames: LargeFrames, on_room: Callable[[], None]) -> None:
        self.number = 0
        self.held_bytes = self.asked_bytes = self.frame_bytes = 0
        self._frames = frames
        self._on_room = on_room
        self._new_bytes = 0
        self._since = self._waits_since = 0.0
        self._is_whole = self._is_warned = False

    @property
    def lacking_bytes(self) -> int:
        """The bytes of the frame that have not arrived."""
        return max(0, self.frame_bytes - LARGE_FRAME_BYTES - self.asked_bytes)

    @property
    def is_waiting(self) -> bool:
        """True if it has brought more than there is room for; then nothing more is to be read."""
        return self.asked_bytes > self.held_bytes

    def brought(self, arrived_bytes: int, frame_bytes: int, now: float) -> None:
        """Note that of a frame ``arrived_bytes`` are there; see ``is_waiting`` then."""
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
        """Hold what was brought; the time in which that had to wait is not the client's."""
        self.held_bytes = self.asked_bytes
        self._since += now - self._waits_since
        self._on_room()

    def whole(self, now: float) -> None:
        """Note that the frame is there, and is to be acted on: that is not the client's time."""
        self._is_whole = True
        self._restart(now)

    def let_go(self, now: float) -> None:
        """Give back what is held: the frame was acted on, or the connection is over."""
        if self.asked_bytes:
            self._frames.leave(self, now)
        self.held_bytes = self.asked_bytes = self.frame_bytes = 0
        self._is_whole = self._is_warned = False

    def is_overdue(self, now: float) -> bool:
        """Return whether the client holds up others; to be asked repeatedly.

        Only the second time in a row it is told: between the two whatever waits at the socket is
        read. So nobody is closed because we had no time for him.
        """
        frames = self._frames
        if self.is_waiting or not self.held_bytes or not frames.waiting:
            return False
        patience = frames.shared_patience_seconds
        if self._is_whole:
            patience = frames.patience_seconds
        was_warned = self._is_warned
        self._is_warned = now - self._since >= patience
        return was_warned and self._is_warned
