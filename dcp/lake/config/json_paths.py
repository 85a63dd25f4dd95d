"""Reads JSON paths: ``.name`` or ``['name']`` is a field of an object, ``[*]`` all elements of an
array, ``.*`` all values of an object.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

_STEP: Final = re.compile(
    r"\.(?P<name>[^.\[\]*'`]+)|\['(?P<quoted>(?:\\['\\]|[^'])*)'\]|(?P<elements>\[\*\])"
    r"|(?P<values>\.\*)"
)
_PLAIN: Final = re.compile(r"[^.\[\]*'`\s]+")
"""A message writes other names in quotes."""
_QUOTED: Final = re.compile(r"\\(['\\])")


class Wildcard(StrEnum):
    ELEMENTS = "[*]"
    VALUES = ".*"


@dataclass(frozen=True, slots=True)
class FieldName:
    name: str

    def __str__(self) -> str:
        if _PLAIN.fullmatch(self.name):
            return f".{self.name}"
        escaped = self.name.replace("\\", r"\\").replace("'", r"\'")
        return f"['{escaped}']"


Step = FieldName | Wildcard


def path_text(steps: Iterable[Step]) -> str:
    return "$" + "".join(map(str, steps))


def json_path(path: str) -> tuple[Step, ...] | None:
    """Return the steps of a JSON path, none for ``$``; None if it is no such path."""
    steps: list[Step] = []
    at = 1
    while path.startswith("$") and (match := _STEP.match(path, at)) is not None:
        at = match.end()
        if match["name"] is not None:
            steps.append(FieldName(match["name"]))
        elif match["quoted"] is not None:
            steps.append(FieldName(_QUOTED.sub(r"\1", match["quoted"])))
        else:
            steps.append(Wildcard.ELEMENTS if match["elements"] else Wildcard.VALUES)
    return tuple(steps) if path.startswith("$") and at == len(path) else None
