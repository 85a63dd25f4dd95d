"""Makes typed columns from JSON documents. No Spark.

The columns depend on the document and its contract only. An apply can therefore compute them for
any row that it writes, including rows that a rollback brings back.

`Rules` defines the result, one document at a time. `Together` lets pyarrow read many documents at
a tenth of the cost, with the same result. If some misfit, smaller parts are tried, then `Rules`.
"""

import pickle
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from decimal import ROUND_HALF_UP, Context, Decimal
from functools import partial
from itertools import count
from typing import Any, Final, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from dcp.lake.apply.column_growth import grown
from dcp.lake.apply.date_arrays import days_of, require_partial_days, times_of
from dcp.lake.apply.json_documents import (
    DAY_SECONDS,
    FIRST_SECOND,
    LAST_SECOND,
    day_of,
    holds_value,
    looks_like_object,
    micros_of,
    parse_object,
    partial_day_of,
    text_of,
    whole_match,
)
from dcp.lake.apply.seen_values import Seen
from dcp.lake.config.contracts import SCALARS, ContractMode, column_name, type_name
from dcp.lake.config.json_paths import FieldName, Step, Wildcard, path_text
from dcp.lake.store.lake_store import LakeStore
from dcp.lake.store.merge import MadeColumns, Merge
from dcp.lake.tables.schema import TYPED
from dcp.lake.tables.typed_columns import (
    DOC,
    VIOLATIONS,
    TypedColumns,
    scalars_of,
    table_type,
)
from dcp.wire.vocabulary import Datatype

MOST_VIOLATIONS: Final = 1000
"""The most violations that are recorded for one document."""

_FOUND_MAX: Final = 200
"""The most characters of a value that a violation shows."""

_AT_ONCE: Final = 256
"""The documents that are read together: one call of pyarrow costs as much as 50 small documents."""
_ONE_BY_ONE: Final = 16
"""A part of at most so many documents is read one by one if they do not all fit."""
_PARTS: Final = 4

_LARGEST: Final = sys.float_info.max

_DECIMAL: Final = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_ONLY_PYARROW: Final = (b"NaN", b"Inf")
"""pyarrow reads these as numbers, but JSON does not allow them."""

_TIME: Final = SCALARS["timestamp"]
_MILLIS: Final = SCALARS["timestamp_ms"]
_PARTIAL_DATE: Final = SCALARS["partial_date"]

_SEEN: Final = pa.schema([("seen", pa.binary())])

_Read = TypeVar("_Read")
_Kind = TypeVar("_Kind")
_Number = TypeVar("_Number", int, float)


def typed_arrays(columns: TypedColumns, datatypes: pa.Array, values: pa.Array) -> list[pa.Array]:
    """Return the columns ``doc`` and ``violations`` for rows, in their order."""
    doc, kind = table_type(columns.document), TYPED.field(VIOLATIONS).type
    together, rules = Together(columns), Rules(columns)
    candidates = json_objects(datatypes, values)
    objects = [each for each in candidates if each is not None]
    made, told = [pa.array([], doc)], [pa.array([], kind)]
    for part, found in in_parts(objects, together):
        if found is not None:
            made.append(found)
            told.append(pa.nulls(len(part), kind))
            continue
        contents = [parse_object(each) for each in part]
        documents, violations = zip(*map(rules.of_document, part, contents), strict=True)
        fitting = zip(contents, violations, strict=True)
        fit = [each for each, misfits in fitting if misfits is None]
        together.learn(fit)
        if len(fit) == len(part):  # all are valid: they have a time format that pyarrow lacks
            together.read_times_otherwise()
        made.append(pa.array(documents, doc))
        told.append(pa.array(violations, kind))
    if len(objects) == len(candidates):
        return [pa.concat_arrays(made), pa.concat_arrays(told)]
    # Rows that are no objects get null in ``doc``. They are appended, then moved to their places.
    rows = zip(candidates, datatypes.to_pylist(), values.to_pylist(), strict=True)
    others = [rules.no_object(flag, value or b"") for each, flag, value in rows if each is None]
    made.append(pa.nulls(len(others), doc))
    told.append(pa.array(others, kind))
    first, second = count(), count(len(objects))
    order = pa.array([next(second if each is None else first) for each in candidates], pa.int64())
    return [pa.concat_arrays(each).take(order) for each in (made, told)]


def see_documents(columns: TypedColumns, batches: Iterable[pa.RecordBatch]) -> Seen:
    together = Together(columns, evolves=True)
    for batch in batches:
        objects = [each for each in json_objects(batch["datatype"], batch["value"]) if each]
        for part, found in in_parts(objects, together):
            if found is None:
                together.learn([parse_object(each) for each in part])
                together.read_times_otherwise()
    return together.seen


