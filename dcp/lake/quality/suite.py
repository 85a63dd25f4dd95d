"""Data-quality suites as data: a Great Expectations suite in JSON, read and checked.

dcplake uses the two keys that the format leaves to its users. ``meta.columns`` of the suite maps
the name of an added true-or-false column to its SQL expression. ``meta`` of an expectation has
``name`` (for reports), ``says`` (the rule in words), ``severity`` and ``about``: the rows, or facts
about the whole table (`TABLE_FACTS`). ``docs/howto/quality.md`` shows how to add to a suite.
"""

import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from hashlib import sha256
from importlib.resources import files
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, TypeVar

from dcp.errors import ConfigError, SetupError
from dcp.installation import how_to_install
from dcp.lake.tables.quality_check import Severity
from dcp.lake.tables.schema import REPLICA
from dcp.suggestions import did_you_mean
from dcp.wire.json_tree import json_tree

REPLICA_SUITE: Final = "replica_suite"

ROW_FACTS: Final = ("vbucket_count", "complete_seqno", "checked_at")
"""A suite may use these columns beside a replica's and its own."""

TABLE_FACTS: Final = ("rows", "previous_rows", "rows_change_percent", "age_seconds")
"""The columns of expectations about a table as a whole: one row, null if a fact is unknown.

The checked version's rows, and those of the version that the check goes on from. The growth from
the latter to the former, in percent. The age of the newest apply at the time of the check.
"""


_Choice = TypeVar("_Choice", bound=StrEnum)


class Subject(StrEnum):
    """The subject of an expectation: rows of the table, or facts about it."""

    ROWS = "rows"
    TABLE = "table"


@dataclass(frozen=True, slots=True)
class ExpectationSpec:
    name: str
    says: str
    """The rule in words."""
    type: str
    kwargs: Mapping[str, Any]
    severity: Severity = Severity.ERROR
    about: Subject = Subject.ROWS

    @property
    def columns(self) -> tuple[str, ...]:
        single = (self.kwargs.get(name) for name in ("column", "column_A", "column_B"))
        found = (*single, *self.kwargs.get("column_list", ()))
        return tuple(name for name in found if isinstance(name, str))

    def __post_init__(self) -> None:
        try:
            from great_expectations.compatibility.pydantic import ValidationError
            from great_expectations.expectations import registry
        except ModuleNotFoundError as error:
            raise SetupError(
                f"Great Expectations, which checks the tables, is missing (no module {error.name}):"
                f" run {how_to_install('quality')}."
            ) from None

        known = registry.list_registered_expectation_implementations()
        if self.type not in known:
            raise ConfigError(
                f"expectation {self.name!r}: found type {self.type!r}"
                f"{did_you_mean(self.type, known)}, expected one of Great Expectations'"
            )
        implementation = registry.get_expectation_impl(self.type)
        where = f"expectation {self.name!r}: kwargs of {self.type}"
        try:
            made = implementation(**self.kwargs)
        except OverflowError as error:
            raise ConfigError(f"{where}: found a number that is too large: {error}") from None
        except ValidationError as error:
            known = sorted(implementation.__fields__)
            told = "; ".join(_told(each, self.kwargs, known) for each in error.errors())
            raise ConfigError(f"{where}: {told}") from None
        for name, given in self.kwargs.items():
            for number in _inexact(given, getattr(made, name)):
                raise ConfigError(
                    f"{where}: {name}: found {number}, which Great Expectations would round to a "
                    "float; expected at most 2**53, or the rule as SQL in meta.columns of the suite"
                )


def _inexact(given: object, taken: object) -> Iterator[int]:
    """Yield the whole numbers of an argument that Great Expectations did not take exactly."""
    if isinstance(given, list) and isinstance(taken, Collection):
        if not all(each in taken for each in given):
            yield from (each for each in given if isinstance(each, int) and each not in taken)
    elif isinstance(given, int) and isinstance(taken, int | float) and taken != given:
        yield given


def _told(error: Mapping[str, Any], kwargs: Mapping[str, Any], known: Collection[str]) -> str:
    name = str(error["loc"][0])
    if error["type"] == "value_error.missing":
        return f"{name}: found none, expected one"
    if error["type"] == "value_error.extra":
        return f"found an argument {name!r}{did_you_mean(name, known)}, expected no such argument"
    if name == "__root__":
        return f"found {dict(kwargs)!r:.200}, expected otherwise: {error['msg']}"
    return f"{name}: found {kwargs.get(name)!r:.80}, expected otherwise: {error['msg']}"


