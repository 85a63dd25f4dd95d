"""A small writer of line charts as SVG: panels in a grid, logarithmic axes, a legend for each row.

The picture brings its own background, so that it is readable on light and dark pages; lines differ
in colour and in marker. Nothing is installed for it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import log10
from typing import Final
from xml.sax.saxutils import escape

# The palette of Okabe and Ito: colours that most people can tell apart.
_COLOURS: Final = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#7a5c00")
_MARKERS: Final = (
    '<circle r="3.5"/>',
    '<rect x="-3.5" y="-3.5" width="7" height="7"/>',
    '<path d="M0,-5 L4.5,3.5 L-4.5,3.5 z"/>',
    '<path d="M0,-5 L5,0 L0,5 L-5,0 z"/>',
    '<path d="M-4,-4 L4,4 M-4,4 L4,-4" stroke-width="2.5"/>',
)
_INK: Final = "#222222"
_GRID: Final = "#dddddd"
_WIDTH, _HEIGHT = 228, 160
_LEFT, _TOP, _GAP_X, _GAP_Y, _LEGEND = 58, 64, 64, 104, 150

Points = Sequence[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Panel:
    """One chart: points by line; both axes are logarithmic."""

    title: str
    x_label: str
    lines: Mapping[str, Points]
    x_ticks: Mapping[float, str]
    y_ticks: Mapping[float, str]
    """They say how far the axis goes, too; points beyond are drawn at its end."""


@dataclass(frozen=True, slots=True)
class PanelRow:
    """Panels beside each other, with the same lines."""

    title: str
    legend_title: str
    panels: Sequence[Panel]


def draw(title: str, rows: Sequence[PanelRow]) -> str:
    """Return the picture."""
    columns = max(len(row.panels) for row in rows)
    width = _LEFT + columns * (_WIDTH + _GAP_X) + _LEGEND
    height = _TOP + len(rows) * (_HEIGHT + _GAP_Y) - 32
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'font-family="sans-serif" font-size="12" fill="{_INK}">',
        f"  <title>{escape(title)}</title>",
        f'  <rect width="{width}" height="{height}" fill="#ffffff"/>',
    ]
    for number, row in enumerate(rows):
        top = _TOP + number * (_HEIGHT + _GAP_Y)
        parts.append(_text(16, top - 38, row.title, 'font-weight="bold" font-size="14"'))
        for column, panel in enumerate(row.panels):
            parts += _panel(panel, _LEFT + column * (_WIDTH + _GAP_X), top)
        names = dict.fromkeys(name for panel in row.panels for name in panel.lines)
        left = _LEFT + columns * (_WIDTH + _GAP_X) - 36
        parts += _legend(row.legend_title, list(names), left, top)
    return "\n".join([*parts, "</svg>", ""])


def _panel(panel: Panel, left: float, top: float) -> list[str]:
    x_of = _scale(list(panel.x_ticks), left, left + _WIDTH)
    y_of = _scale(list(panel.y_ticks), top + _HEIGHT, top)
    bottom = top + _HEIGHT
    parts = [_text(left, top - 10, panel.title)]
    for value, label in panel.y_ticks.items():
        y = y_of(value)
        parts.append(_stroke(left, y, left + _WIDTH, y, _GRID))
        parts.append(_text(left - 6, y + 4, label, 'text-anchor="end"'))
    for value, label in panel.x_ticks.items():
        x = x_of(value)
        parts.append(_stroke(x, top, x, bottom, _GRID))
        parts.append(_text(x, bottom + 16, label, 'text-anchor="middle"'))
    parts.append(_stroke(left, top, left, bottom, "#888888"))
    parts.append(_stroke(left, bottom, left + _WIDTH, bottom, "#888888"))
    parts.append(_text(left + _WIDTH / 2, bottom + 34, panel.x_label, 'text-anchor="middle"'))
    for number, points in enumerate(panel.lines.values()):
        places = [(x_of(x), y_of(y)) for x, y in points]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        colour = _COLOURS[number % len(_COLOURS)]
        parts.append(
            f'  <polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>'
        )
        parts += [_marker(number, x, y) for x, y in places]
    return parts


def _legend(title: str, names: Sequence[str], left: float, top: float) -> list[str]:
    parts = [_text(left, top + 4, title, 'font-weight="bold"')]
    for number, name in enumerate(names):
        y = top + 24 + 20 * number
        colour = _COLOURS[number % len(_COLOURS)]
        parts.append(_stroke(left, y, left + 24, y, colour, 2))
        parts.append(_marker(number, left + 12, y))
        parts.append(_text(left + 32, y + 4, name))
    return parts


class _scale:  # noqa: N801  (a function with two numbers that it computes once)
    def __init__(self, ticks: Sequence[float], begin: float, end: float) -> None:
        self._least, self._most = min(ticks), max(ticks)
        self._begin = begin
        decades = log10(self._most) - log10(self._least)
        self._step = (end - begin) / decades if decades else 0.0

    def __call__(self, value: float) -> float:
        inside = min(max(value, self._least), self._most)
        return self._begin + (log10(inside) - log10(self._least)) * self._step


def _marker(number: int, x: float, y: float) -> str:
    shape, colour = _MARKERS[number % len(_MARKERS)], _COLOURS[number % len(_COLOURS)]
    return (
        f'  <g transform="translate({x:.1f},{y:.1f})" fill="{colour}" stroke="{colour}">{shape}</g>'
    )


def _stroke(x1: float, y1: float, x2: float, y2: float, colour: str, width: float = 1) -> str:
    return (
        f'  <line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" '
        f'stroke="{colour}" stroke-width="{width}"/>'
    )


def _text(x: float, y: float, text: str, more: str = "") -> str:
    return f'  <text x="{x:.1f}" y="{y:.1f}" {more}>{escape(text)}</text>'
