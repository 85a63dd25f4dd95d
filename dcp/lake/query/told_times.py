"""Turns the times in an answer into texts: in UTC, and of any year.

Python's own times end with the year 9999, and PySpark's have the machine's zone.
"""

from typing import Any, Final

from pyspark.sql import DataFrame, Row
from pyspark.sql.types import (
    ArrayType,
    DataType,
    DateType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

_TIMES: Final = (TimestampType, TimestampNTZType, DateType)


def with_times_as_texts(frame: DataFrame) -> DataFrame:
    """Return the rows with times and dates as texts; the session's time zone must be UTC."""
    wanted = _as_text(frame.schema)
    if wanted == frame.schema:
        return frame
    names = [f"c{number}" for number in range(len(frame.columns))]  # no two are alike
    renamed = frame.toDF(*names)
    columns = (
        renamed[name].cast(field.dataType) for name, field in zip(names, wanted, strict=True)
    )
    return renamed.select(*columns).toDF(*frame.columns)


def told_times(value: Any, kind: DataType) -> Any:
    """Return a value of ``kind`` with its times in ISO 8601. Times with a zone end in +00:00."""
    match value, kind:
        case None, _:
            return None
        case str(), TimestampType():
            return value.replace(" ", "T") + "+00:00"
        case str(), TimestampNTZType():
            return value.replace(" ", "T")
        case tuple(), StructType(fields=fields):
            told = (
                told_times(inner, field.dataType)
                for inner, field in zip(value, fields, strict=True)
            )
            return _row(value, list(told))
        case list(), ArrayType(elementType=inner):
            return [told_times(each, inner) for each in value]
        case dict(), MapType(keyType=key, valueType=inner):
            return {told_times(k, key): told_times(v, inner) for k, v in value.items()}
        case _:
            return value


def _row(like: tuple[Any, ...], values: list[Any]) -> Row:
    row = Row(*values)
    row.__fields__ = like.__fields__  # type: ignore[attr-defined]  # Row has it, and so has `like`
    return row


def _as_text(kind: DataType) -> Any:
    match kind:
        case StructType():
            return StructType(
                [
                    StructField(each.name, _as_text(each.dataType), each.nullable, each.metadata)
                    for each in kind
                ]
            )
        case ArrayType():
            return ArrayType(_as_text(kind.elementType), kind.containsNull)
        case MapType():
            keys, values = _as_text(kind.keyType), _as_text(kind.valueType)
            return MapType(keys, values, kind.valueContainsNull)
        case _:
            return StringType() if isinstance(kind, _TIMES) else kind
