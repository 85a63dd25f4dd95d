"""Derives rows and JSON objects of a record from its dataclass, and reads them back.

A record has three forms: `plain` is JSON, `brief` is JSON without the values that are defaults, and
`row_of` is a row of a table.

A field is stored under its own name, or under the text that marks it (``Annotated[int, "bytes"]``).
No name begins with an asterisk, as some marks do. The fields of a field with the mark `SPREAD`
stand beside the others. A property is stored, too, if a text marks its result; it is not read back.
A record of one field, without such a property, is stored as that field. Unsigned
64-bit values are exact: integers in JSON, DECIMAL(20,0) in rows. Times are texts in JSON.
"""

from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from datetime import datetime
from enum import Enum
from functools import cache
from math import isfinite
from types import NoneType, UnionType
from typing import Annotated, Any, Final, TypeVar, Union, get_args, get_origin, get_type_hints

_T = TypeVar("_T")

SPREAD: Final = "*"
"""Marks a field whose own fields stand beside the record's other fields."""

UNSTORED: Final = ""
"""Marks a field that no form of the record has."""

STORED_ONLY: Final = "*stored"
"""Marks a field that `row_of` and `brief` have, and `plain` lacks."""

TOLD_ONLY: Final = "*told"
"""Marks a field that `plain` has, and `row_of` and `brief` lack."""


class Record:
    __slots__ = ()

    def to_json(self) -> dict[str, Any]:
        told: dict[str, Any] = plain(self)
        return told


@dataclass(frozen=True, slots=True)
class _Form:
    lacks: str
    """It lacks the fields with this mark."""
    has_times: bool = False
    """Times are `datetime`, not texts."""
    has_defaults: bool = True


_PLAIN: Final = _Form(STORED_ONLY)
_ROW: Final = _Form(TOLD_ONLY, has_times=True)
_BRIEF: Final = _Form(TOLD_ONLY, has_defaults=False)


@cache
def stored_fields(kind: type) -> tuple[tuple[str, str, Any], ...]:
    """Return attribute, name and annotation of the fields that `read` reads."""
    hints = get_type_hints(kind, include_extras=True)
    return tuple(
        (each.name, _name(each.name, hints[each.name]), hints[each.name])
        for each in fields(kind)
        if marked(hints[each.name], str) != UNSTORED
    )


@cache
def _members(kind: type, lacks: str) -> tuple[tuple[str, str, Any], ...]:
    """Return the same of the fields and properties of a form."""
    properties = (
        (attribute, each.fget.__annotations__["return"])
        for attribute, each in vars(kind).items()
        if isinstance(each, property)
    )
    of_properties = (
        (attribute, _name(attribute, annotation), annotation)
        for attribute, annotation in properties
        if marked(annotation, str)
    )
    found = (*stored_fields(kind), *of_properties)
    return tuple(each for each in found if marked(each[2], str) != lacks)


def row_members(kind: type) -> tuple[tuple[str, Any], ...]:
    """Return name and annotation of the columns of a record's rows; a name may be `SPREAD`."""
    return tuple((name, annotation) for _, name, annotation in _members(kind, _ROW.lacks))


@cache
def _is_bare(kind: type) -> bool:
    """Return whether a record is stored as its only field."""
    return len(_members(kind, UNSTORED)) == 1


@cache
def _defaults(kind: type) -> Mapping[str, Any]:
    return {each.name: default_of(each) for each in fields(kind)}


def default_of(of: Field[Any]) -> Any:
    """Return a field's default; MISSING if there is none."""
    return of.default if of.default_factory is MISSING else of.default_factory()


def _name(attribute: str, annotation: Any) -> str:
    mark: str | None = marked(annotation, str)
    return attribute if mark in (None, STORED_ONLY, TOLD_ONLY) else mark


def marked(annotation: Any, kind: type) -> Any:
    for each in (annotation, *get_args(annotation)):
        for mark in getattr(each, "__metadata__", ()):
            if isinstance(mark, kind):
                return mark
    return None


def bare(annotation: Any) -> tuple[Any, bool]:
    """Return a field's type without marks and None, and whether it may be None."""
    if get_origin(annotation) is Annotated:
        annotation = get_args(annotation)[0]
    if get_origin(annotation) not in (Union, UnionType):
        return annotation, False
    [kind] = (each for each in get_args(annotation) if each is not NoneType)
    return bare(kind)[0], True


def plain(value: Any) -> Any:
    """Return a record, or a part of one, in the form of JSON."""
    return _told(value, _PLAIN)


