"""When a connection is closed for what its client does not do: log in, or say anything.

    a client that            is closed after                     source in kv_engine
    has not logged in        authentication_seconds in all       daemon/front_end_thread.cc
    is logged in, no DCP     connection_idle_seconds of silence  docs/Architecture.md
    is DCP, NOOPs are on     idle_timeout_seconds of silence     dcp/producer.cc (``noop.py``)
    is DCP, NOOPs are off    never

The second is off by default, as in servers (``daemon/settings.h``, ``connection_idle_time``). Dead
peers of the last are for TCP's keep-alive to find. Times are seconds on a monotonic clock, given by
the caller.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LivenessLimits:
    """Seconds; 0 turns a limit off."""

    authentication_seconds: float
    connection_idle_seconds: float


class Liveness:
    """How long a client has been there, and since when it said nothing."""

    def __init__(self, limits: LivenessLimits, now: float) -> None:
        """Begin with a client that connects ``now``."""
        self._limits = limits
        self._opened_at = self._heard_at = now

    def heard(self, now: float) -> None:
        """Note that something came from the client."""
        self._heard_at = now

    def is_overdue(self, now: float, *, is_logged_in: bool) -> bool:
        """Whether the limit is passed."""
        if is_logged_in:
            limit_seconds, since = self._limits.connection_idle_seconds, self._heard_at
        else:
            limit_seconds, since = self._limits.authentication_seconds, self._opened_at
        return limit_seconds > 0 and now - since > limit_seconds
