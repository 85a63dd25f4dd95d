"""A table in memory: versions with rows, and commits as Delta has them.

The product's own SQL runs over it by DataFusion, the engine that delta-rs has, too.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from dcp.errors import LakeError
from dcp.lake.store.cached_reads import CachedReads, committing
from dcp.lake.store.merge import Merge
from dcp.lake.store.sql import standard_string
from dcp.lake.store.table import (
    CommitConflictError,
    MissingVersionError,
    Statement,
    TableSize,
    Transaction,
    sized_columns,
)
from dcp.lake.tables.history import metadata_json
from dcp.lake.tables.schema import REPLICA
from tests.lake.memory_merge import log_rows, with_made

if TYPE_CHECKING:
    from tests.lake.memory_store import MemoryStore

_Found = TypeVar("_Found")
_PLACE: Final = ("vbucket", "key")
_KEEPS_FILES: Final = ("SET TBLPROPERTIES", "UNSET TBLPROPERTIES")


@dataclass(frozen=True)
class MemoryVersion:
    """One version: its rows in chunks, and what Delta's log would say of its commit."""

    number: int
    columns: pa.Schema
    chunks: tuple[pa.RecordBatch, ...]
    properties: Mapping[str, str]
    transactions: Mapping[str, int]
    operation: str
    user_metadata: str
    time: datetime
    parameters: Mapping[str, str] = field(default_factory=dict)
    metrics: Mapping[str, int] = field(default_factory=dict)
    has_new_rows: bool = True
    found: dict[str, pa.Table] = field(default_factory=dict, compare=False)
    """Results of queries, by their text."""

    @property
    def rows(self) -> pa.Table:
        return pa.Table.from_batches(self.chunks, self.columns)

    @cached_property
    def one_chunk(self) -> tuple[pa.RecordBatch, ...]:
        """The rows for a query: DataFusion takes each chunk and column over by itself."""
        return _chunks(self.rows)

    def had(self, transaction: Transaction | None) -> bool:
        """Whether a transaction was committed up to here, or a later one of its application."""
        return (
            transaction is not None
            and self.transactions.get(transaction[0], -1) >= (transaction[1])
        )

    def told(self) -> dict[str, Any]:
        """Return the commit as the history has it."""
        return {
            "version": self.number,
            "time": self.time,
            "file_time": self.time,
            "operation": self.operation,
            "operationParameters": dict(self.parameters),
            "operationMetrics": {name: str(number) for name, number in self.metrics.items()},
            "userMetadata": self.user_metadata,
        }


@dataclass
class MemoryVersions:
    """All versions of a table that was made once; one that is created again has others."""

    table_id: str
    versions: list[MemoryVersion] = field(default_factory=list)
    unreadable: set[int] = field(default_factory=set)
    """Versions whose files VACUUM has deleted."""

    @property
    def newest(self) -> MemoryVersion:
        return self.versions[-1]


