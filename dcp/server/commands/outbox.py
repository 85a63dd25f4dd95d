"""Queues answers until the client reads them, in order; long ones are generated as they are taken.

What waits is counted in bytes, so that its owner can stop reading requests. An answer of many
frames (STAT) waits as an iterator: only the frames taken at once are in memory.
"""

from collections import deque
from collections.abc import Iterator
from typing import Final

LONG_ANSWER_BYTES: Final = 64 * 1024
"""What an answer of unknown length counts for while it waits."""


class Outbox:
    """A queue of frames. Its callers watch ``waiting_bytes``; nothing is refused."""

    def __init__(self) -> None:
        self.waiting_bytes = self._long_answers = 0
        self._waiting: deque[bytes | Iterator[bytes]] = deque()

    @property
    def is_long(self) -> bool:
        """True if a long answer waits to be generated."""
        return self._long_answers > 0

    @property
    def is_empty(self) -> bool:
        """True if everything was taken."""
        return not self._waiting

    def put(self, frame: bytes) -> None:
        """Append a frame."""
        self._waiting.append(frame)
        self.waiting_bytes += len(frame)

    def put_long(self, frames: Iterator[bytes]) -> None:
        """Append an answer whose frames are generated when they are taken."""
        self._waiting.append(frames)
        self.waiting_bytes += LONG_ANSWER_BYTES
        self._long_answers += 1

    def take(self, most_bytes: int, most_made: int | None = None) -> list[bytes]:
        """Return what waits, in order, about ``most_bytes`` of it where an answer is long.

        At least one frame is returned where one waits. Of long answers no more than ``most_made``
        frames are made.
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
            while left > 0 and most_made != 0 and (frame := next(first, None)) is not None:
                taken.append(frame)
                left -= len(frame)
                most_made = None if most_made is None else most_made - 1
            if left <= 0 or most_made == 0:
                return taken
            self._waiting.popleft()
            self.waiting_bytes -= LONG_ANSWER_BYTES
            self._long_answers -= 1
        return taken
