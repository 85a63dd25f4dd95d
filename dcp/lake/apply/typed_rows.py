"""Makes and sees typed columns in the tasks of a query."""

import pickle
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from dcp.lake.apply.seen_values import Seen
from dcp.lake.apply.typed_documents import see_documents, typed_arrays
from dcp.lake.store.merge import MadeColumns
from dcp.lake.tables.typed_columns import DOC, TypedColumns

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SEEN: Final = "seen"


def made_columns(columns: TypedColumns) -> MadeColumns:
    make = partial(typed_arrays, columns)
    return MadeColumns(columns.schema, make, {DOC: columns.fingerprint})


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
