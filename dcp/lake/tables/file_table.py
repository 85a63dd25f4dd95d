"""Reads a table by delta-rs: in milliseconds, in this process.

It makes tables, appends few rows and changes properties, too.
"""

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

import pyarrow as pa
from deltalake import CommitProperties, QueryBuilder, write_deltalake
from deltalake import DeltaTable as StoredTable  # Spark has a class of that name, too
from deltalake.exceptions import CommitFailedError, SchemaMismatchError, TableNotFoundError

from dcp.errors import DcplakeError, LakeError
from dcp.lake.spark.failures import innermost
from dcp.lake.store.failures import plain_line, store_error
from dcp.lake.store.file_commit import commits_to, takes_files
from dcp.lake.store.new_table import commit_table
from dcp.lake.store.place import TablePlace
from dcp.lake.store.properties import are_plain, commit_properties
from dcp.lake.store.remembered_table import RememberedTable, RememberedTables
from dcp.lake.store.table import Column, Statement, TableSize
from dcp.lake.tables.history import metadata_json
from dcp.lake.tables.sql import standard_string

_NOT_COMMITTED: Final = (CommitFailedError, SchemaMismatchError)
"""Errors of delta-rs before a commit: it lacks a feature of the table, or columns differ.

A failure after a commit, as of a checkpoint, raises others.
"""

_MOST_FILES: Final = 4
"""An append that reaches so many files puts them into one."""

_COORDINATED: Final = frozenset(
    {"catalogManaged", "catalogOwned-preview", "coordinatedCommits-preview"}
)
"""Features of tables whose newest commits only their catalog knows: Spark asks it."""

_NAME: Final = "t"

_MISTAKES: Final = (AssertionError, AttributeError, LookupError, NameError, TypeError)
"""Classes of mistakes in our program. (pyarrow derives some of its own errors from them.)"""

_LOG = logging.getLogger(__name__)
_left_to_spark: Final[set[str]] = set()
"""Tables that a line of the log named at INFO."""

_Found = TypeVar("_Found")


