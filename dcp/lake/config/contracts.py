"""Reads contracts: which parts of a collection's JSON documents become typed columns.

A contract is a TOML file in the folder that ``apply.contracts_folder`` names, for one collection:

    collection = "inventory.hotel"
    mode = "quarantine"

    [columns]
    "$.name" = "string"
    "$.geo.lat" = "double"
    "$.reviews[*].date" = "timestamp"
    "$.prices.*" = "decimal(12,2)"

A path is a JSON path: ``.name`` or ``['name']`` is a field of an object, ``[*]`` all elements of an
array, ``.*`` all values of an object whose names are data (a MAP). docs/typed-columns.md explains
modes and types.
"""

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from dcp.errors import ConfigError
from dcp.lake.config.json_paths import FieldName, Step, Wildcard, json_path
from dcp.lake.config.toml_file import read_toml
from dcp.suggestions import did_you_mean

_NO_COLUMN: Final = re.compile(r"[ ,;{}()=]")
"""Parquet allows these in no column's name (Delta's column mapping would change them)."""
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
    """Return the same key for exactly the names that Spark takes for one.

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
_NAME: Final = "[A-Za-z0-9_%-]{1,251}"
_COLLECTION: Final = re.compile(rf"{_NAME}\.{_NAME}")
_DECIMAL: Final = re.compile(r"decimal\((\d{1,2}), ?(\d{1,2})\)")
_MOST_DIGITS: Final = 38
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
}
"""Spark's names of column types; there is also ``decimal(p,s)``."""


class ContractMode(StrEnum):
    """The treatment of fields and values that a contract does not foresee."""

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
        """True if fields without a column matter: somebody has to look for them."""
        return self in (ContractMode.EVOLVE, ContractMode.FREEZE)


@dataclass(frozen=True, slots=True)
class Contract:
    collection: str
    """``scope.collection``."""
    mode: ContractMode
    document: pa.StructType
    """The type of the column ``doc``."""
    where: str
    """The file, for messages."""


def require_collection(name: object, where: str) -> str:
    """Return a collection's name.

    Raises:
        ConfigError: it is none.
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
    place = Path(folder)
    if not place.is_dir():
        raise ConfigError(
            f"apply.contracts_folder: found no folder {folder!r}, expected one with a TOML file for"
            " each collection that has typed columns"
        )
    found: dict[str, Contract] = {}
    for file in sorted(place.glob("*.toml")):
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
    document = document_type(columns, str(file))
    return Contract(collection, ContractMode(mode), document, str(file))


def document_type(columns: Mapping[str, Any], where: str) -> pa.StructType:
    parsed = [
        (_steps(path, where), _scalar(path, kind, where), path) for path, kind in columns.items()
    ]
    return _object(parsed, where)


def _steps(path: str, where: str) -> tuple[Step, ...]:
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
    for step in steps:
        if isinstance(step, FieldName) and (refusal := refusal_of(step.name)):
            raise ConfigError(
                f"{where}: columns: found {path!r}, expected names without any of the characters "
                "that no column's name has: space , ; { } ( ) = and control characters; "
                f"{refusal}"
            )
    return steps


def _scalar(path: str, kind: Any, where: str) -> pa.DataType:
    if isinstance(kind, str) and kind in SCALARS:
        return SCALARS[kind]
    decimal = _DECIMAL.fullmatch(kind) if isinstance(kind, str) else None
    if decimal is not None:
        precision, scale = int(decimal[1]), int(decimal[2])
        if 1 <= precision <= _MOST_DIGITS and scale <= precision:
            return pa.decimal128(precision, scale)
    raise ConfigError(
        f"{where}: columns: {path}: found {kind!r}, expected one of {', '.join(SCALARS)}, "
        f"decimal(p,s) of up to {_MOST_DIGITS} digits"
    )


_Leaf = tuple[Sequence[Step], pa.DataType, str]


def _type(leaves: Sequence[_Leaf], where: str) -> pa.DataType:
    kinds = {_kind(steps) for steps, _, _ in leaves}
    if len(kinds) > 1 or (kinds == {"a value"} and len(leaves) > 1):
        raise ConfigError(
            f"{where}: columns: found {' and '.join(path for _, _, path in leaves)}, expected "
            f"paths that agree what is there: {' or '.join(sorted(kinds))}"
        )
    below = [(steps[1:], kind, path) for steps, kind, path in leaves]
    match kinds.pop():
        case "an array":
            return pa.list_(_type(below, where))
        case "a map":
            return pa.map_(pa.string(), _type(below, where))
        case "an object":
            return _object(leaves, where)
        case _:
            return leaves[0][1]


def _kind(steps: Sequence[Step]) -> str:
    if not steps:
        return "a value"
    if isinstance(steps[0], FieldName):
        return "an object"
    return "an array" if steps[0] is Wildcard.ELEMENTS else "a map"


def _object(leaves: Sequence[_Leaf], where: str) -> pa.StructType:
    fields: dict[str, list[_Leaf]] = defaultdict(list)
    for steps, kind, path in leaves:
        assert isinstance(steps[0], FieldName)
        fields[steps[0].name].append((steps[1:], kind, path))
    known: dict[str, str] = {}
    for name in fields:
        if (other := known.setdefault(same_name_key(name), name)) != name:
            raise ConfigError(
                f"{where}: columns: found the fields {other!r} and {name!r}, expected names that "
                "differ by more than upper and lower case: columns do"
            )
    return pa.struct([(name, _type(below, where)) for name, below in fields.items()])
