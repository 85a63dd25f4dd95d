"""One Delta table of a lake: this process reads and commits what it can, and Spark does the rest.

delta-rs reads a table in a folder of this machine or in an object store in milliseconds, and this
process needs no JVM. Spark is asked where delta-rs cannot open the place (other stores, catalogs
that hide places), and where it cannot read the table: what Spark says then is what users look up.
"""

import shutil
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

import pyarrow as pa

from dcp.errors import LakeError
from dcp.lake.store.failures import remedy
from dcp.lake.store.file_commit import commits_to
from dcp.lake.store.place import LOG, Located, TablePlace
from dcp.lake.store.remembered_table import RememberedTables
from dcp.lake.store.table import Statement
from dcp.lake.tables.file_table import FileTable, leave_to_spark
from dcp.lake.tables.spark_table import SparkTable

if TYPE_CHECKING:
    from deltalake import DeltaTable as StoredTable  # Spark has a class of that name, too

_Found = TypeVar("_Found")
_Otherwise = TypeVar("_Otherwise")
_Asked = ParamSpec("_Asked")


def _nothing() -> None:
    return


def _by_files_first(
    by_files: Callable[Concatenate[FileTable, _Asked], _Found],
    by_spark: Callable[Concatenate[SparkTable, _Asked], _Found],
) -> Callable[Concatenate["LakeTable", _Asked], _Found]:
    """Return a function that reads files; if it cannot, Spark reads."""

    def read(table: "LakeTable", /, *asked: _Asked.args, **named: _Asked.kwargs) -> _Found:
        return table.by_files(
            lambda files: by_files(files, *asked, **named),
            lambda: by_spark(table, *asked, **named),
        )

    return read


def _commits(
    change: Callable[Concatenate[SparkTable, _Asked], _Found],
) -> Callable[Concatenate["LakeTable", _Asked], _Found]:
    """Return a function that makes looks read the table again after a change, even a failed one."""

    def commit(table: "LakeTable", /, *asked: _Asked.args, **named: _Asked.kwargs) -> _Found:
        with table.remembered.looks.committing():
            return change(table, *asked, **named)

    return commit


