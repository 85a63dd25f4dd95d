"""Collects the kinds of values that JSON documents hold at each path. No Spark."""

import math
import re
from collections import Counter
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass, field
from decimal import Context, Decimal, DecimalException
from typing import Any, Final, Self

import pyarrow as pa

from dcp.lake.apply.json_documents import day_of, micros_of, partial_day_of
from dcp.lake.config.contracts import MOST_DIGITS, MOST_LEVELS, same_name_key
from dcp.lake.config.json_paths import FieldName

MOST_FIELDS: Final = 100_000
"""Further fields are ignored: objects whose names are data may have any number."""

NUMBERS: Final = ("int", "bigint", "decimal(38,0)", "double")
"""Kinds of numbers: integers by the narrowest type that holds them, and all other numbers."""

NUMERIC_TEXT: Final = "number in a text"
"""The kind of a text that is a JSON number; `00501` and `+49` are not."""

YEAR_TEXT: Final = "year or number in a text"
"""The kind of a text of four digits, which may be a year or a JSON number."""

PARTIAL_DATE: Final = "partial date"

BEYOND_DOUBLE: Final = "number beyond a double"
"""The kind of a number that only a text or a decimal can hold."""

_NUMERIC_TEXT: Final = re.compile(
    r"-?(?:0|[1-9][0-9]{0,99})(?:\.[0-9]{1,99})?(?:[eE][+-]?[0-9]{1,3})?"
)

_YEAR_TEXT: Final = re.compile("[1-9][0-9]{3}")

_LARGEST: Final = Context(prec=1000)

Digits = tuple[int, int]
"""The digits of a number before and after the decimal point."""

ValuePath = tuple[str, ...]
"""A value's path: the key of its document, and the steps of its path below ``$``."""


@dataclass(slots=True)
class Seen:
    kinds: Counter[str] = field(default_factory=Counter)
    digits: Digits = (0, 0)
    """The most digits that a number has before, and after, the decimal point."""
    text_digits: Digits = (0, 0)
    examples: dict[str, ValuePath] = field(default_factory=dict)
    """By kind, the path of the first such value that `add` got with a path."""
    values: int = 0
    """The number of values that are not null."""
    fields: dict[str, Self] = field(default_factory=dict)
    elements: Self | None = None
    """The elements of arrays; if `names_are_data`, the values of objects."""
    names_are_data: bool = False
    room: list[int] = field(default_factory=lambda: [MOST_FIELDS])
    """The number of fields that may still be added. All paths of a document share this list."""

    def expect(self, kind: pa.DataType) -> Self:
        if pa.types.is_struct(kind):
            for each in kind:
                self._field(each.name).expect(each.type)
        elif pa.types.is_list(kind) or pa.types.is_map(kind):
            self.names_are_data = pa.types.is_map(kind)
            self._element().expect(kind.item_type if self.names_are_data else kind.value_type)
        return self

    def add(self, value: Any, level: int = 1, path: ValuePath | None = None) -> None:
        """Add a value. Without ``path``, it keeps no example."""
        if value is None:
            return
        self.values += 1
        kind = self._kind(value, level)
        self.kinds[kind] += 1
        if path is not None:
            self.examples.setdefault(kind, path)
        if kind == "object":
            for name, each in value.items():
                at = None if path is None else (*path, str(FieldName(name)))
                self._field(name).add(each, level + 1, at)
        elif kind == "array" and not self.names_are_data:
            for number, each in enumerate(value):
                at = None if path is None else (*path, f"[{number}]")
                self._element().add(each, level + 1, at)

    def _kind(self, value: Any, level: int) -> str:
        match value:
            case dict() | list() if level > MOST_LEVELS:
                return "string"
            case dict():
                return "object"
            case list():
                return "array"
            case bool():
                return "boolean"
            case bytes():
                return self._number_kind(value)
            case _ if _NUMERIC_TEXT.fullmatch(value):
                _, digits = _digits(Decimal(value))
                self.text_digits = most_digits(self.text_digits, digits)
                return YEAR_TEXT if _YEAR_TEXT.fullmatch(value) else NUMERIC_TEXT
            case _:
                return _text_kind(value)

    def count(self, values: pa.Array) -> None:
        self.values += len(values) - values.null_count
        # `flatten` respects nulls of the parent, unlike `field`.
        if pa.types.is_struct(values.type):
            for each, inner in zip(values.type, values.flatten(), strict=True):
                self._field(each.name).count(inner)
        elif pa.types.is_list(values.type):
            self._element().count(values.flatten())

    def merge(self, other: Self) -> None:
        self.kinds += other.kinds
        self.examples = other.examples | self.examples
        self.values += other.values
        self.digits = most_digits(self.digits, other.digits)
        self.text_digits = most_digits(self.text_digits, other.text_digits)
        for name, each in other.fields.items():
            self._field(name).merge(each)
        if other.elements is not None:
            self._element().merge(other.elements)

    def spellings(self, without: Collection[str] = ()) -> dict[str, list[tuple[str, Self]]]:
        """Return fields by the name that Spark compares, with the most frequent spelling first.

        ``without`` are compared names (`same_name_key`) to leave out.
        """
        found: dict[str, list[tuple[str, Self]]] = {}
        for name, each in self.fields.items():
            if (key := same_name_key(name)) not in without:
                found.setdefault(key, []).append((name, each))
        for names in found.values():
            names.sort(key=lambda each: (-each[1].values, each[0]))
        return found

    def _field(self, name: str) -> Self:
        """Return the field of a name; if there is no room, a new one that is not kept."""
        if self.names_are_data:
            return self._element()
        found = self.fields.get(name)
        if found is None:
            found = type(self)(room=self.room)
            if self.room[0] > 0:
                self.room[0] -= 1
                self.fields[name] = found
        return found

    def _element(self) -> Self:
        if self.elements is None:
            self.elements = type(self)(room=self.room)
        return self.elements

    def _number_kind(self, text: bytes) -> str:
        try:
            number, digits = _digits(Decimal(text.decode()))
        except DecimalException:
            return _fraction_kind(text)
        self.digits = most_digits(self.digits, digits)
        is_whole = digits[0] <= MOST_DIGITS and text.lstrip(b"-").isdigit()
        return _whole_kind(int(number)) if is_whole else _fraction_kind(text)


_READERS: Final = (("date", day_of), ("timestamp", micros_of), (PARTIAL_DATE, partial_day_of))


def _text_kind(text: str) -> str:
    if text[:4].isdecimal():  # every day and time begins so
        for kind, read in _READERS:
            with suppress(ValueError):
                read(text)
                return kind
    return "string"


def _fraction_kind(text: bytes) -> str:
    return "double" if math.isfinite(float(text)) else BEYOND_DOUBLE


def most_digits(one: Digits, two: Digits) -> Digits:
    return max(one[0], two[0]), max(one[1], two[1])


def _digits(given: Decimal) -> tuple[Decimal, Digits]:
    """Return a number without trailing zeros, and its digits before and after the point."""
    number = given.normalize(_LARGEST)
    _, digits, exponent = number.as_tuple()
    assert isinstance(exponent, int), "JSON has no infinity"
    return number, (max(0, len(digits) + exponent) if number else 0, max(0, -exponent))


def _whole_kind(number: int) -> str:
    if -(2**31) <= number < 2**31:
        return "int"
    return "bigint" if -(2**63) <= number < 2**63 else "decimal(38,0)"
