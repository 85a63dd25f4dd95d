"""Quantities as people read them: sizes, counts, shares, and how full something is."""

from typing import Final

from rich.filesize import pick_unit_and_suffix

_BAR_WIDTH: Final = 10
_MIB: Final = 1024 * 1024
_UNITS: Final = ["B", "KiB", "MiB", "GiB", "TiB"]


def size_text(size: float) -> str:
    """Return a number of bytes in the unit that suits it."""
    unit, name = pick_unit_and_suffix(int(abs(size)), _UNITS, 1024)
    return f"{size:.0f} {name}" if unit == 1 else f"{size / unit:.1f} {name}"


def count_text(count: int, what: str) -> str:
    """Return a number of things: ``1 task``, ``2 tasks``."""
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def bar(part: float, whole: float) -> str:
    """Return how full something is; more than all is marked."""
    share = part / whole if whole > 0 else 0.0
    filled = max(0, min(_BAR_WIDTH, round(share * _BAR_WIDTH)))
    return f"[{'#' * filled}{'.' * (_BAR_WIDTH - filled)}{'+' if share > 1 else ']'}"


def share_text(seconds: float, of_seconds: float) -> str:
    """Return a part of some time in percent."""
    return f"{min(1.0, seconds / of_seconds):.0%}" if of_seconds > 0 else "0%"


def memory_text(resident_bytes: int, bound_bytes: int) -> str:
    """Return what a process has, and may have at most: ``RSS 312 of at most 540 MiB``.

    0 is not known.
    """
    has = f"{resident_bytes / _MIB:,.0f}" if resident_bytes else "not known"
    most = f" of at most {bound_bytes / _MIB:,.0f}" if bound_bytes else ""
    unit = " MiB" if bound_bytes or resident_bytes else ""
    return f"RSS {has}{most}{unit}"