@dataclass(frozen=True)
class MemoryTable:
    """A table of a store, which need not be there; the port says what its methods do."""

    name: str
    store: "MemoryStore"

    @property
    def sql(self) -> str:
        return self.name

    @property
    def where(self) -> str:
        return f"{self.store.location}: table {self.name}"

    @property
    def cached_reads(self) -> CachedReads:
        return self.store.cached_reads

    @property
    def kept(self) -> MemoryVersions:
        return self._there(self.store.kept.get(self.name))

    @property
    def _seen(self) -> MemoryVersions:
        return self._there(self.store.seen(self.name))

    def _there(self, versions: MemoryVersions | None) -> MemoryVersions:
        if versions is None:
            raise LakeError(f"{self.where}: found no Delta table there, expected one")
        return versions

    # --- reads

    def exists(self) -> bool:
        return self.store.seen(self.name) is not None

    def properties(self) -> dict[str, str]:
        return dict(self._seen.newest.properties)

    def table_id(self) -> str:
        return self._seen.table_id

    def size(self) -> TableSize:
        chunks = [chunk for chunk in self._seen.newest.chunks if chunk.num_rows]
        return TableSize(len(chunks), sum(chunk.nbytes for chunk in chunks))

    def transaction_version(self, app_id: str) -> int | None:
        return self._seen.newest.transactions.get(app_id)

    def columns(self, version: int | None = None) -> pa.Schema:
        return self._at(version).columns

    def commits(self, limit: int) -> list[dict[str, Any]]:
        return [each.told() for each in self._seen.versions[: -limit - 1 : -1]]

    def rows(self, columns: str, condition: str) -> list[dict[str, Any]]:
        return self.take_rows(columns, condition, list)

    def take_rows(
        self, columns: str, condition: str, take: Callable[[Iterator[dict[str, Any]]], _Found]
    ) -> _Found:

        def statement(name: str, _: object) -> str:
            return f"SELECT {columns} FROM {name} WHERE {condition}"

        return take(iter(self._run(statement, None).to_pylist()))

    def query(
        self, statement: Statement, schema: pa.Schema, version: int | None = None
    ) -> pa.Table:
        return self._run(statement, version).select(schema.names).cast(schema)

    def bounded_query(
        self,
        statement: Statement,
        schema: pa.Schema,
        version: int | None,
        most_bytes: int,
    ) -> pa.Table | None:
        found = self.query(statement, schema, version)
        sizes = (pc.sum(pc.binary_length(found[name])).as_py() for name in sized_columns(schema))
        return found if sum(size or 0 for size in sizes) <= most_bytes else None

    def _run(self, statement: Statement, version: int | None) -> pa.Table:
        read = self._at(version)
        name = f"{self.name}_{self._seen.table_id}_{read.number}"
        text = statement(name, standard_string)
        if text not in read.found:
            read.found[text] = self.store.run(text, {name: read.one_chunk})
        return read.found[text]

    def _at(self, version: int | None) -> MemoryVersion:
        kept = self._seen
        if version is None:
            return kept.newest
        if version in kept.unreadable or version >= len(kept.versions):
            raise MissingVersionError(f"{self.where}: version {version}")
        return kept.versions[version]

    # --- changes

    @committing
    def create(
        self,
        columns: pa.Schema,
        cluster_by: Collection[str],  # rows in memory lie in no order
        properties: Mapping[str, str],
    ) -> None:
        with self.store.making:
            if self.name not in self.store.kept:
                self.store.kept[self.name] = MemoryVersions(self.store.new_id())
                empty = _chunks(columns.empty_table())
                self._commit("CREATE TABLE", columns, empty, {}, properties=dict(properties))

    @committing
    def add_columns(self, columns: pa.Schema, comments: Mapping[str, str]) -> None:
        """Add columns that are not there, without values."""
        newest = self.kept.newest
        missing = [each for each in columns if each.name not in newest.columns.names]
        if missing:
            schema = pa.schema([*newest.columns, *_commented(missing, comments)])
            self._commit("ADD COLUMNS", schema, _chunks(_cast(newest.rows, schema)), {})

    def register(self, name: str) -> None:
        """Raise: there is no session."""
        raise NotImplementedError

    def vacuum(
        self, metadata: Mapping[str, Any], hours: int | None, *, dry_run: bool = False
    ) -> int:
        """Delete nothing: there are no files."""
        return 0

    @committing
    def set_properties(self, properties: Mapping[str, str | None]) -> None:
        before = self.kept.newest.properties
        changed = {**before, **properties}
        after = {name: value for name, value in changed.items() if value is not None}
        if after != before:
            is_set = any(value is not None for value in properties.values())
            self._alter(f"{'SET' if is_set else 'UNSET'} TBLPROPERTIES", after)

    @committing
    def append(self, rows: pa.Table, metadata: Mapping[str, Any]) -> None:
        newest = self.kept.newest
        made = rows.select(newest.columns.names).cast(newest.columns)
        self._commit_rows("WRITE", (*newest.chunks, *_chunks(made)), metadata)

    @committing
    def append_on(
        self,
        version: int,
        rows: pa.Table,
        transaction: Transaction,
        metadata: Mapping[str, Any],
        operation: str = "WRITE",
    ) -> None:
        """Append rows as the version after ``version``, as the product's commits of files do."""
        read, newest = self.kept.versions[version], self.kept.newest
        if read.had(transaction):
            return
        if newest is not read:
            raise CommitConflictError(f"{self.where}: found version {newest.number}")
        # Readers find nulls in columns that the files lack, and nothing of those that they add.
        chunks = (*read.chunks, *_chunks(_cast(rows, read.columns)))
        told = ("numTargetRowsInserted", rows.num_rows), ("numOutputBytes", rows.nbytes)
        metrics = dict([told[operation != "MERGE"]])
        self._commit_rows(operation, chunks, metadata, metrics, transaction)

    @committing
    def renew(self, transaction: Transaction, metadata: Mapping[str, Any]) -> None:
        newest = self.kept.newest
        if not newest.had(transaction):
            metrics = {"numOutputRows": 0}
            self._commit_rows(
                "WRITE", newest.chunks, metadata, metrics, transaction, has_new_rows=False
            )

    @committing
    def merge(self, merge: Merge, transaction: Transaction, metadata: Mapping[str, Any]) -> None:
        read = self.kept.newest
        if read.had(transaction):
            return
        operation = "CREATE OR REPLACE TABLE AS SELECT" if merge.rewrites else "MERGE"
        rows, metrics = self.after(merge)
        self.store.between(self.name)
        since = self.kept.versions[read.number + 1 :]
        if any(each.has_new_rows or each.operation in _KEEPS_FILES for each in since):
            raise CommitConflictError(f"{self.where}: found {since}")
        self._commit(
            operation,
            rows.schema,
            _chunks(rows),
            metadata,
            metrics=metrics,
            transaction=transaction,
        )

    def after(self, merge: Merge) -> tuple[pa.Table, dict[str, int]]:
        """Return the rows after a merge, and its metrics."""
        old, new = self.kept.newest.rows, self._source(merge)
        if merge.rewrites:
            merged, metrics = _merged(old.select(REPLICA.names), new)
            columns = (
                [] if merge.made is None else _commented(merge.made.schema, merge.made.comments)
            )
            made = with_made(merged, merge.made)
            return _cast(made, pa.schema([*merged.schema, *columns])), metrics
        new, schema = with_made(new, merge.made), old.schema
        if merge.extends:
            kinds = {each.name: each.type for each in new.schema}
            schema = pa.schema([each.with_type(kinds[each.name]) for each in schema])
        return _merged(_cast(old, schema), new)

    def written(self, merge: Merge) -> pa.Table:
        """Return the rows that a merge inserts and updates."""
        rows = self._source(merge)
        rows = with_made(rows.filter(pc.invert(rows["deleted"])), merge.made)
        return rows.drop_columns("deleted")

    def _source(self, merge: Merge) -> pa.Table:
        """Return the rows of a merge, without made columns."""
        if isinstance(merge.rows, pa.Table):
            return merge.rows
        return log_rows(self.sql, merge.rows, merge.current_version, self.store.run_at)

    @committing
    def optimize(
        self,
        metadata: Mapping[str, Any],
        largest_bytes: int,  # memory is not scarce
    ) -> Mapping[str, int]:
        """Commit a version with the same rows in one chunk."""
        before, made = self.kept.newest.chunks, _chunks(self.kept.newest.rows)
        if len(before) > 1:
            self._commit_rows("OPTIMIZE", made, metadata)
        return {"numFilesRemoved": len(before) - 1, "numFilesAdded": int(len(before) > 1)}

    @committing
    def append_found(
        self,
        query: str,
        views: Mapping[str, pa.Table],
        transaction: Transaction,
        metadata: Mapping[str, Any],
    ) -> None:
        if self.kept.newest.had(transaction):
            return
        found = self.store.run_sql(query, {name: _chunks(rows) for name, rows in views.items()})
        with self.store.making:  # applies of several tables append to one audit
            newest = self.kept.newest
            made = found.select(newest.columns.names).cast(newest.columns)
            chunks = (*newest.chunks, *_chunks(made))
            self._commit_rows("WRITE", chunks, metadata, transaction=transaction)

    def can_read_all(self) -> bool:
        return True

    @committing
    def delete(self, condition: str | None, metadata: Mapping[str, Any]) -> int:
        newest = self.kept.newest
        left = self._run(
            lambda name, _: f"SELECT * FROM {name} WHERE ({condition or 'true'}) IS NOT TRUE",
            None,
        )
        self._commit_rows("DELETE", _chunks(left.cast(newest.columns)), metadata)
        return int(newest.rows.num_rows - left.num_rows)

    @committing
    def update(self, values: Mapping[str, str], condition: str, metadata: Mapping[str, Any]) -> int:
        newest = self.kept.newest
        [count] = self.rows("count(*) AS found", condition)
        if count["found"]:
            told = ", ".join(
                f"CASE WHEN {condition} THEN {values[name]} ELSE {name} END AS {name}"
                if name in values
                else name
                for name in newest.columns.names
            )
            changed = self._run(lambda name, _: f"SELECT {told} FROM {name}", None)
            self._commit_rows("UPDATE", _chunks(changed.cast(newest.columns)), metadata)
        return int(count["found"])

    def found_by_spark(self, columns: pa.Schema, condition: str) -> pa.Table:
        listed = ", ".join(columns.names)
        return self.query(lambda name, _: f"SELECT {listed} FROM {name} WHERE {condition}", columns)

    def search_files(self, columns: pa.Schema, condition: str) -> tuple[int, list[str]]:
        """Search the readable versions, under their numbers."""
        listed = ", ".join(columns.names)

        def statement(name: str, _: object) -> str:
            return f"SELECT {listed} FROM {name} WHERE {condition}"

        readable = [n for n in range(len(self.kept.versions)) if n not in self.kept.unreadable]
        return len(readable), [str(n) for n in readable if self._run(statement, n).num_rows]

    @committing
    def purge(self, metadata: Mapping[str, Any]) -> int:
        kept = self.kept
        self._commit_rows("REORG", _chunks(kept.newest.rows), metadata, has_new_rows=False)
        older = set(range(kept.newest.number)) - kept.unreadable
        kept.unreadable |= older
        return len(older)

    # --- what others do to a lake

    def restore(self, version: int) -> None:
        """Take the table back to an older version of it, as RESTORE does."""
        older = self._at(version)
        self._commit(
            "RESTORE",
            older.columns,
            older.chunks,
            {},
            parameters={"version": str(version)},
            properties=older.properties,
        )

    def drop(self) -> None:
        """Let the table be gone."""
        del self.store.kept[self.name]

    # --- commits

    def _alter(self, operation: str, properties: Mapping[str, str]) -> None:
        newest = self.kept.newest
        self._commit(
            operation, newest.columns, newest.chunks, {}, properties=properties, has_new_rows=False
        )

    def _commit_rows(
        self,
        operation: str,
        chunks: tuple[pa.RecordBatch, ...],
        metadata: Mapping[str, Any],
        metrics: Mapping[str, int] | None = None,
        transaction: Transaction | None = None,
        *,
        has_new_rows: bool = True,
    ) -> None:
        self._commit(
            operation,
            self.kept.newest.columns,
            chunks,
            metadata,
            metrics=metrics or {},
            transaction=transaction,
            has_new_rows=has_new_rows,
        )

    def _commit(
        self,
        operation: str,
        columns: pa.Schema,
        chunks: tuple[pa.RecordBatch, ...],
        metadata: Mapping[str, Any],
        *,
        parameters: Mapping[str, str] | None = None,
        metrics: Mapping[str, int] | None = None,
        properties: Mapping[str, str] | None = None,
        transaction: Transaction | None = None,
        has_new_rows: bool = True,
    ) -> None:
        versions = self.kept.versions
        before = versions[-1] if versions else None
        transactions = {} if before is None else dict(before.transactions)
        if transaction is not None:
            transactions[transaction[0]] = transaction[1]
        if properties is None:
            properties = {} if before is None else before.properties
        time = self.store.now()
        if before is not None:
            time = max(time, before.time + timedelta(milliseconds=1))
        made = MemoryVersion(
            len(versions),
            columns,
            chunks,
            properties,
            transactions,
            operation,
            metadata_json(metadata) if metadata else "",
            time,
            parameters or {},
            metrics or {},
            has_new_rows,
        )
        versions.append(made)
        self.store.on_commit(self.name, made)


