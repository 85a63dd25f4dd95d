"""Rows that Spark tasks write into data files of a table, each task into one.

The driver hears of the files alone and commits them (`dcp.lake.tables.file_commit`).
"""

from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame

from dcp.lake.tables.data_file import DATA_FILE, DataFile, DataFileWriter, FileContents
from dcp.lake.tables.schema import spark_ddl

BatchFunction = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]
"""A function for ``mapInArrow``."""


class TaskFiles:
    """The data files of one statement, written by a Spark job when they are asked for."""

    def __init__(
        self,
        frame: DataFrame,
        rows: BatchFunction,
        folder: Path,
        contents: FileContents,
    ) -> None:
        """Each task of ``frame`` writes what ``rows`` makes of its batches into ``folder``."""

        def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            with DataFileWriter(folder, contents) as writer:
                for batch in rows(batches):
                    writer.write(batch)
                file = writer.finish()
            if file is not None:
                yield file.to_batch()

        self.folder = folder
        self._frame = frame.mapInArrow(write, spark_ddl(DATA_FILE))
        self._written: list[DataFile] | None = None

    def written(self) -> list[DataFile]:
        """Return the files; the first call runs the job."""
        if self._written is None:
            self._written = [DataFile(**row.asDict()) for row in self._frame.collect()]
        return self._written
