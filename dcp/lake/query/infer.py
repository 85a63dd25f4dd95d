"""Proposes a contract from a table's documents: a type for each path, and the misfits.

It counts values, not documents: an array has many values at one path.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Final

from dcp.errors import ConfigError, LakeError
from dcp.lake.apply.json_documents import parse_object
from dcp.lake.apply.seen_values import (
    BEYOND_DOUBLE,
    NUMBERS,
    NUMERIC_TEXT,
    PARTIAL_DATE,
    YEAR_TEXT,
    Seen,
    ValuePath,
    most_digits,
)
from dcp.lake.config.contracts import (
    MOST_DIGITS,
    load_contracts,
    refusal_of,
    require_collection,
    same_name_key,
)
from dcp.lake.config.json_paths import FieldName, Step, Wildcard, path_text
from dcp.lake.config.settings_document import toml_value
from dcp.lake.tables.lake_tables import LakeTables, replicas_in
from dcp.lake.tables.schema import ROW_COLUMNS
from dcp.wire.vocabulary import Datatype

_DOMINANT: Final = 0.9
"""It proposes a type that fits this share of the values. The others are misfits."""

_MAP_FIELDS: Final = 50
_MAP_SHARE: Final = 0.1
"""It proposes a map for an object with more fields if most fields occur in a smaller share of the
objects.
"""

_TAKES: Final[Mapping[str, tuple[str, ...]]] = {
    "boolean": ("boolean",),
    "bigint": NUMBERS[:2],
    "decimal(38,0)": NUMBERS[:3],
    "double": NUMBERS,
    "date": ("date",),
    "timestamp": ("timestamp",),
}
"""The kinds of values for each type, narrowest type first."""

_KINDS_OF_VALUES: Final = {
    **dict.fromkeys((*NUMBERS, BEYOND_DOUBLE), "number"),
    NUMERIC_TEXT: "numeric text",  # and years where there are no dates
    **{kind: kind for kind in ("boolean", "object", "array")},
}
"""Readable names for the kinds in `Seen`; all others are texts."""

_NO_COLUMN: Final = re.compile(r"[\s,;{}()=\x00-\x1f\x7f-\x9f]+")


@dataclass(frozen=True, slots=True)
class ProposedColumn:
    path: str
    kind: str
    """Empty: the path leads to an object or array with paths of its own, and only has an alias."""
    alias: str
    """Empty: the column has the name of its field."""
    values: int
    misfits: Mapping[str, int]
    """By kind, the number of values that do not fit."""

    @property
    def entry(self) -> str | dict[str, str]:
        """The contract's text or table for this path."""
        if not self.alias:
            return self.kind
        return {"as": self.alias, **({"type": self.kind} if self.kind else {})}

    def __str__(self) -> str:
        told = f"{toml_value(self.path)} = {_toml(self.entry)}"
        if not self.kind:
            return told
        told += f"  # {self.values:,} values"
        if self.misfits:
            counts = (f"{count:,} {kind}" for kind, count in sorted(self.misfits.items()))
            told += f"; {sum(self.misfits.values()):,} would not fit: {', '.join(counts)}"
        return told


def _toml(entry: str | dict[str, str]) -> str:
    if isinstance(entry, str):
        return toml_value(entry)
    return f"{{ {', '.join(f'{name} = {toml_value(told)}' for name, told in entry.items())} }}"


@dataclass(frozen=True, slots=True)
class ProposedContract:
    collection: str
    documents: int
    others: int
    columns: tuple[ProposedColumn, ...]
    mixed: tuple[str, ...]
    """A comment on each path whose values have several kinds, as numbers and texts."""

    def __str__(self) -> str:
        mode = "quarantine" if self.columns else "evolve"
        lines = [
            f"# From {self.documents:,} documents; {self.others:,} of them are no JSON object."
        ]
        lines += [f"collection = {toml_value(self.collection)}", f'mode = "{mode}"', ""]
        lines += ["[columns]", *map(str, self.columns)]
        lines += self.mixed
        return "\n".join(lines)


def file_of_new_contract(folder: str, collection: str) -> Path:
    """Return the file for a new contract of a collection.

    Raises:
        ConfigError: no folder is named; the folder has a contract of the collection, or a file of
            that name; or another file in it is no contract.
    """
    if not folder:
        raise ConfigError(
            "apply.contracts_folder: found none, expected the folder for the contract that --out "
            "writes"
        )
    known = load_contracts(folder) if Path(folder).exists() else {}
    if collection in known:
        raise ConfigError(
            f"{known[collection].where}: found a contract for {collection}, expected none yet; "
            "without --out the proposed one is printed"
        )
    file = Path(folder, f"{collection}.toml")
    if file.exists():
        raise ConfigError(f"{file}: found this file, expected none yet of that name")
    return file


