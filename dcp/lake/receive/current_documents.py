"""Reduces all rows of a bucket's streams to its current documents: one row for each."""

from collections.abc import Iterator
from tempfile import TemporaryFile
from typing import Final

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from dcp.lake.tables.schema import CHANGES, ITEM_KINDS, RowKind
from dcp.wire.json_tree import json_tree
from dcp.wire.snappy import MAX_INFLATED_BYTES
from dcp.wire.vocabulary import Datatype

DOCUMENTS: Final = pa.schema(
    [
        CHANGES.field("key"),
        ("document", pa.string()),
        *map(CHANGES.field, ("collection_id", "vbucket", "seqno", "cas", "rev", "flags", "expiry")),
        *map(CHANGES.field, ("datatype", "xattrs", "key_bytes", "value")),
    ]
)
"""One row per living document: ``document`` is its text if it is JSON, ``value`` its bytes."""

_PLACE: Final = ["vbucket", "collection_id"]


def current_documents(changes: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the documents that remain after all ``changes``.

    The changes wait on disk until the last one comes; their keys and seqnos stay in memory.
    """
    with TemporaryFile(prefix="dcplake-read-") as file:
        heads = []
        with pa.ipc.new_stream(file, CHANGES) as waiting:
            for batch in changes:
                waiting.write_batch(batch)
                heads.append(batch.select(["kind", *_PLACE, "key", "seqno"]))
        if not heads:
            return
        is_living = _is_current(pa.Table.from_batches(heads))
        file.seek(0)
        begin = 0
        for batch in pa.ipc.open_stream(file):
            end = begin + batch.num_rows
            yield _documents(batch.filter(pa.array(is_living[begin:end])))
            begin = end


def _is_current(heads: pa.Table) -> NDArray[np.bool_]:
    """Return for each row whether it has its key's newest state, not flushed or dropped."""
    seqnos = pc.cast(heads["seqno"], pa.uint64()).fill_null(0).to_numpy()
    rows = heads.drop_columns("seqno").to_pandas().assign(seqno=seqnos)
    ends = rows[rows["kind"].eq(RowKind.SYSTEM_EVENT) & rows["collection_id"].notna()]
    items = rows[rows["kind"].isin(ITEM_KINDS)]
    ended_at = ends.groupby(_PLACE)["seqno"].max()
    ended_at = ended_at.reindex(pd.MultiIndex.from_frame(items[_PLACE]), fill_value=0)
    newest_at = items.groupby([*_PLACE, "key"])["seqno"].transform("max")
    is_newest = items["seqno"].eq(newest_at) & items["seqno"].gt(ended_at.to_numpy())
    found = np.zeros(len(rows), np.bool_)
    found[items.index[is_newest & items["kind"].eq(RowKind.MUTATION)]] = True
    return found


def _documents(stored: pa.RecordBatch) -> pa.RecordBatch:
    pairs = zip(stored["value"].to_pylist(), stored["datatype"].to_pylist(), strict=True)
    texts = pa.array((_text(*pair) for pair in pairs), pa.string())
    names = [name for name in DOCUMENTS.names if name != "document"]
    return stored.select(names).add_column(1, "document", texts)


def _text(value: bytes | None, datatype: int) -> str | None:
    """Return a document as text if it is JSON, even if the server has not recognised it."""
    if not value or datatype > Datatype.JSON:
        return None
    try:
        if datatype != Datatype.JSON:
            json_tree(value, MAX_INFLATED_BYTES)
        return value.decode()
    except ValueError:
        return None
