"""Detects a dead peer: NOOPs are answered at once, and silence has a deadline.

The producer sends DCP_NOOP every interval, whatever else it sends and however full the window is.
Anything received is a sign of life. After 1.2 intervals of silence we ask with a plain NOOP (a
producer may send none while no stream is open; DCP_NOOP *from* a client would close the
connection); after two intervals and a grace period the peer is dead.
Source: kv_engine ``docs/dcp/documentation/dead-connections.md``; the client's own NOOP is the Java
DCP client's ``ClientNoopHandler``.
"""

from dataclasses import dataclass, replace
from typing import Final

from dcp.setting_keys import Section, key

_ASK_AFTER_INTERVALS: Final = 1.2
_DEAD_AFTER_INTERVALS: Final = 2


@dataclass(frozen=True, kw_only=True)
class LivenessSettings(Section):
    """The longest times that a live peer may take."""

    noop_interval_seconds: float = key(
        20.0,
        "How often a node proves that it is alive; silence of twice this long means it is dead.",
        unit="seconds",
        least=0.1,
        most=10_800,
    )
    silence_grace_seconds: float = key(
        5.0,
        "How much longer than that a live node may be silent.",
        unit="seconds",
        least=0,
        is_internal=True,
    )
    bootstrap_timeout_seconds: float = key(
        30.0,
        "How long a connection may take until it can open streams.",
        unit="seconds",
        least=0.05,
        most=600,
    )

    @property
    def dead_after_seconds(self) -> float:
        """The longest silence of a live peer."""
        return _DEAD_AFTER_INTERVALS * self.noop_interval_seconds + self.silence_grace_seconds

    @property
    def interval_text(self) -> str:
        """The interval as DCP_CONTROL takes it: whole seconds without a fraction."""
        seconds = self.noop_interval_seconds
        return str(int(seconds)) if seconds == int(seconds) else f"{seconds:f}"


@dataclass(frozen=True, slots=True)
class Liveness:
    """The time of the peer's last sign of life, and if we have sent a NOOP since."""

    settings: LivenessSettings
    heard_at: float
    asked: bool = False

    def heard(self, now: float) -> "Liveness":
        """Note a sign of life."""
        return Liveness(self.settings, max(now, self.heard_at))

    def ask(self) -> "Liveness":
        """Note that our own NOOP is on its way."""
        return replace(self, asked=True)

    def is_time_to_ask(self, now: float) -> bool:
        """Return whether our own NOOP is due."""
        return not self.asked and now >= self._ask_at

    def is_dead(self, now: float) -> bool:
        """Return whether the silence has lasted too long."""
        return now >= self._dead_at

    def silence_seconds(self, now: float) -> float:
        """Return for how long nothing was received."""
        return now - self.heard_at

    @property
    def deadline(self) -> float:
        """The time of the next check."""
        return self._dead_at if self.asked else min(self._ask_at, self._dead_at)

    @property
    def _ask_at(self) -> float:
        return self.heard_at + _ASK_AFTER_INTERVALS * self.settings.noop_interval_seconds

    @property
    def _dead_at(self) -> float:
        return self.heard_at + self.settings.dead_after_seconds
