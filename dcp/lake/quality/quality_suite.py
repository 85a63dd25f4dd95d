"""Data-quality suites as data: a Great Expectations suite in JSON, read and checked.

Two things are ours, both in the places that the format leaves to its users: ``meta.columns`` of
the suite maps the name of a further true-or-false column to its SQL expression, and ``meta`` of an
expectation holds ``name`` (what a report calls it) and ``says`` (the rule in words).
``docs/quality.md`` shows how to add to a suite.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from dcp.errors import ConfigError, SetupError
from dcp.suggestions import did_you_mean
from dcp.wire.json_tree import json_tree

REPLICA_SUITE: Final = "replica_suite"


@dataclass(frozen=True, slots=True)
class ExpectationSpec:
    """One expectation: its Great Expectations type and arguments, and what reports call it."""

    name: str
    says: str
    type: str
    kwargs: Mapping[str, Any]

    def __post_init__(self) -> None:
        """Check that there is such a type, and that it takes these arguments."""
        try:
            from great_expectations.compatibility.pydantic import ValidationError
            from great_expectations.expectations import registry
        except ModuleNotFoundError as error:
            raise SetupError(
                f"Great Expectations, which checks the tables, is missing (no module {error.name}):"
                " run `pip install 'dcplake[quality]'`."
            ) from None

        known = registry.list_registered_expectation_implementations()
        if self.type not in known:
            raise ConfigError(
                f"expectation {self.name!r}: found type {self.type!r}"
                f"{did_you_mean(self.type, known)}, expected one of Great Expectations'"
            )
        try:
            registry.get_expectation_impl(self.type)(**self.kwargs)
        except ValidationError as error:
            told = "; ".join(_told(each) for each in error.errors())
            raise ConfigError(f"expectation {self.name!r}: kwargs of {self.type}: {told}") from None


def _told(error: Mapping[str, Any]) -> str:
    """Return what is wrong with one argument, or with all of them together."""
    name = error["loc"][0]
    return str(error["msg"]) if name == "__root__" else f"{name}: {error['msg']}"


@dataclass(frozen=True, slots=True)
class QualitySuite:
    """A suite: expectations, and the SQL of the columns that it adds to the table's own."""

    name: str
    columns: Mapping[str, str]
    expectations: tuple[ExpectationSpec, ...]

    def __post_init__(self) -> None:
        names = [expectation.name for expectation in self.expectations]
        if not names:
            raise ConfigError(f"suite {self.name!r}: found no expectation, expected at least one")
        if twice := {name for name in names if names.count(name) > 1}:
            raise ConfigError(
                f"suite {self.name!r}: found {', '.join(sorted(twice))} more than once, "
                "expected each expectation's name once"
            )


def load_suite(source: Path | None = None) -> QualitySuite:
    """Return the suite in the file ``source``, or the installed one for replica tables.

    Raises:
        ConfigError: the file cannot be read or is no such suite; names what and where.

    """
    resource = files("dcp.schemas") / f"{REPLICA_SUITE}.json" if source is None else source
    try:
        return parse_suite(json_tree(resource.read_bytes()))
    except OSError as error:
        raise ConfigError(f"{resource}: cannot read the suite: {error.strerror}") from None
    except ValueError as error:
        raise ConfigError(f"{resource}: found no valid JSON: {error}") from None
    except ConfigError as error:
        raise ConfigError(f"{resource}: {error}") from None


def parse_suite(content: object) -> QualitySuite:
    """Return the suite that ``content``, decoded JSON, describes.

    Raises:
        ConfigError: a part is missing, or of the wrong type.

    """
    columns = _member(_member(content, "meta", dict, {}), "columns", dict, {})
    for name, expression in columns.items():
        if not (name.isidentifier() and isinstance(expression, str)):
            raise ConfigError(f"meta.columns: found {name!r}, expected names with SQL expressions")
    expectations = _member(content, "expectations", list)
    return QualitySuite(
        name=_member(content, "name", str),
        columns=MappingProxyType(columns),
        expectations=tuple(map(_parse_expectation, expectations)),
    )


def _parse_expectation(content: object) -> ExpectationSpec:
    meta = _member(content, "meta", dict)
    kwargs = _member(content, "kwargs", dict)
    return ExpectationSpec(
        name=_member(meta, "name", str),
        says=_member(meta, "says", str),
        type=_member(content, "type", str),
        kwargs=MappingProxyType(kwargs),
    )


def _member(content: object, name: str, kind: type, default: object = None) -> Any:
    if not isinstance(content, dict):
        raise ConfigError(f"found {content!r:.80} where an object with {name!r} is expected")
    value = content.get(name, default)
    if not isinstance(value, kind):
        raise ConfigError(f"{name}: found {value!r:.80}, expected a JSON {_JSON_NAMES[kind]}")
    return value


_JSON_NAMES: Final[Mapping[type, str]] = {dict: "object", list: "array", str: "string"}
