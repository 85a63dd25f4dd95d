"""Tables as plain text, laid out by rich: the same on a terminal, in a pipe and in a log."""

import json
from collections.abc import Iterable, Mapping, Sequence
from io import StringIO
from typing import Final

from rich.box import Box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from dcp.cli.terminal.output import json_text
from dcp.printable import printable

_RULE_UNDER_HEADS: Final = Box(
    "    \n    \n -  \n    \n    \n    \n    \n    \n",
    ascii=True,
)
_WIDTH: Final = 10**9
"""Wider than any table: who reads it may be a program, and a row is one line."""


def table(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return rows under their heads, numbers to the right, as plain text; a row is one line.

    Structs, arrays and maps are JSON, as ``json_text`` writes them.
    """
    cells = [[printable(_cell(value)) for value in row] for row in rows]
    shown = Table(box=_RULE_UNDER_HEADS, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    for column, head in enumerate(heads):
        values = [row[column] for row in cells if row[column] != "NULL"]
        is_numeric = bool(values) and all(map(_is_number, values))
        shown.add_column(
            Text(printable(head)),
            justify="right" if is_numeric else "left",
            no_wrap=True,
            overflow="crop",
        )
    for row in cells:
        shown.add_row(*map(Text, row))  # no markup is read in them
    page = StringIO()
    Console(file=page, width=_WIDTH, color_system=None).print(shown, soft_wrap=True)
    return "\n".join(line.rstrip() for line in page.getvalue().rstrip("\n").split("\n"))


def _cell(value: object) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, bytes | bytearray):
        return bytes(value).decode("utf-8", "backslashreplace")
    if isinstance(value, tuple | list | Mapping):
        return _without_hidden(json_text(value, ascii_only=False))
    return str(value)


def _without_hidden(text: str) -> str:
    """Return JSON in which characters that are not printable are escaped as JSON does."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else json.dumps(each)[1:-1] for each in text)


def _is_number(text: str) -> bool:
    return text.lstrip("-").replace(".", "", 1).isdigit()
