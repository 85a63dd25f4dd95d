"""Converts the events of a task's streams into rows of ``changes``."""

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

from dcp.lake.receive.batches import BatchBuilder
from dcp.lake.receive.branch_lookup import BranchLookup
from dcp.lake.receive.dropped_policies import DroppedPolicies
from dcp.lake.receive.system_events import emptied_collection, system_event_text
from dcp.lake.rounds.round_plan import StreamPlan
from dcp.lake.tables.records import plain
from dcp.lake.tables.rollback_order import RollbackOrder
from dcp.lake.tables.schema import RowKind
from dcp.protocol.events import (
    Event,
    SnapshotCompleted,
    SnapshotStarted,
    StreamAdvanced,
    SystemEventReceived,
)
from dcp.types import FailoverLog


class ChangeRows:
    def __init__(
        self,
        streams: Iterable[StreamPlan],
        batches: BatchBuilder,
        branches: BranchLookup,
        dropped: DroppedPolicies,
    ) -> None:
        """``batches`` has the same ``branches``."""
        self._batches = batches
        self._branches = branches
        self._dropped = dropped
        for stream in streams:
            branches.set_epoch(stream.vbucket, stream.state.epoch)
            if stream.state.failover_log is not None:
                branches.set_log(stream.vbucket, stream.state.failover_log)

    def accepted(self, vbucket: int, log: FailoverLog) -> None:
        self._branches.set_log(vbucket, log)

    def add(self, event: Event) -> None:
        """Add an event's row, if it has one; documents come another way."""
        match event:
            case SnapshotStarted():
                self._batches.add_event(
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
                    collection_id=emptied_collection(event, self._dropped),
                    detail=system_event_text(event, self._dropped, datetime.now(UTC)),
                )

    def add_rollback(self, vbucket: int, order: RollbackOrder) -> None:
        self._batches.add_event(RowKind.ROLLBACK, vbucket, rollback=plain(order))

    def _at_seqno(self, kind: RowKind, vbucket: int, seqno: int, **values: Any) -> None:
        uuid = self._branches.uuid(vbucket, seqno)
        self._batches.add_event(kind, vbucket, seqno=seqno, vb_uuid=uuid, **values)
