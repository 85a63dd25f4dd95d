"""Large frames that are under way from clients: all connections together hold a quota of them.

A frame longer than ``LARGE_FRAME_BYTES`` gets room for all of it before more of it is read; until
there is some, its connection is not read, and pushes back to its client. Who waits longest is next,
however little he needs: so a large frame is not overtaken for ever. Who has room that others wait
for must bring ``LEAST_BYTES`` of his frame in each ``patience_seconds``, or is closed.

    held by all   <=   quota + connections * (LARGE_FRAME_BYTES + one read)
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

from dcp.wire.framing import LARGE_FRAME_BYTES
from dcp.wire.vocabulary import MAX_FRAME_BYTES

QUOTA_BYTES: Final = 64 * 1024 * 1024
LEAST_BYTES: Final = 256 * 1024


class LargeFrames:
    """The room of all connections; used in the loop's thread."""

    def __init__(self, patience_seconds: float, quota_bytes: int = QUOTA_BYTES) -> None:
        """A quota below the largest frame would let that wait for ever."""
        if quota_bytes < MAX_FRAME_BYTES:
            raise ValueError(
                f"quota of large frames: found {quota_bytes}, expected {MAX_FRAME_BYTES} or more"
            )
        self.patience_seconds = patience_seconds
        self.held_bytes = 0
        self._quota_bytes = quota_bytes
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    @property
    def is_waited_for(self) -> bool:
        """Whether somebody has no room."""
        return any(not granted.done() for _, granted in self._waiting)

    async def hold(self, frame_bytes: int) -> None:
        """Return when there is room for a frame; ``release`` must follow."""
        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((frame_bytes, granted))
        self._grant()
        try:
            await granted
        except asyncio.CancelledError:
            if granted.cancelled():
                self._grant()  # perhaps it stood before one that fits
            else:
                self.release(frame_bytes)
            raise

    def release(self, frame_bytes: int) -> None:
        """Give room back."""
        self.held_bytes -= frame_bytes
        self._grant()

    def _grant(self) -> None:
        while self._waiting:
            frame_bytes, granted = self._waiting[0]
            if not granted.done():
                if self.held_bytes + frame_bytes > self._quota_bytes:
                    return
                self.held_bytes += frame_bytes
                granted.set_result(None)
            self._waiting.popleft()


class FrameRoom:
    """What one connection holds of it, for one frame at a time."""

    def __init__(self, frames: LargeFrames) -> None:
        self._frames = frames
        self._held_bytes = 0
        self._brought_bytes = 0
        self._since = 0.0

    async def wait_for(self, frame_bytes: int, clock: Callable[[], float]) -> None:
        """Return when a frame that has begun may be read on."""
        if self._held_bytes or frame_bytes <= LARGE_FRAME_BYTES:
            return
        await self._frames.hold(frame_bytes)
        self._held_bytes = frame_bytes
        self._restart(clock())

    def _restart(self, now: float) -> None:
        self._since, self._brought_bytes = now, 0

    def brought(self, count: int, now: float) -> None:
        """Note that the client sent something."""
        self._brought_bytes += count
        if self._brought_bytes >= LEAST_BYTES:
            self._restart(now)

    def let_go(self) -> None:
        """Give back what is held: the frame was acted on, or the connection is over."""
        held, self._held_bytes = self._held_bytes, 0
        if held:
            self._frames.release(held)

    def is_overdue(self, now: float) -> bool:
        """Whether the client holds up others."""
        return (
            self._held_bytes > 0
            and now - self._since >= self._frames.patience_seconds
            and self._frames.is_waited_for
        )
