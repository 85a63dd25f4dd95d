"""Reads a producer's DCP connections from STAT ``dcp``, as Couchbase's servers answer it."""

from collections.abc import Mapping
from typing import Final

from dcp.cli.views.server_statistics import stat_count, stat_number
from dcp.server.bucket.node_figures import ConnectionFigures

_PREFIX: Final = "eq_dcpq:"


def connections_in(told: Mapping[str, str]) -> list[ConnectionFigures]:
    """Return the connections of a ``dcp`` group, by name."""
    by_name: dict[str, dict[str, str]] = {}
    for full_name, value in told.items():
        if full_name.startswith(_PREFIX):
            name, _, statistic = full_name.removeprefix(_PREFIX).rpartition(":")
            by_name.setdefault(name, {})[statistic] = value
    return [
        _figures(name, values)
        for name, values in sorted(by_name.items())
        if values.get("type") == "producer"
    ]


def _figures(name: str, told: Mapping[str, str]) -> ConnectionFigures:
    is_paused = told.get("paused", "false") == "true"
    reason = told.get("paused_current_reason") or told.get("paused_reason") or "paused"
    return ConnectionFigures(
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
