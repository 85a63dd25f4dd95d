"""One Delta table of a lake: delta-rs reads it where it can, and Spark does all else.

delta-rs reads a table in a folder of this machine or in an object store in milliseconds, and this
process needs no JVM. Spark is asked where delta-rs cannot open the place (other stores, a catalog),
and where it cannot read the table: what Spark says then is what users look up.
"""

import logging
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa

from dcp.errors import LakeError
from dcp.lake.spark.failures import refuse_silent_store, remedy
from dcp.lake.store.place import LOG, TablePlace
from dcp.lake.store.remembered_table import RememberedTable
from dcp.lake.store.table import Column, Statement, TableReads, TableSize
from dcp.lake.tables.file_commit import commits_to
from dcp.lake.tables.file_table import FileTable
from dcp.lake.tables.spark_table import SparkTable, StartSpark

if TYPE_CHECKING:
    from deltalake import DeltaTable as StoredTable  # Spark has a class of that name, too

_LOG = logging.getLogger(__name__)
_Found = TypeVar("_Found")


@dataclass(frozen=True, slots=True)
class LakeTable:
    """A table: its name in SQL and in messages, and its place where delta-rs reads it.

    ``path`` is where Spark finds it without a catalog; ``remembered``: see `FileTable`.

    More than 20 public methods: one for each thing that anybody asks of a table or does to it.
    """

    sql: str
    where: str
    place: TablePlace | None
    start_spark: StartSpark
    path: str | None = None
    remembered: dict[str, RememberedTable] = field(default_factory=dict, repr=False, compare=False)

    @property
    def folder(self) -> Path | None:
        """The table's folder, where it is on this machine."""
        return None if self.place is None else self.place.folder

    @property
    def _files(self) -> FileTable | None:
        if self.place is None:
            return None
        return FileTable(self.sql, self.where, self.place, self.remembered)

    @property
    def _spark(self) -> SparkTable:
        return SparkTable(self.sql, self.where, self.start_spark, self.path)

    def read_log(self) -> "StoredTable | None":
        """Return the table as it is, by delta-rs; None where only Spark can read it."""
        return self._by_files(FileTable.read_log)

    def exists(self) -> bool:
        """Return whether there is a Delta table."""
        found = self._by_files(FileTable.exists)
        return self._spark.exists() if found is None else found

    def properties(self) -> dict[str, str]:
        """Return the table's properties.

        Raises:
            LakeError: there is no Delta table, or it cannot be read.

        """
        if (found := self._by_files(FileTable.properties)) is not None:
            return found
        if self.exists():
            return self._spark.properties()
        if self._by_files(lambda files: files.place.has_data()) is False:
            raise LakeError(
                f"{self.where}: found no Delta table there, expected one; name the right place "
                "(lake.root, --lake), or make it: the first `dcplake run` does"
            )
        what_to_do = remedy("", self.where, is_log=True)
        raise LakeError(
            f"{self.where}: found no Delta table there, expected one; where no files of it "
            "are, name the right place (lake.root, --lake), or make it: the first `dcplake run`"
            f" does; where there are, its Delta log is gone: {what_to_do}"
        )

    def table_id(self) -> str:
        """Return Delta's own id of the table."""
        return self._read(lambda table: table.table_id())

    def size(self) -> TableSize:
        """Return the size of the newest version."""
        return self._read(lambda table: table.size())

    def transaction_version(self, app_id: str) -> int | None:
        """Return the newest version that an application's transactions committed."""
        return self._read(lambda table: table.transaction_version(app_id))

    def require_columns(self, expected: pa.Schema, also: Collection[str] = ()) -> None:
        """Raise LakeError unless the table has these columns."""
        self._read(lambda table: table.require_columns(expected, also))

    def columns(self, version: int | None = None) -> pa.Schema:
        """Return the columns of a version, or of the newest one."""
        return self._read(lambda table: table.columns(version))

    def column(self, name: str) -> Column | None:
        """Return a column of the newest version."""
        return self._read(lambda table: table.column(name))

    def commits(self, limit: int) -> list[dict[str, Any]]:
        """Return the newest commits."""
        if (found := self._by_files(lambda files: files.commits(limit))) is not None:
            return found
        if self.place is not None:
            self._spark.properties()  # of a damaged log it says more than DESCRIBE HISTORY
        return self._spark.commits(limit)

    def rows(self, columns: str, condition: str) -> list[dict[str, Any]]:
        """Return rows of the newest version."""
        return self.take_rows(columns, condition, list)

    def take_rows(
        self, columns: str, condition: str, take: Callable[[Iterator[dict[str, Any]]], _Found]
    ) -> _Found:
        """Return what ``take`` makes of rows of the newest version."""
        return self._read(lambda table: table.take_rows(columns, condition, take))

    def query(
        self, statement: Statement, schema: pa.Schema, version: int | None = None
    ) -> pa.Table:
        """Return what a query finds in a version, or the newest one, as columns of ``schema``."""
        found = self.bounded_query(statement, schema, version, None)
        assert found is not None, "without a bound nothing is too much"
        return found

    def bounded_query(
        self,
        statement: Statement,
        schema: pa.Schema,
        version: int | None,
        most_bytes: int | None,
    ) -> pa.Table | None:
        """Return the same; None where it is more than ``most_bytes``, of rows with a ``value``."""
        return self._read(lambda table: table.bounded_query(statement, schema, version, most_bytes))

    def create(
        self, columns: pa.Schema, cluster_by: Collection[str], properties: Mapping[str, str]
    ) -> None:
        """Make the table unless it is there; without clustering that takes no Spark."""
        if self.exists():
            return
        if not cluster_by and self._by_files(lambda files: _created(files, columns, properties)):
            return
        self._remove_unfinished_log()
        self._spark.create(columns, cluster_by, properties)

    def set_properties(self, properties: Mapping[str, str]) -> None:
        """Set some properties; others stay."""
        with commits_to(self.place):
            self._spark.set_properties(properties)

    def unset_properties(self, names: Collection[str]) -> None:
        """Remove properties, as far as they are there."""
        with commits_to(self.place):
            self._spark.unset_properties(names)

    def append(self, rows: pa.Table, metadata: Mapping[str, Any]) -> None:
        """Append few rows.

        Raises:
            LakeError: it failed, perhaps behind the commit: to write again may write twice.

        """
        files = self._files
        if files is None or not files.append(rows, metadata):
            self._spark.append(rows, metadata)

    def append_found(
        self,
        query: str,
        views: Mapping[str, pa.Table],
        transaction: tuple[str, int],
        metadata: Mapping[str, Any],
        settings: Mapping[str, str],
    ) -> None:
        """Append what a query finds; ``views`` are tables by the names that it has for them."""
        self._spark.append_found(query, views, transaction, metadata, settings)

    def renew(self, transaction: tuple[str, int], metadata: Mapping[str, Any]) -> None:
        """Commit a version with the rows of the newest one."""
        nothing = f"SELECT * FROM {self.sql} WHERE false"
        self._spark.append_found(nothing, {}, transaction, metadata, {})

    def delete(self, condition: str | None, metadata: Mapping[str, Any]) -> int:
        """Delete rows; return how many."""
        return self._spark.delete(condition, metadata)

    def is_readable(self) -> bool:
        """Return whether all rows can be read."""
        return self._spark.is_readable()

    def merge(
        self,
        rows: pa.Table,
        statement: Callable[[str], str],
        transaction: tuple[str, int],
        metadata: Mapping[str, Any],
        settings: Mapping[str, str],
    ) -> None:
        """Merge rows into the table by ``vbucket`` and ``key``; those with ``deleted`` go."""
        self._spark.merge(rows, statement, transaction, metadata, settings)

    def optimize(
        self, metadata: Mapping[str, Any], settings: Mapping[str, str], *, whole: bool
    ) -> Mapping[str, int]:
        """Put the rows of small files into larger ones, sorted for the table's queries."""
        with commits_to(self.place):
            return self._spark.optimize(metadata, settings, whole=whole)

    def _read(self, read: Callable[[TableReads], _Found]) -> _Found:
        """Return what is read from the files, or by Spark where they cannot be read."""
        if (files := self._files) is not None:
            try:
                return read(files)
            except Exception as failure:  # of many classes, not all of them documented
                self._note(failure)
        return read(self._spark)

    def _by_files(self, look: Callable[[FileTable], _Found]) -> _Found | None:
        """Return what is read from the files; None where they cannot be read."""
        if (files := self._files) is None:
            return None
        try:
            return look(files)
        except Exception as failure:  # of many classes, not all of them documented
            self._note(failure)
            return None

    def _note(self, failure: Exception) -> None:
        refuse_silent_store(failure, self.where)
        _LOG.debug("%s: delta-rs: %s; Spark is asked", self.where, failure)

    def _remove_unfinished_log(self) -> None:
        """Remove the log of a table that is not there: of a driver that died as it made the table.

        Spark takes any file or folder below a path for a table, and would not make one.
        """
        log = None if self.folder is None else self.folder / LOG
        if log is None or not log.is_dir():
            return
        if all(each.name.startswith(".") for each in log.iterdir()):
            shutil.rmtree(log)  # commits under way that were never renamed, and checksums


def _created(files: FileTable, columns: pa.Schema, properties: Mapping[str, str]) -> bool:
    files.create(columns, properties)
    return True
