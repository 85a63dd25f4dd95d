"""Contracts of a simulation, its documents with fields of changing types, and the check of columns.

The check knows nothing of the product's readers of JSON: it asks of each value of each row whether
the column holds it, or tells why not.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any, Final

import pyarrow as pa

from dcp.lake.config.contracts import DEFAULT_COLLECTION, ContractMode, load_contracts
from dcp.lake.config.settings_document import toml_value
from dcp.lake.tables.typed_columns import DOC, VIOLATIONS, fingerprint_of
from tests.lake.watched_lake import Row, Version

_ALIAS: Final = "named"
_CONTRACTS: Final[Sequence[tuple[str, Mapping[str, str]]]] = (
    ("evolve", {}),
    ("quarantine", {"$.n": "bigint", "$.m.k": "string", "$.p": "string"}),
    ("ignore", {"$.n": "double", "$.m.k": "boolean"}),
    ("evolve", {"$.n": "int"}),
    ("evolve", {"$.n": "int", "$.m": f'{{ as = "{_ALIAS}" }}', "$.m.k": "string"}),
)


class Contracts:
    """A folder with one contract, which another one may replace."""

    def __init__(self, folder: Path, random: Random, count: int) -> None:
        """``count`` contracts take turns."""
        self.folder, self._random = folder, random
        self._texts = random.sample([_text(*each) for each in _CONTRACTS], count)
        self._modes: dict[str, ContractMode] = {}
        self.replace(is_calm=True)

    def replace(self, *, is_calm: bool) -> None:
        """Choose the contract of the process that begins; a calm one has the first."""
        text = self._texts[0] if is_calm else self._random.choice(self._texts)
        (self.folder / "docs.toml").write_text(text, "utf-8")
        contract = load_contracts(str(self.folder))[DEFAULT_COLLECTION]
        self.fingerprint = fingerprint_of(contract)
        self._modes[self.fingerprint] = contract.mode

    def require_right(self, version: Version) -> None:
        """Require that each row's columns are what its contract makes of the document."""
        columns = version.made.columns
        if DOC not in columns.names:
            return
        kind, mode = columns.field(DOC).type, self._modes[_followed(columns)]
        for place, row in version.rows.items():
            refusal = _refusal(row, kind, mode)
            assert not refusal, f"typed columns of {place} in {version.current}: {refusal}"

    def lacks(self, version: Version) -> str:
        """Say which contract the table lacks; empty where it follows the present one."""
        followed = _followed(version.made.columns)
        if any(version.rows) and followed != self.fingerprint:
            return f"typed columns follow {followed!r}, expected {self.fingerprint!r}"
        return ""


def _followed(columns: pa.Schema) -> str:
    """Return the fingerprint of the contract that a table's columns follow; empty without one."""
    metadata = columns.field(DOC).metadata if DOC in columns.names else None
    comment: bytes = (metadata or {}).get(b"comment", b"")
    return comment.decode()


def document(random: Random, number: int, padding: str) -> bytes:
    """Return a document whose fields have other types in other documents."""
    fields: Mapping[str, Any] = random.choice(
        (
            {"n": number},
            {"n": number},
            {"n": number + 0.5},
            {"n": 10**12 + number},
            {"n": "text"},
            {"m": {"k": number % 2 == 0}},
            {"m": {"k": "yes", "l": number}},
            {"m": [number]},
        )
    )
    return json.dumps({**fields, "p": padding}).encode()


def _text(mode: str, columns: Mapping[str, str]) -> str:
    lines = [
        f'"{path}" = {kind if kind.startswith("{") else toml_value(kind)}'
        for path, kind in columns.items()
    ]
    head = f'collection = "{DEFAULT_COLLECTION}"\nmode = "{mode}"\n'
    return "\n".join([head, "[columns]", *lines, ""])


def _refusal(row: Row, kind: pa.StructType, mode: ContractMode) -> str:
    """Say what is wrong with a row's columns; empty where nothing is."""
    if not row["value"]:  # it is kept out
        return "" if row[DOC] is None else f"found {row[DOC]} of no value, expected nothing"
    content = json.loads(row["value"])
    if kind.get_field_index(_ALIAS) >= 0:  # the column of the field m
        content = {_ALIAS if name == "m" else name: value for name, value in content.items()}
    misfits: list[str] = []
    wrong = _wrong(content, row[DOC], kind, "$", misfits)
    if not wrong and mode is ContractMode.EVOLVE:
        wrong = _without_column(content, kind)
    if wrong:
        return wrong
    expects = bool(misfits) and mode is not ContractMode.IGNORE
    if expects != bool(row[VIOLATIONS]):
        return f"found violations {row[VIOLATIONS]}, expected some of {misfits}"
    return ""


def _without_column(content: Mapping[str, Any], kind: pa.StructType) -> str:
    """Say which field has no column, at any depth; an array in another row's object has none."""
    kinds = {each.name: each.type for each in kind}
    for name, value in content.items():
        if name not in kinds and not isinstance(value, list):
            return f"no column for {name} of {content}"
        is_object = isinstance(value, dict) and pa.types.is_struct(kinds.get(name, pa.null()))
        if is_object and (wrong := _without_column(value, kinds[name])):
            return wrong
    return ""


def _wrong(value: Any, found: Any, kind: pa.DataType, path: str, misfits: list[str]) -> str:
    """Say where a column differs from a document's value; adds the paths that do not fit."""
    if pa.types.is_struct(kind):
        if not isinstance(value, dict):
            misfits.extend([path] if value is not None else [])
            return "" if found is None else f"{path}: found {found}, expected nothing of {value!r}"
        if found is None:
            return f"{path}: found nothing, expected {value!r}"
        parts = (
            _wrong(
                value.get(each.name), found[each.name], each.type, f"{path}.{each.name}", misfits
            )
            for each in kind
        )
        return next(filter(None, parts), "")
    expected = _cast(value, kind)
    if expected is None and value is not None:
        misfits.append(path)
    same = expected == (
        float(found) if isinstance(expected, float) and found is not None else found
    )
    return "" if same else f"{path}: found {found!r} as {kind}, expected {expected!r} of {value!r}"


def _cast(value: Any, kind: pa.DataType) -> Any:
    """Return a value as a column of some type has it; None where it does not fit."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if value is None:
        return None
    if pa.types.is_string(kind):
        return value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))
    if pa.types.is_boolean(kind):
        return value if isinstance(value, bool) else None
    if pa.types.is_list(kind):
        return value if isinstance(value, list) else None
    if not is_number:
        return None
    if pa.types.is_integer(kind):
        fits = isinstance(value, int) and abs(value) < 2 ** (kind.bit_width - 1)
        return value if fits else None
    return float(value)
