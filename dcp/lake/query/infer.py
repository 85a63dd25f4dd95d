"""Proposes a contract from a table's documents: a type for each path, and what would not fit.

Counts values, not documents: an array has many at one path.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from dcp.errors import LakeError
from dcp.lake.apply.json_documents import parse_object
from dcp.lake.apply.seen_values import NUMBERS, Seen
from dcp.lake.config.contracts import (
    FieldName,
    Step,
    Wildcard,
    can_be_column,
    require_collection,
)
from dcp.lake.tables.tables import LakeTables, replicas_in
from dcp.wire.vocabulary import Datatype

_DOMINANT: Final = 0.9
"""A type that so many of the values have is proposed, and the others would not fit."""

_MAP_FIELDS: Final = 50
_MAP_SHARE: Final = 0.1
"""An object with more fields, most of which few objects have, is proposed as a map."""

_TAKES: Final[Mapping[str, frozenset[str]]] = {
    "boolean": frozenset({"boolean"}),
    "bigint": frozenset(NUMBERS[:2]),
    "decimal(38,0)": frozenset(NUMBERS[:3]),
    "double": frozenset(NUMBERS),
    "date": frozenset({"date"}),
    "timestamp": frozenset({"timestamp"}),
    "string": frozenset({"date", "timestamp", "string"}),
}
"""The kinds of values that a proposed type is meant for, narrowest type first."""


@dataclass(frozen=True, slots=True)
class ProposedColumn:
    """A column of a proposed contract; ``misfits`` are the kinds of values that would not fit."""

    path: str
    kind: str
    values: int
    misfits: Mapping[str, int]

    def __str__(self) -> str:
        """Return its line in a contract."""
        path = json.dumps(self.path, ensure_ascii=False)
        told = f"{path} = {json.dumps(self.kind)}  # {self.values:,} values"
        if self.misfits:
            counts = (f"{count:,} {kind}" for kind, count in sorted(self.misfits.items()))
            told += f"; {sum(self.misfits.values()):,} would not fit: {', '.join(counts)}"
        return told


@dataclass(frozen=True, slots=True)
class ProposedContract:
    """A contract for the documents that were read; ``unnamed`` are paths that get no column."""

    collection: str
    documents: int
    others: int
    columns: tuple[ProposedColumn, ...]
    unnamed: tuple[str, ...]

    def __str__(self) -> str:
        """Return it as a contract's file has it."""
        mode = "quarantine" if self.columns else "evolve"
        lines = [
            f"# From {self.documents:,} documents; {self.others:,} of them are no JSON object."
        ]
        lines += [f"collection = {json.dumps(self.collection)}", f'mode = "{mode}"', ""]
        lines += ["[columns]", *map(str, self.columns)]
        lines += (f"# {json.dumps(path)}: no column can have this name" for path in self.unnamed)
        return "\n".join(lines)


def infer_contract(lake: LakeTables, collection: str, documents: int) -> ProposedContract:
    """Return a contract that fits most of the documents of a collection's table.

    Reads no more than some ``documents``. Of a collection that was made again, its newest table.

    Raises:
        ConfigError: that is no collection's name.
        LakeError: the lake has no table of it.

    """
    require_collection(collection, "dcplake schema infer")
    there = replicas_in(lake)
    replicas = [each for each in there if each.collection == collection]
    if not replicas:
        names = ", ".join(sorted({each.collection for each in there}))
        raise LakeError(
            f"{lake.location}: found no table of the collection {collection!r}, expected one of "
            f"{names}"
        )
    newest = max(replicas, key=lambda each: each.collection_id)
    return lake.table(newest.name).take_rows(
        "value, datatype",
        f"true LIMIT {documents}",
        lambda rows: propose_contract(collection, map(_json_of, rows)),
    )


def _json_of(row: Mapping[str, Any]) -> bytes:
    return bytes(row["value"] or b"") if row["datatype"] == Datatype.JSON else b""


def propose_contract(collection: str, documents: Iterable[bytes]) -> ProposedContract:
    """Return a contract that fits most of some documents; what is no JSON may be among them."""
    root, count, others = Seen(), 0, 0
    for document in documents:
        count += 1
        content = parse_object(document)
        root.add(content)
        others += content is None
    columns: list[ProposedColumn] = []
    unnamed: list[str] = []
    _propose(root, (), columns, unnamed)
    return ProposedContract(collection, count, others, tuple(columns), tuple(unnamed))


def _is_map(seen: Seen) -> bool:
    told = sum(each.kinds.total() for each in seen.fields.values())
    most = _MAP_SHARE * seen.kinds["object"] * len(seen.fields)
    return len(seen.fields) > _MAP_FIELDS and told < most


def _propose(
    seen: Seen, steps: tuple[Step, ...], columns: list[ProposedColumn], unnamed: list[str]
) -> None:
    """Add the columns for what was seen at a path."""
    total, path = seen.kinds.total(), "$" + "".join(map(str, steps))
    below = [*_below(seen, total, path, unnamed)]
    for step, each in below:
        _propose(each, (*steps, step), columns, unnamed)
    if below or not total or not steps:
        return
    takes: dict[str, int] = {
        kind: sum(seen.kinds[each] for each in fit) for kind, fit in _TAKES.items()
    }
    best = max(takes.values())
    kind = next(each for each, count in takes.items() if count == best)
    if best < _DOMINANT * total:  # a text holds whatever there is
        columns.append(ProposedColumn(path, "string", total, {}))
        return
    misfits = {each: count for each, count in seen.kinds.items() if each not in _TAKES[kind]}
    columns.append(ProposedColumn(path, kind, total, {} if kind == "string" else misfits))


def _below(seen: Seen, total: int, path: str, unnamed: list[str]) -> Iterator[tuple[Step, Seen]]:
    """Give the steps further down, where most of what is at a path are objects, or arrays."""
    if seen.kinds["array"] >= _DOMINANT * total and seen.elements and seen.elements.kinds:
        yield Wildcard.ELEMENTS, seen.elements
    elif seen.kinds["object"] >= _DOMINANT * total and _is_map(seen):
        values = Seen()
        for each in seen.fields.values():
            values.merge(each)
        yield Wildcard.VALUES, values
    elif seen.kinds["object"] >= _DOMINANT * total:
        taken: set[str] = set()
        for name, each in seen.fields.items():
            # A path cannot name what has a quotation mark in it.
            if can_be_column(name) and "'" not in name and name.lower() not in taken:
                taken.add(name.lower())
                yield FieldName(name), each
            else:
                unnamed.append(f"{path}{FieldName(name)}")
