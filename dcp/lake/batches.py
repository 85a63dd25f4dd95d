"""From stream events to Arrow batches of ``changes``: documents as columns, all else as lists.

Documents are millions, all else is a few rows for each snapshot and vbucket. Rows are given to
Spark in batches of limited rows and bytes; ``held_bytes`` tells how much of the flow control window
the rows that still wait here hold.
"""

from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dcp.lake.arrow_columns import constant_column, integer_column, nullified, u64_column
from dcp.lake.document_columns import stored_documents
from dcp.lake.histories import Histories
from dcp.lake.keys import key_columns
from dcp.lake.schema import CHANGES, ITEM_KINDS
from dcp.wire.columns import DataColumns
from dcp.wire.vocabulary import Opcode

_KINDS: Final = pa.array(ITEM_KINDS)
_KIND_OF_OPCODE: Final = np.zeros(256, np.int8)
_KIND_OF_OPCODE[Opcode.DCP_DELETION] = ITEM_KINDS.index("deletion")
_KIND_OF_OPCODE[Opcode.DCP_EXPIRATION] = ITEM_KINDS.index("expiration")

_EVENT_COLUMNS: Final = (
    "epoch",
    "vbucket",
    "kind",
    "seqno",
    "vb_uuid",
    "snap_start",
    "snap_end",
    "snap_flags",
    "detail",
    "position",
    "rollback",
    "applied",
)


def item_batch(columns: DataColumns, round_number: int, histories: Histories) -> pa.RecordBatch:
    """Return the document rows of ``columns`` as a batch of ``changes``.

    A value that cannot be decoded stays as it was sent, and ``detail`` says why.
    """
    rows = len(columns)
    is_mutation = columns.opcode == Opcode.DCP_MUTATION
    key, key_bytes = key_columns(columns.key)
    documents = stored_documents(columns)
    ready = {
        "round": constant_column(round_number, pa.int64(), rows),
        "epoch": integer_column(histories.epochs(columns.vbucket), pa.int32()),
        "vbucket": integer_column(columns.vbucket, pa.int32()),
        "kind": _KINDS.take(pa.array(_KIND_OF_OPCODE[columns.opcode])),
        "seqno": u64_column(columns.seqno),
        "vb_uuid": u64_column(histories.uuids(columns.vbucket, columns.seqno)),
        "collection_id": integer_column(columns.collection_id, pa.int64()),
        "key": key,
        "key_bytes": key_bytes,
        "cas": u64_column(columns.cas),
        "rev": u64_column(columns.rev),
        "flags": integer_column(columns.flags, pa.int64(), is_mutation),
        "expiry": integer_column(columns.expiry, pa.int64(), is_mutation),
        "lock_time": integer_column(columns.lock_time, pa.int64(), is_mutation),
        "delete_time": integer_column(columns.delete_time, pa.int64(), ~is_mutation),
        "datatype": integer_column(documents.datatype, pa.int32()),
        "xattrs": documents.xattrs,
        "value": _values(documents.value, is_mutation),
        "detail": documents.detail,
    }
    return _batch(ready, rows)


def _values(values: pa.BinaryArray, is_mutation: "np.typing.NDArray[np.bool_]") -> pa.BinaryArray:
    """Null instead of an empty value, except in mutations, where it is the document."""
    if is_mutation.all():
        return values
    filled = pc.greater(pc.binary_length(values), 0).to_numpy(zero_copy_only=False)
    return nullified(values, is_mutation | filled)


def _batch(ready: dict[str, pa.Array], rows: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(
        [
            ready[column.name] if column.name in ready else pa.nulls(rows, column.type)
            for column in CHANGES
        ],
        schema=CHANGES,
    )


class BatchBuilder:
    """Collects rows until a batch is due."""

    def __init__(self, round_number: int, histories: Histories, batch_rows: int) -> None:
        self._round = round_number
        self._histories = histories
        self._batch_rows = batch_rows
        self._parts: list[pa.RecordBatch] = []
        self._events: dict[str, list[Any]] = {name: [] for name in _EVENT_COLUMNS}
        self.rows = 0
        """Rows that wait here."""
        self.held_bytes = 0
        """Frame bytes whose release waits for these rows."""

    def add_items(self, columns: DataColumns) -> pa.RecordBatch:
        """Add document rows; return them as they will be stored."""
        rows = item_batch(columns, self._round, self._histories)
        self._parts.append(rows)
        self.rows += len(columns)
        return rows

    def add_event(self, kind: str, vbucket: int, epoch: int | None = None, **values: Any) -> None:
        """Add a row of another kind; ``values`` are columns of ``changes``."""
        row = {
            "kind": kind,
            "vbucket": vbucket,
            "epoch": self._histories.epoch(vbucket) if epoch is None else epoch,
            **values,
        }
        if unknown := row.keys() - self._events.keys():
            raise ValueError(f"{kind} row: unexpected columns {sorted(unknown)}")
        for name, column in self._events.items():
            column.append(row.get(name))
        self.rows += 1

    def flush(self) -> list[pa.RecordBatch]:
        """Return all waiting rows as batches of at most ``batch_rows`` rows, and forget them."""
        parts = self._parts
        if count := len(self._events["kind"]):
            ready = {
                name: pa.array(values, CHANGES.field(name).type)
                for name, values in self._events.items()
            }
            ready["round"] = constant_column(self._round, pa.int64(), count)
            parts = [*parts, _batch(ready, count)]
        self._parts = []
        self._events = {name: [] for name in _EVENT_COLUMNS}
        self.rows = 0
        self.held_bytes = 0
        if not parts:
            return []
        whole = pa.concat_batches(parts) if len(parts) > 1 else parts[0]
        return [
            whole.slice(start, self._batch_rows)
            for start in range(0, whole.num_rows, self._batch_rows)
        ]
