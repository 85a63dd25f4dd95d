"""Tables at a place that a test knows, which must be read without Spark."""

from typing import TYPE_CHECKING

from dcp.lake.store.place import Located, TablePlace
from dcp.lake.tables.lake_table import LakeTable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def table_at(place: TablePlace, where: str = "t") -> LakeTable:
    """Return the table at a place; ``where`` is what messages call it."""
    found = Located(place.uri, place)
    return LakeTable("delta.`t`", where, no_spark, place.uri, lambda _: found)


def no_spark() -> "SparkSession":
    raise AssertionError("Spark was started")
