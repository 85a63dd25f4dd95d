"""Compares the documents that an apply brings with the columns that there are for them.

With the mode ``evolve`` columns are added and numbers widened; what cannot be a column is told.
"""

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql import types as spark_types

from dcp.lake.config.contracts import FieldName, Step, Wildcard, can_be_column
from dcp.lake.tables.typed_columns import (
    HAS_MISFIT_SQL,
    IS_OBJECT_SQL,
    TEXT,
    JsonPath,
    is_misfit_sql,
    parsed_sql,
    paths_of,
)

MOST_COLUMNS: Final = 1000
"""Fields beyond so many get no column: where names are data, a contract says so (``.*``)."""

MOST_SHAPES: Final = 1000
"""Documents that do not fit are looked at up to so many different types of theirs."""

MOST_LEVELS: Final = 100
"""An object or array that lies deeper in a document is a text: types are read by recursion."""

_WHOLE_NUMBER: Final = pa.decimal128(38, 0)
_TYPE_PARTS: Final = re.compile(r"`(?:[^`]|``)*`|OBJECT<|ARRAY<|>|[^`<>]+?(?=`|OBJECT<|ARRAY<|>|$)")


@dataclass(frozen=True, slots=True)
class SeenDocuments:
    """The JSON types in some documents, and the paths at which a number did not fit its column."""

    types: spark_types.StructType
    misfits: frozenset[str]


def see_documents(spark: SparkSession, rows: str, document: pa.StructType) -> list[SeenDocuments]:
    """Look at the documents of a query's rows; ``document`` are the columns that there are.

    Those that fit come first, together. The others are kept apart by their types: what one of them
    has at a path would hide what others have there.
    """
    numbers = [path for path in paths_of(document) if _is_number(path.kind)]
    misfits = ", ".join(f"coalesce(bool_or({is_misfit_sql(path)}), false)" for path in numbers)
    # A condition on what was parsed would be tried before it is needed, by parsing it once more.
    found = spark.sql(
        f"SELECT IF({HAS_MISFIT_SQL}, coalesce(schema_of_variant(json), ''), NULL) AS types, "
        f"schema_of_variant_agg(json) AS seen, array({misfits}) AS misfits "
        f"FROM (SELECT *, try_parse_json({TEXT}) AS json FROM {parsed_sql(rows, document)}) "
        f"WHERE {IS_OBJECT_SQL} GROUP BY ALL ORDER BY types LIMIT {MOST_SHAPES}"
    ).collect()
    return [
        SeenDocuments(
            _types(spark, each.seen),
            frozenset(
                str(path) for path, is_one in zip(numbers, each.misfits, strict=True) if is_one
            ),
        )
        for each in found
    ]


def _types(spark: SparkSession, seen: str | None) -> spark_types.StructType:
    """Return the types that ``schema_of_variant_agg`` tells; Spark's own parser reads them."""
    if seen is None or not seen.startswith("OBJECT<"):  # VOID: there were no documents
        return spark_types.StructType([])
    kind = spark.sql(f"SELECT CAST(NULL AS {_type_sql(seen)})").schema[0].dataType
    assert isinstance(kind, spark_types.StructType), "only objects were looked at"
    return kind


def _type_sql(seen: str) -> str:
    """Return the types that ``schema_of_variant_agg`` tells as Spark's SQL has them."""
    parts, level = [], 0
    for part in _TYPE_PARTS.findall(seen):
        if part in ("OBJECT<", "ARRAY<"):
            level += 1
            if level <= MOST_LEVELS:
                parts.append(part.replace("OBJECT", "STRUCT"))
            elif level == MOST_LEVELS + 1:
                parts.append("STRING")
            continue
        if level <= MOST_LEVELS:
            parts.append(part)
        if part == ">":
            level -= 1
    return "".join(parts)


@dataclass(frozen=True, slots=True)
class Comparison:
    """The type that documents' columns should have, and the paths that are left without one."""

    document: pa.StructType
    unknown: tuple[JsonPath, ...]


def compared(
    document: pa.StructType, documents: Iterable[SeenDocuments], *, adds: bool
) -> Comparison:
    """Compare columns with what was seen; ``adds`` lets columns be added and widened."""
    unknown: dict[str, JsonPath] = {}
    for seen in documents:
        room = MOST_COLUMNS - sum(1 for _ in paths_of(document))
        growth = _Growth(adds, seen.misfits, room)
        document = growth.of_object(document, seen.types, ())
        unknown |= {str(path): path for path in growth.unknown}
    return Comparison(document, tuple(unknown.values()))


