"""How commands talk: plain lines, progress bars on a terminal, JSON where a machine reads."""

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

from tqdm import tqdm


def say(line: str = "") -> None:
    """Print one line for a person, at once (a pipe would hold it back)."""
    print(line, flush=True)


def say_json(value: object) -> None:
    """Print one JSON document on one line."""
    print(json.dumps(value, separators=(",", ":"), default=str), flush=True)


Advance = Callable[[int], object]
"""Tells a progress display that so many more units are done."""


@contextmanager
def progress(title: str, total: int, unit: str) -> Iterator[Advance]:
    """Show progress as a bar on a terminal, and as one closing line anywhere else."""
    if sys.stderr.isatty():
        with tqdm(total=total, desc=title, unit=unit, file=sys.stderr, leave=True) as bar:

            def advance(count: int) -> None:
                bar.update(count)

            yield advance
        return
    done = 0

    def count_up(count: int) -> None:
        nonlocal done
        done += count

    yield count_up
    say(f"{title}: {done:,} {unit}")


def table(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return rows under their heads, numbers to the right, as plain text."""
    cells = [[_cell(value) for value in row] for row in rows]
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
    return "\n".join([line(list(heads)), rule, *(line(row) for row in cells)])


def _cell(value: object) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, bytes | bytearray):
        return bytes(value).decode("utf-8", "backslashreplace")
    return str(value)


def _is_number(text: str) -> bool:
    return text == "NULL" or text.lstrip("-").replace(".", "", 1).isdigit()
