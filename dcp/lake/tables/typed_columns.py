"""The typed columns that a contract gives a table. No Spark.

`dcp.lake.apply.typed_documents` fills them from JSON documents.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Final

import pyarrow as pa

from dcp.errors import ConfigError
from dcp.lake.config.contracts import (
    Contract,
    ContractMode,
    column_name,
    same_name_key,
    steps_of,
)
from dcp.lake.config.json_paths import FieldName, Step, Wildcard, path_text
from dcp.lake.tables.schema import ROW_COLUMNS, TYPED, spark_type

DOC: Final = TYPED.names[0]
VIOLATIONS: Final = TYPED.names[1]

_ARRAY: Final = "dcplake.array."
"""The prefix of table properties that name the views of arrays, and the arrays' paths."""


def scalars_of(kind: pa.DataType, above: tuple[Step, ...] = ()) -> dict[str, pa.DataType]:
    """Return the scalar types in a document type by their paths, in order."""
    if pa.types.is_struct(kind):
        found: dict[str, pa.DataType] = {}
        for field in kind:
            found |= scalars_of(field.type, (*above, FieldName(field.name)))
        return found
    if pa.types.is_map(kind):
        return scalars_of(kind.item_type, (*above, Wildcard.VALUES))
    if pa.types.is_list(kind):
        return scalars_of(kind.value_type, (*above, Wildcard.ELEMENTS))
    return {path_text(above): kind}


_STORED: Final = {
    pa.timestamp("ms", tz="UTC"): pa.timestamp("us", tz="UTC"),
    pa.large_string(): pa.string(),
}
"""The column type for contract types that Delta lacks."""


def table_type(kind: pa.DataType) -> pa.DataType:
    """Return the table's type for values of a contract type, with the columns' names."""
    if pa.types.is_struct(kind):
        return pa.struct([(column_name(each), table_type(each.type)) for each in kind])
    if pa.types.is_map(kind):
        return pa.map_(kind.key_type, table_type(kind.item_type))
    if pa.types.is_list(kind):
        return pa.list_(table_type(kind.value_type))
    return _STORED.get(kind, kind)


def document_type_of(found: pa.DataType, contract: pa.DataType) -> pa.DataType:
    """Return the document type for a type in the table, the inverse of `table_type`.

    The contract gives the documents' names and types. Other or widened fields have the same name
    and type in documents as in the table.
    """
    if pa.types.is_struct(found) and pa.types.is_struct(contract):
        known = {column_name(each): each for each in contract}
        return pa.struct(
            [
                known[each.name].with_type(document_type_of(each.type, known[each.name].type))
                if each.name in known
                else each
                for each in found
            ]
        )
    if pa.types.is_map(found) and pa.types.is_map(contract):
        return pa.map_(found.key_type, document_type_of(found.item_type, contract.item_type))
    if pa.types.is_list(found) and pa.types.is_list(contract):
        return pa.list_(document_type_of(found.value_type, contract.value_type))
    return contract if table_type(contract) == found else found


def has_names_twice(kind: pa.DataType) -> bool:
    """Return whether a struct has two fields whose names Spark cannot distinguish."""
    if pa.types.is_struct(kind):
        names = {same_name_key(each.name) for each in kind}
        return len(names) < kind.num_fields or any(has_names_twice(each.type) for each in kind)
    if pa.types.is_map(kind):
        return has_names_twice(kind.item_type)
    return bool(pa.types.is_list(kind)) and has_names_twice(kind.value_type)


@dataclass(frozen=True, slots=True)
class TypedColumns:
    document: pa.StructType
    """The type of documents, with the names of `Contract.document`."""
    fingerprint: str
    """Identifies the contract of these columns."""
    mode: ContractMode

    @property
    def schema(self) -> pa.Schema:
        """The columns. The table stores the fingerprint as the comment of ``doc``."""
        return pa.schema([pa.field(DOC, table_type(self.document)), TYPED.field(VIOLATIONS)])


def fingerprint_of(contract: Contract) -> str:
    """Return a hash of a contract's effect on documents, independent of its order."""
    aliases = (f" {path} as {name}" for path, name in sorted(_aliases(contract.document)))
    text = f"{contract.mode} {spark_type(_in_order(contract.document))}{''.join(aliases)}"
    return f"contract {sha256(text.encode()).hexdigest()[:16]}"


def _aliases(kind: pa.DataType, above: tuple[Step, ...] = ()) -> Iterator[tuple[str, str]]:
    if pa.types.is_struct(kind):
        for each in kind:
            steps = (*above, FieldName(each.name))
            if (name := column_name(each)) != each.name:
                yield path_text(steps), name
            yield from _aliases(each.type, steps)
    elif pa.types.is_map(kind):
        yield from _aliases(kind.item_type, (*above, Wildcard.VALUES))
    elif pa.types.is_list(kind):
        yield from _aliases(kind.value_type, (*above, Wildcard.ELEMENTS))


def _in_order(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_struct(kind):
        fields = sorted(kind, key=lambda each: each.name)
        return pa.struct([(each.name, _in_order(each.type)) for each in fields])
    if pa.types.is_map(kind):
        return pa.map_(kind.key_type, _in_order(kind.item_type))
    if pa.types.is_list(kind):
        return pa.list_(_in_order(kind.value_type))
    return kind


def refuse_own_columns(contract: Contract) -> None:
    """Refuse an alias that is the name of a table's own column: views show both.

    Raises:
        ConfigError: the contract has such an alias.
    """
    for each in contract.document:
        alias = column_name(each)
        if alias != each.name and same_name_key(alias) in ROW_COLUMNS:
            raise ConfigError(
                f"{contract.where}: columns: {path_text([FieldName(each.name)])}: found the alias "
                f"{alias!r}, expected a name that is no column of every table: those have "
                f"{', '.join(ROW_COLUMNS)}"
            )


def arrays_of(properties: Mapping[str, str]) -> dict[str, tuple[Step, ...]]:
    """Return the arrays that have views, from a table's properties (see `Contract.arrays`)."""
    return {
        key.removeprefix(_ARRAY): steps_of(path, key)
        for key, path in sorted(properties.items())
        if key.startswith(_ARRAY)
    }


def changed_arrays(properties: Mapping[str, str], contract: Contract) -> dict[str, str | None]:
    """Return the properties that a contract changes; None for one to remove."""
    wanted = {_ARRAY + view: path for view, path in contract.arrays.items()}
    gone = (key for key in properties if key.startswith(_ARRAY) and key not in wanted)
    changed = {key: path for key, path in wanted.items() if properties.get(key) != path}
    return {**changed, **dict.fromkeys(gone)}


def typed_columns(contract: Contract) -> TypedColumns:
    return TypedColumns(contract.document, fingerprint_of(contract), contract.mode)
