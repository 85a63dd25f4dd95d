"""How commands talk: plain lines, progress bars on a terminal, JSON where a machine reads."""

import json
import math
import sys
from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from decimal import Decimal
from time import monotonic
from typing import Final

from tqdm import tqdm

from dcp.printable import printable, printable_lines


def say(text: str = "") -> None:
    """Print a line or several for a person, at once (a pipe would hold them back).

    Whatever they quote moves no cursor; what is quoted within a line is to be ``printable`` itself,
    as ``table`` makes its cells.
    """
    print(printable_lines(text) + "\n", end="", flush=True)  # whole, if two threads print


def say_json(value: object) -> None:
    """Print one JSON document on one line."""
    print(json_text(value) + "\n", end="", flush=True)


def json_text(value: object) -> str:
    """Return JSON on one line; the rules are the same at any depth.

    A decimal is a JSON number of its exact value, without exponent: an integer if it is one
    (``2.00`` is ``2``), else with all its digits (``1.50``). NaN and the infinities, which JSON
    lacks, are null. Bytes are text, or ``{"base64": …}`` where they are no UTF-8. What JSON has no
    form for is a text, and so is a map's key.
    """
    if isinstance(value, float):
        return json.dumps(value) if math.isfinite(value) else "null"
    if isinstance(value, Decimal):
        return _decimal_text(value)
    if value is None or isinstance(value, bool | int | str):
        return json.dumps(value)
    if isinstance(value, bytes | bytearray):
        try:
            return json.dumps(bytes(value).decode())
        except UnicodeDecodeError:
            return json_text({"base64": b64encode(bytes(value)).decode()})
    if isinstance(value, Mapping):
        fields = (f"{_field_name(name)}:{json_text(inner)}" for name, inner in value.items())
        return f"{{{','.join(fields)}}}"
    if isinstance(value, list | tuple):
        return f"[{','.join(json_text(inner) for inner in value)}]"
    return json.dumps(str(value))


def _decimal_text(value: Decimal) -> str:
    if not value.is_finite():
        return "null"
    return str(int(value)) if value == int(value) else format(value, "f")


def _field_name(name: object) -> str:
    text = json_text(name)
    return text if text.startswith('"') else json.dumps(text)


def unique_names(names: Sequence[str]) -> list[str]:
    """Return the names with repeated ones numbered: a, a_2, a_3; none that is taken is given."""
    taken = set(names)
    unique: list[str] = []
    for name in names:
        chosen, number = name, 1
        while chosen in unique or (number > 1 and chosen in taken):
            number += 1
            chosen = f"{name}_{number}"
        unique.append(chosen)
    return unique


_TELL_SECONDS: Final = 10.0
"""How often progress is told where there is no terminal."""

Advance = Callable[[int], object]
"""Tells a progress display that so many more units are done."""


@contextmanager
def progress(title: str, total: int, unit: str) -> Iterator[Advance]:
    """Show progress with a rate: a bar on a terminal, anywhere else a line now and then."""
    if sys.stderr.isatty():
        with tqdm(total=total, desc=title, unit=unit, file=sys.stderr, leave=True) as bar:

            def advance(count: int) -> None:
                bar.update(count)

            yield advance
        return
    done = 0
    begun = told = monotonic()

    def count_up(count: int) -> None:
        nonlocal done, told
        done += count
        now = monotonic()
        if now - told >= _TELL_SECONDS:
            told = now
            say(f"{title}: {done:,} of {total:,} {unit}, {rate(done, now - begun)}")

    yield count_up
    say(f"{title}: {done:,} {unit}, {rate(done, monotonic() - begun)}")


def rate(count: int, seconds: float) -> str:
    """Return how many that is in a second, in words."""
    return f"{count / max(seconds, 0.001):,.0f} a second"


def table(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return rows under their heads, numbers to the right, as plain text; a row is one line."""
    heads = [printable(head) for head in heads]
    cells = [[printable(_cell(value)) for value in row] for row in rows]
    numeric = [
        all(_is_number(row[column]) for row in cells) and bool(cells)
        for column in range(len(heads))
    ]
    widths = [
        max([len(head), *(len(row[column]) for row in cells)]) for column, head in enumerate(heads)
    ]

    def line(values: Sequence[str]) -> str:
        padded = (
            value.rjust(width) if right else value.ljust(width)
            for value, width, right in zip(values, widths, numeric, strict=True)
        )
        return "  ".join(padded).rstrip()

    rule = "  ".join("-" * width for width in widths)
    return "\n".join([line(heads), rule, *(line(row) for row in cells)])


def _cell(value: object) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, bytes | bytearray):
        return bytes(value).decode("utf-8", "backslashreplace")
    return str(value)


def _is_number(text: str) -> bool:
    return text == "NULL" or text.lstrip("-").replace(".", "", 1).isdigit()
