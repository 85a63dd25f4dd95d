"""How many keys out-of-order snapshots hold, those of all streams of a process together.

Any stream of a connection may have a snapshot in the order of keys, which are held while it is
sent: a thousand stream ids would hold a collection's keys a thousand times. Who finds no room is
sent the snapshot in the order of seqnos, as a server may do with any. While nobody holds any there
is room for one collection, however large: each key is in memory for its document, too.
"""

from typing import Final

MOST_KEYS: Final = 256 * 1024
"""About 43 MiB with keys of 24 bytes."""


class HeldKeys:
    """How many keys are held, or are going to be."""

    def __init__(self, most: int = MOST_KEYS) -> None:
        self.most = most
        self.count = 0

    def hold(self, keys: int) -> None:
        """Count so many more, or less."""
        self.count += keys

    def has_room(self, keys: int) -> bool:
        """Whether so many more may be held."""
        return not self.count or self.count + keys <= self.most
