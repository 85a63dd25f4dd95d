"""Names of fields as names of columns: which can be one, and which Spark takes for the same."""

import re
from typing import Final

_NO_COLUMN: Final = re.compile(r"[ ,;{}()=]")
"""Parquet allows these characters in no column's name (Delta's column mapping would
change them).
"""
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f]")


def refusal_of(name: str) -> str | None:
    """Return why a field's name cannot be a column's; None if it can."""
    if not name:
        return "the name is empty"
    if _CONTROL.search(name):
        return "the name has a control character"
    found = _NO_COLUMN.search(name)
    return None if found is None else f"the name has {found[0]!r}, which no column's name has"


def same_name_key(name: str) -> str:
    """Return the same key for exactly the names that Spark takes for one.

    Spark resolves names by Java's ``equalsIgnoreCase``, which folds each character to upper and
    then to lower case. Delta also compares ``toLowerCase``, which makes two characters of ``İ``.
    """
    if name.isascii():
        return name.lower()
    return "".join(map(_folded, name)).replace("i\u0307", "i")


def _folded(character: str) -> str:
    upper = character.upper()
    lower = (upper if len(upper) == 1 else character).lower()
    return lower if len(lower) == 1 else lower[0]
