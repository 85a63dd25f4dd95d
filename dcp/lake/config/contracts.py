"""Reads contracts: which parts of a collection's JSON documents become typed columns.

A contract is a TOML file in the folder that ``apply.contracts_folder`` names, for one collection:

    collection = "inventory.hotel"
    mode = "quarantine"

    [columns]
    "$.name" = "string"
    "$.geo.lat" = "double"
    "$.reviews[*].date" = "timestamp"
    "$.prices.*" = "decimal(12,2)"
    "$.first name" = { as = "first_name", type = "string" }
    "$.reviews[*]" = { view = "reviews" }

A path is a JSON path: ``.name`` or ``['name']`` is a field of an object, ``[*]`` all elements of an
array, ``.*`` all values of an object whose names are data (a MAP). ``as`` names the column of the
last field in the path, ``view`` a view with a row for each element of an array.
docs/howto/typed-columns.md explains modes and types.
"""

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from dcp.errors import ConfigError
from dcp.lake.config.filter_settings import NAME
from dcp.lake.config.json_paths import FieldName, Step, Wildcard, json_path, path_text
from dcp.lake.config.toml_file import read_toml
from dcp.suggestions import did_you_mean

_NO_COLUMN: Final = re.compile(r"[ ,;{}()=]")
"""Characters that Parquet allows in no column's name (Delta's column mapping would change them)."""
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f]")


def refusal_of(name: str) -> str | None:
    """Return why a field's name cannot be a column's; None if it can."""
    if not name:
        return "the name is empty"
    if _CONTROL.search(name):
        return "the name has a control character"
    found = _NO_COLUMN.search(name)
    return None if found is None else f"the name has {found[0]!r}, which no column's name has"


def same_name_key(name: str) -> str:
    """Return the same key for exactly those names that Spark treats as equal.

    Spark resolves names by Java's ``equalsIgnoreCase``, which folds each character to upper and
    then to lower case. Delta also compares ``toLowerCase``, which makes two characters of ``İ``.
    """
    if name.isascii():
        return name.lower()
    return "".join(map(_folded, name)).replace("i\u0307", "i")


def _folded(character: str) -> str:
    upper = character.upper()
    lower = (upper if len(upper) == 1 else character).lower()
    return lower if len(lower) == 1 else lower[0]


DEFAULT_COLLECTION: Final = "_default._default"

_KEYS: Final = ("collection", "mode", "columns")
_ENTRY_KEYS: Final = ("as", "type", "view")
_VIEW: Final = re.compile("(?=.{1,100}$)[A-Za-z](?:_?[A-Za-z0-9])*")
"""The names of other collections' views follow ``__``."""
_NO_VIEW: Final = "live"
"""Taken: every table has a view ``docs_live``."""
_COLLECTION: Final = re.compile(rf"{NAME}\.{NAME}")
_DECIMAL: Final = re.compile(r"decimal\((\d{1,2}), ?(\d{1,2})\)")
MOST_DIGITS: Final = 38
MOST_LEVELS: Final = 50
"""Steps of a path: Arrow's types have no more than 64 levels."""

SCALARS: Final[Mapping[str, pa.DataType]] = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "double": pa.float64(),
    "string": pa.string(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestamp_ms": pa.timestamp("ms", tz="UTC"),
    "partial_date": pa.large_string(),
}
"""The types of values, by a contract's names for them; ``decimal(p,s)`` is another one.

For the last two, the Arrow type describes the documents. The column's type is one of Spark:
`dcp.lake.tables.typed_columns.table_type`.
"""
_SCALAR_NAMES: Final = {kind: name for name, kind in SCALARS.items()}

_COLUMN: Final = b"column"


def column_name(field: pa.Field) -> str:
    """Return the name of the column for a field of documents: its alias, or the field's own."""
    alias: bytes | None = (field.metadata or {}).get(_COLUMN)
    return field.name if alias is None else alias.decode()


