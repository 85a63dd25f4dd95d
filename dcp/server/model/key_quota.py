"""Bounds the keys that out-of-order snapshots hold, over all streams of a process.

Any stream of a connection may have a snapshot in the order of keys, which are held while it is
sent: a thousand stream ids would hold a collection's keys a thousand times. A stream without room
gets the snapshot in seqno order, as a server may send any. While no keys are held there is room for
one collection, however large: each key is in memory for its document, too.
"""

from typing import Final

MOST_KEYS: Final = 256 * 1024
"""About 43 MiB with keys of 24 bytes."""


class KeyQuota:
    """The number of keys held, or going to be."""

    def __init__(self, most: int = MOST_KEYS) -> None:
        self.most = most
        self.count = 0

    def hold(self, keys: int) -> None:
        """Count so many more, or less."""
        self.count += keys

    def has_room(self, keys: int) -> bool:
        """Return whether so many more may be held."""
        return not self.count or self.count + keys <= self.most
