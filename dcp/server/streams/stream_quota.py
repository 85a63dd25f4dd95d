"""Limits the streams of one node's clients, with a share for each connection.

A connection may open another stream while 8 x its streams < the node's free ones; alone it can so
reach 1/9 of the quota, the next 1/9 of what is left, and later connections find room. (After
Choudhury and Hahn, "Dynamic queue length thresholds", 1998, of the memory of switches.) Streams
that only have to tell their end count too. Those between nodes do not: there are as many as there
are copies.
"""

from typing import Final

SHARE: Final = 8


class StreamQuota:
    """The streams of a node; ``most`` is how many there may be."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.streams = 0

    @property
    def free(self) -> int:
        """The number of streams that may still be opened."""
        return self.most - self.streams

    def has_room(self, held: int) -> bool:
        """Return whether a connection that has ``held`` may have one more."""
        return SHARE * held < self.free

    def opened(self) -> None:
        """Count one more."""
        self.streams += 1

    def ended(self, streams: int = 1) -> None:
        """Count so many less."""
        self.streams -= streams
