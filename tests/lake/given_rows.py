"""Rows of ``changes`` that a test has, as tasks of a round make them."""

import pyarrow as pa

from dcp.lake.adapters.spark_store import SparkStore
from dcp.lake.adapters.task_files import TaskFiles
from dcp.lake.config.memory import MEBIBYTE
from dcp.lake.config.table_names import CHANGES_TABLE
from dcp.lake.store.data_file import DataFileWriter, FileContents
from dcp.lake.store.lake_store import Append
from dcp.lake.store.table import Operation
from dcp.lake.store.table_location import TableLocation
from dcp.lake.tables.lake_tables import LakeTables
from dcp.lake.tables.schema import CHANGES, CHANGES_STATISTICS


def given_rows(lake: LakeTables, rows: pa.Table) -> Append:
    """Return the append for `append_round`: in files of the log, if it takes them."""
    if isinstance(lake.store, SparkStore):
        location = lake.store.location_of_files(CHANGES_TABLE)
        if location is not None:
            return OwnFiles(location, rows).append
    batches = rows.to_batches()
    return lake.store.new_changes(1, lambda _: iter(batches))


class OwnFiles(TaskFiles):
    """The data file of a round's rows, which this process writes itself, without a Spark job."""

    def __init__(self, location: TableLocation, rows: pa.Table) -> None:
        self.location = location
        self._read_delta_log = lambda: None
        self._operation = Operation.WRITE
        with DataFileWriter(
            location, FileContents(CHANGES, CHANGES_STATISTICS, MEBIBYTE)
        ) as writer:
            for batch in rows.to_batches():
                writer.write(batch)
            file = writer.finish()
        self._written = [] if file is None else [file]
