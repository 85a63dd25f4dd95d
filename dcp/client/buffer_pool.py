"""Pools the buffers for reads from sockets: a bounded number, each lent for one read.

Reader threads decode one at a time anyway (the interpreter is shared), so a task that reads from
many nodes needs few buffers. A buffer is lent from the read until its frames are decoded, and
decoding waits for nobody. So a reader that waits for a buffer never waits for the application. When
no connection has anything to read, the pool gives the spare buffers back to the system.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from dcp.client.stats import StageStats

MOST_BUFFERS: Final = 4


class BufferPool:
    """At most ``most`` buffers of ``buffer_bytes``, made on demand. Thread-safe."""

    def __init__(self, buffer_bytes: int, most: int = MOST_BUFFERS) -> None:
        self.buffer_bytes = buffer_bytes
        self.lent = 0
        """The number of buffers in use, for a read or for decoding."""
        self._most = most
        self._spare: list[memoryview] = []
        self._changed = threading.Condition()  # guards the two above

    def stats(self) -> StageStats:
        """Return the number of lent buffers; from any thread."""
        return StageStats("buffers", self._most, self.lent)

    @contextmanager
    def lend(self) -> Iterator[memoryview]:
        """Lend a buffer for the context; wait for one while all are lent."""
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