@dataclass(frozen=True, slots=True)
class QualitySuite:
    name: str
    columns: Mapping[str, str]
    """By added column, its SQL."""
    expectations: tuple[ExpectationSpec, ...]
    where: str = ""
    """The suite's file, for messages."""

    def __post_init__(self) -> None:
        names = [expectation.name for expectation in self.expectations]
        if not names:
            raise ConfigError(f"suite {self.name!r}: found no expectation, expected at least one")
        if twice := {name for name in names if names.count(name) > 1}:
            raise ConfigError(
                f"suite {self.name!r}: found {', '.join(sorted(twice))} more than once, "
                "expected each expectation's name once"
            )

    @property
    def digest(self) -> str:
        """A hash of the rules: suites with the same digest find the same."""
        rules = [
            [each.name, each.type, dict(each.kwargs), each.severity, each.about]
            for each in self.expectations
        ]
        content = json.dumps([dict(self.columns), rules], sort_keys=True)
        return sha256(content.encode()).hexdigest()[:16]

    def about(self, subject: Subject) -> tuple[ExpectationSpec, ...]:
        return tuple(each for each in self.expectations if each.about is subject)


def load_suite(file: Path | None = None) -> QualitySuite:
    """Return the suite in the file ``file``, or the installed one for replica tables.

    Raises:
        ConfigError: the file cannot be read or is no suite; names the fault and where it is.
    """
    resource = files("dcp.schemas") / f"{REPLICA_SUITE}.json" if file is None else file
    try:
        return parse_suite(json_tree(resource.read_bytes()), str(resource))
    except OSError as error:
        raise ConfigError(f"{resource}: cannot read the suite: {error.strerror}") from None
    except ValueError as error:
        raise ConfigError(f"{resource}: found no valid JSON: {error}") from None
    except ConfigError as error:
        raise ConfigError(f"{resource}: {error}") from None


def parse_suite(content: object, where: str = "") -> QualitySuite:
    columns = _member(_member(content, "meta", dict, {}), "columns", dict, {})
    for name, expression in columns.items():
        if not (name.isidentifier() and isinstance(expression, str)):
            raise ConfigError(f"meta.columns: found {name!r}, expected names with SQL expressions")
    expectations = _member(content, "expectations", list)
    known = {
        Subject.ROWS: (*REPLICA.names, *ROW_FACTS, *columns),
        Subject.TABLE: TABLE_FACTS,
    }
    return QualitySuite(
        name=_member(content, "name", str),
        columns=MappingProxyType(columns),
        expectations=tuple(
            _parse_expectation(each, number, known) for number, each in enumerate(expectations, 1)
        ),
        where=where,
    )


def _parse_expectation(
    content: object, number: int, known: Mapping[Subject, Collection[str]]
) -> ExpectationSpec:
    try:
        meta = _member(content, "meta", dict)
        name = _member(meta, "name", str)
    except ConfigError as error:
        raise ConfigError(f"expectation {number}: {error}") from None
    try:
        kwargs = _member(content, "kwargs", dict)
        says, kind = _member(meta, "says", str), _member(content, "type", str)
        severity = _choice(meta, "severity", Severity.ERROR)
        about = _choice(meta, "about", Subject.ROWS)
    except ConfigError as error:
        raise ConfigError(f"expectation {name!r}: {error}") from None
    spec = ExpectationSpec(name, says, kind, MappingProxyType(kwargs), severity, about)
    for column in spec.columns:
        if column not in known[about]:
            raise ConfigError(
                f"expectation {name!r}: found column {column!r}"
                f"{did_you_mean(column, known[about])}, expected one of "
                f"{', '.join(known[about])}"
            )
    return spec


def _choice(meta: object, name: str, default: _Choice) -> _Choice:
    found = _member(meta, name, str, str(default))
    try:
        return type(default)(found)
    except ValueError:
        expected = ", ".join(type(default))
        raise ConfigError(f"meta.{name}: found {found!r}, expected one of {expected}") from None


def _member(content: object, name: str, kind: type, default: object = None) -> Any:
    if not isinstance(content, dict):
        raise ConfigError(f"found {content!r:.80} where an object with {name!r} is expected")
    value = content.get(name, default)
    if not isinstance(value, kind):
        raise ConfigError(f"{name}: found {value!r:.80}, expected a JSON {_JSON_NAMES[kind]}")
    return value


_JSON_NAMES: Final[Mapping[type, str]] = {dict: "object", list: "array", str: "string"}
