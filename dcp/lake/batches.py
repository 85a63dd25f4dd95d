"""From stream events to Arrow batches of ``changes``: documents as columns, all else as lists.

Documents are millions, all else is a few rows for each snapshot and vbucket. Rows are given to
Spark in batches of limited rows, one after the other. What is as large as a batch by itself is not
joined with others, and so not copied.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from dcp.lake.arrow_columns import constant_column, integer_column, nullified, u64_column
from dcp.lake.document_columns import stored_documents
from dcp.lake.histories import Histories
from dcp.lake.keys import key_columns
from dcp.lake.schema import CHANGES, ITEM_KINDS
from dcp.wire.columns import DataColumns
from dcp.wire.framing import LARGE_FRAME_BYTES
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
    "collection_id",
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


def _values(values: pa.BinaryArray, is_mutation: NDArray[np.bool_]) -> pa.BinaryArray:
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


@dataclass(frozen=True, slots=True, eq=False)
class _Part:
    """Rows that came together."""

    rows: pa.RecordBatch
    stands_alone: bool = False


class BatchBuilder:
    """Collects rows until a batch is due."""

    def __init__(
        self,
        round_number: int,
        histories: Histories,
        batch_rows: int,
        batch_bytes: int = LARGE_FRAME_BYTES,
    ) -> None:
        self._round = round_number
        self._histories = histories
        self._batch_rows = batch_rows
        self._batch_bytes = batch_bytes
        self._parts: deque[_Part] = deque()
        self._events: dict[str, list[Any]] = {name: [] for name in _EVENT_COLUMNS}
        self.rows = 0
        """Rows that wait here."""

    def add_items(self, columns: DataColumns) -> pa.RecordBatch:
        """Add document rows; return them as they will be stored."""
        rows = item_batch(columns, self._round, self._histories)
        alone = int(columns.frame_bytes.sum(dtype=np.int64)) >= self._batch_bytes
        self._parts.append(_Part(rows, alone))
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

    def flush(self) -> Iterator[pa.RecordBatch]:
        """Yield the waiting rows as batches of at most ``batch_rows`` rows, and forget them."""
        parts, self._parts = self._parts, deque()
        if (events := self._event_rows()) is not None:
            parts.append(_Part(events))
        self.rows = 0
        while parts:
            run = [parts.popleft()]
            while parts and not (run[-1].stands_alone or parts[0].stands_alone):
                run.append(parts.popleft())
            rows = [part.rows for part in run]
            run.clear()
            whole = pa.concat_batches(rows) if len(rows) > 1 else rows[0]
            rows.clear()
            for start in range(0, whole.num_rows, self._batch_rows):
                yield whole.slice(start, self._batch_rows)

    def _event_rows(self) -> pa.RecordBatch | None:
        count = len(self._events["kind"])
        if not count:
            return None
        ready = {
            name: pa.array(values, CHANGES.field(name).type)
            for name, values in self._events.items()
        }
        ready["round"] = constant_column(self._round, pa.int64(), count)
        self._events = {name: [] for name in _EVENT_COLUMNS}
        return _batch(ready, count)
