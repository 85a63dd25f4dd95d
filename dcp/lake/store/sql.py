"""Quotes identifiers and literals for SQL text.

SQL statements contain values as literals, because Delta skips files only by literals. Each value
must pass through a function of this module.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Final

from dcp.errors import ConfigError
from dcp.printable import unicode_escape
from dcp.types import require_unsigned

_PLAIN: Final = re.compile(r"[A-Za-z0-9_:./ -]*")
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_MOST_RANGES: Final = 16
"""So many ranges cost no measurable time; 64 cost a fifth of the time of a small query."""


def quoted(identifier: str) -> str:
    return "`" + identifier.replace("`", "``") + "`"


def dotted(name: str) -> str:
    """Quote each part of a dotted catalog name such as ``catalog.schema``.

    Raises:
        ConfigError: a part has other characters than letters, digits and underscores.
    """
    parts = name.split(".")
    for part in parts:
        if not _NAME.fullmatch(part):
            raise ConfigError(
                f"lake.schema: found {name!r} with the part {part!r}, expected catalog.schema of "
                "letters, digits and _"
            )
    return ".".join(quoted(part) for part in parts)


def string(text: str) -> str:
    if _PLAIN.fullmatch(text):
        return f"'{text}'"
    escaped = (each if _PLAIN.fullmatch(each) else unicode_escape(each) for each in text)
    return f"'{''.join(escaped)}'"


def at_version(table_sql: str, version: int | None) -> str:
    return table_sql if version is None else f"{table_sql} VERSION AS OF {version}"


def restore_sql(table_sql: str, version: "int | str") -> str:
    return f"RESTORE TABLE {table_sql} TO VERSION AS OF {version}"


def property_list(properties: Mapping[str, str]) -> str:
    return ", ".join(f"{string(name)} = {string(value)}" for name, value in properties.items())


def standard_string(text: str) -> str:
    """Return ``text`` as a string literal of standard SQL, for DataFusion."""
    return "'" + text.replace("'", "''") + "'"


def i64(number: int) -> str:
    return f"CAST({number} AS BIGINT)"


def u64(value: int) -> str:
    """Return an unsigned 64-bit value as an exact DECIMAL(20,0) literal."""
    require_unsigned("SQL value", value)
    return f"CAST('{value}' AS DECIMAL(20,0))"


def string_list(values: Iterable[str]) -> str:
    return ", ".join(string(value) for value in values)


def integer_list(values: Iterable[int]) -> str:
    return ", ".join(str(int(value)) for value in values)


def one_of(column: str, numbers: Iterable[int]) -> str:
    """Return the condition that an integer column has one of these values, as ranges.

    For an IN list, Delta opens every file between its least and greatest value. For ranges, it
    opens only files that overlap one of them.
    """
    listed = sorted(set(numbers))
    if not listed:
        return "false"
    # Cut at the widest gaps, so that few ranges leave out as much as possible.
    widest = sorted(range(1, len(listed)), key=lambda i: listed[i - 1] - listed[i])
    cuts = sorted(i for i in widest[: _MOST_RANGES - 1] if listed[i] > listed[i - 1] + 1)
    ranges = [
        (listed[first], listed[end - 1])
        for first, end in zip([0, *cuts], [*cuts, len(listed)], strict=True)
    ]
    told = " OR ".join(
        f"{column} BETWEEN {low} AND {high}" if low < high else f"{column} = {low}"
        for low, high in ranges
    )
    is_exact = sum(high - low + 1 for low, high in ranges) == len(listed)
    return f"({told})" if is_exact else f"({told}) AND {column} IN ({integer_list(listed)})"
