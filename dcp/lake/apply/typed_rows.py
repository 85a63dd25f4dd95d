"""Rows and their typed columns: in memory, or in the tasks of a query."""

import pickle
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from dcp.lake.apply.seen_values import Seen
from dcp.lake.apply.typed_documents import see_documents, typed_arrays
from dcp.lake.tables.schema import spark_type
from dcp.lake.tables.typed_columns import DOC, VIOLATIONS, TypedColumns

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_FUNCTION: Final = "dcplake_typed"
_MADE: Final = "_dcplake_typed"
_SEEN: Final = "seen"


def typed_batch(batch: pa.RecordBatch, columns: TypedColumns) -> pa.RecordBatch:
    made = typed_arrays(columns, batch["datatype"], batch["value"])
    schema = pa.schema([*batch.schema, *columns.schema])
    return pa.RecordBatch.from_arrays([*batch.columns, *made], schema=schema)


def typed_table(rows: pa.Table, columns: TypedColumns) -> pa.Table:
    schema = pa.schema([*rows.schema, *columns.schema])
    batches = [typed_batch(each, columns) for each in rows.to_batches()]
    return pa.Table.from_batches(batches, schema)


def typed_sql(spark: "SparkSession", source: str, columns: TypedColumns) -> str:
    """Return the query for the same for the rows of ``source``, for statements of this session.

    Spark leaves out unneeded columns: where a MERGE looks for matching rows, it reads no document.
    The session's `arrow_settings` bound a task's memory.
    """
    from pyspark.sql.pandas.functions import arrow_udf  # an apply of few rows does without

    kind = pa.struct(list(columns.schema))

    def typed(datatypes: pa.Array, values: pa.Array) -> pa.Array:
        made = typed_arrays(columns, datatypes, values)
        return pa.StructArray.from_arrays(made, fields=list(kind))

    # Its stub demands the third argument, of which its code warns: type hints are enough.
    function = arrow_udf(typed, spark_type(kind))  # type: ignore[call-overload]
    spark.udf.register(_FUNCTION, function)
    return f"""(
SELECT * EXCEPT ({_MADE}), {_MADE}.{DOC} AS {DOC}, {_MADE}.{VIOLATIONS} AS {VIOLATIONS}
FROM (SELECT *, {_FUNCTION}(datatype, value) AS {_MADE} FROM {source}))"""


def see_rows(spark: "SparkSession", rows: str, columns: TypedColumns) -> Seen:
    def look(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        seen = pickle.dumps(see_documents(columns, batches))
        yield pa.RecordBatch.from_arrays([pa.array([seen], pa.binary())], [_SEEN])

    documents = spark.sql(f"SELECT datatype, value FROM {rows}")
    found = documents.mapInArrow(look, f"{_SEEN} BINARY").collect()
    seen = Seen().expect(columns.document)
    for each in found:
        seen.merge(pickle.loads(each[_SEEN]))
    return seen
