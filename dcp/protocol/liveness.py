"""Detects a dead peer: a healthy one sends DCP_NOOP regularly, however full the window is.

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
    noop_interval_seconds: float = key(
        20.0,
        "Interval of a node's NOOPs; after two silent intervals and the grace it counts as dead.",
        unit="seconds",
        least=0.1,
        most=10_800,
    )
    silence_grace_seconds: float = key(
        5.0,
        "Silence allowed after two intervals of NOOPs.",
        unit="seconds",
        least=0,
        is_internal=True,
    )
    bootstrap_timeout_seconds: float = key(
        30.0,
        "Longest time until a connection can open streams.",
        unit="seconds",
        least=0.05,
        most=600,
    )

    @property
    def dead_after_seconds(self) -> float:
        return _DEAD_AFTER_INTERVALS * self.noop_interval_seconds + self.silence_grace_seconds

    @property
    def interval_text(self) -> str:
        """The interval as DCP_CONTROL takes it: whole seconds without a fraction."""
        seconds = self.noop_interval_seconds
        return str(int(seconds)) if seconds == int(seconds) else f"{seconds:f}"


@dataclass(frozen=True, slots=True)
class Liveness:
    """The time of the peer's last sign of life: any received byte is one."""

    settings: LivenessSettings
    heard_at: float
    asked: bool = False
    """We have sent a NOOP since."""

    def heard(self, now: float) -> "Liveness":
        return Liveness(self.settings, max(now, self.heard_at))

    def ask(self) -> "Liveness":
        return replace(self, asked=True)

    def is_time_to_ask(self, now: float) -> bool:
        # A producer without streams may send no NOOP. We ask with a plain NOOP: a DCP_NOOP from a
        # client closes the connection.
        return not self.asked and now >= self._ask_at

    def is_dead(self, now: float) -> bool:
        return now >= self._dead_at

    def silence_seconds(self, now: float) -> float:
        return now - self.heard_at

    @property
    def deadline(self) -> float:
        return self._dead_at if self.asked else min(self._ask_at, self._dead_at)

    @property
    def _ask_at(self) -> float:
        return self.heard_at + _ASK_AFTER_INTERVALS * self.settings.noop_interval_seconds

    @property
    def _dead_at(self) -> float:
        return self.heard_at + self.settings.dead_after_seconds
