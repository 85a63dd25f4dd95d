"""Values on a command line that typer has no type for: sizes, times, and vbuckets.

Each takes the text, or a default that is such a value already, and raises typer's error for
anything else. Whole numbers are typer's own, with their bounds beside the option.
"""

from typing import Any, Final

from typer import BadParameter, Option

from dcp.printable import numbers_of
from dcp.suggestions import bytes_meant
from dcp.types import U16_MAX

_MOST_DIGITS: Final = 18
"""So many digits always fit 63 bits."""


def vbucket_ranges(text: str) -> frozenset[int]:
    """Return the vbuckets of ``0-63,70``."""
    expected = "expected numbers of vbuckets, ascending, as in 0-63,70"
    try:
        found = numbers_of(text)
    except ValueError as error:
        raise BadParameter(f"found {error.args[0]!r}, {expected}") from None
    if max(found) > U16_MAX:
        raise BadParameter(f"found {max(found)}, {expected}, up to {U16_MAX}")
    return found


def number_option(meaning: str, least: int, most: int | None, *, is_bytes: bool = False) -> Any:
    """Return an option whose value is a whole number in these bounds, perhaps of bytes."""

    def parse(value: str | int) -> int:
        text = str(value)
        if not (text.isascii() and text.isdecimal() and len(text) <= _MOST_DIGITS):
            meant, kind = "", "a whole number"
            if is_bytes:
                meant, kind = bytes_meant(text), "a number of bytes"
            raise BadParameter(
                f"found {text!r}{meant}, expected {kind}, up to {_MOST_DIGITS} digits"
            )
        _require_bounds(int(text), least, most)
        return int(text)

    return Option(parser=parse, metavar="BYTES" if is_bytes else "N", help=meaning)


def seconds_option(meaning: str, least: float, most: float | None) -> Any:
    """Return an option whose value is a time in seconds in these bounds, maybe with a fraction."""

    def parse(value: str | float) -> float:
        text = str(value)
        whole, point, fraction = text.partition(".")
        digits = whole + fraction if point else whole
        if not (digits.isascii() and digits.isdecimal() and whole and len(text) <= 12):
            raise BadParameter(f"found {text!r}, expected seconds, 0 or more, as in 2.5")
        _require_bounds(float(text), least, most)
        return float(text)

    return Option(parser=parse, metavar="SECONDS", help=meaning)


def _require_bounds(value: float, least: float, most: float | None) -> None:
    if value < least or (most is not None and value > most):
        bounds = f"{least} or more" if most is None else f"{least} to {most}"
        raise BadParameter(f"found {value}, expected {bounds}")
