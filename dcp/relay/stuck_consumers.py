"""Which consumers are waited for no more as they are stuck: each is counted and told of once.

It is stuck until it counts again in all the vbuckets that gave it up, or is gone.
"""

import logging
from collections import Counter
from collections.abc import Collection, Mapping

_LOG = logging.getLogger(__name__)


class StuckConsumers:
    """Who is stuck, by number, and in which vbuckets; used under the bucket's lock."""

    def __init__(self) -> None:
        self.ejections = 0
        """How often a consumer got stuck."""
        self._given_up: dict[int, set[int]] = {}
        self._untold: Counter[int] = Counter()

    def ejected(self, consumer: int, vbucket: int) -> None:
        """Note that a vbucket waits for a consumer no more."""
        if consumer not in self._given_up:
            self._given_up[consumer] = set()
            self.ejections += 1
            self._untold[consumer] = 0
        self._given_up[consumer].add(vbucket)
        if consumer in self._untold:
            self._untold[consumer] += 1

    def counts(self, consumer: int, vbucket: int) -> None:
        """Note that a vbucket waits for a consumer (again)."""
        if consumer in self._given_up:
            self._given_up[consumer].discard(vbucket)
            if not self._given_up[consumer]:
                del self._given_up[consumer]

    def keep(self, present: Collection[int]) -> None:
        """Forget all others."""
        for consumer in self._given_up.keys() - set(present):
            del self._given_up[consumer]

    def tell(self, names: Mapping[int, str]) -> None:
        """Say who got stuck since the last time."""
        for consumer, vbuckets in self._untold.items():
            _LOG.warning(
                "consumer %s is stuck: %d vbuckets wait for it no more, it is served from the disk",
                names.get(consumer, consumer),
                vbuckets,
            )
        self._untold.clear()
