"""The statements that only Spark runs, and the tables that only Spark finds.

Spark implements Delta's protocol for changes (clustering, deletion vectors, conflicts with other
writers). It reads far slower than delta-rs, but any table that it can find. Its messages about a
damaged Delta log are the ones that users look up.
"""

import logging
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeVar

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from dcp.errors import LakeError
from dcp.lake.adapters.apply_sql import merge_sql
from dcp.lake.adapters.merge_rows import merged_rows, written_rows
from dcp.lake.adapters.transaction import (
    FEW_JOBS,
    FEW_JOBS_TO_JOIN,
    FEW_ROWS,
    delta_errors,
    described,
    fenced,
    memory_view,
    session_settings_for_a_while,
)
from dcp.lake.config.memory import DOCUMENT_BYTES, reader_settings
from dcp.lake.spark.failures import spark_errors
from dcp.lake.spark.hadoop import remove_hidden_files
from dcp.lake.spark.session import session_slots
from dcp.lake.store.cached_reads import CachedReads, committing
from dcp.lake.store.failures import remedy
from dcp.lake.store.file_commit import attempts
from dcp.lake.store.merge import LogRows, Merge
from dcp.lake.store.new_table import DELETION_VECTORS
from dcp.lake.store.remembered_table import RememberedTables
from dcp.lake.store.sql import at_version, dotted, property_list, quoted, string, string_list
from dcp.lake.store.table import (
    CommitConflictError,
    Statement,
    TableSize,
    Transaction,
    sized_columns,
)
from dcp.lake.store.table_location import DELTA_LOG, commit_name, with_times
from dcp.lake.tables.schema import REPLICA_CLUSTERING, spark_ddl, spark_type

if TYPE_CHECKING:
    from deltalake import DeltaTable as StoredTable  # Spark has a class of that name, too
    from pyspark.sql import SparkSession

StartSpark = Callable[[], "SparkSession"]
"""Returns a session. The first call starts Spark if it is not running."""

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
"""Spark shows this for a possible secret, and for a value whose text or key contains ``url``."""

_IS_TABLE: Final = re.compile(r"^Type: (?:MANAGED|EXTERNAL)$", re.MULTILINE)
_LOCATION: Final = re.compile(r"^Location: (.+)$", re.MULTILINE)
"""Lines in a catalog's answer about a table."""

_GLOB: Final = re.compile(r"[][{}*?\\]")
"""Spark's file readers take these characters as patterns; a backslash escapes them."""

_LOGGER = logging.getLogger(__name__)

_TOLD_BY_DELTA: Final = ("delta.feature.", "delta.min", "option.")
"""Spark lists properties with these prefixes as a table's own, but they cannot be set."""

_FORMAT_CHECK: Final = "spark.databricks.delta.formatCheck.enabled"
_RETENTION_CHECK: Final = "spark.databricks.delta.retentionDurationCheck.enabled"
_REMOVED: Final = "dcplake_removed_files"
_CHANGE_DATA: Final = "_change_data"
"""The folder of a table's change data feed, if somebody has switched that on."""
_FILE: Final = "STRUCT<path: STRING, size: BIGINT, deletionTimestamp: BIGINT>"
_GONE: Final = f"remove {_FILE}, cdc {_FILE}"
"""A commit's entries for files that the newest version does not need."""
_RETAIN_IGNORED: Final = "spark.databricks.delta.vacuum.retentionWindowIgnore.enabled"
_LISTING_TASKS: Final = "spark.sql.sources.parallelPartitionDiscovery.parallelism"
_CLUSTER_LISTING_TASKS: Final = 64

_VACUUM_LOOKS: Final = (1, 16)
"""The numbers of newest commits to search for the end of a VACUUM: others may have committed."""

_REWRITTEN: Final = "dcplake_rows_of_rewritten_table"
_APPENDED: Final = "dcplake appended rows"
_Found = TypeVar("_Found")


