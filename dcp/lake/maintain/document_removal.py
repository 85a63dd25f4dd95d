"""Takes documents with all their versions out of a lake's tables and files.

An apply takes them out of the replicas (`Applier.erase`); this module does the rest. Older versions
and deletion vectors keep rows in files. So files with such rows are rewritten, and the files of
older versions are deleted. A rollback that would need an older version reads its vbucket anew.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Final

import pyarrow as pa

from dcp.errors import IncompleteRunError
from dcp.lake.change_log.collection_events import kept_vbuckets
from dcp.lake.change_log.control import RequestAction
from dcp.lake.change_log.erase_request import Erasure
from dcp.lake.config.table_names import AUDIT_TABLE, CHANGES_TABLE, QUALITY_TABLE
from dcp.lake.maintain.work import maintenance_metadata
from dcp.lake.store.sql import integer_list, string, string_list
from dcp.lake.tables.history import CLEANING, READ_VERSION, history
from dcp.lake.tables.lake_tables import LakeTables, ReplicaTable, known_replicas
from dcp.lake.tables.schema import AUDIT, CHANGES, ITEM_KINDS, QUALITY, REPLICA, RowKind, is_kind
from dcp.lake.tables.vbucket_state import LakeVbucketState
from dcp.records import UNSTORED, Record

_FOUND: Final = ("vbucket", "epoch", "seqno", "key", "kind")
"""`find_documents` reads these columns, as far as a table has them."""
_WITHOUT_VALUE: Final = {"value": "X''", "xattrs": "NULL", "datatype": "0", "detail": "NULL"}
"""Columns of a row of ``changes`` without its value, as the privacy rule ``drop`` leaves them."""
_HAS_VALUE: Final = "(value <> X'' OR xattrs IS NOT NULL)"
_AUDIT_HAS_VALUE: Final = (
    "(coalesce(before.value <> X'', false) OR coalesce(after.value <> X'', false))"
)


@dataclass(frozen=True, slots=True)
class _TableRows:
    """The rows of one table that name the documents of an erasure."""

    table: str
    columns: pa.Schema
    """The table's columns."""
    condition: str
    value_condition: str | None
    """The condition that such a row also has a value. None: the table never has values."""


def _tables_with_documents(lake: LakeTables, erasure: Erasure) -> list[_TableRows]:
    """Return all existing tables that may name the documents."""
    replicas = _replicas(lake, erasure)
    ids = integer_list(sorted(each.collection_id for each in replicas)) or "NULL"
    names = string_list(sorted(each.name for each in replicas)) or string("")
    is_erased, of_replicas = erasure.condition_sql(), f"`table` IN ({names})"
    in_log = f"{is_kind(*ITEM_KINDS)} AND collection_id IN ({ids}) AND {is_erased}"
    in_audit = f"{of_replicas} AND {is_erased}"
    in_samples = f"{of_replicas} AND exists(samples, each -> {erasure.condition_sql('each.key')})"
    tables = [
        _TableRows(CHANGES_TABLE, CHANGES, in_log, _HAS_VALUE),
        *(_TableRows(each.name, REPLICA, is_erased, _HAS_VALUE) for each in replicas),
        _TableRows(AUDIT_TABLE, AUDIT, in_audit, _AUDIT_HAS_VALUE),
        _TableRows(QUALITY_TABLE, QUALITY, in_samples, None),
    ]
    return [each for each in tables if lake.table(each.table).exists()]


