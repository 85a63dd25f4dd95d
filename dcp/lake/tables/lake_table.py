"""One Delta table of a lake: reads its log and some rows, without Spark where possible.

Where the table is in a folder of this machine or on S3, delta-rs reads it in milliseconds and this
process needs no JVM. Spark is asked where that is not so (other stores, a catalog), and where
delta-rs cannot read the table: what Spark says then is what users look up.
"""

import json
import logging
import re
import shutil
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import pyarrow as pa
from deltalake import CommitProperties, QueryBuilder, write_deltalake
from deltalake import DeltaTable as StoredTable  # Spark has a class of that name, too
from deltalake import Schema as StoredSchema
from deltalake.exceptions import CommitFailedError, SchemaMismatchError
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from dcp.errors import LakeError
from dcp.lake.spark.failures import remedy, spark_errors
from dcp.lake.spark.session import remove_empty_folder
from dcp.lake.store.place import LOG, TablePlace
from dcp.lake.tables.file_commit import commits_to
from dcp.lake.tables.schema import spark_ddl
from dcp.lake.tables.sql import standard_string, string

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Statement = Callable[[str, Callable[[str], str]], str]
"""Makes a query from how the table is called and from what makes a literal of a text."""

StartSpark = Callable[[], "SparkSession"]
"""Returns a session; the first call starts Spark, where it does not run."""

_MISSING: Final = frozenset(
    {
        "DELTA_MISSING_DELTA_TABLE",
        "DELTA_TABLE_NOT_FOUND",
        "PATH_NOT_FOUND",
        "TABLE_OR_VIEW_NOT_FOUND",
        "SCHEMA_NOT_FOUND",
    }
)
_REDACTED: Final = "*********(redacted)"
"""What Spark shows for a value that may be a secret, or has ``url`` in it or in its key."""

_MOST_REMEMBERED: Final = 500
"""Commits of a table that are remembered at most."""

_GLOB: Final = re.compile(r"[][{}*?\\]")
"""Characters of a path that Spark's readers of files take for a pattern; a backslash ends that."""

_NOT_COMMITTED: Final = (CommitFailedError, SchemaMismatchError)
"""Errors of delta-rs before a commit: the table has a feature that it lacks, or other columns.

What it does behind a commit, as a checkpoint, fails with others.
"""

_NAME: Final = "t"
_LOG = logging.getLogger(__name__)
_Found = TypeVar("_Found")


@dataclass(slots=True)
class RememberedTable:
    """A table as it was read, up to its newest commit, and what identifies that commit's file.

    ``commits`` are its newest ones, newest first, ``limit`` at most.
    """

    stored: StoredTable
    newest: Hashable
    commits: list[dict[str, Any]] = field(default_factory=list)
    limit: int = 0


@dataclass(frozen=True, slots=True)
class TableSize:
    """The data files of one version of a table: how many, and their bytes together."""

    files: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Column:
    """The type of a column, and its comment."""

    kind: pa.DataType
    comment: str


