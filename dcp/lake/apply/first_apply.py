"""The first apply of a replica: its rows go into an empty table, so nothing has to be merged.

Spark reads the change log and chooses the rows, as for any apply; its tasks write the table's data
files themselves. The commit has the fence and the metadata of the MERGE that it stands for.
"""

from collections.abc import Iterator
from typing import Final

import pyarrow as pa

from dcp.lake.apply.apply_plan import ApplyPlan
from dcp.lake.apply.apply_sql import source_sql
from dcp.lake.apply.typed_rows import typed_batch
from dcp.lake.config.memory import MEBIBYTE, arrow_settings
from dcp.lake.tables.data_file import FileContents
from dcp.lake.tables.schema import REPLICA, REPLICA_STATISTICS
from dcp.lake.tables.sql import quoted
from dcp.lake.tables.tables import LakeTables
from dcp.lake.tables.task_files import TaskFiles

_ROW_GROUP_BYTES: Final = 16 * MEBIBYTE
"""Such a task holds no window of a connection: there is room for row groups that read well."""


def first_files(lake: LakeTables, plan: ApplyPlan) -> TaskFiles | None:
    """Return the rows of a plan as files of its table; None where they must be merged.

    They are files where the table is empty and takes them, and the rows are too many for the
    driver to hold.
    """
    if not plan.is_first or plan.rows is not None or plan.typed.rewrites:
        return None
    if (place := lake.store.place_of_files(plan.table)) is None:
        return None
    source, columns = (
        source_sql(lake.table_sql(plan.table), lake.changes_sql, plan),
        plan.typed.columns,
    )
    schema = REPLICA if columns is None else columns.replica_schema
    names = ", ".join(map(quoted, REPLICA.names))
    rows = lake.spark.sql(f"SELECT {names} FROM {source} WHERE NOT deleted")
    contents = FileContents(schema, REPLICA_STATISTICS, _ROW_GROUP_BYTES, ("vbucket", "key"))

    def as_in_files(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            known = batch.cast(REPLICA)  # elements of arrays have other names
            yield known if columns is None else typed_batch(known, columns)

    settings = arrow_settings(plan.largest_bytes)
    return TaskFiles(rows, as_in_files, place, contents, settings)
