"""Common parts of all case file formats: the parsed file, a case's result, a format's interface."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class CaseFile:
    """A file of cases: one JSON value, or one per line (then ``content`` is a list of them)."""

    path: Path
    content: Any
    is_lines: bool

    @classmethod
    def read(cls, path: Path) -> "CaseFile":
        """Read and parse a file.

        Raises:
            OSError: it cannot be read.
            ValueError: it is neither JSON nor JSON lines.
        """
        text = path.read_text(encoding="utf-8")
        try:
            return cls(path, json.loads(text), is_lines=False)
        except ValueError:
            lines = [line for line in text.splitlines() if line.strip()]
            if len(lines) < 2:
                raise
            return cls(path, [json.loads(line) for line in lines], is_lines=True)


@dataclass(frozen=True, slots=True)
class CaseResult:
    """A case's name and what is wrong with it: one text per finding, none when it passed.

    ``tally`` counts what the case was made of, by name, for a line about the whole file.
    """

    name: str
    failures: tuple[str, ...] = ()
    tally: Mapping[str, int] = field(default_factory=dict)


class Format(Protocol):
    """A kind of case file."""

    name: str

    def recognises(self, file: CaseFile) -> bool:
        """Whether ``file`` is of this kind, by its content."""

    def run(self, file: CaseFile) -> Iterator[CaseResult]:
        """Yield one result per case."""
