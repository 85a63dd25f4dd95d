"""Versions of a lake's tables, read by an engine other than Spark: what others will find there."""

from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder

from dcp.lake.tables.lake_tables import LakeTables
from tests.lake.memory_store import MemoryStore


def table_at(folder: str | Path, version: int | None = None) -> pa.Table:
    """Return all rows of a Delta table, at a version or as it is now."""
    found = DeltaTable(folder, version=version)
    query = QueryBuilder().register("found", found).execute("SELECT * FROM found")
    return pa.table(query.read_all())


def version_in(lake: LakeTables, name: str, version: int | None = None) -> pa.Table:
    """Return the same of a table of a lake, which may be in memory."""
    if isinstance(lake.store, MemoryStore):
        kept = lake.store.table(name).kept
        return (kept.newest if version is None else kept.versions[version]).rows
    return table_at(lake.location.path(name), version)