def _chunks(rows: pa.Table) -> tuple[pa.RecordBatch, ...]:
    """Return the rows as one chunk: DataFusion takes no slices of nested columns."""
    batches = rows.combine_chunks().to_batches()
    return tuple(batches or [pa.RecordBatch.from_pylist([], rows.schema)])


def _commented(columns: Iterable[pa.Field], comments: Mapping[str, str]) -> list[pa.Field]:
    """Return columns with their comments, as Delta tells them."""
    return [
        each.with_metadata({"comment": comments[each.name]}) if each.name in comments else each
        for each in columns
    ]


def _cast(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return rows as a schema that may have more columns, and more fields in them."""
    columns = [
        rows[each.name].cast(each.type)
        if each.name in rows.column_names
        else pa.nulls(rows.num_rows, each.type)
        for each in schema
    ]
    return pa.table(columns, schema)


def _merged(old: pa.Table, new: pa.Table) -> tuple[pa.Table, dict[str, int]]:
    """Return the rows after a MERGE, and its metrics."""
    there = _places(old)
    given = dict(zip(_places(new), new["deleted"].to_pylist(), strict=True))
    kept = old.filter(pa.array([place not in given for place in there], pa.bool_()))
    written = _cast(new.filter(pc.invert(new["deleted"])), old.schema)
    deleted = sum(given.get(place, False) for place in there)
    updated = old.num_rows - kept.num_rows - deleted
    metrics = {
        "numTargetRowsInserted": written.num_rows - updated,
        "numTargetRowsUpdated": updated,
        "numTargetRowsDeleted": deleted,
    }
    return pa.concat_tables([kept, written]), metrics


def _places(rows: pa.Table) -> list[tuple[int, str]]:
    return list(zip(*(rows[name].to_pylist() for name in _PLACE), strict=True))
