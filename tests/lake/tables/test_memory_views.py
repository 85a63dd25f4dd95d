"""Tables in memory as views: every row is there, however the table is chunked."""

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from dcp.lake.adapters.transaction import memory_view

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.parametrize(
    "chunks", [[], [[]], [[1, 2], [], [3]], [[], [1], [], [2, 3]], [[1, 2, 3]]]
)
def test_every_chunk_is_there(spark: "SparkSession", chunks: list[list[int]]) -> None:
    table = pa.table({"a": pa.chunked_array(chunks, pa.int32())})
    with memory_view(spark, "of a test", table) as view:
        found = [row["a"] for row in spark.sql(f"SELECT a FROM {view} ORDER BY a").collect()]
    assert found == [number for chunk in chunks for number in chunk]
