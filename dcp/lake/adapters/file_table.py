"""A table that this process reads with delta-rs and commits to itself. Spark does the rest.

delta-rs reads a table in a folder or an object store within milliseconds, and needs no JVM.
"""

import logging
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import wraps
from typing import Any, Final, TypeVar, cast

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable as StoredTable  # Spark has a class of that name, too
from deltalake import QueryBuilder
from deltalake.exceptions import DeltaProtocolError, TableNotFoundError

from dcp.errors import DcplakeError
from dcp.lake.adapters.spark_table import SparkTable, no_table
from dcp.lake.spark.failures import innermost
from dcp.lake.store.cached_reads import committing
from dcp.lake.store.failures import store_error
from dcp.lake.store.few_rows import append_rows
from dcp.lake.store.file_commit import takes_files
from dcp.lake.store.new_table import commit_table
from dcp.lake.store.properties import are_plain, commit_properties
from dcp.lake.store.remembered_table import RememberedTable
from dcp.lake.store.sql import standard_string
from dcp.lake.store.table import Statement, TableSize, sized_columns
from dcp.lake.store.table_location import TableLocation
from dcp.lake.tables.history import metadata_json

_COORDINATED: Final = frozenset(
    {"catalogManaged", "catalogOwned-preview", "coordinatedCommits-preview"}
)
"""Features of tables whose newest commits only a catalog knows; Spark asks the catalog."""

_NAME: Final = "t"

_MISTAKES: Final = (AssertionError, AttributeError, LookupError, NameError, TypeError)
"""Exceptions that show a mistake in our program, unless they are pyarrow's own subclasses."""

_LOGGER = logging.getLogger(__name__)
_left_to_spark: Final[set[str]] = set()
"""Tables for which a message at level INFO has been logged."""

_Found = TypeVar("_Found")
_Asked = TypeVar("_Asked", bound=Callable[..., Any])


class _OnlySparkError(Exception):
    """delta-rs can read the files, but only Spark can commit to the table."""


_USUAL: Final = (TableNotFoundError, _OnlySparkError)
"""Reasons to use Spark that are no fault of the table."""


class _UnreadableError(Exception):
    """A read failed while the caller took rows; ``__cause__`` is the failure."""


def _or_spark(by_files: _Asked) -> _Asked:
    """Decorate a method: if it fails on the files, Spark does the work instead.

    The method raises the errors of `FileTable.leave_files`.
    """

    @wraps(by_files)
    def ask(table: "FileTable", /, *asked: Any, **named: Any) -> Any:
        try:
            return by_files(table, *asked, **named)
        except Exception as failure:  # of many classes, some undocumented
            table.leave_files(failure)
        return getattr(SparkTable, by_files.__name__)(table, *asked, **named)

    return cast("_Asked", ask)


