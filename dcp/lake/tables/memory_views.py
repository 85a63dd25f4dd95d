"""Registers tables in memory as views that a statement names: Spark scans no file."""

from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa
from pyspark.sql import SparkSession

from dcp.lake.tables.schema import spark_ddl
from dcp.lake.tables.sql import quoted


@contextmanager
def memory_view(spark: SparkSession, name: str, table: pa.Table) -> Iterator[str]:
    """Give the SQL name of a view of ``table``, which exists for the statements within."""
    # PySpark 4.2 loses every row behind an empty chunk.
    frame = spark.createDataFrame(table.combine_chunks(), spark_ddl(table.schema))
    frame.createOrReplaceTempView(quoted(name))
    try:
        yield quoted(name)
    finally:
        spark.catalog.dropTempView(name)
