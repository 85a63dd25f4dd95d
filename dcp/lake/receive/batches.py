"""Builds Arrow batches of ``changes`` from stream events: documents columnwise.

There are millions of documents, and a few other rows for each snapshot and vbucket. An Arrow column
costs as much for one row as for hundreds. So deliveries wait as they came, and each column is built
once, from all that wait. Values wait as sent, too: one batch's bytes of them are decoded at once,
counted after inflation. Spark gets batches with a limited number of rows, one after the other. A
document as large as a batch is not joined with others, and so not copied.
"""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from dcp.lake.change_log.system_event_detail import SystemEventDetail
from dcp.lake.receive.arrow_columns import (
    constant_column,
    integer_column,
    mask_of,
    nullified,
    u64_column,
)
from dcp.lake.receive.document_columns import (
    StoredDocuments,
    inflated_bytes,
    layered_rows,
    stored_documents,
)
from dcp.lake.receive.dropped_policies import collection_of
from dcp.lake.receive.keys import key_columns
from dcp.lake.receive.private_values import PrivateValues
from dcp.lake.tables.schema import CHANGES, ITEM_KINDS, RowKind
from dcp.protocol.events import (
    Event,
    SnapshotCompleted,
    SnapshotStarted,
    StreamAdvanced,
    SystemEventReceived,
)
from dcp.types import U16_MAX, FailoverLog
from dcp.wire.columns import DataColumns
from dcp.wire.vocabulary import Opcode


class BranchLookup:
    """Epoch and failover log by vbucket, for whole columns at once.

    A row's ``vb_uuid`` is the uuid of the newest failover entry at or below its seqno, in the
    failover log that was accepted with the stream (never in one that was fetched later).
    """

    def __init__(self) -> None:
        self._failover_logs: dict[int, FailoverLog] = {}
        self._epoch = np.zeros(U16_MAX + 1, np.int32)
        self._newest_uuid = np.zeros(U16_MAX + 1, np.uint64)
        self._newest_seqno = np.zeros(U16_MAX + 1, np.uint64)

    def set_epoch(self, vbucket: int, epoch: int) -> None:
        self._epoch[vbucket] = epoch

    def set_failover_log(self, vbucket: int, failover_log: FailoverLog) -> None:
        self._failover_logs[vbucket] = failover_log
        self._newest_uuid[vbucket] = failover_log.entries[0].vb_uuid
        self._newest_seqno[vbucket] = failover_log.entries[0].seqno

    def epoch(self, vbucket: int) -> int:
        return int(self._epoch[vbucket])

    def epochs(self, vbuckets: NDArray[np.uint16]) -> NDArray[np.int32]:
        return self._epoch[vbuckets]

    def uuid(self, vbucket: int, seqno: int) -> int:
        return self._failover_logs[vbucket].uuid_at(seqno)

    def uuids(self, vbuckets: NDArray[np.uint16], seqnos: NDArray[np.uint64]) -> NDArray[np.uint64]:
        """Return the branch of each row; nearly all rows are on their vbucket's newest one."""
        uuids = self._newest_uuid[vbuckets]
        for row in np.flatnonzero(seqnos < self._newest_seqno[vbuckets]).tolist():
            uuids[row] = self._failover_logs[int(vbuckets[row])].uuid_at(int(seqnos[row]))
        return uuids


class VbucketCounts:
    def __init__(self) -> None:
        self.rows = np.zeros(U16_MAX + 1, np.int64)
        self.frame_bytes = np.zeros(U16_MAX + 1, np.int64)
        self.largest_bytes = np.zeros(U16_MAX + 1, np.int64)
        self.escaped_keys = np.zeros(U16_MAX + 1, np.int64)
        self.undecodable_values = np.zeros(U16_MAX + 1, np.int64)

    def add(
        self,
        vbuckets: NDArray[np.uint16],
        frame_bytes: NDArray[np.uint32],
        document_bytes: NDArray[np.int64],
        key_bytes: pa.BinaryArray,
        detail: pa.StringArray,
    ) -> None:
        """Count at least one document; ``key_bytes`` and ``detail`` are columns of ``changes``.

        ``document_bytes`` are the stored sizes, for later readers.
        """
        # A vbucket's documents mostly follow one another: sums of such runs are soon made.
        starts = np.flatnonzero(np.diff(vbuckets, prepend=~vbuckets[:1]))
        which = vbuckets[starts]
        np.add.at(self.rows, which, np.diff(starts, append=len(vbuckets)))
        np.add.at(self.frame_bytes, which, np.add.reduceat(frame_bytes, starts, dtype=np.int64))
        np.maximum.at(self.largest_bytes, which, np.maximum.reduceat(document_bytes, starts))
        for column, counts in ((key_bytes, self.escaped_keys), (detail, self.undecodable_values)):
            if column.null_count < len(column):
                is_set = mask_of(column.is_valid())
                np.add.at(counts, vbuckets[is_set], 1)

    def of(self, vbucket: int) -> dict[str, int]:
        """Return a vbucket's counters by their names in its report."""
        return {name: int(counts[vbucket]) for name, counts in vars(self).items()}