def row_of(record: Any) -> dict[str, Any]:
    row: dict[str, Any] = _told(record, _ROW)
    return row


def brief(record: Any) -> dict[str, Any]:
    """Return the JSON of a record to keep; `read` gives it the defaults that it lacks."""
    told: dict[str, Any] = _told(record, _BRIEF)
    return told


def _told(value: Any, form: _Form) -> Any:
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, datetime):
        return value if form.has_times else value.isoformat()
    if isinstance(value, Mapping):
        return {str(key): _told(each, form) for key, each in value.items()}
    if isinstance(value, tuple | list):
        return [_told(each, form) for each in value]
    if not is_dataclass(value) or isinstance(value, type):
        return value
    told: dict[str, Any] = {}
    members, is_bare = _members(type(value), form.lacks), _is_bare(type(value))
    defaults = {} if form.has_defaults else _defaults(type(value))
    for attribute, name, _ in members:
        each = getattr(value, attribute)
        if attribute in defaults and each == defaults[attribute] and not is_bare:
            continue
        found = _told(each, form)
        told |= (found or {}) if name == SPREAD else {name: found}
    return next(iter(told.values())) if is_bare else told


def read(kind: type[_T], told: Any) -> _T:
    """Read a record from a row or a JSON object of it.

    A missing field gets its default, and so does null in a field that cannot be None.

    Raises:
        TypeError, ValueError: it is no such record.
    """
    annotation: Any = kind
    found: _T = _reader(annotation)(told)
    return found


@cache
def _reader(annotation: Any) -> Callable[[Any], Any]:
    kind, may_be_none = bare(annotation)
    of_some = _reader_of(kind)
    return of_some if not may_be_none else lambda told: None if told is None else of_some(told)


def _reader_of(kind: Any) -> Callable[[Any], Any]:
    if is_dataclass(kind):
        return _record_reader(kind)
    if get_origin(kind) is tuple:
        of_each = _reader(get_args(kind)[0])
        return lambda told: tuple(map(of_each, told))
    if get_origin(kind) in (dict, Mapping):
        of_key, of_value = map(_reader, get_args(kind))
        return lambda told: {of_key(key): of_value(each) for key, each in told.items()}
    if isinstance(kind, type) and issubclass(kind, Enum):
        return kind
    return _READERS.get(kind, lambda told: told)


def _whole_number(told: Any) -> int:
    if isinstance(told, bool) or (isinstance(told, float) and not told.is_integer()):
        raise ValueError(f"found {told}, expected a whole number")
    number = int(told)
    if not -(2**63) <= number < 2**64:
        raise ValueError("found a number of more than 64 bits")
    return number


def _number(told: Any) -> float:
    # A whole number of more than 1,024 bits is no float.
    if isinstance(told, int) and not isinstance(told, bool):
        return _whole_number(told)
    if not isinstance(told, float) or not isfinite(told):
        raise ValueError(f"found {told!r}, expected a finite number")
    return told


def _flag(told: Any) -> bool:
    if not isinstance(told, bool):
        raise TypeError(f"found {told!r}, expected true or false")
    return told


def _text(told: Any) -> str:
    if not isinstance(told, str):
        raise TypeError(f"found {told!r}, expected a text")
    return told


def _time(told: Any) -> datetime:
    found = datetime.fromisoformat(told) if isinstance(told, str) else told
    if not isinstance(found, datetime):
        raise TypeError(f"found {told!r}, expected a time")
    if found.tzinfo is None:
        raise ValueError(f"found {told!r}, expected a time with its zone")
    return found


_READERS: Final[Mapping[Any, Callable[[Any], Any]]] = {
    bool: _flag,
    datetime: _time,
    int: _whole_number,
    float: _number,
    str: _text,
}


def _record_reader(kind: Any) -> Callable[[Any], Any]:
    columns = stored_fields(kind)
    defaults = {name for name, each in _defaults(kind).items() if each is not MISSING}
    parts = [
        (attribute, name, _reader(annotation), attribute in defaults and not bare(annotation)[1])
        for attribute, name, annotation in columns
    ]

    def reads(told: Any) -> Any:
        if _is_bare(kind):
            told = {columns[0][1]: told}
        if not isinstance(told, Mapping):
            raise TypeError(f"found {type(told).__name__}, expected an object")
        values = {}
        for attribute, name, of_field, has_default in parts:
            found = told if name == SPREAD else told.get(name, MISSING)
            if found is MISSING or (found is None and has_default):
                continue
            values[attribute] = of_field(found)
        return kind(**values)

    return reads
