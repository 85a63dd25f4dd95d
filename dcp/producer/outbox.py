"""Answers that wait for a client to read them, in order; long ones are made as they are taken.

What waits is counted in bytes, so that its owner can stop reading requests. An answer of many
frames (STAT) waits as an iterator: however much it says in the end, only what is taken at once is
there.
"""

from collections import deque
from collections.abc import Iterator
from typing import Final

LONG_ANSWER_BYTES: Final = 64 * 1024
"""What an answer of unknown length counts for while it waits."""


class Outbox:
    """A queue of frames. Whoever puts in looks at ``waiting_bytes``; nothing is refused."""

    def __init__(self) -> None:
        self.waiting_bytes = 0
        self._waiting: deque[bytes | Iterator[bytes]] = deque()

    @property
    def is_empty(self) -> bool:
        """Whether everything was taken."""
        return not self._waiting

    def put(self, frame: bytes) -> None:
        """Let a frame wait."""
        self._waiting.append(frame)
        self.waiting_bytes += len(frame)

    def put_long(self, frames: Iterator[bytes]) -> None:
        """Let an answer wait whose frames are made when they are taken."""
        self._waiting.append(frames)
        self.waiting_bytes += LONG_ANSWER_BYTES

    def take(self, most_bytes: int) -> list[bytes]:
        """Return what waits, in order, about ``most_bytes`` of it where an answer is long.

        At least one frame is returned where one waits.
        """
        taken: list[bytes] = []
        left = max(1, most_bytes)
        while self._waiting:
            first = self._waiting[0]
            if isinstance(first, bytes):
                self._waiting.popleft()
                self.waiting_bytes -= len(first)
                taken.append(first)
                left -= len(first)
                continue
            while left > 0 and (frame := next(first, None)) is not None:
                taken.append(frame)
                left -= len(frame)
            if left <= 0:
                return taken
            self._waiting.popleft()
            self.waiting_bytes -= LONG_ANSWER_BYTES
        return taken
