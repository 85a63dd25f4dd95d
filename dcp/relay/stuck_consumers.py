"""Logs and counts each stuck consumer once; flow control has ejected it from some vbucket.

It is stuck until no vbucket is left that ejected it: it counts again there, or has left. Passes
reach its vbuckets one after the other. So the log line comes one tick later, with the number of all
vbuckets that ejected it by then.
"""

import logging
from collections.abc import Collection, Mapping

_LOGGER = logging.getLogger(__name__)


class StuckConsumers:
    """Stuck consumers by number; call it with the bucket's lock held."""

    def __init__(self) -> None:
        self.ejections = 0
        """How often a consumer got stuck."""
        self._given_up: dict[int, set[int]] = {}
        """By consumer: the vbuckets that ejected it."""
        self._to_log: dict[int, int] = {}
        """Consumers to log, each with the most vbuckets that had ejected it at one time."""
        self._log_next: list[int] = []

    def ejected(self, consumer: int, vbucket: int) -> None:
        """Record that a vbucket does not wait for a consumer."""
        if consumer not in self._given_up:
            self._given_up[consumer] = set()
            self.ejections += 1
            self._to_log[consumer] = 0
        self._given_up[consumer].add(vbucket)
        if consumer in self._to_log:
            self._to_log[consumer] = max(self._to_log[consumer], len(self._given_up[consumer]))

    def is_over(self, consumer: int, vbucket: int) -> None:
        """Record that a vbucket waits for the consumer again, or that the consumer has left it."""
        if consumer in self._given_up:
            self._given_up[consumer].discard(vbucket)
            if not self._given_up[consumer]:
                del self._given_up[consumer]

    def keep(self, present: Collection[int]) -> None:
        """Forget all consumers except these."""
        for consumer in self._given_up.keys() - set(present):
            del self._given_up[consumer]

    def tell(self, names: Mapping[int, str]) -> None:
        """Log the consumers that got stuck before the last call; call it at each tick."""
        for consumer in self._log_next:
            vbuckets = self._to_log.pop(consumer)
            _LOGGER.warning(
                "consumer %s is stuck: %d %s for it, it gets items from disk",
                names.get(consumer, consumer),
                vbuckets,
                "vbucket no longer waits" if vbuckets == 1 else "vbuckets no longer wait",
            )
        self._log_next = list(self._to_log)