@dataclass(frozen=True, slots=True)
class FileTable:
    """A table at a place that delta-rs opens.

    Each method passes on the error of delta-rs or the store if the table cannot be read.
    """

    sql: str
    where: str
    place: TablePlace
    remembered: RememberedTables = field(repr=False, compare=False)
    """An open lake shares it, so that an unchanged log is not read again."""

    def exists(self) -> bool:
        """Raises if the table's log is damaged."""
        if self.remembered.is_absent(self.sql):
            return False
        is_new, begun_at = self.sql not in self.remembered, self.remembered.looks.tick()
        if is_new and not self.place.has_log():  # one request instead of three
            self.remembered.note_absent(self.sql, begun_at)
            return False
        try:
            self._newest()
        except Exception:  # of many classes, not all of them documented
            if is_new or self.place.has_log():
                raise
            self.remembered.note_absent(self.sql, begun_at)
            return False
        return True

    def properties(self) -> dict[str, str]:
        return dict(self._stored().metadata().configuration)

    def table_id(self) -> str:
        return str(self._stored().metadata().id)

    def size(self) -> TableSize:
        sizes = pa.table(self._stored().get_add_actions())["size_bytes"].to_pylist()
        return TableSize(len(sizes), sum(sizes))

    def transaction_version(self, app_id: str) -> int | None:
        return self._stored().transaction_version(app_id)

    def require_columns(self, expected: pa.Schema, also: Collection[str] = ()) -> None:
        if _columns(self.columns(), also) != _columns(expected):
            raise LakeError(f"{self.where}: found other columns than expected")

    def columns(self, version: int | None = None) -> pa.Schema:
        return pa.schema(self._stored(version).schema().to_arrow())

    def column(self, name: str) -> Column | None:
        schema = self._stored().schema()
        kinds = _columns(pa.schema(schema.to_arrow()))
        comments = {each.name: str(each.metadata.get("comment", "")) for each in schema.fields}
        return Column(kinds[name], comments[name]) if name in kinds else None

    def commits(self, limit: int) -> list[dict[str, Any]]:
        return self._newest().commits(self.place, limit)

    def take_rows(
        self, columns: str, condition: str, take: Callable[[Iterator[dict[str, Any]]], _Found]
    ) -> _Found:
        found = self._execute(f"SELECT {columns} FROM {_NAME} WHERE {condition}", None)
        return take(rows_of(found))

    def bounded_query(
        self,
        statement: Statement,
        schema: pa.Schema,
        version: int | None,
        most_bytes: int | None,
    ) -> pa.Table | None:
        batches, bytes_read = [], 0
        for batch in self._execute(statement(_NAME, standard_string), version):
            batches.append(batch.select(schema.names).cast(schema))
            bytes_read += batches[-1].nbytes
            if most_bytes is not None and bytes_read > most_bytes:
                return None
        return pa.Table.from_batches(batches, schema)

    def create(
        self, columns: pa.Schema, cluster_by: Collection[str], properties: Mapping[str, str]
    ) -> bool:
        """Make the table unless it exists; return whether its place takes our commits.

        If there are files of rows, a table has lost its log: makes nothing.

        Raises:
            SetupError, SecretError: the store does not answer, or refuses us.
            LakeError: the store overwrites.
        """
        try:
            if self.place.has_data() or not self.place.can_commit():
                return False
            commit_table(self.place, columns, cluster_by, properties)
        except DcplakeError:
            raise
        except Exception as failure:  # of many classes, not all of them documented
            leave_to_spark(failure, self.where)
            return False
        return True

    def change_properties(self, properties: Mapping[str, str | None]) -> bool:
        """Set properties, or remove those without a value; return whether it was done.

        Raises:
            SetupError, SecretError: the store does not answer, or refuses us.
            LakeError: the store overwrites.
        """
        try:
            return (
                are_plain(properties)
                and takes_files(self.place, self._stored())
                and commit_properties(self.place, properties)
            )
        except DcplakeError:
            raise
        except Exception as failure:  # of many classes, not all of them documented
            leave_to_spark(failure, self.where)
            return False

    def append(self, rows: pa.Table, metadata: Mapping[str, Any]) -> bool:
        """Append rows; return whether it was done.

        Refuses a table that is unreadable or has clustering.

        Raises:
            LakeError: it failed, perhaps after the commit: a second try may write twice.
        """
        try:
            table = self.place.open()
        except Exception as failure:  # of many classes, not all of them documented
            leave_to_spark(failure, self.where)
            return False
        properties = CommitProperties(custom_metadata={"userMetadata": metadata_json(metadata)})
        try:
            with commits_to(self.place):
                write_deltalake(table, rows, mode="append", commit_properties=properties)
                self._keep_few_files(table)
        except _NOT_COMMITTED as refusal:
            _LOG.debug("%s: delta-rs: %s; Spark is asked", self.where, plain_line(refusal))
            return False
        except Exception as failure:  # of many classes, not all of them documented
            error = store_error(failure)
            told = error or plain_line(failure)
            raise (LakeError if error is None else type(error))(
                f"{self.where}: {told}; the rows may have been written: look whether the table has "
                "them before you write them again"
            ) from failure
        return True

    def _keep_few_files(self, table: StoredTable) -> None:
        """Put the rows of many appends into one file, and write a checkpoint.

        Else each reader asks an object store for two more files after each append. A failure does
        not touch the rows.
        """
        if len(table.file_uris()) < _MOST_FILES:
            return
        try:
            table.optimize.compact()
            table.create_checkpoint()
        except Exception as failure:  # another process may do the same
            _LOG.debug(
                "%s: delta-rs: %s; its files stay as they are", self.where, plain_line(failure)
            )

    def _execute(self, statement: str, version: int | None) -> pa.RecordBatchReader:
        found = QueryBuilder().register(_NAME, self._stored(version)).execute(statement)
        return pa.RecordBatchReader.from_stream(found)

    def read_log(self) -> StoredTable:
        return self._stored()

    def _stored(self, version: int | None = None) -> StoredTable:
        return self._newest().stored if version is None else self.place.open(version)

    def _newest(self) -> RememberedTable:
        found = self.remembered.as_it_is(self.place, self.sql)
        protocol = found.stored.protocol()
        features = {*(protocol.reader_features or ()), *(protocol.writer_features or ())}
        if coordinated := features & _COORDINATED:
            raise LakeError(f"{self.where}: found {', '.join(coordinated)}: a catalog commits")
        return found


def leave_to_spark(failure: Exception, where: str) -> None:
    """Return if Spark may do what delta-rs or obstore failed to do; log why, at INFO once a table.

    Raises:
        SetupError, SecretError: the store does not answer, or refuses us, and so would Spark.
        Exception: the failure itself, if it is a mistake in our program.
    """
    is_ours = isinstance(failure, _MISTAKES) and not isinstance(failure, pa.ArrowException)
    error = failure if is_ours else store_error(failure, where)
    if error is failure:
        raise failure
    if error is not None:
        raise error from failure
    is_absent = isinstance(failure, TableNotFoundError)
    level = logging.DEBUG if is_absent or where in _left_to_spark else logging.INFO
    if not is_absent:
        _left_to_spark.add(where)
    name = type(failure).__name__
    _LOG.log(level, "%s: %s: %s; Spark is asked", where, name, innermost(failure))


def rows_of(batches: Iterable[pa.RecordBatch]) -> Iterator[dict[str, Any]]:
    for batch in batches:
        yield from batch.to_pylist()


def _columns(schema: pa.Schema, also: Collection[str] = ()) -> dict[str, pa.DataType]:
    return {column.name: column.type for column in schema if column.name not in also}
