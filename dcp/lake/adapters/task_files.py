"""Rows that Spark's tasks write into data files of a table, one file for each task.

The driver gets only the list of files, and commits them (`dcp.lake.store.file_commit`).
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from socket import gethostname
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import DataFrame

from dcp.errors import DcplakeError
from dcp.lake.adapters.transaction import session_settings_for_a_while
from dcp.lake.spark.task_errors import TaskError
from dcp.lake.store.data_file import DATA_FILE, DataFile, DataFileWriter, FileContents
from dcp.lake.store.failures import store_error
from dcp.lake.store.file_commit import commit_files
from dcp.lake.store.lake_store import BatchFunction
from dcp.lake.store.table import Operation, Transaction
from dcp.lake.store.table_location import TableLocation
from dcp.lake.tables.history import metadata_json
from dcp.lake.tables.schema import spark_ddl

if TYPE_CHECKING:
    from deltalake import DeltaTable as StoredTable  # Spark has a class of that name, too


@contextmanager
def _told_errors() -> Iterator[None]:
    """Raise a store's failure as one line that names the task's machine."""
    try:
        yield
    except Exception as failure:
        error = failure if isinstance(failure, DcplakeError) else store_error(failure)
        if error is None:
            raise
        raise TaskError(type(error)(f"task on {gethostname()}: {error}")) from failure


class TaskFiles:
    """The data files of one append. A Spark job writes them at their first use."""

    def __init__(
        self,
        frame: DataFrame,
        rows: BatchFunction,
        location: TableLocation,
        contents: FileContents,
        settings: Mapping[str, str],
        read_delta_log: "Callable[[], StoredTable | None]" = lambda: None,
        operation: Operation = Operation.WRITE,
    ) -> None:
        """Each task of ``frame`` writes the result of ``rows`` for its batches to ``location``.

        ``settings`` apply to the session while the job runs. ``read_delta_log`` returns the table
        if it has been read, so that a commit need not read it.
        """

        def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            with _told_errors(), DataFileWriter(location, contents) as writer:
                for batch in rows(batches):
                    writer.write(batch)
                file = writer.finish()
            if file is not None:
                yield file.to_batch()

        self.location = location
        self._settings = settings
        self._read_delta_log = read_delta_log
        self._operation = operation
        self._frame = frame.mapInArrow(write, spark_ddl(DATA_FILE))
        self._written: list[DataFile] | None = None

    def written(self) -> list[DataFile]:
        """Return the files. The first call runs the job."""
        if self._written is None:
            with session_settings_for_a_while(self._frame.sparkSession, self._settings):
                self._written = [DataFile(**row.asDict()) for row in self._frame.collect()]
        return self._written

    def append(
        self,
        read_version: Callable[[], int],
        transaction: Transaction,
        metadata: Mapping[str, Any],
    ) -> None:
        """Commit the files as the version after ``read_version``; the first call writes them.

        Raises:
            CommitConflictError: another commit came first.
        """
        files, told = self.written(), metadata_json(metadata)
        commit_files(
            self.location,
            files,
            read_version(),
            transaction,
            told,
            self._operation,
            table=self._read_delta_log(),
        )
