"""Builds the SQL that makes typed columns from JSON documents. No Spark.

The columns are a function of the document and its contract, nothing else. So they are computed of
whatever rows an apply writes, those that a rollback brings back included.

Spark's ``from_json`` decides what fits: it reads a document with the types of all columns and says
whether something did not. Only then each path is tried by itself, to name those that do not fit.
Beyond its rules a number that is no finite ``double`` (``1e999``) does not fit, nor does a time
outside of the years 1 to 9999: few readers of the tables take either.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from typing import Final

import pyarrow as pa

from dcp.lake.config.contracts import Contract, ContractMode, FieldName, Step, Wildcard
from dcp.lake.tables.schema import REPLICA, TYPED, spark_type
from dcp.lake.tables.sql import quoted, string
from dcp.wire.vocabulary import Datatype

DOC: Final = TYPED.names[0]
VIOLATIONS: Final = TYPED.names[1]

_FOUND_MAX: Final = 200
"""Characters of what was found that a violation shows."""

_MISFIT: Final = "_dcplake_misfit"
_TIMESTAMP: Final = "yyyy-MM-dd['T'][' ']HH:mm[:ss][.SSSSSSSSS][XXX]"
# Without formats Spark takes 10:30 for today's, and with its fallback 123 for a day of 1970.
_OPTIONS: Final = (
    f"map('columnNameOfCorruptRecord', '{_MISFIT}', 'allowNonNumericNumbers', 'false', "
    "'timeZone', 'UTC', 'enableDateTimeParsingFallback', 'false', "
    f"'dateFormat', 'yyyy-MM-dd', 'timestampFormat', {string(_TIMESTAMP)})"
)
_BEYOND: Final = {
    pa.float64(): "abs({0}) = double('Infinity')",
    pa.date32(): "{0} NOT BETWEEN DATE'0001-01-01' AND DATE'9999-12-31'",
    pa.timestamp("us", tz="UTC"): (
        "{0} NOT BETWEEN TIMESTAMP'0001-01-01 00:00:00Z' AND TIMESTAMP'9999-12-31 23:59:59.999999Z'"
    ),
}
"""Conditions on values of a type that ``from_json`` makes, and that do not fit."""

TEXT: Final = "_dcplake_text"
_READ: Final = "_dcplake_read"
PARSED: Final = "_dcplake_parsed"
"""Columns of `parsed_sql`: the JSON text, and what it is with the types of all columns."""

HAS_MISFIT_SQL: Final = f"{PARSED}.{_MISFIT} IS NOT NULL"
"""The condition on rows of `parsed_sql` that something in the document does not fit."""

IS_OBJECT_SQL: Final = f"trim(LEADING ' \\t\\r\\n' FROM {TEXT}) LIKE '{{%'"
"""The condition on the same rows that the text is an object, as far as its beginning tells."""


@dataclass(frozen=True, slots=True)
class JsonPath:
    """A path in documents, and the type that a contract gives the value there."""

    steps: tuple[Step, ...]
    kind: pa.DataType

    def __str__(self) -> str:
        """Return it as a JSON path."""
        return "$" + "".join(map(str, self.steps))

    @property
    def document(self) -> pa.StructType:
        """The type of a document that has nothing but this path."""
        kind = self.kind
        for step in reversed(self.steps):
            if isinstance(step, FieldName):
                kind = pa.struct([(step.name, kind)])
            else:
                kind = pa.list_(kind) if step is Wildcard.ELEMENTS else pa.map_(pa.string(), kind)
        return kind

    @property
    def ancestors(self) -> list[str]:
        """The paths to it and to what it is in, nearest first, that ``get_json_object`` reads."""
        readable = []
        for count in range(1, len(self.steps) + 1):
            if self.steps[count - 1] is Wildcard.VALUES:
                break
            readable.append("$" + "".join(map(str, self.steps[:count])))
        return readable[::-1]


def paths_of(kind: pa.DataType, above: tuple[Step, ...] = ()) -> Iterator[JsonPath]:
    """Give the paths of a document's type at which values are, in order."""
    if pa.types.is_struct(kind):
        for field in kind:
            yield from paths_of(field.type, (*above, FieldName(field.name)))
    elif pa.types.is_map(kind):
        yield from paths_of(kind.item_type, (*above, Wildcard.VALUES))
    elif pa.types.is_list(kind):
        yield from paths_of(kind.value_type, (*above, Wildcard.ELEMENTS))
    else:
        yield JsonPath(above, kind)


