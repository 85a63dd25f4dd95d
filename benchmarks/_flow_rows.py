"""One measured point of `flow_control`, and what can be made of many: medians, a table, a CSV."""

import csv
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from itertools import groupby
from pathlib import Path
from statistics import median
from typing import Final

MIB: Final = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Row:
    """Speeds in MB/s (10^6), memory in MiB; None: there is no such thing here.

    ``part`` is one of those in ``table``; ``x`` what the picture has on its axis: the window in
    KiB, the number of connections, the speed of each sink or of the slow consumer. ``speed`` is
    that of all sinks together (of the fast one behind a relay). ``outstanding`` is the sum of each
    connection's most, ``memory`` that of the processes' peaks over their starts.
    """

    part: str
    line: str
    x: float
    sink_limit: str
    speed: float
    outstanding: float | None
    memory: float
    upstream: float | None = None
    slow: float | None = None


_MEASURED: Final = ("speed", "outstanding", "memory", "upstream", "slow")


def medians(rows: Iterable[Row]) -> list[Row]:
    """Return one row for each point."""

    def point(row: Row) -> tuple[str, str, str, float]:
        return row.part, row.sink_limit, row.line, row.x

    order: dict[tuple[str, str, str, float], list[Row]] = {}
    for row in rows:
        order.setdefault(point(row), []).append(row)
    return [_middle(group) for group in order.values()]


def _middle(rows: Sequence[Row]) -> Row:
    middles: dict[str, float] = {}
    for name in _MEASURED:
        found = [value for row in rows if (value := getattr(row, name)) is not None]
        if found:
            middles[name] = round(median(found), 2)
    return replace(rows[0], **middles)  # type: ignore[arg-type]


def write_csv(rows: Iterable[Row], path: Path) -> None:
    """Write all columns; what there is not is empty."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, [field.name for field in fields(Row)], lineterminator="\n")
        writer.writeheader()
        writer.writerows(map(asdict, rows))


def table(rows: Iterable[Row]) -> str:
    """Return a table for people."""
    heads = {
        "window": ("sink limit", "window KiB"),
        "policy": ("policy", "connections"),
        "policy by window": ("policy", "window KiB"),
        "policy by speed": ("policy", "sink, MB/s"),
        "relay": ("strategy", "slow, MB/s"),
        "relay by window": ("strategy", "window KiB"),
    }
    lines: list[str] = []
    for part, group in groupby(rows, lambda row: row.part):
        line, x = heads[part]
        lines.append(
            f"{line:22} {x:>11} {'sinks limited to':>16} {'MB/s':>8} {'outstanding MiB':>15} "
            f"{'memory MiB':>10} {'upstream':>9} {'slow':>7}"
        )
        lines += map(_line, group)
        lines.append("")
    return "\n".join(lines)


def _line(row: Row) -> str:
    def shown(value: float | None) -> str:
        return "" if value is None else f"{value:.1f}"

    return (
        f"{row.line:22} {row.x:>11g} {row.sink_limit:>16} {row.speed:>8.1f} "
        f"{shown(row.outstanding):>15} {row.memory:>10.1f} {shown(row.upstream):>9} "
        f"{shown(row.slow):>7}"
    )
