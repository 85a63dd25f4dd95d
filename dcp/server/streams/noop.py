"""Schedules a producer's NOOPs, and detects dead clients.

One NOOP per interval, provided the last one was answered, whatever other traffic there is. A client
is not closed for one missing answer but for saying nothing at all during the idle timeout, and only
when NOOPs are enabled (kv_engine ``dcp/producer.cc`` maybeSendNoop, maybeDisconnect).
"""

from typing import Final

DEFAULT_INTERVAL_SECONDS: Final = 20.0
LEAST_INTERVAL_SECONDS: Final = 0.1
_FIRST_OPAQUE: Final = 10_000_001


class NoopTimer:
    """The NOOP state of a client. Times are seconds of a monotonic clock, given by the caller."""

    def __init__(self, idle_timeout_seconds: float) -> None:
        self.is_enabled = False
        self.interval_seconds = DEFAULT_INTERVAL_SECONDS
        self._idle_timeout_seconds = idle_timeout_seconds
        self._next_opaque = _FIRST_OPAQUE
        self._unanswered: int | None = None
        self._sent_at: float | None = None
        self.heard_at: float | None = None

    def enable(self, *, is_enabled: bool) -> None:
        """Send NOOPs from now on, or none."""
        self.is_enabled = is_enabled

    def set_interval(self, seconds: float) -> None:
        """Send one each so many seconds; ``LEAST_INTERVAL_SECONDS`` is the least."""
        self.interval_seconds = seconds

    def heard(self, now: float) -> None:
        """Note that something was received from the client."""
        self.heard_at = now

    def answered(self, opaque: int) -> bool:
        """Take a NOOP answer; return whether it is the expected one."""
        if opaque != self._unanswered:
            return False
        self._unanswered = None
        return True

    @property
    def is_waiting(self) -> bool:
        """True if the client owes an answer."""
        return self._unanswered is not None

    def due(self, now: float) -> int | None:
        """Return the opaque of the NOOP that must be sent now, if any."""
        if not self.is_enabled:
            return None
        if self._sent_at is None:
            self._sent_at = now  # the first one comes an interval after they were enabled
        if self._unanswered is not None or now < self._sent_at + self._interval:
            return None
        self._sent_at = now
        self._unanswered = self._next_opaque
        self._next_opaque += 1
        return self._unanswered

    def is_dead(self, now: float) -> bool:
        """Return whether nothing came for longer than the idle timeout."""
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
