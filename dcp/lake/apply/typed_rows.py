"""Makes and sees typed columns in the tasks of a query."""

import pickle
from collections.abc import Iterator
from functools import partial
from typing import Final

import pyarrow as pa

from dcp.lake.apply.seen_values import Seen
from dcp.lake.apply.typed_documents import see_documents, typed_arrays
from dcp.lake.store.lake_store import LakeStore
from dcp.lake.store.merge import MadeColumns, Merge
from dcp.lake.tables.typed_columns import DOC, TypedColumns

_SEEN: Final = pa.schema([("seen", pa.binary())])


def made_columns(columns: TypedColumns) -> MadeColumns:
    make = partial(typed_arrays, columns)
    return MadeColumns(columns.schema, make, {DOC: columns.fingerprint})


def see_written(store: LakeStore, table: str, merge: Merge, columns: TypedColumns) -> Seen:
    """Return the values in the documents that a merge would write."""

    def look(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        seen = pickle.dumps(see_documents(columns, batches))
        yield pa.RecordBatch.from_arrays([pa.array([seen], pa.binary())], schema=_SEEN)

    seen = Seen().expect(columns.document)
    for (each,) in store.look_at_written(table, merge, look, _SEEN).to_batches():
        for part in each.to_pylist():
            seen.merge(pickle.loads(part))
    return seen
