"""Builds Arrow batches of ``changes`` from stream events: documents columnwise.

Documents are millions, all else is a few rows for each snapshot and vbucket. An Arrow column costs
as much for one row as for hundreds, so deliveries wait as they came, and each column is built once,
of all that waits. Rows are given to Spark in batches of limited rows, one after the other. What is
as large as a batch by itself is not joined with others, and so not copied.
"""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from dcp.lake.receive.branch_lookup import BranchLookup
from dcp.lake.receive.document_columns import StoredDocuments, stored_documents
from dcp.lake.receive.vbucket_counts import VbucketCounts
from dcp.lake.tables.arrow_columns import constant_column, integer_column, nullified, u64_column
from dcp.lake.tables.keys import key_columns
from dcp.lake.tables.schema import CHANGES, ITEM_KINDS
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
    "collection_id",
    "snap_start",
    "snap_end",
    "snap_flags",
    "detail",
    "rollback",
)

_Rows = Mapping[str, Sequence[pa.Array]]
"""Columns of ``changes``, each in parts that follow one another; what is missing is null."""


@dataclass(frozen=True, slots=True, eq=False)
class _Part:
    """Documents of one delivery, with the epoch and branch of each at that time."""

    documents: StoredDocuments
    epochs: NDArray[np.int32]
    uuids: NDArray[np.uint64]


class BatchBuilder:
    """Collects rows until a batch is due; counts the documents that it puts into batches."""

    def __init__(
        self,
        round_number: int,
        branches: BranchLookup,
        batch_rows: int,
        batch_bytes: int,
        *,
        system_xattrs: bool = True,
    ) -> None:
        self._round = round_number
        self._branches = branches
        self._batch_rows = batch_rows
        self._batch_bytes = batch_bytes
        self._system_xattrs = system_xattrs
        self._parts: list[_Part] = []
        self._events: list[dict[str, Any]] = []
        self.rows = 0
        """Rows that wait here."""
        self.counts = VbucketCounts()

    def add_documents(self, columns: DataColumns) -> None:
        """Add documents; they are of the branches that are known now."""
        epochs = self._branches.epochs(columns.vbucket)
        uuids = self._branches.uuids(columns.vbucket, columns.seqno)
        documents = stored_documents(columns, system_xattrs=self._system_xattrs)
        self._parts.append(_Part(documents, epochs, uuids))
        self.rows += len(columns)

    def add_event(self, kind: str, vbucket: int, epoch: int | None = None, **values: Any) -> None:
        """Add a row of another kind; ``values`` are columns of ``changes``."""
        if unknown := values.keys() - _EVENT_COLUMNS:
            raise ValueError(f"{kind} row: unexpected columns {sorted(unknown)}")
        epoch = self._branches.epoch(vbucket) if epoch is None else epoch
        self._events.append({"kind": kind, "vbucket": vbucket, "epoch": epoch, **values})
        self.rows += 1

    def flush(self) -> Iterator[pa.RecordBatch]:
        """Yield the waiting rows as batches of at most ``batch_rows`` rows, and forget them.

        Events come behind the documents.
        """
        runs, events = self._runs(), self._events
        self._parts, self._events, self.rows = [], [], 0
        while runs:
            # What the batch is made of is freed before it is given away.
            whole = self._built(runs.popleft(), [] if runs else events)
            for start in range(0, whole.num_rows, self._batch_rows):
                yield whole.slice(start, self._batch_rows)

    def _runs(self) -> deque[list[_Part]]:
        """Group the parts that are to be joined; the last run may be empty."""
        runs: deque[list[_Part]] = deque([[]])
        for part in self._parts:
            if part.documents.columns.value.nbytes < self._batch_bytes:
                runs[-1].append(part)
            else:
                runs += [part], []
        return runs

    def _built(self, parts: Sequence[_Part], events: Sequence[dict[str, Any]]) -> pa.RecordBatch:
        groups = []
        if parts:
            groups.append(self._document_rows(parts))
        if events:
            groups.append(self._event_rows(events))
        rows = [sum(map(len, group["kind"])) for group in groups]
        ready = [_joined(column, groups, rows) for column in CHANGES]
        return pa.RecordBatch.from_arrays(ready, schema=CHANGES)

    def _document_rows(self, parts: Sequence[_Part]) -> _Rows:
        documents = [part.documents for part in parts]

        def joined(name: str) -> NDArray[Any]:
            return np.concatenate([getattr(each.columns, name) for each in documents])

        opcode, vbucket = joined("opcode"), joined("vbucket")
        is_mutation = opcode == Opcode.DCP_MUTATION
        key, key_bytes = key_columns(pa.concat_arrays([each.columns.key for each in documents]))
        detail = pa.concat_arrays([each.detail for each in documents])
        self.counts.add(vbucket, joined("frame_bytes"), key_bytes, detail)
        ready = {
            "round": constant_column(self._round, pa.int64(), len(vbucket)),
            "epoch": integer_column(np.concatenate([part.epochs for part in parts]), pa.int32()),
            "vbucket": integer_column(vbucket, pa.int32()),
            "kind": _KINDS.take(pa.array(_KIND_OF_OPCODE[opcode])),
            "seqno": u64_column(joined("seqno")),
            "vb_uuid": u64_column(np.concatenate([part.uuids for part in parts])),
            "collection_id": integer_column(joined("collection_id"), pa.int64()),
            "key": key,
            "key_bytes": key_bytes,
            "cas": u64_column(joined("cas")),
            "rev": u64_column(joined("rev")),
            "flags": integer_column(joined("flags"), pa.int64(), is_mutation),
            "expiry": integer_column(joined("expiry"), pa.int64(), is_mutation),
            "lock_time": integer_column(joined("lock_time"), pa.int64(), is_mutation),
            "delete_time": integer_column(joined("delete_time"), pa.int64(), ~is_mutation),
            "datatype": integer_column(joined("datatype"), pa.int32()),
            "detail": detail,
        }
        return {
            **{name: [column] for name, column in ready.items()},
            "xattrs": [each.xattrs for each in documents],
            "value": [_values(each.columns) for each in documents],
        }

    def _event_rows(self, events: Sequence[dict[str, Any]]) -> _Rows:
        ready = {
            name: pa.array([event.get(name) for event in events], CHANGES.field(name).type)
            for name in _EVENT_COLUMNS
        }
        ready["round"] = constant_column(self._round, pa.int64(), len(events))
        return {name: [column] for name, column in ready.items()}


def _values(columns: DataColumns) -> pa.BinaryArray:
    """Null instead of an empty value, except in mutations, where it is the document."""
    is_mutation = columns.opcode == Opcode.DCP_MUTATION
    if is_mutation.all():
        return columns.value
    filled = pc.greater(pc.binary_length(columns.value), 0).to_numpy(zero_copy_only=False)
    return nullified(columns.value, is_mutation | filled)


def _joined(column: pa.Field, groups: Sequence[_Rows], rows: Sequence[int]) -> pa.Array:
    """Return a column of all groups, the one copy that is made of its values."""
    if not any(column.name in group for group in groups):
        return pa.nulls(sum(rows), column.type)
    parts: list[pa.Array] = []
    for group, count in zip(groups, rows, strict=True):
        parts += group.get(column.name) or [pa.nulls(count, column.type)]
    return parts[0] if len(parts) == 1 else pa.concat_arrays(parts)
