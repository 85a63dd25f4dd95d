"""Proposes a contract from a table's documents: a type for each path, and what would not fit.

Counts values, not documents: an array has many at one path.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from dcp.errors import LakeError
from dcp.lake.apply.json_documents import parse_object
from dcp.lake.apply.seen_values import MOST_DIGITS, NUMBERS, NUMERIC_TEXT, Seen, most_digits
from dcp.lake.config.contracts import refusal_of, require_collection
from dcp.lake.config.json_paths import FieldName, Step, Wildcard
from dcp.lake.config.settings_document import toml_value
from dcp.lake.tables.lake_tables import LakeTables, replicas_in
from dcp.wire.vocabulary import Datatype

_DOMINANT: Final = 0.9
"""A type that fits this share of the values is proposed, and the others would not fit."""

_MAP_FIELDS: Final = 50
_MAP_SHARE: Final = 0.1
"""An object with more fields is proposed as a map if most of them are in fewer objects."""

_TAKES: Final[Mapping[str, tuple[str, ...]]] = {
    "boolean": ("boolean",),
    "bigint": NUMBERS[:2],
    "decimal(38,0)": NUMBERS[:3],
    "double": NUMBERS,
    "date": ("date",),
    "timestamp": ("timestamp",),
}
"""The kinds of values that a proposed type is meant for, narrowest type first."""


@dataclass(frozen=True, slots=True)
class ProposedColumn:
    path: str
    kind: str
    values: int
    misfits: Mapping[str, int]
    """By kind, the number of values that would not fit."""

    def __str__(self) -> str:
        told = f"{toml_value(self.path)} = {toml_value(self.kind)}  # {self.values:,} values"
        if self.misfits:
            counts = (f"{count:,} {kind}" for kind, count in sorted(self.misfits.items()))
            told += f"; {sum(self.misfits.values()):,} would not fit: {', '.join(counts)}"
        return told


@dataclass(frozen=True, slots=True)
class ProposedContract:
    collection: str
    documents: int
    others: int
    columns: tuple[ProposedColumn, ...]
    unnamed: Mapping[str, str]
    """The reason why a path has no column, by path."""

    def __str__(self) -> str:
        mode = "quarantine" if self.columns else "evolve"
        lines = [
            f"# From {self.documents:,} documents; {self.others:,} of them are no JSON object."
        ]
        lines += [f"collection = {toml_value(self.collection)}", f'mode = "{mode}"', ""]
        lines += ["[columns]", *map(str, self.columns)]
        lines += (f"# {toml_value(path)}: no column, {why}" for path, why in self.unnamed.items())
        return "\n".join(lines)


def infer_contract(lake: LakeTables, collection: str, documents: int) -> ProposedContract:
    """Return a contract that fits most of the documents of a collection's table.

    Reads at most ``documents`` of them. If the collection was made again, it takes the newest
    table.

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
        lambda rows: propose_contract(
            collection,
            (row["value"] or b"" if row["datatype"] == Datatype.JSON else b"" for row in rows),
        ),
    )


def propose_contract(collection: str, documents: Iterable[bytes]) -> ProposedContract:
    root, count, others = Seen(), 0, 0
    for document in documents:
        count += 1
        content = parse_object(document)
        root.add(content)
        others += content is None
    columns: list[ProposedColumn] = []
    unnamed: dict[str, str] = {}
    _propose(root, (), columns, unnamed)
    return ProposedContract(collection, count, others, tuple(columns), unnamed)


def _is_map(seen: Seen) -> bool:
    told = sum(each.kinds.total() for each in seen.fields.values())
    most = _MAP_SHARE * seen.kinds["object"] * len(seen.fields)
    return len(seen.fields) > _MAP_FIELDS and told < most


def _propose(
    seen: Seen, steps: tuple[Step, ...], columns: list[ProposedColumn], unnamed: dict[str, str]
) -> None:
    total, path = seen.kinds.total(), "$" + "".join(map(str, steps))
    below = [*_below(seen, total, path, unnamed)]
    for step, each in below:
        _propose(each, (*steps, step), columns, unnamed)
    if below or not total or not steps:
        return
    takes = [*_TAKES.items(), *_of_texts(seen)]
    counts = [sum(seen.kinds[each] for each in fit) for _, fit in takes]
    best = max(counts)
    kind, fit = takes[counts.index(best)]
    if best < _DOMINANT * total:  # a text holds whatever there is
        columns.append(ProposedColumn(path, "string", total, {}))
        return
    misfits = {each: count for each, count in seen.kinds.items() if each not in fit}
    columns.append(ProposedColumn(path, kind, total, {} if kind == "string" else misfits))


def _of_texts(seen: Seen) -> Iterator[tuple[str, tuple[str, ...]]]:
    whole, scale = most_digits(seen.digits, seen.text_digits)
    if whole + scale <= MOST_DIGITS:
        yield f"decimal({MOST_DIGITS},{scale})", (*NUMBERS, NUMERIC_TEXT)
    yield "string", ("date", "timestamp", "string", NUMERIC_TEXT)


def _below(
    seen: Seen, total: int, path: str, unnamed: dict[str, str]
) -> Iterator[tuple[Step, Seen]]:
    if seen.kinds["array"] >= _DOMINANT * total and seen.elements and seen.elements.kinds:
        yield Wildcard.ELEMENTS, seen.elements
    elif seen.kinds["object"] >= _DOMINANT * total and _is_map(seen):
        values = Seen()
        for each in seen.fields.values():
            values.merge(each)
        yield Wildcard.VALUES, values
    elif seen.kinds["object"] >= _DOMINANT * total:
        for spellings in seen.spellings().values():
            chosen = None
            for name, each in spellings:
                why = refusal_of(name)
                if why is None and "'" in name:
                    why = "a path cannot name what has ' in it"
                if why is None and chosen is not None:
                    why = f"Spark takes the name for that of {toml_value(path + str(chosen))}"
                if why is None:
                    chosen = FieldName(name)
                    yield chosen, each
                else:
                    unnamed[f"{path}{FieldName(name)}"] = why
