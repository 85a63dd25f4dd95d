"""Rows that Spark tasks write into data files of a table, each task into one.

The driver hears of the files alone and commits them (`dcp.lake.tables.file_commit`).
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from socket import gethostname

import pyarrow as pa
from pyspark.sql import DataFrame

from dcp.errors import DcplakeError
from dcp.lake.config.lake_root import is_on_s3
from dcp.lake.spark.failures import store_error
from dcp.lake.spark.session import LOG_STORE, log_store_of
from dcp.lake.spark.task_errors import TaskError
from dcp.lake.store.place import TablePlace
from dcp.lake.tables.data_file import DATA_FILE, DataFile, DataFileWriter, FileContents
from dcp.lake.tables.file_commit import takes_files
from dcp.lake.tables.schema import spark_ddl
from dcp.lake.tables.tables import LakeTables

BatchFunction = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]
"""A function for ``mapInArrow``."""


def place_of_files(lake: LakeTables, table: str) -> TablePlace | None:
    """Return where tasks may write files of a table that is there; None: Spark must write them.

    Raises:
        LakeError: it is in a store that overwrites.

    """
    place, root = lake.table(table).place, lake.location.root
    if place is None or root is None or not takes_files(place):
        return None
    # Another log store may keep the newest commits elsewhere, or overwrite ours.
    is_ours = not is_on_s3(root) or log_store_of(lake.spark, root) == LOG_STORE
    return place if is_ours else None


@contextmanager
def _told_errors() -> Iterator[None]:
    """Let the driver hear in one line which machine does not reach the store."""
    try:
        yield
    except Exception as failure:
        error = failure if isinstance(failure, DcplakeError) else store_error(failure)
        if error is None:
            raise
        raise TaskError(type(error)(f"task on {gethostname()}: {error}")) from failure


class TaskFiles:
    """The data files of one statement, written by a Spark job when they are asked for."""

    def __init__(
        self,
        frame: DataFrame,
        rows: BatchFunction,
        place: TablePlace,
        contents: FileContents,
    ) -> None:
        """Each task of ``frame`` writes what ``rows`` makes of its batches at ``place``."""

        def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            with _told_errors(), DataFileWriter(place, contents) as writer:
                for batch in rows(batches):
                    writer.write(batch)
                file = writer.finish()
            if file is not None:
                yield file.to_batch()

        self.place = place
        self._frame = frame.mapInArrow(write, spark_ddl(DATA_FILE))
        self._written: list[DataFile] | None = None

    def written(self) -> list[DataFile]:
        """Return the files; the first call runs the job."""
        if self._written is None:
            self._written = [DataFile(**row.asDict()) for row in self._frame.collect()]
        return self._written
