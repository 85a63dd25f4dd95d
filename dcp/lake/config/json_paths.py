"""Reads JSON paths: ``.name`` or ``['name']`` is a field of an object, ``[*]`` all elements of an
array, ``.*`` all values of an object.
"""

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

_STEP: Final = re.compile(
    r"\.(?P<name>[^.\[\]*'`\s]+)|\['(?P<quoted>[^']+)'\]|(?P<elements>\[\*\])|(?P<values>\.\*)"
)


class Wildcard(StrEnum):
    ELEMENTS = "[*]"
    VALUES = ".*"


@dataclass(frozen=True, slots=True)
class FieldName:
    name: str

    def __str__(self) -> str:
        plain = f".{self.name}"
        match = _STEP.fullmatch(plain)  # a field * is no wildcard
        return plain if match and match["name"] else f"['{self.name}']"


Step = FieldName | Wildcard


def json_path(path: str) -> tuple[Step, ...] | None:
    """Return the steps of a JSON path, none for ``$``; None if it is no such path."""
    steps: list[Step] = []
    at = 1
    while path.startswith("$") and (match := _STEP.match(path, at)) is not None:
        at = match.end()
        if name := match["name"] or match["quoted"]:
            steps.append(FieldName(name))
        else:
            steps.append(Wildcard.ELEMENTS if match["elements"] else Wildcard.VALUES)
    return tuple(steps) if path.startswith("$") and at == len(path) else None
