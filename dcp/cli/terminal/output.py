"""Output of commands: plain lines, JSON where a machine reads, and files."""

import json
import math
import os
from base64 import b64encode
from collections.abc import Mapping, Sequence
from contextlib import suppress
from decimal import Decimal
from pathlib import Path

from dcp.errors import SetupError
from dcp.printable import printable_lines


def say(text: str = "") -> None:
    """Print a line or several for a person, at once (a pipe would hold them back).

    Whatever they quote moves no cursor; what is quoted within a line is to be ``printable`` itself,
    as ``table`` makes its cells.
    """
    print(printable_lines(text) + "\n", end="", flush=True)  # whole, if two threads print


def say_json(value: object) -> None:
    """Print one JSON document on one line."""
    print(json_text(value) + "\n", end="", flush=True)


def write_whole(path: Path, text: str) -> None:
    """Write a file so that a reader finds the old one or the new one, and never a part.

    Raises:
        SetupError: it cannot be written; the old one is as it was.
    """
    new = path.with_name(f".{path.name}.{os.getpid()}.new")
    try:
        new.write_text(text, "utf-8")
        new.replace(path)
    except OSError as error:
        with suppress(OSError):
            new.unlink(missing_ok=True)
        raise SetupError(
            f"{path}: cannot write it: {error.strerror}; expected a file in a folder that is there "
            "and that this user can write to"
        ) from None


def json_text(value: object, *, ascii_only: bool = True) -> str:
    """Return JSON on one line; the rules are the same at any depth.

    A decimal is a JSON number of its exact value, without exponent: an integer if it is one
    (``2.00`` is ``2``), else with all its digits (``1.50``). NaN and the infinities, which JSON
    lacks, are null. Bytes are text, or ``{"base64": …}`` where they are no UTF-8. A row or struct
    of Spark is an object, its repeated names numbered. What JSON has no form for is a text, and so
    is a map's key.
    """

    def text_of(inner: object) -> str:
        return json_text(inner, ascii_only=ascii_only)

    def name_of(name: object) -> str:
        text = text_of(name)
        return text if text.startswith('"') else json.dumps(text, ensure_ascii=ascii_only)

    if isinstance(value, float):
        return json.dumps(value) if math.isfinite(value) else "null"
    if isinstance(value, Decimal):
        return _decimal_text(value)
    if value is None or isinstance(value, bool | int | str):
        return json.dumps(value, ensure_ascii=ascii_only)
    if isinstance(value, bytes | bytearray):
        try:
            return text_of(bytes(value).decode())
        except UnicodeDecodeError:
            return text_of({"base64": b64encode(bytes(value)).decode()})
    if isinstance(value, tuple) and hasattr(value, "__fields__"):
        value = dict(zip(unique_names(value.__fields__), value, strict=True))
    if isinstance(value, Mapping):
        fields = (f"{name_of(name)}:{text_of(inner)}" for name, inner in value.items())
        return f"{{{','.join(fields)}}}"
    if isinstance(value, list | tuple):
        return f"[{','.join(map(text_of, value))}]"
    return text_of(str(value))


def _decimal_text(value: Decimal) -> str:
    if not value.is_finite():
        return "null"
    return str(int(value)) if value == int(value) else format(value, "f")


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
