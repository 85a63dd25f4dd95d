"""Decides how long vbuckets may wait that move and bring no rows.

Prepares and aborts of durable writes, and documents that a filter leaves out, raise a vbucket's
high seqno. Only a round finds out that they bring nothing, and it costs a Spark job and a commit.
So each such round in a row doubles the time until the vbucket is a reason for another one. The
first costs no time, as a prepare is nearly always followed by its commit. The wait is bounded, so
that a position stays near the high seqno: a failover or a purge then finds it there.
"""

from collections.abc import Iterable
from typing import Final

from dcp.lake.tables.round_record import Outcome, VbucketReport

LONGEST_WAIT_SECONDS: Final = 30.0
"""A document that passes the filter arrives at most this much later."""
_MOST_DOUBLINGS: Final = 32


class EmptyRounds:
    """Knows one run's waiting vbuckets; the caller gives ``now``, of ``time.monotonic``."""

    def __init__(self, interval_seconds: float) -> None:
        """The wait multiplies ``interval_seconds``, the least time between two rounds."""
        self._interval_seconds = interval_seconds
        self._waits: dict[int, tuple[int, float]] = {}
        """How many rounds in a row brought a vbucket nothing, and the end of its wait."""

    def learn(self, reports: Iterable[VbucketReport], now: float) -> None:
        for report in reports:
            is_done = report.outcome in (Outcome.REACHED, Outcome.CAUGHT_UP)
            if report.rows or not is_done:
                self._waits.pop(report.vbucket, None)
                continue
            rounds, _ = self._waits.get(report.vbucket, (0, now))
            wait_seconds = self._interval_seconds * (2 ** min(rounds, _MOST_DOUBLINGS) - 1)
            until = now + min(wait_seconds, LONGEST_WAIT_SECONDS)
            self._waits[report.vbucket] = rounds + 1, until

    def waiting(self, now: float) -> frozenset[int]:
        return frozenset(vbucket for vbucket, (_, until) in self._waits.items() if now < until)
