"""Versions of a lake's tables, read by an engine other than Spark: what others will find there."""

from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder


def table_at(folder: str | Path, version: int | None = None) -> pa.Table:
    """Return all rows of a Delta table, at a version or as it is now."""
    found = DeltaTable(folder, version=version)
    query = QueryBuilder().register("found", found).execute("SELECT * FROM found")
    return pa.table(query.read_all())
