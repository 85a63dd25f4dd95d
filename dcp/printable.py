"""Makes foreign text safe for terminals, logs and metrics: nothing in it moves a cursor.

Clients choose the names of connections, and servers the text of refusals. A control character in
one could clear a screen, and a line feed could forge a line. Characters that are not printable are
escaped.
"""

from collections.abc import Iterable
from html import escape
from typing import Final

_MOST_DIGITS: Final = 5
"""Digits of a number in a range: vbuckets have 16 bits."""


class Shown:
    """A result that a notebook shows as ``print`` does."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        return f"<pre>{escape(printable_lines(str(self)))}</pre>"


def printable(text: str) -> str:
    r"""Return a text as a part of one line, with ``\x1b`` and ``\n`` for such characters. For
    people only: it cannot be reversed.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def printable_lines(text: str) -> str:
    """Return a text whose line breaks are ours, each line as ``printable``."""
    return "\n".join(map(printable, text.split("\n")))


def printable_name(name: bytes) -> str:
    r"""Return a name of any bytes; different names stay different.

    A backslash is doubled. Bytes that are no UTF-8 or not printable become escapes (``\x1b``).
    """
    text = name.replace(b"\\", rb"\\").decode("utf-8", "backslashreplace")
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else _bytes_of(c) for c in text)


def unicode_escape(character: str) -> str:
    r"""Return a character as ``\uXXXX`` or ``\UXXXXXXXX``: TOML and Spark's SQL read it back."""
    code = ord(character)
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def number_ranges(numbers: Iterable[int]) -> str:
    """Return ``0-3, 7, 9-10`` for the numbers."""
    ranges: list[list[int]] = []
    for number in sorted(numbers):
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    return ", ".join(f"{low}-{high}" if high > low else f"{low}" for low, high in ranges)


def age_text(seconds: float) -> str:
    """Return a span of time in its two largest units: ``42 s``, ``12 min``, ``3 h 12 min``."""
    minutes = int(seconds) // 60
    if minutes < 1:
        return f"{seconds:.0f} s"
    if minutes < 60:
        return f"{minutes} min"
    hours, days = minutes // 60, minutes // (24 * 60)
    return f"{days} d {hours % 24} h" if days else f"{hours} h {minutes % 60} min"


def numbers_of(ranges: str) -> frozenset[int]:
    """Return the numbers of ``0-3, 7``.

    Raises:
        ValueError: a part is no number and no ascending range; its argument is the part.
    """
    found: set[int] = set()
    for part in ranges.split(","):
        low, dash, high = part.strip().partition("-")
        first = _number(low)
        last = _number(high) if dash else first
        if first is None or last is None or first > last:
            raise ValueError(part)
        found.update(range(first, last + 1))
    return frozenset(found)


def _number(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= _MOST_DIGITS else None


def _bytes_of(character: str) -> str:
    return "".join(f"\\x{byte:02x}" for byte in character.encode())
