"""Decides how long a vbucket waits whose seqno grows but whose rounds bring no rows.

Prepares and aborts of durable writes raise a high seqno, as do documents that a filter leaves out.
Only a round, which costs a Spark job and a commit, shows that they bring nothing. Each such round
in a row doubles the vbucket's wait.
"""

from collections.abc import Iterable
from typing import Final

from dcp.lake.tables.round_record import Outcome, VbucketReport

LONGEST_WAIT_SECONDS: Final = 30.0
"""A document that passes the filter arrives at most this much later.

The limit keeps positions near the high seqno, for a failover or a purge.
"""
_MOST_DOUBLINGS: Final = 32


class DelayedVbuckets:
    """Tracks one run's delayed vbuckets. ``now`` is a time of ``time.monotonic``."""

    def __init__(self, interval_seconds: float) -> None:
        """``interval_seconds`` is the least time between two rounds; the wait is a multiple."""
        self._interval_seconds = interval_seconds
        self._waits: dict[int, tuple[int, float]] = {}
        """By vbucket: its rounds in a row without rows, and the end of its wait."""

    def learn(self, reports: Iterable[VbucketReport], now: float) -> None:
        for report in reports:
            is_done = report.outcome in (Outcome.REACHED, Outcome.CAUGHT_UP)
            if report.rows or not is_done:
                self._waits.pop(report.vbucket, None)
                continue
            rounds, _ = self._waits.get(report.vbucket, (0, now))
            # The first empty round costs no wait: a commit nearly always follows a prepare.
            wait_seconds = self._interval_seconds * (2 ** min(rounds, _MOST_DOUBLINGS) - 1)
            until = now + min(wait_seconds, LONGEST_WAIT_SECONDS)
            self._waits[report.vbucket] = rounds + 1, until

    def delayed(self, now: float) -> frozenset[int]:
        return frozenset(vbucket for vbucket, (_, until) in self._waits.items() if now < until)