@dataclass(frozen=True, slots=True)
class FileTable(SparkTable):
    """A table at a location that delta-rs can open. Spark runs all other methods."""

    location: TableLocation
    forget: Callable[[], object] = field(repr=False, compare=False)
    """Forgets the location, so that the catalog is asked again."""

    def leave_files(self, failure: Exception) -> None:
        """Return if Spark may succeed instead; the catalog, if there is one, is asked again.

        Raises:
            SetupError, SecretError, Exception: see `leave_to_spark`.
            LakeError: the table does not exist, and no catalog may have it elsewhere.
        """
        if isinstance(failure, DcplakeError):
            raise failure
        self.forget()
        leave_to_spark(failure, self.where)
        if isinstance(failure, TableNotFoundError) and self.path is not None:
            try:
                is_missing = not self.location.has_delta_log()
                may_have_data = is_missing and self.location.has_data()
            except Exception as refusal:  # of many classes, some undocumented
                leave_to_spark(refusal, self.where)
            else:
                if is_missing:
                    raise no_table(self.where, may_have_data=may_have_data)

    def commits_blocked(self) -> AbstractContextManager[object]:
        return self.location.commits_blocked()

    def vacuum(
        self, metadata: Mapping[str, Any], hours: int | None, *, dry_run: bool = False
    ) -> int:
        found = SparkTable.vacuum(self, metadata, hours, dry_run=dry_run)
        if not dry_run:
            try:
                self.location.tidy_delta_log()
            except Exception as failure:  # of many classes, some undocumented
                leave_to_spark(failure, self.where)
        return found

    @_or_spark
    def exists(self) -> bool:
        if self.remembered.is_absent(self.sql):
            return False
        is_new, begun_at = self.sql not in self.remembered, self.cached_reads.tick()
        # If this process has read the table, catching up is one request. Looking for a Delta log
        # and opening it would be three.
        if not is_new or self.location.has_delta_log():
            try:
                self._newest()
            except Exception:  # of many classes, some undocumented
                if is_new or self.location.has_delta_log():
                    raise
            else:
                return True
        if self.path is None:
            raise TableNotFoundError(self.where)  # the catalog may have moved it
        self.remembered.note_absent(self.sql, begun_at)
        return False

    @_or_spark
    def properties(self) -> dict[str, str]:
        return dict(self._stored().metadata().configuration)

    @_or_spark
    def table_id(self) -> str:
        return str(self._stored().metadata().id)

    @_or_spark
    def size(self) -> TableSize:
        sizes = pa.table(self._stored().get_add_actions())["size_bytes"].to_pylist()
        return TableSize(len(sizes), sum(sizes))

    @_or_spark
    def transaction_version(self, app_id: str) -> int | None:
        return self._stored().transaction_version(app_id)

    @_or_spark
    def columns(self, version: int | None = None) -> pa.Schema:
        return pa.schema(self._stored(version).schema().to_arrow())

    @_or_spark
    def commits(self, limit: int) -> list[dict[str, Any]]:
        return self._newest().commits(self.location, limit)

    def take_rows(
        self, columns: str, condition: str, take: Callable[[Iterator[dict[str, Any]]], _Found]
    ) -> _Found:
        try:
            return take(self._read_rows(f"SELECT {columns} FROM {_NAME} WHERE {condition}"))
        except _UnreadableError as failure:
            assert isinstance(failure.__cause__, Exception)
            self.leave_files(failure.__cause__)
        # `take` starts again with Spark's rows (`Table.take_rows` allows that).
        return SparkTable.take_rows(self, columns, condition, take)

    def _read_rows(self, statement: str) -> Iterator[dict[str, Any]]:
        try:
            for batch in self._execute(statement, None):
                yield from batch.to_pylist()
        except Exception as failure:  # of many classes, some undocumented
            raise _UnreadableError from failure

    @_or_spark
    def query(
        self, statement: Statement, schema: pa.Schema, version: int | None = None
    ) -> pa.Table:
        return pa.Table.from_batches(self._batches(statement, schema, version), schema)

    @_or_spark
    def bounded_query(
        self, statement: Statement, schema: pa.Schema, version: int | None, most_bytes: int
    ) -> pa.Table | None:
        batches, sized, bytes_left = [], sized_columns(schema), most_bytes
        for batch in self._batches(statement, schema, version):
            batches.append(batch)
            for name in sized:
                bytes_left -= pc.sum(pc.binary_length(batch[name])).as_py() or 0
            if bytes_left < 0:
                return None
        return pa.Table.from_batches(batches, schema)

    @_or_spark
    def create(
        self, columns: pa.Schema, cluster_by: Collection[str], properties: Mapping[str, str]
    ) -> None:
        if self.exists():
            return
        with self.cached_reads.committing():
            # Data without a Delta log belongs to a table that has lost it. Spark's error says more.
            if self.location.has_data() or not self.location.can_commit():
                raise _OnlySparkError
            commit_table(self.location, columns, cluster_by, properties)

    @committing
    @_or_spark
    def set_properties(self, properties: Mapping[str, str | None]) -> None:
        if not (
            are_plain(properties)
            and takes_files(self.location, self._stored())
            and commit_properties(self.location, properties)
        ):
            raise _OnlySparkError

    @committing
    @_or_spark
    def append(self, rows: pa.Table, metadata: Mapping[str, Any]) -> None:
        if not (
            takes_files(self.location, self._stored())
            and append_rows(self.location, rows, metadata_json(metadata), self.where)
        ):
            raise _OnlySparkError

    def _batches(
        self, statement: Statement, schema: pa.Schema, version: int | None
    ) -> Iterator[pa.RecordBatch]:
        for batch in self._execute(statement(_NAME, standard_string), version):
            yield batch.select(schema.names).cast(schema)

    def _execute(self, statement: str, version: int | None) -> pa.RecordBatchReader:
        found = QueryBuilder().register(_NAME, self._stored(version)).execute(statement)
        return pa.RecordBatchReader.from_stream(found)

    @_or_spark
    def read_delta_log(self) -> StoredTable | None:
        return self._stored()

    def _stored(self, version: int | None = None) -> StoredTable:
        return self._newest().stored if version is None else self.location.open(version)

    def _newest(self) -> RememberedTable:
        found = self.remembered.as_it_is(self.location, self.sql)
        protocol = found.stored.protocol()
        features = {*(protocol.reader_features or ()), *(protocol.writer_features or ())}
        if coordinated := features & _COORDINATED:
            raise DeltaProtocolError(f"found {', '.join(coordinated)}: a catalog commits")
        return found


def leave_to_spark(failure: Exception, where: str) -> None:
    """Return if Spark may succeed where delta-rs or obstore failed; log the failure.

    The level is INFO once for each table, then DEBUG.

    Raises:
        SetupError, SecretError: the store does not answer, or denies access, so Spark would fail,
            too.
        Exception: the failure itself, if it is a mistake in our program.
    """
    is_ours = isinstance(failure, _MISTAKES) and not isinstance(failure, pa.ArrowException)
    error = failure if is_ours else store_error(failure, where)
    if error is failure:
        raise failure
    if error is not None:
        raise error from failure
    is_usual = isinstance(failure, _USUAL)
    level = logging.DEBUG if is_usual or where in _left_to_spark else logging.INFO
    if not is_usual:
        _left_to_spark.add(where)
    name = type(failure).__name__
    _LOGGER.log(level, "%s: %s: %s; Spark is asked", where, name, innermost(failure))
