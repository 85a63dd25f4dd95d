"""Logs and counts each consumer that is stuck (ejected by flow control) once.

It is stuck until no vbucket is left that gave it up: in each it counts again, or left it, or is
gone. Then it may get stuck anew. It is reported one tick later, with all the vbuckets that gave it
up by then: they are looked at one after the other.
"""

import logging
from collections.abc import Collection, Mapping

_LOG = logging.getLogger(__name__)


class StuckConsumers:
    """The stuck consumers, by number, with their vbuckets; used under the bucket's lock."""

    def __init__(self) -> None:
        self.ejections = 0
        """The number of times that a consumer got stuck."""
        self._given_up: dict[int, set[int]] = {}
        self._untold: dict[int, int] = {}
        """By how many vbuckets at once, at the most."""
        self._due: list[int] = []

    def ejected(self, consumer: int, vbucket: int) -> None:
        """Note that a vbucket waits for a consumer no more."""
        if consumer not in self._given_up:
            self._given_up[consumer] = set()
            self.ejections += 1
            self._untold[consumer] = 0
        self._given_up[consumer].add(vbucket)
        if consumer in self._untold:
            self._untold[consumer] = max(self._untold[consumer], len(self._given_up[consumer]))

    def is_over(self, consumer: int, vbucket: int) -> None:
        """Note that a vbucket waits for a consumer (again), or that this one has left it."""
        if consumer in self._given_up:
            self._given_up[consumer].discard(vbucket)
            if not self._given_up[consumer]:
                del self._given_up[consumer]

    def keep(self, present: Collection[int]) -> None:
        """Forget all other consumers."""
        for consumer in self._given_up.keys() - set(present):
            del self._given_up[consumer]

    def tell(self, names: Mapping[int, str]) -> None:
        """Log the consumers that got stuck before the last call; call it at each tick."""
        for consumer in self._due:
            vbuckets = self._untold.pop(consumer)
            _LOG.warning(
                "consumer %s is stuck: %d %s for it no more, it is served from the disk",
                names.get(consumer, consumer),
                vbuckets,
                "vbucket waits" if vbuckets == 1 else "vbuckets wait",
            )
        self._due = list(self._untold)