def type_name(kind: pa.DataType) -> str:
    """Return a contract's name for a type of values."""
    if pa.types.is_decimal(kind):
        return f"decimal({kind.precision},{kind.scale})"
    return _SCALAR_NAMES.get(kind) or str(kind)  # users may alter a table


class ContractMode(StrEnum):
    """The treatment of fields and values outside a contract."""

    EVOLVE = "evolve"
    """New fields become columns, numbers widen; other values that do not fit are violations."""
    FREEZE = "freeze"
    """A field without a column is a violation, and so is a value that does not fit."""
    QUARANTINE = "quarantine"
    """A value that does not fit is a violation; other fields stay in the document only."""
    IGNORE = "ignore"
    """A value that does not fit is null, without a report."""

    @property
    def tells_new_fields(self) -> bool:
        """True if fields without a column count: somebody has to look for them."""
        return self in (ContractMode.EVOLVE, ContractMode.FREEZE)


@dataclass(frozen=True, slots=True)
class Contract:
    collection: str
    """``scope.collection``."""
    mode: ContractMode
    document: pa.StructType
    """The type of documents. Its fields have the documents' names; `column_name` gives the
    columns'.
    """
    where: str
    """The file, for messages."""
    arrays: Mapping[str, str] = field(default_factory=dict)
    """By the name of a view, the path to the elements of its array, in names of columns."""


def require_collection(name: object, where: str) -> str:
    """Return a collection's name.

    Raises:
        ConfigError: it is not ``scope.collection``.
    """
    if isinstance(name, str) and _COLLECTION.fullmatch(name):
        return name
    raise ConfigError(
        f"{where}: found {name!r}, expected scope.collection ({DEFAULT_COLLECTION} is the default "
        "one)"
    )


def load_contracts(folder: str) -> dict[str, Contract]:
    """Return the contracts of a folder, by collection (``scope.collection``).

    Raises:
        ConfigError: the folder is missing, or a file is no contract; names both.
    """
    path = Path(folder)
    if not path.is_dir():
        raise ConfigError(
            f"apply.contracts_folder: found no folder {folder!r}, expected one with a TOML file for"
            " each collection that has typed columns"
        )
    found: dict[str, Contract] = {}
    for file in sorted(path.glob("*.toml")):
        contract = _contract(file)
        if (other := found.setdefault(contract.collection, contract)) is not contract:
            raise ConfigError(
                f"{file}: found a contract for {contract.collection}, expected one of them alone; "
                f"{other.where} is another"
            )
    return found


def _contract(file: Path) -> Contract:
    content = read_toml(file, "contract")
    for key in content:
        if key not in _KEYS:
            raise ConfigError(
                f"{file}: found {key!r}{did_you_mean(key, _KEYS)}, expected only {', '.join(_KEYS)}"
            )
    collection = require_collection(content.get("collection"), f"{file}: collection")
    mode, columns = content.get("mode"), content.get("columns", {})
    if mode not in tuple(ContractMode):
        raise ConfigError(
            f"{file}: mode: found {mode!r}, expected one of {', '.join(ContractMode)}"
        )
    if not isinstance(columns, dict) or (not columns and mode != ContractMode.EVOLVE):
        raise ConfigError(
            f"{file}: columns: found {'none' if columns == {} else repr(columns)}, expected a "
            "table of JSON paths and types"
        )
    entries = [_entry(path, told, str(file)) for path, told in columns.items()]
    document, arrays = _document(entries, str(file)), _arrays(entries, str(file))
    if mode != ContractMode.EVOLVE:  # else documents may bring what an array has
        _refuse_alone([each for each in entries if each.view is not None], entries, str(file))
    return Contract(collection, ContractMode(mode), document, str(file), arrays)


@dataclass(frozen=True, slots=True)
class _Entry:
    path: str
    steps: tuple[Step, ...]
    kind: pa.DataType | None
    """None: the path leads to an object or array, with paths of its own."""
    alias: str | None
    view: str | None


