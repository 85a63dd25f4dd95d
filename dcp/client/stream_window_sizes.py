"""Which window each stream of one connection may have now, as the application's thread knows it.

    asked in the bootstrap, or by a control   the node has it, or the one of before
    accepted                                  the node has it
    refused                                   the node has the one of before

Sizes are answered in the order in which they were asked for. Until then what is held must leave
room in the smallest of them.
"""

from collections import deque


class StreamWindowSizes:
    """The last accepted size, and those that wait for their answers; 0 is none."""

    def __init__(self, window_bytes: int) -> None:
        """Begin with the size that the bootstrap asks for."""
        self._accepted_bytes = window_bytes
        self._asked: deque[int] = deque()

    def ask(self, window_bytes: int) -> None:
        """Note that the node is asked for another size."""
        self._asked.append(window_bytes)

    def refused_at_first(self) -> None:
        """Note that the node refused what the bootstrap asked for."""
        self._accepted_bytes = 0

    def answered(self, window_bytes: int, *, is_accepted: bool) -> None:
        """Note the answer to the oldest size that was asked for."""
        if self._asked:
            self._asked.popleft()
        if is_accepted:
            self._accepted_bytes = window_bytes

    @property
    def least_bytes(self) -> int | None:
        """The smallest window that a stream may have; None: it has none."""
        return min(filter(None, (self._accepted_bytes, *self._asked)), default=None)
