from collections import deque
from collections.abc import Iterator
from typing import Final

LONG_ANSWER_BYTES: Final = 64 * 1024
"""Size that a waiting answer of unknown length counts for."""


class Outbox:
    """Queue of answers until the client reads them, in order.

    A long answer (STAT) waits as an iterator: its frames are made when the client takes them. The
    queue refuses nothing; callers watch ``waiting_bytes`` and stop reading requests.
    """

    def __init__(self) -> None:
        self.waiting_bytes = self._long_answers = 0
        self._waiting: deque[bytes | Iterator[bytes]] = deque()

    @property
    def is_long(self) -> bool:
        return self._long_answers > 0

    @property
    def is_empty(self) -> bool:
        return not self._waiting

    def put(self, frame: bytes) -> None:
        self._waiting.append(frame)
        self.waiting_bytes += len(frame)

    def put_long(self, frames: Iterator[bytes]) -> None:
        """Append an answer whose frames are made when they are taken."""
        self._waiting.append(frames)
        # Its size is unknown until its frames are made.
        self.waiting_bytes += LONG_ANSWER_BYTES
        self._long_answers += 1

    def take(self, most_bytes: int, most_made: int | None = None) -> list[bytes]:
        """Return waiting frames in order, at least one if any waits.

        All frames before a long answer are returned, whatever their size. A long answer stops at
        about ``most_bytes``, or after ``most_made`` frames.
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
