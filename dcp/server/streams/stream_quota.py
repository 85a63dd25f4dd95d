"""Limits the streams of one node's clients, with a share for each connection.

A connection may open a stream while 8 x its streams < the node's free streams. So a single
connection gets 1/9 of the quota at most, the next 1/9 of the rest, and later ones find room.
Source: Choudhury and Hahn, "Dynamic queue length thresholds", 1998 (memory of switches). Streams
that only have to send STREAM_END count too. Streams between nodes do not: their number is that of
replicas.
"""

from typing import Final

SHARE: Final = 8
"""The 8 of this rule."""


class StreamQuota:
    def __init__(self, most: int) -> None:
        self.most = most
        """The node's limit."""
        self.streams = 0

    @property
    def free(self) -> int:
        return self.most - self.streams

    def has_room(self, streams: int) -> bool:
        """Return True if a connection with ``streams`` streams may open another."""
        return SHARE * streams < self.free

    def opened(self) -> None:
        self.streams += 1

    def ended(self, streams: int = 1) -> None:
        self.streams -= streams
