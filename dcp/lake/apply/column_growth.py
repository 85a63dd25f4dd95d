"""Decides which columns documents get: types grow with the values that were seen. No Spark."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from typing import Final

import pyarrow as pa

from dcp.lake.apply.seen_values import NUMBERS, Seen, most_digits
from dcp.lake.config.contracts import MOST_DIGITS, column_name, refusal_of, same_name_key
from dcp.lake.tables.typed_columns import scalars_of

MOST_COLUMNS: Final = 1000
"""Further fields get no column. If names are data, a contract can say so (``.*``)."""

_NUMBER_TYPES: Final = (pa.int32(), pa.int64(), pa.decimal128(MOST_DIGITS, 0), pa.float64())
"""The types for the kinds in `NUMBERS`, from the narrowest to the widest."""


def grown(
    document: pa.StructType, seen: Seen, *, adds: bool = True, keeps_empty: bool = False
) -> pa.StructType:
    """Return the old columns, grown by the seen values.

    With ``adds``, new fields become columns and numbers widen. With ``keeps_empty``, the type also
    has the fields that never hold a value, as pyarrow reads them.
    """
    room = MOST_COLUMNS - len(scalars_of(document))
    return _Growth(room, adds, keeps_empty).of_object(document, seen)


@dataclass(slots=True)
class _Growth:
    room: int
    adds: bool
    keeps_empty: bool

    def of_object(self, known: pa.StructType, seen: Seen) -> pa.StructType:
        fields = {each.name: each for each in known}
        for name in fields.keys() & seen.fields.keys():
            field = fields[name]
            fields[name] = field.with_type(self.of_known(field.type, seen.fields[name]))
        taken = {same_name_key(column_name(each)) for each in known}
        # An object whose names are data may have more fields than fit, so it comes last.
        new = seen.spellings(taken).values() if self.adds else ()
        for spellings in sorted(new, key=lambda each: (_values(each[0][1]), each[0][0])):
            for name, each in spellings:
                if self.room <= 0 or name in fields or refusal_of(name) is not None:
                    continue
                # On a copy: a field that gets no type must not use up room.
                kind = replace(self).of_new(each)
                if kind is not None:
                    fields[name] = pa.field(name, kind)
                    self.room -= len(scalars_of(kind))
                    break
        return pa.struct([*fields.values(), *self.empty(fields, seen)])

    def empty(self, known: Collection[str], seen: Seen) -> Iterator[pa.Field]:
        for name, each in seen.fields.items() if self.keeps_empty else ():
            if self.room > 0 and name not in known and not _values(each):
                self.room -= 1
                yield pa.field(name, _empty_type(each))

    def of_known(self, known: pa.DataType, seen: Seen) -> pa.DataType:
        if pa.types.is_struct(known):
            return self.of_object(known, seen)
        if seen.elements is not None and pa.types.is_map(known):
            return pa.map_(pa.string(), self.of_known(known.item_type, seen.elements))
        if seen.elements is not None and pa.types.is_list(known):
            return pa.list_(self.of_known(known.value_type, seen.elements))
        return _widened(known, seen) if self.adds else known

    def of_new(self, seen: Seen) -> pa.DataType | None:
        kinds = seen.kinds.keys()
        if not kinds:
            return None
        if kinds == {"object"}:
            kind = self.of_object(pa.struct([]), seen)
            return kind if kind.num_fields else None
        if kinds == {"array"}:
            value = None if seen.elements is None else self.of_new(seen.elements)
            return None if value is None else pa.list_(value)
        if kinds == {"boolean"}:
            return pa.bool_()
        if kinds <= set(NUMBERS):
            return _number_type(seen, least=1)
        return pa.string()  # also for mixed kinds: a text holds any value


def _empty_type(seen: Seen) -> pa.DataType:
    if "array" in seen.kinds:
        return pa.list_(pa.null() if seen.elements is None else _empty_type(seen.elements))
    fields = [(name, _empty_type(each)) for name, each in seen.fields.items()]
    return pa.struct(fields) if "object" in seen.kinds else pa.null()


def _values(seen: Seen) -> int:
    if not seen.kinds.keys() <= {"object", "array"} or len(seen.kinds) > 1:
        return 1
    elements = 0 if seen.elements is None else _values(seen.elements)
    return elements + sum(map(_values, seen.fields.values()))


def _number_type(seen: Seen, least: int) -> pa.DataType:
    return _NUMBER_TYPES[
        max([least, *(NUMBERS.index(each) for each in seen.kinds if each in NUMBERS)])
    ]


def _widened(known: pa.DataType, seen: Seen) -> pa.DataType:
    """Return a type for a column's values and the seen numbers.

    A decimal would round numbers with more fraction digits, so those widen it as well.
    """
    if pa.types.is_integer(known):
        return _number_type(seen, _NUMBER_TYPES.index(known))
    if not pa.types.is_decimal(known):
        return known
    whole, scale = most_digits((known.precision - known.scale, known.scale), seen.digits)
    if whole + scale == known.precision and scale == known.scale:
        return known
    return pa.decimal128(MOST_DIGITS, scale) if whole + scale <= MOST_DIGITS else pa.float64()