@dataclass(frozen=True, slots=True)
class FoundDocuments(Record):
    """The rows of the documents that a request names, and the price of their erasure."""

    erasure: Annotated[Erasure, UNSTORED]
    rows: Mapping[str, int] = field(default_factory=dict)
    """By table."""
    known_keys: int = 0
    """The number of keys with a row in the log or a replica."""
    lost_versions: Mapping[str, int] = field(default_factory=dict)
    """By table, the newest version that the erasure makes unreadable, with all older ones."""
    at_source: int = 0
    """The number of documents that are at the source, as far as the tables know."""
    deleted: int = 0
    """Of those, the number with a later deletion in the log. Their replica lacks that deletion."""
    incomplete: int = 0
    """The number of rows in the log that wait for the end of their snapshot."""

    def __str__(self) -> str:
        rows = ", ".join(f"{count:,} in {table}" for table, count in self.rows.items())
        keys = f"{len(self.erasure.key_hashes):,}, {self.known_keys:,} of them in the lake"
        return f"keys of {self.erasure.collection}: {keys}; rows: {rows or 'none'}"

    def price(self) -> list[str]:
        """Return the losses of an erasure, a sentence for each."""
        lines = [
            f"table {table}: versions up to {version} can no longer be read"
            for table, version in self.lost_versions.items()
        ]
        return [
            *lines,
            "a rollback to before the erasure reads its vbuckets anew from the source, whole",
            "cuts and queries of these versions fail",
        ]

    def still_at_source(self) -> str:
        """Return the refusal of an erasure that does not keep out documents at the source."""
        return (
            f"keys: found {self.at_source:,} of the documents at the source, as far as the lake "
            "has read it, expected none: delete them there and let a run bring the deletions, or "
            "ask with --keep-out"
        )


def _replicas(lake: LakeTables, erasure: Erasure) -> list[ReplicaTable]:
    """Return the replicas of all collections that have or had this name, existing ones or not."""
    return [each for each in known_replicas(lake) if each.collection == erasure.collection]


def existing_replicas(lake: LakeTables, erasure: Erasure) -> list[ReplicaTable]:
    return [each for each in _replicas(lake, erasure) if lake.table(each.name).exists()]


def unknown_collection(lake: LakeTables, erasure: Erasure) -> str:
    """Return why the collection is refused; empty if the lake has or had a replica of it."""
    if _replicas(lake, erasure):
        return ""
    known = ", ".join(sorted({each.collection for each in known_replicas(lake)}))
    return f"collection: found {erasure.collection!r}, expected one of: {known}"


def find_documents(
    lake: LakeTables,
    erasure: Erasure,
    to_round: int,
    states: Mapping[int, LakeVbucketState],
) -> FoundDocuments:
    """Find the rows of the documents.

    ``to_round`` is the newest round; ``states`` are the states of the vbuckets after it.
    """
    tables = _tables_with_documents(lake, erasure)
    found = {each.table: _found_rows(lake, each) for each in tables if each.table != QUALITY_TABLE}
    log_rows = found[CHANGES_TABLE]
    incomplete = sum(
        row["epoch"] == state.epoch and int(row["seqno"]) > state.complete_seqno
        for row in log_rows
        if (state := states.get(row["vbucket"])) is not None
    )
    dropped, at_source, deleted = kept_vbuckets(lake, to_round), 0, 0
    keys = {row["key"] for row in log_rows}
    newest = {(row["vbucket"], row["key"]): row for row in sorted(log_rows, key=_order)}
    for replica in _replicas(lake, erasure):
        documents = found.get(replica.name, [])
        dropped_in = dropped.get(replica.collection_id, frozenset())
        keys |= {row["key"] for row in documents}
        there = [row for row in documents if row["vbucket"] not in dropped_in]
        at_source += len(there)
        deleted += sum(_is_deleted(row, newest) for row in there)
    rows = {table: len(each) for table, each in found.items()}
    lost = {each.table: history(lake.table(each.table), 1)[0].version for each in tables}
    return FoundDocuments(erasure, rows, len(keys), lost, at_source, deleted, incomplete)


def _found_rows(lake: LakeTables, named: _TableRows) -> list[dict[str, Any]]:
    columns = pa.schema([each for each in named.columns if each.name in _FOUND])
    found = lake.table(named.table).found_by_spark(columns, named.condition)
    rows: list[dict[str, Any]] = found.to_pylist()
    return rows