def no_table(where: str, *, may_have_data: bool) -> LakeError:
    """Return the error for a missing table; ``may_have_data``: data without a Delta log may be
    there.
    """
    found = f"{where}: found no Delta table there, expected one"
    if not may_have_data:
        return LakeError(
            f"{found}; name the right location (lake.root, --lake; lake.schema), or make it: the "
            "first `dcplake run` does"
        )
    return LakeError(
        f"{found}; if the folder has no data files, name the right location (lake.root, --lake), "
        "or make the table: the first `dcplake run` does; if it has some, its Delta log is gone: "
        f"{remedy('', where, is_delta_log=True)}"
    )


@dataclass(frozen=True, slots=True)
class SparkTable:
    """A table by its name in Spark's SQL."""

    sql: str
    where: str
    start_spark: StartSpark
    path: str | None
    """The table's path, with which Spark finds it without a catalog; None for a catalog's."""
    remembered: RememberedTables = field(repr=False, compare=False)
    """The tables that this process has read. An open lake shares it with all its tables."""

    @property
    def cached_reads(self) -> CachedReads:
        return self.remembered.cached_reads

    def commits_blocked(self) -> AbstractContextManager[object]:
        """Keep this process's own commits from coming between those of a Spark statement."""
        return nullcontext()

    def exists(self) -> bool:
        if self.remembered.is_absent(self.sql):
            return False
        if self.path is None:
            return self.catalog_location() is not None
        with spark_errors(self.where):
            try:
                self.start_spark().sql(f"SHOW TBLPROPERTIES {self.sql}").collect()
            except PySparkException as error:
                if error.getCondition() in _MISSING:
                    return False
                raise
        return True

    def catalog_location(self) -> str | None:
        """Return the location of a catalog table's files; None if the catalog has no such table.

        Empty if it is a view, or the catalog does not return the location. Usually this runs no
        job, and reads no file of the table.
        """
        spark, (schema, _, name) = self.start_spark(), self.sql.replace("`", "").rpartition(".")
        try:
            shown = spark.sql(f"SHOW TABLE EXTENDED IN {dotted(schema)} LIKE {string(name)}")
            found = {row["tableName"]: row["information"] for row in shown.collect() if not row[2]}
            in_any_case = {each.lower(): told for each, told in found.items()}
            told = found.get(name) or in_any_case.get(name.lower())
            if told is None or not _IS_TABLE.search(told):
                return None if told is None else ""
            [location] = _LOCATION.findall(told)
        except (PySparkException, ValueError) as failure:  # a comment may contain such a line
            if isinstance(failure, PySparkException) and failure.getCondition() in _MISSING:
                return None
            return self._described_location()
        return str(location)

    def _described_location(self) -> str | None:
        try:
            return str(self._detail("location"))
        except PySparkException as failure:
            if failure.getCondition() in _MISSING:
                return None
            _LOGGER.debug("%s: the catalog does not tell where it is: %s", self.where, failure)
            return ""

    def properties(self) -> dict[str, str]:
        with self._reading() as spark:
            # DESCRIBE DETAIL also counts the table's files, which is a Spark job after each commit.
            shown = spark.sql(f"SHOW TBLPROPERTIES {self.sql}").collect()
            if all(row["value"] != _REDACTED for row in shown):
                return {row["key"]: row["value"] for row in shown}
            found: dict[str, str] = self._detail("properties")
        return found

    def table_id(self) -> str:
        with self._reading():
            return str(self._detail("id"))

    def size(self) -> TableSize:
        with self._reading():
            return TableSize(int(self._detail("numFiles")), int(self._detail("sizeInBytes")))

    def transaction_version(self, app_id: str) -> int | None:
        return None

    def read_delta_log(self) -> "StoredTable | None":
        """Return the table as delta-rs has read it; None if only Spark can read it."""
        return None

    def columns(self, version: int | None = None) -> pa.Schema:
        from pyspark.sql.pandas.types import to_arrow_schema  # only if Spark is needed

        with self._there() as spark:
            schema = spark.sql(f"SELECT * FROM {at_version(self.sql, version)} LIMIT 0").schema
        return pa.schema(
            column.with_metadata({name: str(told) for name, told in each.metadata.items()})
            for column, each in zip(to_arrow_schema(schema, timezone="UTC"), schema, strict=True)
        )

    def commits(self, limit: int) -> list[dict[str, Any]]:
        with self._reading() as spark:
            try:
                told_of = spark.sql(f"DESCRIBE HISTORY {self.sql} LIMIT {limit}")
            except Exception:  # Spark's own class, or the bridge's
                self.properties()  # if the Delta log is damaged, this raises a better error
                raise
            rows = told_of.selectExpr(
                "version",
                "unix_micros(timestamp) AS micros",
                "operation",
                "operationParameters",
                "operationMetrics",
                "userMetadata",
            ).collect()
            own = self._own_times([row["version"] for row in rows])
        told = [row.asDict() for row in rows]
        return with_times(
            (commit, own.get(commit["version"]), commit["micros"] // 1000) for commit in told
        )

    def rows(self, columns: str, condition: str) -> list[dict[str, Any]]:
        return self.take_rows(columns, condition, list)

    def take_rows(
        self, columns: str, condition: str, take: Callable[[Iterator[dict[str, Any]]], _Found]
    ) -> _Found:
        with self._reading() as spark:
            read = spark.sql(f"SELECT {columns} FROM {self.sql} WHERE {condition}").toArrow()
        return take(row for batch in read.to_batches() for row in batch.to_pylist())

    def query(
        self, statement: Statement, schema: pa.Schema, version: int | None = None
    ) -> pa.Table:
        with self._there() as spark:
            found = spark.sql(statement(at_version(self.sql, version), string)).toArrow()
        return found.select(schema.names).cast(schema)

    def bounded_query(
        self, statement: Statement, schema: pa.Schema, version: int | None, most_bytes: int
    ) -> pa.Table | None:
        # Spark cannot stop a query at a size, so the sizes are summed first.
        sized = (f"coalesce(octet_length({quoted(name)}), 0)" for name in sized_columns(schema))
        size = f"SELECT coalesce(sum({' + '.join(sized) or 0}), 0) AS bytes"
        counted = self.query(
            lambda name, text: f"{size} FROM ({statement(name, text)})",
            pa.schema([("bytes", pa.int64())]),
            version,
        )
        is_more = counted["bytes"][0].as_py() > most_bytes
        return None if is_more else self.query(statement, schema, version)

    @committing
    def create(
        self, columns: pa.Schema, cluster_by: Collection[str], properties: Mapping[str, str]
    ) -> None:
        self._remove_unfinished_delta_log()
        clustered = f" CLUSTER BY ({', '.join(cluster_by)})" if cluster_by else ""
        with spark_errors(self.where):
            try:
                self.start_spark().sql(
                    f"CREATE TABLE IF NOT EXISTS {self.sql} ({spark_ddl(columns)}) USING delta"
                    f"{clustered} TBLPROPERTIES ({property_list(properties)})"
                ).collect()
            except PySparkException:
                # Another driver may have made the table first; the caller checks it.
                if not self.exists():
                    raise

    @committing
    def add_columns(self, columns: pa.Schema, comments: Mapping[str, str]) -> None:
        failure: Exception | None = None
        for _ in attempts():
            try:
                return self._alter(f"ADD COLUMNS ({_column_list(columns, comments)})")
            except (PySparkException, CommitConflictError) as error:
                self.cached_reads.read_anew()
                if set(columns.names) <= set(self.columns().names):
                    return None
                if not isinstance(error, CommitConflictError):
                    raise
                failure = error
        assert failure is not None
        raise failure

    @committing
    def set_properties(self, properties: Mapping[str, str | None]) -> None:
        given = {name: value for name, value in properties.items() if value is not None}
        if given:
            self._alter(f"SET TBLPROPERTIES ({property_list(given)})")
        if removed := properties.keys() - given:
            self._alter(f"UNSET TBLPROPERTIES IF EXISTS ({string_list(sorted(removed))})")

    @committing
    def append(self, rows: pa.Table, metadata: Mapping[str, Any]) -> None:
        with (
            self._reading() as spark,
            described(spark, metadata, FEW_JOBS | FEW_ROWS),
            memory_view(spark, _APPENDED, rows) as view,
        ):
            spark.sql(f"INSERT INTO {self.sql} SELECT * FROM {view}").collect()

    @committing
    def append_found(
        self,
        query: str,
        views: Mapping[str, pa.Table],
        transaction: Transaction,
        metadata: Mapping[str, Any],
    ) -> None:
        spark, settings = self.start_spark(), FEW_JOBS_TO_JOIN | FEW_ROWS if views else {}
        with ExitStack() as stack:
            for name, rows in views.items():
                stack.enter_context(memory_view(spark, name, rows))
            stack.enter_context(fenced(spark, transaction, metadata, settings))
            spark.sql(f"INSERT INTO {self.sql} {query}").collect()

    @committing
    def delete(self, condition: str | None, metadata: Mapping[str, Any]) -> int:
        spark, where = self.start_spark(), f" WHERE {condition}" if condition else ""
        with described(spark, metadata):
            [deleted] = spark.sql(f"DELETE FROM {self.sql}{where}").collect()
        return int(deleted[0])

    @committing
    def update(self, values: Mapping[str, str], condition: str, metadata: Mapping[str, Any]) -> int:
        spark, given = self.start_spark(), (f"{quoted(each)} = {values[each]}" for each in values)
        with described(spark, metadata):
            [changed] = spark.sql(
                f"UPDATE {self.sql} SET {', '.join(given)} WHERE {condition}"
            ).collect()
        return int(changed[0])

    def found_by_spark(self, columns: pa.Schema, condition: str) -> pa.Table:
        listed = ", ".join(map(quoted, columns.names))
        with self._reading() as spark:
            found = spark.sql(f"SELECT {listed} FROM {self.sql} WHERE {condition}").toArrow()
        return found.cast(columns)

    def search_files(self, columns: pa.Schema, condition: str) -> tuple[int, list[str]]:
        settings = {_FORMAT_CHECK: "false"}  # else Delta refuses to have its files read as files
        with self._reading() as spark, session_settings_for_a_while(spark, settings):
            folder = self._detail("location")
            count, names = 0, set[str]()
            for location in (folder, f"{folder}/{_CHANGE_DATA}"):
                try:
                    files = (
                        spark.read.schema(spark_ddl(columns))
                        .option("recursiveFileLookup", True)
                        .option("pathGlobFilter", "*.parquet")
                        .parquet(_escaped_glob(location))
                    )
                except PySparkException as error:
                    if location == folder or error.getCondition() not in _MISSING:
                        raise
                    continue  # the table has no change data feed
                found = files.where(condition).selectExpr("_metadata.file_name AS name").distinct()
                count += len(files.inputFiles())
                names.update(row["name"] for row in found.collect())
            return count, sorted(names)

    def purge(self, metadata: Mapping[str, Any]) -> int:
        spark = self.start_spark()
        settings = {
            **reader_settings(DOCUMENT_BYTES),
            _RETAIN_IGNORED: "false",
            _RETENTION_CHECK: "false",
        }
        with (
            self.commits_blocked(),
            self.cached_reads.committing(),
            described(spark, metadata, settings),
        ):
            spark.sql(f"REORG TABLE {self.sql} APPLY (PURGE)").collect()
            unreferenced = self.vacuum(metadata, None)
            self._delete_removed_files(spark)
        return unreferenced + self._deleted_files()

    def _delete_removed_files(self, spark: "SparkSession") -> None:
        # A VACUUM of all files without retention would take those of a writer that has not
        # committed yet; and VACUUM LITE fails once the Delta log has forgotten its first commits.
        folder = str(self._detail("location"))
        commits = spark.read.schema(_GONE).json(f"{_escaped_glob(folder)}/{DELTA_LOG}/*.json")
        gone = commits.selectExpr("coalesce(remove, cdc) AS file").where("file IS NOT NULL")
        # Delta demands these columns, each of which may be null.
        gone.selectExpr(
            f"concat({string(folder + '/')}, file.path) AS path",
            "nvl(file.size, CAST(length(file.path) AS BIGINT)) AS length",
            "file.path = '' AS isDir",
            "nvl(file.deletionTimestamp, 0 * length(file.path)) AS modificationTime",
        ).createOrReplaceTempView(_REMOVED)
        try:
            spark.sql(
                f"VACUUM {self.sql} USING INVENTORY (SELECT * FROM {_REMOVED}) RETAIN 0 HOURS"
            ).collect()
        finally:
            spark.catalog.dropTempView(_REMOVED)

    def can_read_all(self) -> bool:
        try:
            with spark_errors(self.where):
                spark = self.start_spark()
                # A hash over all columns makes Spark read every value.
                spark.sql(f"SELECT bit_xor(xxhash64(*)) FROM {self.sql}").collect()
        except LakeError:
            return False
        return True

    @committing
    def merge(self, merge: Merge, transaction: Transaction, metadata: Mapping[str, Any]) -> None:
        spark = self.start_spark()
        # Without deletion vectors, Spark rewrites whole files, and one task would be too slow.
        keeps_files = self.properties().get(DELETION_VECTORS) == "true"
        is_small = keeps_files and not isinstance(merge.rows, LogRows)
        settings = FEW_JOBS_TO_JOIN if is_small else {}
        with fenced(spark, transaction, metadata, settings):
            if merge.rewrites:
                self._rewrite(spark, merge)
                return
            with merged_rows(spark, self.sql, merge) as merge_source:
                spark.sql(merge_sql(self.sql, merge_source, merge)).collect()

    def _rewrite(self, spark: "SparkSession", merge: Merge) -> None:
        there, made = self.properties().items(), merge.made
        kept = {name: value for name, value in there if not name.startswith(_TOLD_BY_DELTA)}
        listed = property_list(kept)
        with written_rows(spark, self.sql, merge) as rows:
            frame = spark.sql(f"SELECT * FROM {rows}")
            for name, comment in (made.comments if made else {}).items():
                frame = frame.withMetadata(name, {"comment": comment})
            frame.createOrReplaceTempView(_REWRITTEN)
            try:
                # Replacing a table removes its properties and clustering, unless they are named.
                spark.sql(
                    f"CREATE OR REPLACE TABLE {self.sql} USING delta "
                    f"CLUSTER BY ({', '.join(REPLICA_CLUSTERING)}) TBLPROPERTIES ({listed}) "
                    f"AS SELECT * FROM {_REWRITTEN}"
                ).collect()
            finally:
                spark.catalog.dropTempView(_REWRITTEN)

    def renew(self, transaction: Transaction, metadata: Mapping[str, Any]) -> None:
        nothing = f"SELECT * FROM {self.sql} WHERE false"
        self.append_found(nothing, {}, transaction, metadata)

    @committing
    def optimize(self, metadata: Mapping[str, Any], largest_bytes: int) -> Mapping[str, int]:
        spark, settings = (
            self.start_spark(),
            reader_settings(largest_bytes) if largest_bytes else {},
        )
        with self.commits_blocked(), described(spark, metadata, settings):
            [done] = spark.sql(f"OPTIMIZE {self.sql}").collect()
        metrics = done["metrics"]
        return {name: int(metrics[name]) for name in ("numFilesAdded", "numFilesRemoved")}

    def vacuum(
        self, metadata: Mapping[str, Any], hours: int | None, *, dry_run: bool = False
    ) -> int:
        spark = self.start_spark()
        # By default, VACUUM lists folders in 10,000 tasks, whatever the table's size.
        tasks = 2 * session_slots(spark) or _CLUSTER_LISTING_TASKS
        settings = {_LISTING_TASKS: str(tasks), _RETAIN_IGNORED: "false"}
        longer = "" if hours is None else f" RETAIN {hours} HOURS"
        with self.cached_reads.committing(), described(spark, metadata, settings):
            files = spark.sql(f"VACUUM {self.sql}{longer}{' DRY RUN' if dry_run else ''}").collect()
        return len(files) if dry_run else self._deleted_files()

    def _deleted_files(self) -> int:
        """Return how many files the newest VACUUM deleted, from its commits.

        It raises LakeError if a setting of Spark suppresses these commits.
        """
        for limit in _VACUUM_LOOKS:
            for commit in self.commits(limit):
                if commit["operation"] == "VACUUM END":
                    return int(commit["operationMetrics"]["numDeletedFiles"])
        raise LakeError(
            f"{self.where}: found no commit VACUUM END, expected one for the VACUUM that was made; "
            "see that nobody sets spark.databricks.delta.vacuum.logging.enabled = false"
        )

    def register(self, name: str) -> None:
        assert self.path is not None, "a catalog's table has a name"
        self.start_spark().sql(
            f"CREATE TABLE IF NOT EXISTS {name} USING delta LOCATION {string(self.path)}"
        )

    def _remove_unfinished_delta_log(self) -> None:
        """Remove the Delta log of a driver that died while it made the table.

        Spark takes any file or folder at a path for a table, and would not make one.
        """
        if self.path is not None:
            with suppress(Py4JError):  # if something else is there, CREATE TABLE reports it
                remove_hidden_files(self.start_spark(), f"{self.path}/{DELTA_LOG}")

    @contextmanager
    def _there(self) -> Iterator["SparkSession"]:
        """Yield a session to read the table; a missing table becomes our error."""
        try:
            with delta_errors():
                yield self.start_spark()
        except PySparkException as error:
            if error.getCondition() in _MISSING:
                raise no_table(self.where, may_have_data=self.path is not None) from error
            raise

    @contextmanager
    def _reading(self) -> Iterator["SparkSession"]:
        """Like `_there`; all errors of Spark become ours, in one line."""
        with spark_errors(self.where), self._there() as spark:
            yield spark

    def _alter(self, change: str) -> None:
        with self._there() as spark, self.commits_blocked():
            spark.sql(f"ALTER TABLE {self.sql} {change}").collect()

    def _detail(self, column: str) -> Any:
        told = self.start_spark().sql(f"DESCRIBE DETAIL {self.sql}")
        return told.select(column).collect()[0][column]

    def _own_times(self, versions: list[int]) -> dict[int, int]:
        """Return the commits' own times: milliseconds by version.

        DESCRIBE HISTORY returns the times of the files, which change in a copy of the table.
        """
        delta_log = _escaped_glob(f"{self._detail('location')}/{DELTA_LOG}")
        files = [f"{delta_log}/{commit_name(version)}" for version in versions]
        told = self.start_spark().read.schema("commitInfo STRUCT<timestamp: BIGINT>").json(files)
        rows = told.where("commitInfo.timestamp IS NOT NULL").selectExpr(
            "CAST(substring_index(_metadata.file_name, '.', 1) AS BIGINT) AS version",
            "commitInfo.timestamp AS milliseconds",
        )
        return {row["version"]: row["milliseconds"] for row in rows.collect()}


def _escaped_glob(path: str) -> str:
    return _GLOB.sub(r"\\\g<0>", path)


def _column_list(columns: pa.Schema, comments: Mapping[str, str]) -> str:
    def told(column: pa.Field) -> str:
        comment = f" COMMENT {string(comments[column.name])}" if column.name in comments else ""
        return f"{quoted(column.name)} {spark_type(column.type)}{comment}"

    return ", ".join(map(told, columns))