@dataclass(frozen=True, slots=True)
class TypedColumns:
    """The typed columns of a table: the type of ``doc``, and which violations are told.

    ``fingerprint`` is of the contract that they follow. ``unknown`` are paths without a column
    that documents have, each of which is a violation.
    """

    document: pa.StructType
    fingerprint: str
    tells_violations: bool = True
    unknown: tuple[JsonPath, ...] = ()

    @property
    def schema(self) -> pa.Schema:
        """The columns; the table keeps the fingerprint as the comment of ``doc``."""
        return pa.schema([pa.field(DOC, self.document), TYPED.field(VIOLATIONS)])

    @property
    def replica_schema(self) -> pa.Schema:
        """The columns of a replica that has these."""
        return pa.unify_schemas([REPLICA, self.schema])


def fingerprint_of(contract: Contract) -> str:
    """Return a hash of what a contract makes of documents, in whatever order it is written."""
    text = f"{contract.mode} {spark_type(_in_order(contract.document))}"
    return f"contract {sha256(text.encode()).hexdigest()[:16]}"


def _in_order(kind: pa.DataType) -> pa.DataType:
    """Return a type with the fields of its objects by name."""
    if pa.types.is_struct(kind):
        fields = sorted(kind, key=lambda each: each.name)
        return pa.struct([(each.name, _in_order(each.type)) for each in fields])
    if pa.types.is_map(kind):
        return pa.map_(kind.key_type, _in_order(kind.item_type))
    if pa.types.is_list(kind):
        return pa.list_(_in_order(kind.value_type))
    return kind


def typed_columns(contract: Contract) -> TypedColumns:
    """Return the columns that a contract names."""
    tells = contract.mode is not ContractMode.IGNORE
    return TypedColumns(contract.document, fingerprint_of(contract), tells)


def typed_sql(source: str, typed: TypedColumns) -> str:
    """Return the query for the rows of ``source``, a replica's columns and more, with these."""
    return f"""(
SELECT * EXCEPT ({TEXT}, {PARSED}), {_document_sql(typed)} AS {DOC},
  {_violations_sql(typed)} AS {VIOLATIONS}
FROM {parsed_sql(source, typed.document)})"""


def parsed_sql(source: str, document: pa.StructType) -> str:
    """Return the query for rows with their JSON text and what it is with the columns' types."""
    return f"""(
SELECT * EXCEPT ({_READ}), {_fitting(document)} AS {PARSED}
FROM (SELECT *, IF({IS_OBJECT_SQL}, {_from_json(document)}, NULL) AS {_READ}
  FROM (SELECT *, IF(datatype = {int(Datatype.JSON)}, CAST(value AS STRING), NULL) AS {TEXT}
    FROM {source})))"""


def is_misfit_sql(path: JsonPath) -> str:
    """Return the condition on rows of `parsed_sql` that the value at a path does not fit."""
    return f"({HAS_MISFIT_SQL} AND {_is_corrupt(path.document)})"


def _document_sql(typed: TypedColumns) -> str:
    names = [field.name for field in typed.document]
    fields = ", ".join(f"{string(name)}, {PARSED}.{quoted(name)}" for name in names)
    return f"IF({PARSED} IS NULL, NULL, named_struct({fields}))"


def _violations_sql(typed: TypedColumns) -> str:
    kind = spark_type(TYPED.field(VIOLATIONS).type)
    if not typed.tells_violations:
        return f"CAST(NULL AS {kind})"
    checks = [
        _violation_if(_is_corrupt(path.document), path, spark_type(path.kind).lower())
        for path in paths_of(typed.document)
    ]
    strange = [(path, f"{_json_at(str(path))} IS NOT NULL") for path in typed.unknown]
    checks += [_violation_if(is_there, path, "no such field") for path, is_there in strange]
    any_strange = "".join(f" OR {is_there}" for _, is_there in strange)
    root = f"left(make_valid_utf8({TEXT}), {_FOUND_MAX})"
    listed = ",\n    ".join(checks)
    return f"""CAST(CASE
  WHEN {TEXT} IS NULL THEN {_at_root("concat(octet_length(value), ' bytes that are no JSON')")}
  WHEN {PARSED} IS NULL OR ({HAS_MISFIT_SQL} AND {_is_corrupt(pa.struct([]))})
    THEN {_at_root(root)}
  WHEN {HAS_MISFIT_SQL}{any_strange} THEN filter(array(
    {listed}), each -> each IS NOT NULL)
  END AS {kind})"""