def _order(row: Mapping[str, Any]) -> tuple[int, int]:
    return row["epoch"], row["seqno"]


def _is_deleted(
    row: Mapping[str, Any], newest: Mapping[tuple[int, str], Mapping[str, Any]]
) -> bool:
    """Return whether the log has a later deletion of a replica's row, perhaps on a dead branch."""
    last = newest.get((row["vbucket"], row["key"]))
    return last is not None and _order(last) > _order(row) and last["kind"] != RowKind.MUTATION


def erase_rows(lake: LakeTables, erasure: Erasure, to_round: int) -> dict[str, int]:
    """Take the documents out of all tables except the replicas.

    Returns the number of rows by table.

    The lake must have noted that the log may lack document rows up to ``to_round``
    (`record_cleaned_round`).
    """
    read_version = history(lake.changes, 1)[0].version
    ours = maintenance_metadata(lake, RequestAction.ERASE)
    metadata = ours | {CLEANING: to_round, READ_VERSION: read_version}
    changed: dict[str, int] = {}
    for each in _tables_with_documents(lake, erasure):
        table, condition = lake.table(each.table), each.condition
        if each.table == CHANGES_TABLE and erasure.keeps_out:
            with_value = f"{condition} AND {each.value_condition}"
            changed[each.table] = table.update(_WITHOUT_VALUE, with_value, metadata)
        elif each.table == CHANGES_TABLE:
            changed[each.table] = table.delete(condition, metadata)
        elif each.table == AUDIT_TABLE:
            changed[each.table] = table.delete(condition, ours)
        elif each.table == QUALITY_TABLE and not erasure.keeps_out:
            is_erased = erasure.condition_sql("each.key")
            samples = {"samples": f"filter(samples, each -> NOT ({is_erased}))"}
            changed[each.table] = table.update(samples, condition, ours)
    return changed


def purge_tables(lake: LakeTables, erasure: Erasure) -> int:
    """Delete the files of older versions; return their number."""
    ours = maintenance_metadata(lake, RequestAction.ERASE)
    tables = _tables_with_documents(lake, erasure)
    return sum(lake.table(each.table).purge(ours) for each in tables)


@dataclass(frozen=True, slots=True)
class FileSearch(Record):
    """A search of all data files of some tables for documents."""

    files: int
    found: Mapping[str, Sequence[str]]
    """By table, the files that hold one of the documents."""

    def joined(self, other: "FileSearch") -> "FileSearch":
        """Return the result of both searches: of other documents, in the same files."""
        tables = {**self.found, **other.found}
        found = {each: (*self.found.get(each, ()), *other.found.get(each, ())) for each in tables}
        return FileSearch(max(self.files, other.files), found)

    def __str__(self) -> str:
        if not self.found:
            return f"none of {self.files:,} data files holds one of the documents"
        return f"{sum(map(len, self.found.values())):,} of {self.files:,} data files hold some"

    def refuse_found(self) -> None:
        """Raise IncompleteRunError if a file holds one of the documents."""
        if self.found:
            listed = "\n".join(
                f"  {table}: {name}" for table, names in self.found.items() for name in names
            )
            raise IncompleteRunError(
                f"{self}, expected none: ask for the erasure (without --check), and let a run carry"
                f" it out. `dcplake maintain` deletes files of killed drivers after the horizon\n"
                f"{listed}"
            )


def search_files(lake: LakeTables, erasure: Erasure) -> FileSearch:
    """Search the data files of all tables, also those that no version references.

    If the erasure keeps values out, only rows with a value count.
    """
    files, found = 0, {}
    for each in _tables_with_documents(lake, erasure):
        condition = each.condition
        if erasure.keeps_out:
            if each.value_condition is None:
                continue
            condition = f"{condition} AND {each.value_condition}"
        read, holding = lake.table(each.table).search_files(each.columns, condition)
        files += read
        if holding:
            found[each.table] = holding
    return FileSearch(files, found)