def infer_contract(lake: LakeTables, collection: str, documents: int) -> ProposedContract:
    """Return a contract that fits most documents of a collection's table.

    It reads at most ``documents`` of them. If a collection was dropped and created again, it reads
    the newest table.

    Raises:
        ConfigError: no collection has this name.
        LakeError: the lake has no table of the collection.
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
        "key, value, datatype",
        f"true LIMIT {documents}",
        lambda rows: propose_contract(
            collection,
            (
                (row["key"], (row["value"] if row["datatype"] == Datatype.JSON else None) or b"")
                for row in rows
            ),
        ),
    )


def propose_contract(collection: str, documents: Iterable[tuple[str, bytes]]) -> ProposedContract:
    """Return a contract that fits most of these documents; each comes with its key."""
    root, read, others = Seen(), 0, 0
    for key, document in documents:
        read += 1
        content = parse_object(document)
        root.add(content, path=(key, "$"))
        others += content is None
    columns, mixed = _proposed(root, (), "")
    return ProposedContract(collection, read, others, tuple(columns), tuple(mixed))


def _is_map(seen: Seen) -> bool:
    told = sum(each.kinds.total() for each in seen.fields.values())
    most = _MAP_SHARE * seen.kinds["object"] * len(seen.fields)
    return len(seen.fields) > _MAP_FIELDS and told < most


def _proposed(
    seen: Seen, steps: tuple[Step, ...], alias: str
) -> tuple[list[ProposedColumn], list[str]]:
    """Return the columns for the values at a path and below, and comments on mixed values.

    ``alias`` belongs to the path's last field.
    """
    total, path = seen.kinds.total(), path_text(steps)
    own = _comment_on_mixed(path, seen)
    columns: list[ProposedColumn] = []
    mixed = [] if own is None else [own]
    below = [*_below(seen, total, is_top=not steps)]
    for step, each, its_alias in below:
        is_field = isinstance(step, FieldName)
        found, mixed_below = _proposed(each, (*steps, step), its_alias if is_field else alias)
        if is_field and alias and found:
            columns.append(ProposedColumn(path, "", alias, 0, {}))
            alias = ""
        columns += found
        mixed += mixed_below
    if not below and total and steps:
        columns.append(_column(path, seen, total, alias))
    return columns, mixed


def _column(path: str, seen: Seen, total: int, alias: str) -> ProposedColumn:
    takes = [*_TAKES.items(), *_of_texts(seen)]
    counts = [sum(seen.kinds[each] for each in fit) for _, fit in takes]
    best = max(counts)
    kind, fit = takes[counts.index(best)]
    if best < _DOMINANT * total:  # a text holds whatever there is
        return ProposedColumn(path, "string", alias, total, {})
    misfits = {each: number for each, number in seen.kinds.items() if each not in fit}
    return ProposedColumn(path, kind, alias, total, {} if kind == "string" else misfits)


def _of_texts(seen: Seen) -> Iterator[tuple[str, tuple[str, ...]]]:
    whole, scale = most_digits(seen.digits, seen.text_digits)
    numeric = (NUMERIC_TEXT, YEAR_TEXT)
    if whole + scale <= MOST_DIGITS:
        yield f"decimal({MOST_DIGITS},{scale})", (*NUMBERS, *numeric)
    yield "partial_date", ("date", PARTIAL_DATE, YEAR_TEXT)
    yield "string", ("date", "timestamp", "string", PARTIAL_DATE, *numeric)


def _comment_on_mixed(path: str, seen: Seen) -> str | None:
    """Return the comment if the values have several kinds, the most frequent kind first."""
    counts: Counter[str] = Counter()
    examples: dict[str, ValuePath] = {}
    has_dates = "date" in seen.kinds or PARTIAL_DATE in seen.kinds
    names = _KINDS_OF_VALUES if has_dates else {**_KINDS_OF_VALUES, YEAR_TEXT: "numeric text"}
    for kind, number in seen.kinds.items():
        name = names.get(kind, "text")
        counts[name] += number
        examples.setdefault(name, seen.examples[kind])
    if len(counts) < 2:
        return None
    told: list[str] = []
    for kind, number in counts.most_common():
        key, *steps = examples[kind]
        where = f" ({toml_value(''.join(steps))} of the document {toml_value(key)})" if told else ""
        told.append(f"{number:,} {kind}{'' if number == 1 else 's'}{where}")
    return f"# {toml_value(path)} has values of several kinds: {', '.join(told)}"


def _below(seen: Seen, total: int, *, is_top: bool) -> Iterator[tuple[Step, Seen, str]]:
    """Yield the next steps from a path, the values there, and the alias of a field that needs
    one.
    """
    if seen.kinds["array"] >= _DOMINANT * total and seen.elements and seen.elements.kinds:
        yield Wildcard.ELEMENTS, seen.elements, ""
    elif seen.kinds["object"] >= _DOMINANT * total and _is_map(seen):
        values = Seen()
        for each in seen.fields.values():
            values.merge(each)
        yield Wildcard.VALUES, values, ""
    elif seen.kinds["object"] >= _DOMINANT * total:
        aliases = _aliases(seen, is_top=is_top)
        for spellings in seen.spellings().values():
            for name, each in spellings:
                yield FieldName(name), each, aliases.get(name, "")


def _aliases(seen: Seen, *, is_top: bool) -> dict[str, str]:
    """Return an alias for each field whose name no column can have, or another column has."""
    others: list[str] = []
    taken = set(ROW_COLUMNS) if is_top else set()
    for key, spellings in seen.spellings().items():
        names = [name for name, _ in spellings]
        chosen = next((name for name in names if refusal_of(name) is None), None)
        others += (name for name in names if name != chosen)
        if chosen is not None:
            taken.add(key)
    found: dict[str, str] = {}
    for name in others:
        begin = _NO_COLUMN.sub("_", name).strip("_") or "field"
        numbered = (f"{begin}_{number}" for number in count(2))
        alias = begin
        while same_name_key(alias) in taken:
            alias = next(numbered)
        taken.add(same_name_key(alias))
        found[name] = alias
    return found
