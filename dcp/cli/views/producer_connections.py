"""Reads a producer's DCP connections from STAT ``dcp``."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from dcp.cli.views.server_statistics import stat_count, stat_number

_PREFIX: Final = "eq_dcpq:"


@dataclass(frozen=True, slots=True)
class ProducerConnection:
    """One connection as the producer counts it; ``paused`` is empty while it sends.

    ``over_acked_bytes`` is None where it is not told: servers do not.
    """

    name: str
    window_bytes: int
    outstanding_bytes: int
    acked_bytes: int
    sent_bytes: int
    items_sent: int
    streams: int
    paused: str
    paused_seconds: float | None = None
    over_acked_bytes: int | None = None

    @classmethod
    def of(cls, name: str, told: Mapping[str, str]) -> "ProducerConnection":
        """Read the statistics of one connection."""
        is_paused = told.get("paused", "false") == "true"
        reason = told.get("paused_current_reason") or told.get("paused_reason") or "paused"
        return cls(
            name,
            stat_count(told, "max_buffer_bytes"),
            stat_count(told, "unacked_bytes"),
            stat_count(told, "total_acked_bytes"),
            stat_count(told, "total_bytes_sent"),
            stat_count(told, "items_sent"),
            stat_count(told, "num_streams"),
            reason if is_paused else "",
            over_acked_bytes=stat_number(told, "over_acked_bytes"),
        )


def connections_in(told: Mapping[str, str]) -> list[ProducerConnection]:
    """Return the connections of a ``dcp`` group, by name."""
    by_name: dict[str, dict[str, str]] = {}
    for full_name, value in told.items():
        if full_name.startswith(_PREFIX):
            name, _, statistic = full_name.removeprefix(_PREFIX).rpartition(":")
            by_name.setdefault(name, {})[statistic] = value
    return [
        ProducerConnection.of(name, values)
        for name, values in sorted(by_name.items())
        if values.get("type") == "producer"
    ]
