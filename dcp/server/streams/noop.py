"""Schedules NOOPs to a client, and detects a dead client.

A NOOP goes out each interval if the last one was answered, whatever other traffic there is. One
missing answer does not close the connection. Only silence for the whole idle timeout does, and only
while NOOPs are enabled (kv_engine ``dcp/producer.cc``, maybeSendNoop and maybeDisconnect).
"""

from typing import Final

DEFAULT_INTERVAL_SECONDS: Final = 20.0
LEAST_INTERVAL_SECONDS: Final = 0.1
_FIRST_OPAQUE: Final = 10_000_001
"""Far above the opaques that clients choose for streams."""


class NoopTimer:
    """The NOOP state of one client. Times are seconds of any monotonic clock."""

    def __init__(self, idle_timeout_seconds: float) -> None:
        self.is_enabled = False
        self.interval_seconds = DEFAULT_INTERVAL_SECONDS
        self._idle_timeout_seconds = idle_timeout_seconds
        self._next_opaque = _FIRST_OPAQUE
        self._unanswered: int | None = None
        self._sent_at: float | None = None
        self.heard_at: float | None = None
        """Time of the last message from the client."""

    def enable(self, *, is_enabled: bool) -> None:
        self.is_enabled = is_enabled

    def set_interval(self, seconds: float) -> None:
        """Set the interval; values below ``LEAST_INTERVAL_SECONDS`` count as that."""
        self.interval_seconds = seconds

    def heard(self, now: float) -> None:
        self.heard_at = now

    def answered(self, opaque: int) -> bool:
        """Take a NOOP's answer; return False if its opaque is not the expected one."""
        if opaque != self._unanswered:
            return False
        self._unanswered = None
        return True

    @property
    def is_waiting(self) -> bool:
        return self._unanswered is not None

    def due(self, now: float) -> int | None:
        if not self.is_enabled:
            return None
        # The first NOOP comes one interval after the client enabled them.
        if self._sent_at is None:
            self._sent_at = now
        if self._unanswered is not None or now < self._sent_at + self._interval:
            return None
        self._sent_at = now
        self._unanswered = self._next_opaque
        self._next_opaque += 1
        return self._unanswered

    def is_dead(self, now: float) -> bool:
        return (
            self.is_enabled
            and self.heard_at is not None
            and now - self.heard_at > self._idle_timeout_seconds
        )

    def next_deadline(self, now: float) -> float | None:
        """Return the time of the next check; None while NOOPs are off."""
        if not self.is_enabled:
            return None
        idle_at = (self.heard_at if self.heard_at is not None else now) + (
            self._idle_timeout_seconds
        )
        if self._unanswered is not None:
            return idle_at
        return min(idle_at, (self._sent_at if self._sent_at is not None else now) + self._interval)

    @property
    def _interval(self) -> float:
        return max(self.interval_seconds, LEAST_INTERVAL_SECONDS)