def made_columns(columns: TypedColumns) -> MadeColumns:
    make = partial(typed_arrays, columns)
    return MadeColumns(columns.schema, make, {DOC: columns.fingerprint})


def see_written(store: LakeStore, table: str, merge: Merge, columns: TypedColumns) -> Seen:
    def see(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        seen = pickle.dumps(see_documents(columns, batches))
        yield pa.RecordBatch.from_arrays([pa.array([seen], pa.binary())], schema=_SEEN)

    seen = Seen().expect(columns.document)
    for (each,) in store.map_written(table, merge, see, _SEEN).to_batches():
        for part in each.to_pylist():
            seen.merge(pickle.loads(part))
    return seen


def json_objects(datatypes: pa.Array, values: pa.Array) -> list[bytes | None]:
    """Return each value that may be a JSON object; None for the others."""
    return [
        value
        if datatype == Datatype.JSON and value is not None and looks_like_object(value)
        else None
        for datatype, value in zip(datatypes.to_pylist(), values.to_pylist(), strict=True)
    ]


def in_parts(
    documents: Sequence[bytes], read: Callable[[Sequence[bytes]], _Read | None]
) -> Iterator[tuple[Sequence[bytes], _Read | None]]:
    """Yield parts of the documents with ``read``'s result; None: read the part one by one."""
    waiting = _parts(documents, _AT_ONCE)
    while waiting:
        part = waiting.pop()
        found = read(part)
        if found is None and len(part) > _ONE_BY_ONE:
            waiting += _parts(part, -(-len(part) // _PARTS))
        else:
            yield part, found


def _parts(documents: Sequence[bytes], size: int) -> list[Sequence[bytes]]:
    # In reverse order, because the caller pops parts from the end.
    return [documents[begin : begin + size] for begin in range(0, len(documents), size)][::-1]


def _read_together(
    documents: Sequence[bytes], schema: pa.Schema, unexpected: str
) -> pa.RecordBatch | None:
    """Let pyarrow read documents that look like objects; None if it cannot read all of them.

    Each document begins with ``{`` and ends with ``}``. Text cut within one document can therefore
    not go on in the next one.
    """
    joined = b"\n".join(documents)
    # pyarrow splits documents at newlines. JSON allows a tab wherever it allows a newline.
    if joined.count(b"\n") >= len(documents):
        joined = b"\n".join(each.replace(b"\n", b"\t") for each in documents)
    if any(number in joined for number in _ONLY_PYARROW):
        return None
    try:
        joined.decode()
        table = pj.read_json(
            pa.BufferReader(joined),
            pj.ReadOptions(use_threads=False, block_size=len(joined) + 1),
            pj.ParseOptions(explicit_schema=schema, unexpected_field_behavior=unexpected),
        )
    except (ValueError, pa.ArrowException):
        return None
    # One block gives one batch. More rows mean that a value contains several objects.
    return table.to_batches()[0] if table.num_rows == len(documents) else None


def _pyarrow_type(kind: pa.DataType, times_are_texts: bool) -> pa.DataType:
    """Return the type that pyarrow reads from JSON: it reads no dates."""
    if pa.types.is_struct(kind):
        fields = [(each.name, _pyarrow_type(each.type, times_are_texts)) for each in kind]
        return pa.struct(fields)
    if pa.types.is_list(kind):
        return pa.list_(_pyarrow_type(kind.value_type, times_are_texts))
    if kind == _MILLIS:
        return pa.int64()
    is_text = pa.types.is_date(kind) or kind == _PARTIAL_DATE
    is_text |= times_are_texts and kind == _TIME
    return pa.string() if is_text else kind


class Together:
    """Reads many documents at once, if all of them fit their columns.

    A contract may report fields without a column. Then this learns from documents that were read
    one by one which fields never hold a value. With ``evolves`` it also learns new columns.
    """

    def __init__(self, columns: TypedColumns, *, evolves: bool = False) -> None:
        self.seen = Seen().expect(columns.document)
        self._columns, self._evolves = columns, evolves
        self._is_strict = columns.mode.tells_new_fields
        self._unexpected = "error" if self._is_strict else "ignore"
        self._learnt, self._next = 0, 1
        self._has_times = _TIME in scalars_of(columns.document).values()
        # pyarrow reads no maps from JSON. Fields with maps are read one by one.
        self._walks = {
            each.name: _of_type(
                each.type, (FieldName(each.name),), is_strict=columns.mode.tells_new_fields
            )
            for each in columns.document
            if _has_map(each.type)
        }
        self._expect(columns.document)

    def _expect(self, document: pa.StructType) -> None:
        plain = [each for each in document if each.name not in self._walks]
        self._kind = document if self._evolves else self._columns.document
        self._stored: pa.StructType = table_type(self._kind)
        self._schemas = [
            pa.schema([each.with_type(_pyarrow_type(each.type, text)) for each in plain])
            for text in ((False, True) if self._has_times else (False,))
        ]

    def __call__(self, documents: Sequence[bytes]) -> pa.StructArray | None:
        """Return the column ``doc`` for documents that look like objects; None if one misfits."""
        batch = _read_together(documents, self._schemas[0], self._unexpected)
        parsed = [parse_object(each) for each in documents] if self._walks and batch else []
        contents = [each for each in parsed if each is not None]
        if batch is None or len(contents) < len(parsed):
            return None
        notes: _Notes = {}
        mapped = {
            name: [walk(each.get(name), notes) for each in contents]
            for name, walk in self._walks.items()
        }
        if notes:
            return None
        try:
            columns = [
                pa.array(mapped[each.name], stored.type)
                if each.name in mapped
                else _fitted(batch[each.name], each.type, stored.type)
                for each, stored in zip(self._kind, self._stored, strict=True)
            ]
        except ValueError:
            return None
        for name in self._walks if self._evolves else ():
            for each in contents:
                self.seen.fields[name].add(each.get(name), 2)
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            if self._evolves and name in self.seen.fields:
                self.seen.fields[name].count(column)
        return pa.StructArray.from_arrays(columns, fields=list(self._stored))

    def read_times_otherwise(self) -> None:
        """Switch between pyarrow's own parser of times and reading times as texts.

        pyarrow's parser is cheaper but knows the usual format only.
        """
        self._schemas.reverse()

    def learn(self, contents: Sequence[dict[str, Any] | None]) -> None:
        """Expect in further documents the fields of documents that were read one by one.

        It learns each time their number has doubled: objects whose names are data have many fields.
        """
        if not self._is_strict:
            return
        for each in contents:
            self.seen.add(each)
        self._learnt += len(contents)
        if self._learnt >= self._next:
            self._next = 2 * self._learnt
            known = self._columns.document
            self._expect(grown(known, self.seen, adds=self._evolves, keeps_empty=True))


def _has_map(kind: pa.DataType) -> bool:
    if pa.types.is_struct(kind):
        return any(_has_map(each.type) for each in kind)
    return bool(pa.types.is_map(kind)) or (pa.types.is_list(kind) and _has_map(kind.value_type))


def _fitted(found: pa.Array, kind: pa.DataType, stored: pa.DataType) -> pa.Array:
    """Convert pyarrow's values to the type that the table stores.

    It raises ValueError if a value does not fit.
    """
    if pa.types.is_struct(kind):
        columns = [
            _fitted(found.field(each.name), each.type, column.type)
            for each, column in zip(kind, stored, strict=True)
        ]
        return pa.StructArray.from_arrays(columns, fields=list(stored), mask=found.is_null())
    if pa.types.is_list(kind):
        values = _fitted(found.values, kind.value_type, stored.value_type)
        return pa.ListArray.from_arrays(found.offsets, values, stored, mask=found.is_null())
    if pa.types.is_decimal(kind):
        found.validate(full=True)  # pyarrow accepts too many whole digits if the fraction is short
        return found
    if pa.types.is_floating(kind):
        return _all_within(found, found, -_LARGEST, _LARGEST)
    if pa.types.is_date(kind):
        found = days_of(found)
        days = (FIRST_SECOND // DAY_SECONDS, LAST_SECOND // DAY_SECONDS)
        return _all_within(found, found.view(pa.int32()), *days)
    if kind == _MILLIS:
        millis = (FIRST_SECOND * 1000, LAST_SECOND * 1000 + 999)
        return _all_within(found, found, *millis).cast(kind).cast(stored)
    if pa.types.is_timestamp(kind):
        found = times_of(found) if pa.types.is_string(found.type) else found
        micros = (FIRST_SECOND * 1_000_000, LAST_SECOND * 1_000_000 + 999_999)
        return _all_within(found, found.view(pa.int64()), *micros)
    if kind == _PARTIAL_DATE:
        require_partial_days(found)
    return found


def _all_within(values: pa.Array, numbers: pa.Array, least: float, most: float) -> pa.Array:
    found = pc.min_max(numbers).as_py()
    # `min` is None if all values are null; 0 is always within the limits.
    _within(least, found["min"] or 0, most)
    _within(least, found["max"] or 0, most)
    return values


_Notes = dict[str, tuple[Any, str]]
"""By path: the first value that does not fit, and the expected type."""

_Walk = Callable[[Any, _Notes], Any]
"""Converts a value. If the value does not fit, it returns None and notes the misfit."""


class Rules:
    def __init__(self, columns: TypedColumns) -> None:
        self._tells = columns.mode is not ContractMode.IGNORE
        self._walk = _of_type(columns.document, (), is_strict=columns.mode.tells_new_fields)

    def no_object(self, datatype: int | None, value: bytes) -> list[dict[str, str]] | None:
        found = f"{len(value)} bytes that are no JSON"
        if datatype == Datatype.JSON:
            found = value[: 4 * _FOUND_MAX].decode(errors="replace")
        return self._told({"$": (found, "a JSON object")})

    def of_document(
        self, document: bytes, content: dict[str, Any] | None
    ) -> tuple[dict[str, Any] | None, list[dict[str, str]] | None]:
        if content is None:
            return None, self.no_object(Datatype.JSON, document)
        notes: _Notes = {}
        return self._walk(content, notes), self._told(notes)

    def _told(self, notes: _Notes) -> list[dict[str, str]] | None:
        if not notes or not self._tells:
            return None
        return [
            {"path": path, "found": text_of(found)[:_FOUND_MAX], "expected": expected}
            for path, (found, expected) in notes.items()
        ]


def _of_type(kind: pa.DataType, steps: tuple[Step, ...], *, is_strict: bool) -> _Walk:
    """Return a function that converts values; with ``is_strict`` it also notes unknown fields."""
    leaves = {path: type_name(each) for path, each in scalars_of(kind, steps).items()}
    make = _maker(kind, steps, is_strict=is_strict)

    def walk(value: Any, notes: _Notes) -> Any:
        try:
            return None if value is None else make(value, notes)
        except (ValueError, ArithmeticError):
            for path, expected in leaves.items():
                _note(notes, path, value, expected)
            return None

    return walk


def _note(notes: _Notes, path: str, found: Any, expected: str) -> None:
    if len(notes) < MOST_VIOLATIONS:
        notes.setdefault(path, (found, expected))


def _maker(kind: pa.DataType, steps: tuple[Step, ...], *, is_strict: bool) -> _Walk:
    """Return a function that converts values other than null, and raises an error on a misfit."""
    if pa.types.is_struct(kind):
        walks = {
            each.name: _of_type(each.type, (*steps, FieldName(each.name)), is_strict=is_strict)
            for each in kind
        }
        columns = [(column_name(each), each.name, walks[each.name]) for each in kind]

        def make_object(value: Any, notes: _Notes) -> Any:
            content = _a(dict, value)
            made = {column: walk(content.get(name), notes) for column, name, walk in columns}
            for name, each in content.items() if is_strict else ():
                if name not in walks and holds_value(each):
                    _note(notes, path_text((*steps, FieldName(name))), each, "no such field")
            return made

        return make_object
    if pa.types.is_list(kind):
        element = _of_type(kind.value_type, (*steps, Wildcard.ELEMENTS), is_strict=is_strict)
        return lambda value, notes: [element(each, notes) for each in _a(list, value)]
    if pa.types.is_map(kind):
        item = _of_type(kind.item_type, (*steps, Wildcard.VALUES), is_strict=is_strict)
        return lambda value, notes: [
            (name, item(each, notes)) for name, each in _a(dict, value).items()
        ]
    scalar = _scalar(kind)
    return lambda value, _: scalar(value)


def _scalar(kind: pa.DataType) -> Callable[[Any], Any]:
    if pa.types.is_decimal(kind):
        digits = Context(prec=kind.precision, rounding=ROUND_HALF_UP)
        unit = Decimal(1).scaleb(-kind.scale)

        def quantized(value: Any) -> Decimal:
            is_number = isinstance(value, bytes)
            text = value.decode() if is_number else whole_match(_DECIMAL, _a(str, value))[0]
            # It raises InvalidOperation if there are too many digits before the point.
            return Decimal(text).quantize(unit, context=digits)

        return quantized
    if pa.types.is_integer(kind):
        most = 2 ** (kind.bit_width - 1)
        return lambda value: _within(-most, int(_a(bytes, value)), most - 1)
    if pa.types.is_floating(kind):
        return lambda value: _within(-_LARGEST, float(_a(bytes, value)), _LARGEST)
    if pa.types.is_boolean(kind):
        return lambda value: _a(bool, value)
    if pa.types.is_date(kind):
        return lambda value: day_of(_a(str, value))
    if kind == _PARTIAL_DATE:
        return lambda value: partial_day_of(_a(str, value))
    if pa.types.is_timestamp(kind):
        return partial(_micros, 1000 if kind == _MILLIS else 1)
    return text_of


def _a(kind: type[_Kind], value: Any) -> _Kind:
    if not isinstance(value, kind):
        raise ValueError("a value of another kind")
    return value


def _within(least: float, value: _Number, most: float) -> _Number:
    if not least <= value <= most:
        raise ValueError("a number beyond the type")
    return value


def _micros(per_second: int, value: Any) -> int:
    if isinstance(value, bytes):
        # A number counts seconds or milliseconds since 1970.
        number = _within(FIRST_SECOND * per_second, int(value), (LAST_SECOND + 1) * per_second - 1)
        return number * (1_000_000 // per_second)
    return micros_of(_a(str, value))