def _document(entries: Sequence[_Entry], where: str) -> pa.StructType:
    _refuse_alone([each for each in entries if each.alias is not None], entries, where)
    leaves = [(each.steps, each.kind, each.path) for each in entries if each.kind is not None]
    return _object(leaves, (), _aliases(entries, where), where)


def _refuse_alone(named: Sequence[_Entry], entries: Sequence[_Entry], where: str) -> None:
    typed = [each.steps for each in entries if each.kind is not None]
    for each in named:
        if not any(steps[: len(each.steps)] == each.steps for steps in typed):
            raise ConfigError(
                f"{where}: columns: {each.path}: found the name {each.alias or each.view!r} alone, "
                "expected a type beside it, or further paths to what is there"
            )


def _aliases(entries: Sequence[_Entry], where: str) -> "_Aliases":
    aliases: _Aliases = {}
    for each in entries:
        if each.alias is None:
            continue
        if (other := aliases.setdefault(_to_field(each.steps), each.alias)) != each.alias:
            raise ConfigError(
                f"{where}: columns: {each.path}: found the aliases {other!r} and {each.alias!r}, "
                "expected one name for the column of a field"
            )
    return aliases


def _arrays(entries: Sequence[_Entry], where: str) -> dict[str, str]:
    aliases = _aliases(entries, where)
    arrays: dict[str, str] = {}
    for each in entries:
        if each.view is None:
            continue
        if each.steps[-1] is not Wildcard.ELEMENTS or Wildcard.VALUES in each.steps:
            raise ConfigError(
                f"{where}: columns: {each.path}: found a view, expected it for the elements of an "
                "array, as $.lines[*], in no object whose names are data (.*)"
            )
        is_taken = same_name_key(each.view) in (_NO_VIEW, *map(same_name_key, arrays))
        if is_taken or not _VIEW.fullmatch(each.view):
            raise ConfigError(
                f"{where}: columns: {each.path}: found the view {each.view!r}, expected a name of "
                "its own, of letters, digits and _ between them, that begins with a letter; there "
                f"is docs_{_NO_VIEW} already"
            )
        steps = (
            FieldName(aliases.get(each.steps[:end], step.name))
            if isinstance(step, FieldName)
            else step
            for end, step in enumerate(each.steps, 1)
        )
        arrays[each.view] = path_text(steps)
    return arrays


def _to_field(steps: tuple[Step, ...]) -> tuple[Step, ...]:
    """Return the part of a path that ends with its last field."""
    end = max(at for at, step in enumerate(steps, 1) if isinstance(step, FieldName))
    return steps[:end]


def _entry(path: str, told: Any, where: str) -> _Entry:
    steps = steps_of(path, where)
    if not isinstance(told, dict):
        return _Entry(path, steps, _scalar(path, told, where), None, None)
    for key, word in told.items():
        if key not in _ENTRY_KEYS:
            raise ConfigError(
                f"{where}: columns: {path}: found {key!r}{did_you_mean(key, _ENTRY_KEYS)}, "
                f"expected only {', '.join(_ENTRY_KEYS)}"
            )
        if not isinstance(word, str):
            raise ConfigError(f"{where}: columns: {path}: {key}: found {word!r}, expected a text")
    alias, view = told.get("as"), told.get("view")
    if not told:
        raise ConfigError(
            f"{where}: columns: {path}: found {told!r}, expected the column's name, as in "
            '{ as = "first_name", type = "string" }, a type, or the name of a view'
        )
    if alias is not None and (refusal := refusal_of(alias)):
        raise ConfigError(
            f"{where}: columns: {path}: found the alias {alias!r}, expected the name of a column: "
            f"{refusal}"
        )
    kind = _scalar(path, told["type"], where) if "type" in told else None
    return _Entry(path, steps, kind, alias, view)


