"""The first apply of a replica: its rows go into an empty table, so nothing has to be merged.

Spark reads the change log and chooses the rows, as for any apply; its tasks write the table's data
files themselves. The commit has the fence and the metadata of the MERGE that it stands for.
"""

import pyarrow as pa

from dcp.lake.apply.apply_plan import ApplyPlan
from dcp.lake.apply.apply_sql import source_sql
from dcp.lake.apply.typed_rows import typed_batch
from dcp.lake.config.memory import arrow_settings
from dcp.lake.store.lake_store import NewRows
from dcp.lake.tables.schema import REPLICA
from dcp.lake.tables.sql import quoted
from dcp.lake.tables.tables import LakeTables


def first_rows(lake: LakeTables, plan: ApplyPlan) -> NewRows | None:
    """Return the rows of a plan for its empty table; None if they must be merged.

    Rows that the driver holds are few: they are merged.
    """
    if not plan.is_first or plan.rows is not None or plan.typed.rewrites:
        return None
    columns, source = (
        plan.typed.columns,
        source_sql(lake.table_sql(plan.held.table), lake.changes_sql, plan),
    )
    names = ", ".join(map(quoted, REPLICA.names))

    def as_in_files(batch: pa.RecordBatch) -> pa.RecordBatch:
        known = batch.cast(REPLICA)  # elements of arrays have other names
        return known if columns is None else typed_batch(known, columns)

    return lake.store.first_rows(
        plan.held.table,
        f"SELECT {names} FROM {source} WHERE NOT deleted",
        as_in_files,
        REPLICA if columns is None else columns.replica_schema,
        arrow_settings(plan.largest_bytes),
    )
