"""The store of a lake in files: tasks of Spark write them, and delta-rs reads them where it can."""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

import pyarrow as pa

from dcp.errors import SetupError
from dcp.lake.config.memory import MEBIBYTE
from dcp.lake.spark.beside import SessionBeside, end_sessions_beside
from dcp.lake.spark.session import in_pool, session_slots
from dcp.lake.store.at_once import at_once
from dcp.lake.store.data_file import FileContents
from dcp.lake.store.file_commit import Operation, takes_files
from dcp.lake.store.lake_store import BatchFunction, NewRows
from dcp.lake.store.looks import Looks
from dcp.lake.store.place import Located, TablePlace
from dcp.lake.store.remembered_table import RememberedTables
from dcp.lake.store.table import Transaction
from dcp.lake.tables.lake_table import LakeTable
from dcp.lake.tables.location import LakeLocation
from dcp.lake.tables.schema import (
    CHANGES,
    CHANGES_STATISTICS,
    REPLICA_CLUSTERING,
    REPLICA_STATISTICS,
    spark_ddl,
)
from dcp.lake.tables.spark_table import StartSpark
from dcp.lake.tables.task_files import TaskFiles
from dcp.lake.tables.transaction import FEW_JOBS, FEW_ROWS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_Item = TypeVar("_Item")
_Done = TypeVar("_Done")

_FILES: Final = FileContents(CHANGES, CHANGES_STATISTICS, MEBIBYTE)
"""A batch of that size is written at once, so that the task no longer holds it (docs/memory.md)."""


_RECEIVED: Final = "dcplake_received_rows"

_ROW_GROUP_BYTES: Final = 16 * MEBIBYTE
"""Such a task holds no window of a connection, which leaves room for row groups that read well."""

_CHANGES: Final = "changes"
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SparkStore:
    """A lake at ``location``; the first call of ``start_spark`` starts Spark."""

    start_spark: StartSpark
    location: LakeLocation
    remembered: RememberedTables = field(
        default_factory=RememberedTables, repr=False, compare=False
    )
    """See `FileTable`."""
    located: dict[str, Located] = field(default_factory=dict, repr=False, compare=False)
    """See `LakeTable`."""

    @property
    def spark(self) -> "SparkSession":
        return self.start_spark()

    @property
    def slots(self) -> int:
        return session_slots(self.spark)

    def table(self, name: str) -> LakeTable:
        return self.location.table(name, self.start_spark, self.remembered, self.located)

    def for_each(self, do: Callable[[_Item], _Done], items: Sequence[_Item]) -> list[_Done]:
        has_root = self.location.root is not None  # in a catalog Spark looks up each table
        place = self.table(_CHANGES).place if has_root else None
        if place is None or place.folder is not None:
            return [do(item) for item in items]
        begun_at = self.looks.begun_at()

        def do_in_look(item: _Item) -> _Done:
            with self.looks.look(begun_at):
                return do(item)

        return at_once(do_in_look, items)

    @property
    def looks(self) -> Looks:
        return self.remembered.looks

    def pool(self, name: str) -> AbstractContextManager[None]:
        return in_pool(self.spark, name)

    def place_of_files(self, table: str) -> TablePlace | None:
        """Return the place for tasks' files of an existing table.

        None if only Spark can append to it.
        """
        there = self.table(table)
        found, read = there.found, there.read_log()
        if found is None or found.place is None or read is None:
            return None
        there.require_same_place()
        try:
            if not takes_files(found.place, read):
                return None
        except SetupError as failure:
            if self.location.schema is None:
                raise
            _LOG.info("%s: %s; Spark writes to it", there.where, failure)
            return None
        return found.place

    def new_changes(self, tasks: int, receive: BatchFunction, *, are_few: bool = False) -> NewRows:
        """Lets tasks write files of the log if they can.

        That costs a fraction of handing rows to Spark's JVM, and the commit needs no Spark either.
        """
        spark, settings = self.spark, FEW_ROWS if are_few else {}
        each_task = spark.range(0, tasks, 1, tasks)
        if (place := self.place_of_files(_CHANGES)) is not None:
            read_log = self.table(_CHANGES).read_log
            return TaskFiles(each_task, receive, place, _FILES, settings, read_log)
        frame = each_task.mapInArrow(receive, spark_ddl(CHANGES))
        return SparkRows(frame, self.table(_CHANGES), settings)

    def first_rows(
        self,
        table: str,
        query: str,
        made: Callable[[pa.RecordBatch], pa.RecordBatch],
        columns: pa.Schema,
        settings: Mapping[str, str],
    ) -> TaskFiles | None:
        if (place := self.place_of_files(table)) is None:
            return None
        contents = FileContents(columns, REPLICA_STATISTICS, _ROW_GROUP_BYTES, REPLICA_CLUSTERING)

        def rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            return map(made, batches)

        found = self.spark.sql(query)
        return TaskFiles(found, rows, place, contents, settings, operation=Operation.MERGE)

    def beside(self) -> Self:
        return replace(self, start_spark=SessionBeside(self.start_spark))

    def end_beside(self, stores: Sequence[Self]) -> None:
        starts = (each.start_spark for each in stores)
        begun = [each.begun for each in starts if isinstance(each, SessionBeside) and each.begun]
        if begun:
            end_sessions_beside(self.spark, begun)


@dataclass(frozen=True, slots=True)
class SparkRows:
    """Rows of ``changes`` that Spark appends; each attempt makes them anew."""

    frame: "DataFrame"
    table: LakeTable
    settings: Mapping[str, str]

    def append(
        self,
        base: Callable[[], int],  # Delta looks for the version itself
        transaction: Transaction,
        metadata: Mapping[str, Any],
    ) -> None:
        self.frame.createOrReplaceTempView(_RECEIVED)
        # Delta looks up the newest transaction id, which reads the table's whole state.
        settings = {**FEW_JOBS, **self.settings}
        self.table.append_found(f"SELECT * FROM {_RECEIVED}", {}, transaction, metadata, settings)