def steps_of(path: str, where: str) -> tuple[Step, ...]:
    """Return the steps of a JSON path to a field or into it.

    Raises:
        ConfigError: it is no such path.
    """
    steps = json_path(path)
    if not steps or not isinstance(steps[0], FieldName):
        raise ConfigError(
            f"{where}: columns: found {path!r}, expected a JSON path to a field, as $.name, "
            "$.address.city, $.lines[*].price, $['a name'] or $.prices.*"
        )
    if len(steps) > MOST_LEVELS:
        raise ConfigError(
            f"{where}: columns: found {path!r} of {len(steps)} steps, expected no more than "
            f"{MOST_LEVELS}; an object or array in a column of type string is its JSON"
        )
    return steps


def _scalar(path: str, kind: Any, where: str) -> pa.DataType:
    if isinstance(kind, str) and kind in SCALARS:
        return SCALARS[kind]
    decimal = _DECIMAL.fullmatch(kind) if isinstance(kind, str) else None
    if decimal is not None:
        precision, scale = int(decimal[1]), int(decimal[2])
        if 1 <= precision <= MOST_DIGITS and scale <= precision:
            return pa.decimal128(precision, scale)
    raise ConfigError(
        f"{where}: columns: {path}: found {kind!r}, expected one of {', '.join(SCALARS)}, "
        f"decimal(p,s) of up to {MOST_DIGITS} digits"
    )


_Leaf = tuple[tuple[Step, ...], pa.DataType, str]
"""The remaining steps of a path below some value, the type there, and the path."""

_Aliases = dict[tuple[Step, ...], str]
"""By the path of a field, the name of its column."""


def _type(
    leaves: Sequence[_Leaf], above: tuple[Step, ...], aliases: _Aliases, where: str
) -> pa.DataType:
    kinds = {_kind(steps) for steps, _, _ in leaves}
    if len(kinds) > 1 or (kinds == {"a value"} and len(leaves) > 1):
        raise ConfigError(
            f"{where}: columns: found {' and '.join(path for _, _, path in leaves)}, expected "
            f"paths that agree what is there: {' or '.join(sorted(kinds))}"
        )
    below = [(steps[1:], kind, path) for steps, kind, path in leaves]
    match kinds.pop():
        case "an array":
            return pa.list_(_type(below, (*above, Wildcard.ELEMENTS), aliases, where))
        case "a map":
            return pa.map_(pa.string(), _type(below, (*above, Wildcard.VALUES), aliases, where))
        case "an object":
            return _object(leaves, above, aliases, where)
        case _:
            return leaves[0][1]


def _kind(steps: Sequence[Step]) -> str:
    if not steps:
        return "a value"
    if isinstance(steps[0], FieldName):
        return "an object"
    return "an array" if steps[0] is Wildcard.ELEMENTS else "a map"


def _object(
    leaves: Sequence[_Leaf], above: tuple[Step, ...], aliases: _Aliases, where: str
) -> pa.StructType:
    below: dict[FieldName, list[_Leaf]] = defaultdict(list)
    for steps, kind, path in leaves:
        assert isinstance(steps[0], FieldName)
        below[steps[0]].append((steps[1:], kind, path))
    known: dict[str, str] = {}
    fields: list[pa.Field] = []
    for step, parts in below.items():
        to_field = (*above, step)
        alias, name = aliases.get(to_field), step.name
        if alias is None and (refusal := refusal_of(name)):
            raise ConfigError(
                f"{where}: columns: found {parts[0][2]!r}, expected a name for the column of "
                f'{name!r}, as in {{ as = "first_name", type = "string" }}: {refusal}'
            )
        if (other := known.setdefault(same_name_key(alias or name), name)) != name:
            raise ConfigError(
                f"{where}: columns: found one column for the fields {other!r} and {name!r}, "
                "expected names that differ by more than upper and lower case; "
                "as = … gives a field's column another name"
            )
        metadata = None if alias is None else {_COLUMN: alias.encode()}
        fields.append(pa.field(name, _type(parts, to_field, aliases, where), metadata=metadata))
    return pa.struct(fields)