def _at_root(found: str) -> str:
    return f"array({_violation('$', found, 'a JSON object')})"


def _violation_if(condition: str, path: JsonPath, expected: str) -> str:
    found = f"left(make_valid_utf8({_found(path)}), {_FOUND_MAX})"
    return f"IF({condition}, {_violation(str(path), found, expected)}, NULL)"


def _violation(path: str, found: str, expected: str) -> str:
    return f"named_struct('path', {string(path)}, 'found', {found}, 'expected', {string(expected)})"


def _found(path: JsonPath) -> str:
    read = [*map(_json_at, path.ancestors)]
    return f"coalesce({', '.join(read)})" if len(read) > 1 else read[0]


def _json_at(path: str) -> str:
    return f"get_json_object({TEXT}, {string(path)})"


def _is_corrupt(document: pa.StructType) -> str:
    read = _from_json(document)
    beyond = _is_beyond(read, document)
    return f"({read}.{_MISFIT} IS NOT NULL" + (f" OR coalesce({beyond}, false))" if beyond else ")")


def _fitting(document: pa.StructType) -> str:
    """Return the document that was read without what is beyond its type, which is a misfit too."""
    beyond = _is_beyond(_READ, document)
    if not beyond:
        return _READ
    fields = [f"{string(each.name)}, {_fit(_field(_READ, each), each.type)}" for each in document]
    fitting = f"named_struct({', '.join(fields)}, {string(_MISFIT)}, {TEXT})"
    return f"IF(coalesce({beyond}, false), {fitting}, {_READ})"


def _field(value: str, field: pa.Field) -> str:
    return f"{value}.{quoted(field.name)}"


def _is_beyond(value: str, kind: pa.DataType, level: int = 0) -> str:
    """Return the condition that something in a value is beyond its type; empty: it cannot be."""
    if pa.types.is_struct(kind):
        parts = [_is_beyond(_field(value, each), each.type, level) for each in kind]
        return " OR ".join(part for part in parts if part)
    if pa.types.is_map(kind) or pa.types.is_list(kind):
        is_map, name = pa.types.is_map(kind), f"_dcplake_{level}"
        below = _is_beyond(name, kind.item_type if is_map else kind.value_type, level + 1)
        values = f"map_values({value})" if is_map else value
        return below and f"exists({values}, {name} -> {below})"
    return _BEYOND[kind].format(value) if kind in _BEYOND else ""


def _fit(value: str, kind: pa.DataType, level: int = 0) -> str:
    """Return a value, with null for what is beyond its type."""
    beyond = _is_beyond(value, kind, level)
    if not beyond:
        return value
    name, key = f"_dcplake_{level}", f"_dcplake_key_{level}"
    if pa.types.is_struct(kind):
        fields = (
            f"{string(each.name)}, {_fit(_field(value, each), each.type, level)}" for each in kind
        )
        return f"IF({value} IS NULL, NULL, named_struct({', '.join(fields)}))"
    if pa.types.is_map(kind):
        below = _fit(name, kind.item_type, level + 1)
        return f"transform_values({value}, ({key}, {name}) -> {below})"
    if pa.types.is_list(kind):
        return f"transform({value}, {name} -> {_fit(name, kind.value_type, level + 1)})"
    return f"IF({beyond}, NULL, {value})"


def _from_json(document: pa.StructType) -> str:
    fields = [*document, pa.field(_MISFIT, pa.string())]
    columns = ", ".join(f"{quoted(field.name)} {spark_type(field.type)}" for field in fields)
    return f"from_json({TEXT}, {string(columns)}, {_OPTIONS})"
