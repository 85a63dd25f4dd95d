"""Pools the buffers that sockets are read into: a bounded number, lent for one read each.

Reader threads decode one at a time anyway (there is one interpreter), so a task that reads from
many nodes needs few buffers. A buffer is lent from the read until its frames are decoded, which
waits for nobody: so a reader that waits for a buffer does not wait for the application. When no
connection has anything to read, the spare buffers are given back to the system.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from dcp.client.stats import StageStats

MOST_BUFFERS: Final = 4


class BufferPool:
    """At most ``most`` buffers of ``buffer_bytes``, made when they are needed. Thread-safe."""

    def __init__(self, buffer_bytes: int, most: int = MOST_BUFFERS) -> None:
        """Begin with no buffer."""
        self.buffer_bytes = buffer_bytes
        self.lent = 0
        """The number of buffers that are read into, or decoded."""
        self._most = most
        self._spare: list[memoryview] = []
        self._changed = threading.Condition()  # guards the two above

    def stats(self) -> StageStats:
        """Return how many buffers are lent; from any thread."""
        return StageStats("buffers", self._most, self.lent)

    @contextmanager
    def lend(self) -> Iterator[memoryview]:
        """Give a buffer, and take it back; wait for one while all are lent."""
        with self._changed:
            while self.lent >= self._most:
                self._changed.wait()
            self.lent += 1
            buffer = self._spare.pop() if self._spare else None
        try:
            if buffer is None:
                buffer = memoryview(bytearray(self.buffer_bytes))
            yield buffer
        finally:
            with self._changed:
                self.lent -= 1
                if buffer is not None:
                    self._spare.append(buffer)
                self._changed.notify()

    def rest(self) -> None:
        """Free the idle buffers, unless a connection is reading."""
        with self._changed:
            if not self.lent:
                self._spare.clear()
