from typing import Final

MOST_KEYS: Final = 256 * 1024
"""About 43 MiB with keys of 24 bytes."""


class KeyQuota:
    """Bounds the keys that out-of-order snapshots have in memory, over all streams of a process.

    Such a snapshot keeps its keys while it is sent. Without a bound, a thousand streams would keep
    a collection's keys a thousand times. A stream without room gets its snapshot in seqno order
    instead.
    """

    def __init__(self, most: int = MOST_KEYS) -> None:
        self.most = most
        self.count = 0

    def add(self, keys: int) -> None:
        """Count ``keys`` more, or fewer if negative."""
        self.count += keys

    def has_room(self, keys: int) -> bool:
        """Return True if ``keys`` more fit; the first collection always fits."""
        return not self.count or self.count + keys <= self.most
