"""From what the streams of a task bring to rows of ``changes``, and what was counted of them.

Each event has its row (`ChangeRows`), each vbucket its counts (`VbucketCounts`).
"""

from collections.abc import Iterable
from typing import Any

import numpy as np

from dcp.lake.batches import BatchBuilder
from dcp.lake.histories import Histories
from dcp.lake.plan import StreamPlan
from dcp.lake.rollback_order import RollbackOrder, order_row
from dcp.lake.stream_result import StreamResult
from dcp.lake.system_events import DroppedPolicy, emptied_collection, system_event_text
from dcp.protocol.events import (
    Event,
    SeqnoAdvanced,
    SnapshotCompleted,
    SnapshotStarted,
    SystemEventReceived,
)
from dcp.types import U16_MAX, FailoverLog
from dcp.wire.columns import DataColumns


class VbucketCounts:
    """Of each vbucket: its documents, their bytes on the wire, and what was special about them."""

    def __init__(self) -> None:
        self.rows = np.zeros(U16_MAX + 1, np.int64)
        self.frame_bytes = np.zeros(U16_MAX + 1, np.int64)
        self.largest_bytes = np.zeros(U16_MAX + 1, np.uint32)
        self.escaped_keys = np.zeros(U16_MAX + 1, np.int64)
        self.undecodable_values = np.zeros(U16_MAX + 1, np.int64)

    def add(self, columns: DataColumns) -> None:
        """Count documents; nearly always they are of one vbucket."""
        vbuckets, frame_bytes = columns.vbucket, columns.frame_bytes
        first = int(vbuckets[0])
        if (vbuckets == first).all():
            self.rows[first] += len(columns)
            self.frame_bytes[first] += int(frame_bytes.sum(dtype=np.int64))
            self.largest_bytes[first] = max(self.largest_bytes[first], frame_bytes.max())
            return
        np.add.at(self.rows, vbuckets, 1)
        np.add.at(self.frame_bytes, vbuckets, frame_bytes)
        np.maximum.at(self.largest_bytes, vbuckets, frame_bytes)

    def fill(self, result: StreamResult) -> None:
        """Put the counts of a vbucket into its result."""
        vbucket = result.plan.vbucket
        result.rows = int(self.rows[vbucket])
        result.frame_bytes = int(self.frame_bytes[vbucket])
        result.largest_bytes = int(self.largest_bytes[vbucket])
        result.escaped_keys = int(self.escaped_keys[vbucket])
        result.undecodable_values = int(self.undecodable_values[vbucket])


class ChangeRows:
    """Puts what the streams of one task bring into a batch, with epoch and branch."""

    def __init__(
        self,
        streams: Iterable[StreamPlan],
        batches: BatchBuilder,
        histories: Histories,
        dropped: DroppedPolicy,
    ) -> None:
        """``batches`` has the same ``histories``."""
        self.counts = VbucketCounts()
        self._batches = batches
        self._histories = histories
        self._dropped = dropped
        for stream in streams:
            histories.set_epoch(stream.vbucket, stream.state.epoch)
            if stream.state.failover_log is not None:
                histories.set_log(stream.vbucket, stream.state.failover_log)

    def accepted(self, vbucket: int, log: FailoverLog) -> None:
        """Take the failover log that a stream was accepted with: it tells its rows' branches."""
        self._histories.set_log(vbucket, log)

    def add_documents(self, columns: DataColumns) -> None:
        """Add documents, at least one."""
        self.counts.add(columns)
        rows = self._batches.add_items(columns)
        for column, counts in (
            (rows.column("key_bytes"), self.counts.escaped_keys),
            (rows.column("detail"), self.counts.undecodable_values),
        ):
            if column.null_count < len(column):
                is_set = column.is_valid().to_numpy(zero_copy_only=False)
                np.add.at(counts, columns.vbucket[is_set], 1)

    def add(self, event: Event) -> None:
        """Add the row of an event that is none of documents; nothing where it has none."""
        match event:
            case SnapshotStarted():
                self._batches.add_event(
                    "snapshot_marker",
                    event.vbucket,
                    snap_start=event.snapshot.start,
                    snap_end=event.snapshot.end,
                    snap_flags=event.flags,
                )
            case SnapshotCompleted():
                self._at_seqno("complete", event.vbucket, event.seqno)
            case SeqnoAdvanced():
                self._at_seqno("seqno_advanced", event.vbucket, event.seqno)
            case SystemEventReceived():
                self._at_seqno(
                    "system_event",
                    event.vbucket,
                    event.seqno,
                    collection_id=emptied_collection(event, self._dropped),
                    detail=system_event_text(event),
                )

    def add_rollback(self, vbucket: int, order: RollbackOrder) -> None:
        """Add a rollback that a node ordered."""
        self._batches.add_event("rollback", vbucket, rollback=order_row(order))

    def _at_seqno(self, kind: str, vbucket: int, seqno: int, **values: Any) -> None:
        uuid = self._histories.uuid(vbucket, seqno)
        self._batches.add_event(kind, vbucket, seqno=seqno, vb_uuid=uuid, **values)
