"""Tables at a place that a test knows, which must be read without Spark."""

from dataclasses import fields
from typing import TYPE_CHECKING

from dcp.lake.adapters.file_table import FileTable
from dcp.lake.adapters.spark_table import SparkTable
from dcp.lake.store.remembered_table import RememberedTables
from dcp.lake.store.table import Table
from dcp.lake.store.table_location import TableLocation

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def table_at(location: TableLocation, where: str = "t") -> FileTable:
    """Return the table at a place; ``where`` is what messages call it."""
    named = "delta.`t`", where, no_spark, location.uri
    return FileTable(*named, RememberedTables(), location, lambda: None)


def location_of(table: Table) -> TableLocation:
    """Return the place of a table that is read by its files."""
    return files_of(table).location


def files_of(table: Table) -> FileTable:
    """Return a table that is read by its files."""
    assert isinstance(table, FileTable)
    return table


def by_spark(table: Table) -> SparkTable:
    """Return the same table as Spark alone reads it."""
    assert isinstance(table, SparkTable)
    return SparkTable(**{each.name: getattr(table, each.name) for each in fields(SparkTable)})


def no_spark() -> "SparkSession":
    raise AssertionError("Spark was started")
