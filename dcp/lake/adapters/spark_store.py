"""The store of a lake: Spark's tasks write its files, and delta-rs reads them if it can."""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

import pyarrow as pa
from pyspark import StorageLevel

from dcp.errors import LakeError, SetupError, StoreUnavailableError
from dcp.lake.adapters.file_table import FileTable
from dcp.lake.adapters.merge_rows import written_rows
from dcp.lake.adapters.spark_table import SparkTable, StartSpark
from dcp.lake.adapters.task_files import TaskFiles
from dcp.lake.adapters.transaction import (
    FEW_JOBS,
    FEW_ROWS,
    delta_errors,
    session_settings_for_a_while,
)
from dcp.lake.config.lake_root import is_on_s3
from dcp.lake.config.memory import MEBIBYTE, arrow_settings
from dcp.lake.config.storage_options import LOG_STORE
from dcp.lake.config.table_names import CHANGES_TABLE
from dcp.lake.spark.beside import SessionBeside, end_sessions_beside, is_connect
from dcp.lake.spark.failures import spark_errors
from dcp.lake.spark.hadoop import (
    file_content,
    log_store_of,
    put_file,
    try_conditional_writes,
)
from dcp.lake.spark.session import free_checkpoint, in_pool, session_slots
from dcp.lake.store.at_once import at_once
from dcp.lake.store.cached_reads import CachedReads
from dcp.lake.store.data_file import FileContents
from dcp.lake.store.file_commit import takes_files
from dcp.lake.store.lake_store import Append, BatchFunction
from dcp.lake.store.location import LakeLocation
from dcp.lake.store.merge import Merge
from dcp.lake.store.remembered_table import RememberedTables
from dcp.lake.store.sql import dotted
from dcp.lake.store.table import Operation, Transaction
from dcp.lake.store.table_location import Located, TableLocation
from dcp.lake.tables.schema import (
    CHANGES,
    CHANGES_STATISTICS,
    REPLICA,
    REPLICA_CLUSTERING,
    REPLICA_STATISTICS,
    spark_ddl,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_Item = TypeVar("_Item")
_Done = TypeVar("_Done")

_FILES: Final = FileContents(CHANGES, CHANGES_STATISTICS, MEBIBYTE)
"""Row groups of this size bound the memory of a task (docs/reference/memory.md)."""


_RECEIVED: Final = "dcplake_received_rows"
_COMPUTED: Final = "dcplake_computed_rows"
_numbers: Final = count(1)

_ROW_GROUP_BYTES: Final = 16 * MEBIBYTE
"""Such a task has no flow control window, so that memory is left for larger row groups."""

_LOGGER = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SparkStore:
    """A lake at ``location``. The first call of ``start_spark`` starts Spark."""

    start_spark: StartSpark
    location: LakeLocation
    remembered: RememberedTables = field(
        default_factory=RememberedTables, repr=False, compare=False
    )
    """See `SparkTable`."""
    located: dict[str, Located] = field(default_factory=dict, repr=False, compare=False)
    """The locations of existing tables by name. `FileTable.leave_files` removes an entry."""

    @property
    def spark(self) -> "SparkSession":
        return self.start_spark()

    @property
    def slots(self) -> int:
        return session_slots(self.spark)

    def table(self, name: str) -> SparkTable:
        """Return a table that uses its files, or Spark if only Spark can find or make it."""
        located = self._located(name)
        if located is None or located.location is None:
            return self._by_spark(name)
        return self._by_files(name, located.location)

    def _by_files(self, name: str, location: TableLocation) -> FileTable:
        forget = partial(self.located.pop, name, None)
        return FileTable(*self._names(name), location, forget)

    def _by_spark(self, name: str) -> SparkTable:
        return SparkTable(*self._names(name))

    def _names(self, name: str) -> tuple[str, str, StartSpark, str | None, RememberedTables]:
        location = self.location
        return (
            location.table_sql(name),
            f"{location}: table {name}",
            self.start_spark,
            None if location.root is None else location.spark_path(name),
            self.remembered,
        )

    def _located(self, name: str) -> Located | None:
        if (known := self.located.get(name)) is not None:
            return known
        if self.location.root is not None:
            found = Located(self.location.spark_path(name), self.location.of_table(name))
            return self.located.setdefault(name, found)
        in_sql, begun_at = self.location.table_sql(name), self.cached_reads.tick()
        if self.remembered.is_absent(in_sql):
            return None
        if (looked_up := self._look_up(name)) is None:
            self.remembered.note_absent(in_sql, begun_at)
            return None
        return self.located.setdefault(name, looked_up)

    def _look_up(self, name: str) -> Located | None:
        assert self.location.schema is not None
        table = self._by_spark(name)
        if (at := table.catalog_location()) is None:
            return None
        scheme, _, path = at.partition(":")
        location = self.location.location_at(Path(path) if scheme == "file" else at)
        try:
            is_read = (
                location is not None and self._by_files(name, location).read_delta_log() is not None
            )
        except StoreUnavailableError:  # the table's state is unknown
            raise
        except SetupError as refusal:  # a catalog may give other credentials to Spark
            _LOGGER.debug("%s: only Spark reads %s: %s", table.where, at, refusal)
            is_read = False
        # Another log store may keep the newest commits elsewhere, or overwrite ours.
        if is_read and is_on_s3(at):
            is_read = log_store_of(self.spark, at) == LOG_STORE
        return Located(at, location if is_read else None)

    @property
    def is_remote(self) -> bool:
        table = self.table(CHANGES_TABLE)
        return isinstance(table, FileTable) and table.location.is_remote

    def note(self, name: str, content: bytes) -> None:
        if (located := self._located(CHANGES_TABLE)) is None:
            return
        if located.location is not None:
            located.location.put(name, content)
        else:
            put_file(self.spark, f"{located.spark_path}/{name}", content)

    def noted(self, name: str) -> bytes | None:
        if (located := self._located(CHANGES_TABLE)) is None:
            return None
        if located.location is not None:
            return located.location.get(name)
        return file_content(self.spark, f"{located.spark_path}/{name}")

    def for_each(self, do: Callable[[_Item], _Done], items: Sequence[_Item]) -> list[_Done]:
        # In a catalog, Spark looks each table up.
        if self.location.root is None or not self.is_remote:
            return [do(item) for item in items]
        begun_at = self.cached_reads.begun_at()

        def do_in_read(item: _Item) -> _Done:
            with self.cached_reads.read_once(begun_at):
                return do(item)

        return at_once(do_in_read, items)

    def prepare(self) -> None:
        """Make the catalog's schema if it is missing. If Spark commits to S3, test the store."""
        located, schema = self._located(CHANGES_TABLE), self.location.schema
        if schema is not None and located is None:
            self.spark.sql(f"CREATE SCHEMA IF NOT EXISTS {dotted(schema)}")
        if located is None or not is_on_s3(at := located.spark_path):
            return
        if (schema or located.location is None) and log_store_of(self.spark, at) == LOG_STORE:
            with spark_errors(at):
                try_conditional_writes(self.spark, at)

    @property
    def cached_reads(self) -> CachedReads:
        return self.remembered.cached_reads

    def pool(self, name: str) -> AbstractContextManager[None]:
        return in_pool(self.spark, name)

    def location_of_files(self, name: str) -> TableLocation | None:
        """Return the location where tasks may write files for an existing table.

        None if only Spark can append to the table.
        """
        table = self.table(name)
        if not isinstance(table, FileTable) or (read := table.read_delta_log()) is None:
            return None
        if self.location.root is None:
            self._require_same_location(name, table)
        try:
            if not takes_files(table.location, read):
                return None
        except StoreUnavailableError:  # Spark could not write either
            raise
        except SetupError as failure:
            if self.location.schema is None:
                raise
            _LOGGER.info("%s: %s; Spark writes to it", table.where, failure)
            return None
        return table.location

    def _require_same_location(self, name: str, table: FileTable) -> None:
        """Raise LakeError if the catalog has moved a table after it was looked up."""
        before, now = self.located.pop(name, None), self._located(name)
        if before is None:  # another thread is asking the catalog
            return
        if now is None or now.spark_path != before.spark_path:
            self.located.pop(name, None)
            found = "no such table" if now is None else now.spark_path
            raise LakeError(
                f"{table.where}: the catalog has {found}, expected {before.spark_path}: "
                "somebody dropped or moved it while dcplake worked; "
                "nothing was committed there; start again with the table that you mean"
            )

    @contextmanager
    def computed(self, query: str) -> Iterator[str]:
        spark = self.spark
        # A server of Spark Connect cannot read a view of such rows (DATAFRAME_NOT_FOUND).
        if is_connect(spark):
            yield query
            return
        # On disk, so that the rows take no memory from tasks. A cluster (no known slots) has them
        # twice, so that they outlive an executor.
        level = StorageLevel.DISK_ONLY if self.slots else StorageLevel.DISK_ONLY_2
        name = f"{_COMPUTED}_{next(_numbers)}"
        with delta_errors():
            frame = spark.sql(query).localCheckpoint(storageLevel=level)
        # Delta refuses to MERGE rows of Spark's cache, but takes these.
        with ExitStack() as stack:
            stack.callback(free_checkpoint, frame)
            frame.createOrReplaceTempView(name)
            stack.callback(spark.catalog.dropTempView, name)
            yield f"SELECT * FROM {name}"

    def new_changes(self, tasks: int, receive: BatchFunction, *, are_few: bool = False) -> Append:
        spark, settings = self.spark, FEW_ROWS if are_few else {}
        each_task = spark.range(0, tasks, 1, tasks)
        # That costs a fraction of passing rows to Spark's JVM, and the commit needs no Spark.
        if (location := self.location_of_files(CHANGES_TABLE)) is not None:
            read_delta_log = self.table(CHANGES_TABLE).read_delta_log
            files = TaskFiles(each_task, receive, location, _FILES, settings, read_delta_log)
            return files.append
        frame = each_task.mapInArrow(receive, spark_ddl(CHANGES))
        return partial(append_frame, frame, self.table(CHANGES_TABLE), settings)

    def first_rows(self, table: str, merge: Merge) -> Append | None:
        if (location := self.location_of_files(table)) is None:
            return None
        made = merge.made
        columns = REPLICA if made is None else pa.unify_schemas([REPLICA, made.schema])
        contents = FileContents(columns, REPLICA_STATISTICS, _ROW_GROUP_BYTES, REPLICA_CLUSTERING)

        def rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                known = batch.cast(REPLICA)  # Spark names the elements of arrays differently
                yield known if made is None else made.added_to(known)

        table_sql = self.location.table_sql(table)
        with written_rows(self.spark, table_sql, replace(merge, made=None)) as query:
            found = self.spark.sql(f"SELECT * FROM {query}")
        settings = arrow_settings(merge.largest_bytes)
        files = TaskFiles(found, rows, location, contents, settings, operation=Operation.MERGE)
        return files.append

    def map_written(
        self, table: str, merge: Merge, make: BatchFunction, schema: pa.Schema
    ) -> pa.Table:
        with written_rows(self.spark, self.location.table_sql(table), merge) as rows:
            documents = self.spark.sql(f"SELECT datatype, value FROM {rows}")
            return documents.mapInArrow(make, spark_ddl(schema)).toArrow()

    def beside(self) -> Self:
        return replace(self, start_spark=SessionBeside(self.start_spark))

    def end_beside(self, stores: Sequence[Self]) -> None:
        starts = (each.start_spark for each in stores)
        begun = [each.begun for each in starts if isinstance(each, SessionBeside) and each.begun]
        if begun:
            end_sessions_beside(self.spark, begun)


def append_frame(
    frame: "DataFrame",
    table: SparkTable,
    settings: Mapping[str, str],
    _: Callable[[], int],  # Delta finds the version itself
    transaction: Transaction,
    metadata: Mapping[str, Any],
) -> None:
    """Let Spark append rows of ``changes`` (`Append`). Each attempt makes them again."""
    frame.createOrReplaceTempView(_RECEIVED)
    # Delta looks the newest transaction id up, for which it reads the table's whole state.
    with session_settings_for_a_while(frame.sparkSession, {**FEW_JOBS, **settings}):
        table.append_found(f"SELECT * FROM {_RECEIVED}", {}, transaction, metadata)
