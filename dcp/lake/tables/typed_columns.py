"""The typed columns of a table: which its contract asks for. No Spark.

`dcp.lake.apply.typed_documents` makes them of JSON documents.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from typing import Final

import pyarrow as pa

from dcp.lake.config.contracts import (
    Contract,
    ContractMode,
    same_name_key,
)
from dcp.lake.config.json_paths import FieldName, Step, Wildcard
from dcp.lake.tables.schema import TYPED, spark_type

DOC: Final = TYPED.names[0]
VIOLATIONS: Final = TYPED.names[1]


@dataclass(frozen=True, slots=True)
class JsonPath:
    """A path in documents, and the contract's type for the value there."""

    steps: tuple[Step, ...]
    kind: pa.DataType

    def __str__(self) -> str:
        return "$" + "".join(map(str, self.steps))


def paths_of(kind: pa.DataType, above: tuple[Step, ...] = ()) -> Iterator[JsonPath]:
    """Give the paths of a document's type that lead to values, in order."""
    if pa.types.is_struct(kind):
        for field in kind:
            yield from paths_of(field.type, (*above, FieldName(field.name)))
    elif pa.types.is_map(kind):
        yield from paths_of(kind.item_type, (*above, Wildcard.VALUES))
    elif pa.types.is_list(kind):
        yield from paths_of(kind.value_type, (*above, Wildcard.ELEMENTS))
    else:
        yield JsonPath(above, kind)


def has_names_twice(kind: pa.DataType) -> bool:
    """Return whether a type has two fields that Spark takes for one: it could read neither."""
    if pa.types.is_struct(kind):
        names = {same_name_key(each.name) for each in kind}
        return len(names) < kind.num_fields or any(has_names_twice(each.type) for each in kind)
    if pa.types.is_map(kind):
        return has_names_twice(kind.item_type)
    return bool(pa.types.is_list(kind)) and has_names_twice(kind.value_type)


@dataclass(frozen=True, slots=True)
class TypedColumns:
    document: pa.StructType
    """The type of ``doc``."""
    fingerprint: str
    """Identifies the contract that they follow."""
    tells_violations: bool = True
    tells_new_fields: bool = False
    """A field without a column is a violation."""

    @property
    def schema(self) -> pa.Schema:
        """The columns; the table keeps the fingerprint as the comment of ``doc``."""
        return pa.schema([pa.field(DOC, self.document), TYPED.field(VIOLATIONS)])


def fingerprint_of(contract: Contract) -> str:
    """Return a hash of a contract's effect on documents, whatever its order."""
    text = f"{contract.mode} {spark_type(_in_order(contract.document))}"
    return f"contract {sha256(text.encode()).hexdigest()[:16]}"


def _in_order(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_struct(kind):
        fields = sorted(kind, key=lambda each: each.name)
        return pa.struct([(each.name, _in_order(each.type)) for each in fields])
    if pa.types.is_map(kind):
        return pa.map_(kind.key_type, _in_order(kind.item_type))
    if pa.types.is_list(kind):
        return pa.list_(_in_order(kind.value_type))
    return kind


def typed_columns(contract: Contract) -> TypedColumns:
    tells = contract.mode is not ContractMode.IGNORE
    new_fields = contract.mode.tells_new_fields
    return TypedColumns(contract.document, fingerprint_of(contract), tells, new_fields)