@dataclass(slots=True)
class _Growth:
    adds: bool
    misfits: Collection[str]
    room: int
    unknown: list[JsonPath] = field(default_factory=list)

    def of_object(
        self, known: pa.StructType, seen: spark_types.StructType, above: tuple[Step, ...]
    ) -> pa.StructType:
        fields = {each.name: each.type for each in known}
        taken = {name.lower() for name in fields}
        # Of an object whose names are data there may be more than there is room for: it comes last.
        for each in sorted(seen.fields, key=lambda each: _values_in(each.dataType)):
            name, steps = each.name, (*above, FieldName(each.name))
            if name in fields:
                fields[name] = self.of_known(fields[name], each.dataType, steps)
                continue
            if not _values_in(each.dataType):
                continue  # nothing but null was seen
            is_free = can_be_column(name) and name.lower() not in taken
            if self.adds and not (is_free and self.room > 0):
                self.unknown.append(JsonPath(steps, pa.string()))
                continue
            below = _Growth(self.adds, self.misfits, self.room)
            kind = below.of_new(each.dataType, steps)
            self.unknown += below.unknown
            if kind is not None and self.adds:
                fields[name] = kind
                taken.add(name.lower())
                self.room -= sum(1 for _ in paths_of(kind))
            elif kind is not None:
                self.unknown.append(JsonPath(steps, pa.string()))
        return pa.struct(list(fields.items()))

    def of_known(
        self, known: pa.DataType, seen: spark_types.DataType, steps: tuple[Step, ...]
    ) -> pa.DataType:
        match seen:
            case spark_types.StructType() if pa.types.is_struct(known):
                return self.of_object(known, seen, steps)
            case spark_types.StructType() if pa.types.is_map(known):
                value = known.item_type
                for each in seen.fields:
                    value = self.of_known(value, each.dataType, (*steps, Wildcard.VALUES))
                return pa.map_(pa.string(), value)
            case spark_types.ArrayType() if pa.types.is_list(known):
                below = (*steps, Wildcard.ELEMENTS)
                return pa.list_(self.of_known(known.value_type, seen.elementType, below))
        is_misfit = str(JsonPath(steps, known)) in self.misfits
        return _widened(known, seen, is_misfit=is_misfit) if self.adds else known

    def of_new(self, seen: spark_types.DataType, steps: tuple[Step, ...]) -> pa.DataType | None:
        """Return the type of a new column; None where nothing but null was seen."""
        match seen:
            case spark_types.StructType():
                kind = self.of_object(pa.struct([]), seen, steps)
                return kind if kind.num_fields else None
            case spark_types.ArrayType():
                value = self.of_new(seen.elementType, (*steps, Wildcard.ELEMENTS))
                return None if value is None else pa.list_(value)
            case spark_types.NullType():
                return None
            case spark_types.BooleanType():
                return pa.bool_()
        return _number(seen) or pa.string()  # of several types, too: a text holds any of them


def _values_in(seen: spark_types.DataType) -> int:
    match seen:
        case spark_types.NullType():
            return 0
        case spark_types.StructType():
            return sum(_values_in(each.dataType) for each in seen.fields)
        case spark_types.ArrayType():
            return _values_in(seen.elementType)
    return 1


def _number(seen: spark_types.DataType) -> pa.DataType | None:
    """Return the type of a column for JSON numbers; None for anything else."""
    match seen:
        case spark_types.LongType():
            return pa.int64()
        case spark_types.DecimalType() if seen.scale == 0:
            return _WHOLE_NUMBER
        case spark_types.DecimalType() | spark_types.DoubleType() | spark_types.FloatType():
            return pa.float64()
    return None


def _widened(known: pa.DataType, seen: spark_types.DataType, *, is_misfit: bool) -> pa.DataType:
    """Return a type for what a column has and for the numbers that were seen.

    A decimal takes numbers with more digits behind the point, and rounds them: it widens as well.
    """
    number = _number(seen)
    if number is None or not _is_number(known):
        return known
    if not pa.types.is_decimal(known):
        return number if is_misfit else known
    if not isinstance(seen, spark_types.DecimalType):
        whole = pa.decimal128(_WHOLE_NUMBER.precision, known.scale)
        return known if not is_misfit else whole if number == pa.int64() else number
    if not is_misfit and seen.scale <= known.scale:
        return known
    scale = max(known.scale, seen.scale)
    digits = max(known.precision - known.scale, seen.precision - seen.scale)
    most = _WHOLE_NUMBER.precision
    return pa.decimal128(most, scale) if digits + scale <= most else pa.float64()


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_decimal(kind))
