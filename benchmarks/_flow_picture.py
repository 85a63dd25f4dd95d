"""The picture of `flow_control`: a row of charts for windows, for policies, for strategies."""

from collections.abc import Callable, Mapping, Sequence
from math import floor, log10
from typing import Final

from benchmarks._chart import Panel, PanelRow, Points, draw
from benchmarks._flow_rows import Row

_STEPS: Final = (1, 2, 5)
_MOST_TICKS: Final = 6
_NEXT_TO_NOTHING: Final = 0.05


def picture(rows: Sequence[Row]) -> str:
    """Return the picture of all rows as SVG."""
    windows, policies = _part(rows, "window"), _part(rows, "policy")
    by_window, by_speed = _part(rows, "policy by window"), _part(rows, "policy by speed")
    relays, relays_by_window = _part(rows, "relay"), _part(rows, "relay by window")
    limits = list(dict.fromkeys(row.sink_limit for row in policies))
    fastest = [row for row in policies if row.sink_limit == limits[0]]
    slowest = [row for row in policies if row.sink_limit == limits[-1]]
    slow_title = f"each sink {limits[-1]}"
    in_all = {"outstanding in all, MiB": _outstanding, "memory in all, + MiB": _memory}
    of_relay = {
        "from the cluster, MB/s": _upstream,
        "fast consumer, MB/s": _speed,
        "memory of the relay, + MiB": _memory,
    }
    charts = [
        _row(
            "One connection",
            "sink's speed",
            "window",
            windows,
            {
                "MB/s": _speed,
                "most outstanding, MiB": _outstanding,
                "memory of the process, + MiB": _memory,
            },
            _size_name,
        ),
        PanelRow(
            "Window policies: a quota of 1 GiB",
            "policy",
            [
                _panel(f"MB/s in all, sinks {limits[0]}", "connections", fastest, _speed),
                _panel(
                    f"outstanding in all, MiB, {slow_title}",
                    "connections",
                    slowest,
                    _outstanding,
                ),
                _panel(f"memory in all, + MiB, {slow_title}", "connections", slowest, _memory),
            ],
        ),
        _row(
            "Window policies: 4 connections, all numbers in proportion to the window",
            "policy",
            "window",
            by_window,
            {"MB/s in all, sinks unlimited": _speed, **in_all},
            _size_name,
        ),
        _row(
            "Window policies: 4 connections, a quota of 1 GiB",
            "policy",
            "each sink, MB/s",
            by_speed,
            {"MB/s in all": _speed, **in_all},
        ),
        _row(
            "Relay: one fast consumer, one slow; window 2 MiB",
            "strategy",
            "slow consumer, MB/s",
            relays,
            of_relay,
        ),
        _row(
            "Relay: one fast consumer, one of 5 MB/s",
            "strategy",
            "window",
            relays_by_window,
            of_relay,
            _size_name,
        ),
    ]
    return draw(
        "Throughput and memory by window, window policy and relay strategy",
        [row for row in charts if any(panel.lines for panel in row.panels)],
    )


def _part(rows: Sequence[Row], part: str) -> list[Row]:
    return [row for row in rows if row.part == part]


def _row(
    title: str,
    legend_title: str,
    x_label: str,
    rows: Sequence[Row],
    values: Mapping[str, Callable[[Row], float | None]],
    x_name: Callable[[float], str] = "{:g}".format,
) -> PanelRow:
    """Return panels of the same points, one for each of the values by its title."""
    panels = [_panel(name, x_label, rows, value, x_name) for name, value in values.items()]
    return PanelRow(title, legend_title, panels)


def _panel(
    title: str,
    x_label: str,
    rows: Sequence[Row],
    value: Callable[[Row], float | None],
    x_name: Callable[[float], str] = "{:g}".format,
) -> Panel:
    lines: dict[str, Points] = {}
    for line in dict.fromkeys(row.line for row in rows):
        lines[line] = [
            (row.x, found) for row in rows if row.line == line and (found := value(row)) is not None
        ]
    xs = sorted({row.x for row in rows})
    ys = [y for points in lines.values() for _, y in points]
    return Panel(title, x_label, lines, {x: x_name(x) for x in xs}, _ticks(ys))


def _ticks(values: Sequence[float]) -> dict[float, str]:
    """Return round numbers around all values, with some room; what is next to nothing is less."""
    least = max(_NEXT_TO_NOTHING, min(values, default=1.0) / 1.2)
    most = max(2 * least, 1.1 * max(values, default=10.0))
    decades = range(floor(log10(least)), floor(log10(most)) + 2)
    steps = [step * 10.0**decade for decade in decades for step in _STEPS]
    first = max(index for index, step in enumerate(steps) if step <= least)
    last = min(index for index, step in enumerate(steps) if step >= most)
    found = steps[first : last + 1]
    if len(found) > _MOST_TICKS:
        inner = [step for step in found[1:-1] if log10(step).is_integer()]
        found = [found[0], *inner, found[-1]]
    return {step: f"{step:g}" for step in found}


def _size_name(kib: float) -> str:
    return f"{kib / 1024:g}M" if kib >= 1024 else f"{kib:g}K"


def _speed(row: Row) -> float | None:
    return row.speed


def _outstanding(row: Row) -> float | None:
    return row.outstanding


def _memory(row: Row) -> float | None:
    return row.memory


def _upstream(row: Row) -> float | None:
    return row.upstream