@dataclass(frozen=True, slots=True)
class LakeTable:
    """A table: its name in SQL and in messages, and its place where delta-rs reads it.

    ``path`` is where Spark finds it without a catalog. ``remembered`` is what an open lake has read
    of the logs of its tables, by the tables' names in SQL: it saves reading a log to which nobody
    has added anything.
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

    def exists(self) -> bool:
        """Return whether there is a Delta table."""
        if self._by_delta_rs(lambda _: True):
            return True
        # delta-rs also fails where the log is damaged; then Spark decides.
        if self.place is not None and self._at_place(lambda place: place.has_log()) is False:
            return False
        with spark_errors(self.where):
            try:
                self.start_spark().sql(f"SHOW TBLPROPERTIES {self.sql}").collect()
            except PySparkException as error:
                if error.getCondition() in _MISSING:
                    return False
                raise
        return True

    def remove_unfinished_log(self) -> None:
        """Remove the log of a table that is not there: of a driver that died as it made the table.

        Spark takes any file or folder below a path for a table, and would not make one.
        """
        log = None if self.folder is None else self.folder / LOG
        if log is not None:
            if log.is_dir() and all(each.name.startswith(".") for each in log.iterdir()):
                shutil.rmtree(log)  # commits under way that were never renamed, and checksums
        elif self.path is not None:
            with suppress(Py4JError):  # if something else is in it, Spark tells what there is
                remove_empty_folder(self.start_spark(), f"{self.path}/{LOG}")

    def properties(self) -> dict[str, str]:
        """Return the table's properties.

        Raises:
            LakeError: there is no Delta table, or it cannot be read.

        """
        found = self._by_delta_rs(lambda table: dict(table.metadata().configuration))
        if found is not None:
            return found
        if not self.exists():
            if self._at_place(lambda place: place.has_data()) is False:
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
        return self._properties_by_spark()

    def table_id(self) -> str:
        """Return Delta's own id of the table: one that is dropped and made again has another."""
        found = self._by_delta_rs(lambda table: str(table.metadata().id))
        if found is None:
            found = str(self._detail_by_spark("id"))
        return found

    def size(self) -> TableSize:
        """Return the size of the newest version."""
        found = self._by_delta_rs(_size)
        if found is None:
            files = int(self._detail_by_spark("numFiles"))
            found = TableSize(files, int(self._detail_by_spark("sizeInBytes")))
        return found

    def transaction_version(self, app_id: str) -> int | None:
        """Return the newest version that an application's transactions committed.

        None where there is none, and where only Spark can read the table, which does not tell.
        """
        return self._by_delta_rs(lambda table: table.transaction_version(app_id))

    def require_columns(self, expected: pa.Schema, also: Collection[str] = ()) -> None:
        """Raise LakeError unless the table has these columns, in any order; it may have others."""
        found = self._by_delta_rs(lambda table: pa.schema(table.schema().to_arrow()))
        if found is None or _columns(found, also) != _columns(expected):
            self._require_columns_by_spark(expected, also)

    def columns(self, version: int | None = None) -> pa.Schema:
        """Return the columns of a version, or of the newest one, in the order of the table."""
        found = self._by_delta_rs(lambda table: pa.schema(table.schema().to_arrow()), version)
        if found is None:
            from pyspark.sql.pandas.types import to_arrow_schema  # not where Spark is not needed

            frame = self.start_spark().sql(f"SELECT * FROM {self._at(version)} LIMIT 0")
            found = to_arrow_schema(frame.schema, timezone="UTC")
        return found

    def column(self, name: str) -> Column | None:
        """Return a column of the newest version; None where there is none of that name."""
        found = self._by_delta_rs(_described_columns)
        if found is not None:
            return found.get(name)
        with spark_errors(self.where):
            schema = self.start_spark().sql(f"SELECT * FROM {self.sql} LIMIT 0").schema
        if name not in schema.names:
            return None
        from pyspark.sql.pandas.types import to_arrow_type  # not where Spark is not needed

        kind = to_arrow_type(schema[name].dataType, timezone="UTC")
        return Column(kind, schema[name].metadata.get("comment", ""))

    def commits(self, limit: int) -> list[dict[str, Any]]:
        """Return the newest commits, newest first, as Delta describes them.

        Of each ``version``, ``time``, ``operation``, ``operationParameters``, ``operationMetrics``
        and ``userMetadata``.
        """
        found = self._at_place(lambda place: self._read_commits(place, limit))
        return self._commits_by_spark(limit) if found is None else found

    def _read_commits(self, place: TablePlace, limit: int) -> list[dict[str, Any]]:
        known = self._newest(place)
        if known.limit >= limit:
            return known.commits[:limit]
        found = _commits(place, known.stored.version(), limit)
        if limit <= _MOST_REMEMBERED:
            known.commits, known.limit = found, limit
        return found

    def rows(self, columns: str, condition: str) -> list[dict[str, Any]]:
        """Return rows of the newest version; both are SQL that Spark and DataFusion understand."""
        return self.take_rows(columns, condition, list)

    def take_rows(
        self, columns: str, condition: str, take: Callable[[Iterator[dict[str, Any]]], _Found]
    ) -> _Found:
        """Return what ``take`` makes of such rows, which are read as it asks for them.

        It may be called twice, and must not return None.
        """
        select, where = f"SELECT {columns} FROM", f"WHERE {condition}"
        found = self._by_delta_rs(lambda table: take(_query(table, f"{select} {_NAME} {where}")))
        if found is None:
            with spark_errors(self.where):
                read = self.start_spark().sql(f"{select} {self.sql} {where}").toArrow()
            found = take(_rows_of(read.to_batches()))
        return found

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
        found = self._by_delta_rs(
            lambda table: _Rows.read(table, statement(_NAME, standard_string), schema, most_bytes),
            version,
        )
        if found is not None:
            return found.table
        return self._query_by_spark(statement, schema, version, most_bytes)

    def create_by_delta_rs(self, schema: pa.Schema, properties: Mapping[str, str]) -> None:
        """Make the table, unless it is there, where that takes no Spark; it has no clustering."""
        if self.place is None or self.exists():
            return

        def create(place: TablePlace) -> bool:
            StoredTable.create(
                place.uri,
                StoredSchema.from_arrow(schema),
                mode="ignore",
                configuration=dict(properties),
                storage_options=place.options,
                raise_if_key_not_exists=False,
            )
            return True

        self._at_place(create)

    def append_by_delta_rs(self, rows: pa.Table, user_metadata: str) -> bool:
        """Append rows where that takes no Spark; return whether it was done.

        Of writers that come at once each gets a version of its own. A table with clustering is
        refused, so nothing is done.

        Raises:
            LakeError: it failed, perhaps behind the commit: to write again may write twice.

        """
        if (table := self._at_place(lambda place: place.open())) is None:
            return False
        properties = CommitProperties(custom_metadata={"userMetadata": user_metadata})
        try:
            with commits_to(self.place):
                write_deltalake(table, rows, mode="append", commit_properties=properties)
        except _NOT_COMMITTED as refusal:
            _LOG.debug("%s: delta-rs: %s; Spark is asked", self.where, refusal)
            return False
        except Exception as failure:  # of many classes, not all of them documented
            raise LakeError(
                f"{self.where}: delta-rs: {failure}; the rows may have been written: look whether "
                "the table has them before you write them again"
            ) from failure
        return True

    def _query_by_spark(
        self, statement: Statement, schema: pa.Schema, version: int | None, most_bytes: int | None
    ) -> pa.Table | None:
        spark = self.start_spark()
        text = statement(self._at(version), string)
        if most_bytes is not None:
            counted = f"SELECT coalesce(sum(octet_length(value)), 0) FROM ({text})"
            if spark.sql(counted).collect()[0][0] > most_bytes:
                return None
        return spark.sql(text).toArrow().select(schema.names).cast(schema)

    def _at(self, version: int | None) -> str:
        return self.sql if version is None else f"{self.sql} VERSION AS OF {version}"

    def _by_delta_rs(
        self, read: Callable[[StoredTable], _Found], version: int | None = None
    ) -> _Found | None:
        """Return what ``read`` finds in a version, or the newest one; None: Spark must be asked."""
        return self._at_place(
            lambda place: read(
                self._newest(place).stored if version is None else place.open(version)
            )
        )

    def _at_place(self, look: Callable[[TablePlace], _Found]) -> _Found | None:
        if self.place is None:
            return None
        try:
            return look(self.place)
        except Exception as failure:  # of many classes, not all of them documented
            _LOG.debug("%s: delta-rs: %s; Spark is asked", self.where, failure)
            return None

    def _newest(self, place: TablePlace) -> RememberedTable:
        """Return the table as it is: as it was read, if no commit has come since."""
        known = self.remembered.pop(self.sql, None)
        if known is None or place.newest_commit(known.stored.version()) != known.newest:
            stored = place.open()
            newest = place.newest_commit(stored.version())
            known = RememberedTable(stored, newest)
            if newest is None:  # a commit has come in the meantime
                return known
        self.remembered[self.sql] = known
        return known

    def _properties_by_spark(self) -> dict[str, str]:
        spark = self.start_spark()
        with spark_errors(self.where):
            # DESCRIBE DETAIL counts the table's files as well: a Spark job after each commit.
            shown = spark.sql(f"SHOW TBLPROPERTIES {self.sql}").collect()
            if all(row["value"] != _REDACTED for row in shown):
                return {row["key"]: row["value"] for row in shown}
            found: dict[str, str] = self._detail_by_spark("properties")
        return found

    def _detail_by_spark(self, column: str) -> Any:
        described = self.start_spark().sql(f"DESCRIBE DETAIL {self.sql}")
        return described.select(column).collect()[0][column]

    def _require_columns_by_spark(self, schema: pa.Schema, also: Collection[str]) -> None:
        spark = self.start_spark()
        found, expected = (
            {
                f"{column.name} {column.dataType.simpleString()}"
                for column in frame.schema
                if column.name not in also
            }
            for frame in (
                spark.sql(f"SELECT * FROM {self.sql} LIMIT 0"),
                spark.createDataFrame([], spark_ddl(schema)),
            )
        )
        if found != expected:
            raise LakeError(
                f"{self.where}: found the columns "
                f"{', '.join(sorted(found - expected)) or '(none other)'}, "
                f"expected {', '.join(sorted(expected - found)) or 'no such columns'}; put "
                "the table back to a version from before that (DESCRIBE HISTORY lists them): "
                f"RESTORE TABLE {self.sql} TO VERSION AS OF …"
            )

    def _commits_by_spark(self, limit: int) -> list[dict[str, Any]]:
        if self.place is not None:
            self._properties_by_spark()  # of a damaged log it says more than DESCRIBE HISTORY
        with spark_errors(self.where):
            described = self.start_spark().sql(f"DESCRIBE HISTORY {self.sql} LIMIT {limit}")
            rows = described.selectExpr(
                "version",
                "unix_micros(timestamp) AS micros",
                "operation",
                "operationParameters",
                "operationMetrics",
                "userMetadata",
            ).collect()
            own = self._own_times_by_spark([row["version"] for row in rows])
        told = [row.asDict() for row in rows]
        return _in_time(
            (commit, own.get(commit["version"]), commit["micros"] // 1000) for commit in told
        )

    def _own_times_by_spark(self, versions: list[int]) -> dict[int, int]:
        """Return when commits say that they were made: milliseconds by version.

        DESCRIBE HISTORY tells the times of their files, which a copy of the table has anew.
        """
        log = _GLOB.sub(r"\\\g<0>", f"{self._detail_by_spark('location')}/_delta_log")
        files = [f"{log}/{version:020d}.json" for version in versions]
        told = self.start_spark().read.schema("commitInfo STRUCT<timestamp: BIGINT>").json(files)
        rows = told.where("commitInfo.timestamp IS NOT NULL").selectExpr(
            "CAST(substring_index(_metadata.file_name, '.', 1) AS BIGINT) AS version",
            "commitInfo.timestamp AS milliseconds",
        )
        return {row["version"]: row["milliseconds"] for row in rows.collect()}


@dataclass(frozen=True, slots=True)
class _Rows:
    """The result of a delta-rs query; no table where that is too large."""

    table: pa.Table | None

    @classmethod
    def read(
        cls, table: StoredTable, statement: str, schema: pa.Schema, most_bytes: int | None
    ) -> "_Rows":
        found = QueryBuilder().register(_NAME, table).execute(statement)
        batches, bytes_read = [], 0
        for batch in pa.RecordBatchReader.from_stream(found):
            batches.append(batch.select(schema.names).cast(schema))
            bytes_read += batches[-1].nbytes
            if most_bytes is not None and bytes_read > most_bytes:
                return cls(None)
        return cls(pa.Table.from_batches(batches, schema))


def _size(table: StoredTable) -> TableSize:
    sizes = pa.table(table.get_add_actions())["size_bytes"].to_pylist()
    return TableSize(len(sizes), sum(sizes))


def _commits(place: TablePlace, newest: int, limit: int) -> list[dict[str, Any]]:
    """Return commits up to the version ``newest``, newest first, as delta-rs would.

    That would keep this process's other threads from running while it waits for a store.
    """
    versions = range(newest, max(newest - limit, -1), -1)
    told = [
        ({**_commit_info(file.content), "version": file.version}, file.milliseconds)
        for file in place.read_commits(versions)
    ]
    return _in_time((commit, commit.get("timestamp"), of_file) for commit, of_file in told)


def _commit_info(commit_file: bytes) -> dict[str, Any]:
    for line in BytesIO(commit_file):
        if b'"commitInfo"' in line and (found := json.loads(line).get("commitInfo")):
            return dict(found)
    return {}


def _in_time(
    told: Iterable[tuple[dict[str, Any], int | None, int]],
) -> list[dict[str, Any]]:
    """Return the commits with their times, newest first.

    Each item is a commit, its own time, and its file's time. Both times are milliseconds. The
    time that is returned is the commit's own: its file's where it names none or one that is still
    to come, for a clock may have been wrong; and never before the commit before it.
    """
    least, now = -1, datetime.now(UTC).timestamp() * 1000
    commits = []
    for commit, own, of_file in sorted(told, key=lambda each: int(each[0]["version"])):
        least = max(of_file if own is None or own > now else own, least + 1)
        commits.append({**commit, "time": _utc(least * 1000), "file_time": _utc(of_file * 1000)})
    return commits[::-1]


def _query(table: StoredTable, statement: str) -> Iterator[dict[str, Any]]:
    found = QueryBuilder().register(_NAME, table).execute(statement)
    return _rows_of(pa.RecordBatchReader.from_stream(found))


def _rows_of(batches: Iterable[pa.RecordBatch]) -> Iterator[dict[str, Any]]:
    for batch in batches:
        yield from batch.to_pylist()


def _described_columns(table: StoredTable) -> dict[str, Column]:
    schema = table.schema()
    kinds = _columns(pa.schema(schema.to_arrow()))
    comments = {each.name: str(each.metadata.get("comment", "")) for each in schema.fields}
    return {name: Column(kind, comments[name]) for name, kind in kinds.items()}


def _columns(schema: pa.Schema, also: Collection[str] = ()) -> dict[str, pa.DataType]:
    return {column.name: column.type for column in schema if column.name not in also}


def _utc(micros: int) -> datetime:
    return datetime.fromtimestamp(0, UTC) + timedelta(microseconds=micros)