_KINDS: Final = pa.array(ITEM_KINDS)
_KIND_OF_OPCODE: Final = np.zeros(256, np.int8)
_KIND_OF_OPCODE[Opcode.DCP_DELETION] = ITEM_KINDS.index(RowKind.DELETION)
_KIND_OF_OPCODE[Opcode.DCP_EXPIRATION] = ITEM_KINDS.index(RowKind.EXPIRATION)

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
"""Columns of ``changes``, each in consecutive parts; a missing column is null."""


@dataclass(frozen=True, slots=True, eq=False)
class _Part:
    columns: DataColumns
    epochs: NDArray[np.int32]
    """The epoch of each document at its arrival."""
    uuids: NDArray[np.uint64]
    """The branch of each document at its arrival."""
    has_layers: bool
    value_bytes: int
    """The size of the decoded values."""

    @classmethod
    def of(
        cls, columns: DataColumns, epochs: NDArray[np.int32], uuids: NDArray[np.uint64]
    ) -> "_Part":
        layered = bool(layered_rows(columns).any())
        value_bytes = int(inflated_bytes(columns).sum()) if layered else columns.value.nbytes
        return cls(columns, epochs, uuids, layered, value_bytes)

    def pieces(self, most_bytes: int) -> "Iterator[_Part]":
        if not self.has_layers or self.value_bytes <= most_bytes:
            yield self
            return
        ends = np.cumsum(inflated_bytes(self.columns))
        start, before = 0, 0
        while start < len(ends):
            stop = max(start + 1, int(np.searchsorted(ends, before + most_bytes, "right")))
            rows = slice(start, stop)
            columns = self.columns.slice(start, stop)
            yield _Part.of(columns, self.epochs[rows], self.uuids[rows])
            start, before = stop, int(ends[stop - 1])