@dataclass(frozen=True, slots=True)
class LakeTable(SparkTable):
    """A table by its name in Spark's SQL, with its files if delta-rs reads them."""

    look_up: Callable[["LakeTable"], Located | None]
    """Returns the table's place; None if a catalog has no such table."""
    remembered: RememberedTables = field(
        default_factory=RememberedTables, repr=False, compare=False
    )
    """See `FileTable`."""
    located: dict[str, Located] = field(default_factory=dict, repr=False, compare=False)
    """Places of existing tables by their SQL names, until their files become unreadable."""

    @property
    def found(self) -> Located | None:
        """The table's place; None if a catalog has no table."""
        if (known := self.located.get(self.sql)) is not None:
            return known
        if (found := self.look_up(self)) is not None:
            self.located[self.sql] = found
        return found

    @property
    def place(self) -> TablePlace | None:
        return None if (found := self.found) is None else found.place

    @property
    def folder(self) -> Path | None:
        return None if (place := self.place) is None else place.folder

    @property
    def files(self) -> FileTable | None:
        return None if (place := self.place) is None else self.files_at(place)

    def files_at(self, place: TablePlace) -> FileTable:
        return FileTable(self.sql, self.where, place, self.remembered)

    table_id = _by_files_first(FileTable.table_id, SparkTable.table_id)
    size = _by_files_first(FileTable.size, SparkTable.size)
    transaction_version = _by_files_first(
        FileTable.transaction_version, SparkTable.transaction_version
    )
    require_columns = _by_files_first(FileTable.require_columns, SparkTable.require_columns)
    columns = _by_files_first(FileTable.columns, SparkTable.columns)
    column = _by_files_first(FileTable.column, SparkTable.column)
    bounded_query = _by_files_first(FileTable.bounded_query, SparkTable.bounded_query)

    add_columns = _commits(SparkTable.add_columns)
    append_found = _commits(SparkTable.append_found)
    delete = _commits(SparkTable.delete)
    merge = _commits(SparkTable.merge)
    rewrite = _commits(SparkTable.rewrite)
    optimize = _commits(SparkTable.optimize)

    def vacuum(
        self, metadata: Mapping[str, Any], hours: int | None, *, dry_run: bool = False
    ) -> int:
        with self.remembered.looks.committing():
            deleted = SparkTable.vacuum(self, metadata, hours, dry_run=dry_run)
        if not dry_run:
            self.by_files(lambda files: files.place.tidy_log(), _nothing)
        return deleted

    def take_rows(
        self, columns: str, condition: str, take: Callable[[Iterator[dict[str, Any]]], _Found]
    ) -> _Found:
        return self.by_files(
            lambda files: files.take_rows(columns, condition, take),
            lambda: SparkTable.take_rows(self, columns, condition, take),
        )

    def read_log(self) -> "StoredTable | None":
        """Return the newest table, by delta-rs; None if only Spark can read it."""
        return self.by_files(FileTable.read_log, _nothing)

    def exists(self) -> bool:
        if self.found is None:
            return False
        found = self.by_files(FileTable.exists, _nothing)
        if found is False and self.path is None:  # a catalog may have it elsewhere by then
            self.located.pop(self.sql, None)
            found = None if self.look_up(self) is not None else False
        return SparkTable.exists(self) if found is None else found

    def properties(self) -> dict[str, str]:
        if (found := self.by_files(FileTable.properties, _nothing)) is not None:
            return found
        if self.exists():
            return SparkTable.properties(self)
        has_data = self.by_files(lambda files: files.place.has_data(), _nothing)
        if self.found is None or has_data is False:
            raise LakeError(
                f"{self.where}: found no Delta table there, expected one; name the right place "
                "(lake.root, --lake; lake.schema), or make it: the first `dcplake run` does"
            )
        what_to_do = remedy("", self.where, is_log=True)
        raise LakeError(
            f"{self.where}: found no Delta table there, expected one; where no files of it "
            "are, name the right place (lake.root, --lake), or make it: the first `dcplake run`"
            f" does; where there are, its Delta log is gone: {what_to_do}"
        )

    def commits(self, limit: int) -> list[dict[str, Any]]:
        def by_spark() -> list[dict[str, Any]]:
            if self.place is not None:
                SparkTable.properties(self)  # of a damaged log it says more than DESCRIBE HISTORY
            return SparkTable.commits(self, limit)

        return self.by_files(lambda files: files.commits(limit), by_spark)

    def rows(self, columns: str, condition: str) -> list[dict[str, Any]]:
        return self.take_rows(columns, condition, list)

    def query(
        self, statement: Statement, schema: pa.Schema, version: int | None = None
    ) -> pa.Table:
        found = self.bounded_query(statement, schema, version, None)
        assert found is not None, "without a bound nothing is too much"
        return found

    def create(
        self, columns: pa.Schema, cluster_by: Collection[str], properties: Mapping[str, str]
    ) -> None:
        """Lets Spark make the table if its place takes no commits of ours."""
        if self.exists():
            return
        files = self.files
        with self.remembered.looks.committing():
            if files is None or not files.create(columns, cluster_by, properties):
                self._remove_unfinished_log()
                SparkTable.create(self, columns, cluster_by, properties)

    def set_properties(self, properties: Mapping[str, str]) -> None:
        files = self.files
        with self.remembered.looks.committing():
            if files is None or not files.change_properties(properties):
                SparkTable.set_properties(self, properties)

    def unset_properties(self, names: Collection[str]) -> None:
        files = self.files
        with self.remembered.looks.committing():
            if files is None or not files.change_properties(dict.fromkeys(names)):
                SparkTable.unset_properties(self, names)

    def append(self, rows: pa.Table, metadata: Mapping[str, Any]) -> None:
        files = self.files
        with self.remembered.looks.committing():
            if files is None or not files.append(rows, metadata):
                SparkTable.append(self, rows, metadata)

    def require_same_place(self) -> None:
        """Raise LakeError if a catalog has moved the table since it was looked up."""
        before, now = self.found, self.look_up(self)
        if before is not None and (now is None or now.location != before.location):
            self.located.pop(self.sql, None)
            raise LakeError(
                f"{self.where}: the catalog has {'no such table' if now is None else now.location},"
                f" expected {before.location}: somebody dropped or moved it while dcplake worked; "
                "nothing was committed there; start again with the table that you mean"
            )

    def alone(self) -> AbstractContextManager[None]:
        """Keep this process's commits of files from coming between those of a statement."""
        return commits_to(self.place)

    def by_files(
        self, look: Callable[[FileTable], _Found], otherwise: Callable[[], _Otherwise]
    ) -> _Found | _Otherwise:
        """Read the files; if they are unreadable, return ``otherwise``'s result.

        The catalog is then asked again for the table's place.

        Raises:
            SetupError, SecretError, Exception: see `leave_to_spark`.
        """
        if (files := self.files) is not None:
            try:
                return look(files)
            except Exception as failure:  # of many classes, not all of them documented
                self.located.pop(self.sql, None)
                leave_to_spark(failure, self.where)
        return otherwise()

    def _remove_unfinished_log(self) -> None:
        """Remove the log that a driver left when it died while it made the table.

        Spark takes any file or folder below a path for a table, and would not make one.
        """
        log = None if self.folder is None else self.folder / LOG
        if log is None or not log.is_dir():
            return
        if all(each.name.startswith(".") for each in log.iterdir()):
            shutil.rmtree(log)  # commits under way that were never renamed, and checksums