class BatchBuilder:
    """Collects rows until a batch is due; counts the documents in its batches."""

    def __init__(
        self,
        round_number: int,
        batch_rows: int,
        batch_bytes: int,
        *,
        system_xattrs: bool = True,
        private: PrivateValues | None = None,
    ) -> None:
        self.branches = BranchLookup()
        self.private = private
        """Takes private values out of the documents; None without rules."""
        self._round = round_number
        self._batch_rows = batch_rows
        self._batch_bytes = batch_bytes
        self._system_xattrs = system_xattrs
        self._parts: list[_Part] = []
        self._events: list[dict[str, Any]] = []
        self.rows = 0
        """Waiting rows."""
        self.counts = VbucketCounts()

    def add_documents(self, columns: DataColumns) -> None:
        """Add documents of the branches that are known at this moment."""
        epochs = self.branches.epochs(columns.vbucket)
        uuids = self.branches.uuids(columns.vbucket, columns.seqno)
        self._parts.append(_Part.of(columns, epochs, uuids))
        self.rows += len(columns)

    def add_event(
        self, kind: RowKind, vbucket: int, epoch: int | None = None, **values: Any
    ) -> None:
        """Add a row of another kind; ``values`` are columns of ``changes``."""
        if unknown := values.keys() - _EVENT_COLUMNS:
            raise ValueError(f"{kind} row: unexpected columns {sorted(unknown)}")
        epoch = self.branches.epoch(vbucket) if epoch is None else epoch
        self._events.append({"kind": kind, "vbucket": vbucket, "epoch": epoch, **values})
        self.rows += 1

    def add_stream_event(self, event: Event) -> None:
        """Add an event's row, if it has one. Documents come by `add_documents`."""
        match event:
            case SnapshotStarted():
                self.add_event(
                    RowKind.SNAPSHOT_MARKER,
                    event.vbucket,
                    snap_start=event.snapshot.start,
                    snap_end=event.snapshot.end,
                    snap_flags=event.flags,
                )
            case SnapshotCompleted():
                self._at_seqno(RowKind.COMPLETE, event.vbucket, event.seqno)
            case StreamAdvanced():
                self._at_seqno(RowKind.SEQNO_ADVANCED, event.vbucket, event.seqno)
            case SystemEventReceived():
                self._at_seqno(
                    RowKind.SYSTEM_EVENT,
                    event.vbucket,
                    event.seqno,
                    collection_id=collection_of(event),
                    detail=str(SystemEventDetail.of(event)),
                )

    def _at_seqno(self, kind: RowKind, vbucket: int, seqno: int, **values: Any) -> None:
        uuid = self.branches.uuid(vbucket, seqno)
        self.add_event(kind, vbucket, seqno=seqno, vb_uuid=uuid, **values)

    def flush(self) -> Iterator[pa.RecordBatch]:
        """Yield the waiting rows as batches, events behind the documents, and forget them."""
        runs, events = self._runs(), self._events
        self._parts, self._events, self.rows = [], [], 0
        while runs:
            # What the batch is made of is freed before it is given away.
            whole = self._built(runs.popleft(), [] if runs else events)
            for start in range(0, whole.num_rows, self._batch_rows):
                yield whole.slice(start, self._batch_rows)

    def _runs(self) -> deque[list[_Part]]:
        """Group the parts that become one table; the last run may be empty.

        A run with values to decode has at most a batch's bytes. A run without such values has all
        collected parts.
        """
        is_decoded = any(part.has_layers for part in self._parts)
        runs: deque[list[_Part]] = deque([[]])
        run_bytes = 0
        for part in chain.from_iterable(each.pieces(self._batch_bytes) for each in self._parts):
            if part.value_bytes >= self._batch_bytes:
                runs.extend(([part], []))
                run_bytes = 0
                continue
            if is_decoded and run_bytes + part.value_bytes > self._batch_bytes:
                runs.append([])
                run_bytes = 0
            runs[-1].append(part)
            run_bytes += part.value_bytes
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
        documents = self._stored(parts)

        def joined(name: str) -> NDArray[Any]:
            return np.concatenate([getattr(each.columns, name) for each in documents])

        opcode, vbucket = joined("opcode"), joined("vbucket")
        is_mutation = opcode == Opcode.DCP_MUTATION
        key, key_bytes = key_columns(pa.concat_arrays([each.columns.key for each in documents]))
        detail = pa.concat_arrays([each.detail for each in documents])
        document_bytes = np.concatenate([each.document_bytes for each in documents])
        self.counts.add(vbucket, joined("frame_bytes"), document_bytes, key_bytes, detail)
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

    def _stored(self, parts: Sequence[_Part]) -> list[StoredDocuments]:
        """Decode the documents of a run and take private values out, all at once.

        If neither is needed, nothing is copied.
        """
        columns = [part.columns for part in parts]
        if self.private is not None or any(part.has_layers for part in parts):
            columns = [DataColumns.joined(columns)]
        stored = [stored_documents(each, system_xattrs=self._system_xattrs) for each in columns]
        return stored if self.private is None else list(map(self.private.taken_out, stored))

    def _event_rows(self, events: Sequence[dict[str, Any]]) -> _Rows:
        ready = {
            name: pa.array([event.get(name) for event in events], CHANGES.field(name).type)
            for name in _EVENT_COLUMNS
        }
        ready["round"] = constant_column(self._round, pa.int64(), len(events))
        return {name: [column] for name, column in ready.items()}


def _values(columns: DataColumns) -> pa.BinaryArray:
    """Return the values with null for an empty one, except in mutations: there it is the
    document.
    """
    is_mutation = columns.opcode == Opcode.DCP_MUTATION
    if is_mutation.all():
        return columns.value
    filled = mask_of(pc.greater(pc.binary_length(columns.value), 0))
    return nullified(columns.value, is_mutation | filled)


def _joined(column: pa.Field, groups: Sequence[_Rows], rows: Sequence[int]) -> pa.Array:
    """Return a column of all groups; the only copy of its values."""
    if not any(column.name in group for group in groups):
        return pa.nulls(sum(rows), column.type)
    parts: list[pa.Array] = []
    for group, count in zip(groups, rows, strict=True):
        parts += group.get(column.name) or [pa.nulls(count, column.type)]
    return parts[0] if len(parts) == 1 else pa.concat_arrays(parts)
