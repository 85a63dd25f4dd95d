"""The executor's side of a round: streams to Arrow batches, the positions last.

Runs inside ``mapInArrow``, one call for each task of the plan. A batch's bytes are released to flow
control when Spark asks for the next batch, that is, when it has taken this one; until then the node
may send only the rest of the window (``gathering.py``, ``task_credits.py``). Whatever goes wrong at
the source ends a vbucket with a ``status`` row and never the task, so that one dead node does not
discard what another sent. Only a refused password or bucket fails the task: no other node would
answer differently.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from socket import gethostname
from time import monotonic
from typing import Any, Final

import numpy as np
import pyarrow as pa

from dcp.client.addresses import NodeAddress
from dcp.client.consumer import Consumer
from dcp.client.consumer_events import VbucketStopped
from dcp.client.delivery import Delivery
from dcp.client.settings import ConsumerSettings
from dcp.client.vbucket_track import StreamStart
from dcp.client.windows import Windows
from dcp.errors import AuthenticationError, BucketError, ConfigError
from dcp.lake.applied import applied_to_batch
from dcp.lake.arrow_memory import return_freed_memory
from dcp.lake.batches import BatchBuilder
from dcp.lake.ending import Budget, Ending, EndPolicy
from dcp.lake.executor_windows import share_of, task_windows
from dcp.lake.flow_control_settings import FlowControlSettings
from dcp.lake.gathering import Gathering
from dcp.lake.histories import Histories
from dcp.lake.live_board import live_board
from dcp.lake.live_look import NodeStreams, TaskLook
from dcp.lake.live_place import LivePlace
from dcp.lake.live_task import TaskState, TaskWatcher
from dcp.lake.memory import worker_bytes
from dcp.lake.plan import RoundPlan, TaskPlan
from dcp.lake.progress import Done, RoundProgress
from dcp.lake.receipt import Outcome, Receipt, left_out_status
from dcp.lake.rollback_order import RollbackOrder, order_row
from dcp.lake.settings import SourceSettings
from dcp.lake.stop_points import reached
from dcp.lake.system_events import (
    DroppedPolicy,
    collection_of,
    emptied_collection,
    system_event_text,
)
from dcp.lake.task_credits import TaskCredits
from dcp.lake.task_errors import TaskError
from dcp.lake.vbucket_state import states_to_batch
from dcp.lake.window_bounds import largest_window_bytes
from dcp.protocol.credentials import Credentials
from dcp.protocol.events import (
    Event,
    FailoverLogReceived,
    Items,
    RollbackOrdered,
    SeqnoAdvanced,
    SeqnosReceived,
    SnapshotCompleted,
    SnapshotStarted,
    StreamOpened,
    SystemEventReceived,
)
from dcp.types import U16_MAX, FailoverLog

_LONGEST_WAIT_SECONDS: Final = 0.25
"""How late a deadline of ours may be noticed."""
_HERE: Final = (
    "; tasks read the password where they run: docs/operations.md, How tasks get the password"
)


@dataclass(frozen=True, slots=True)
class SourceAccess:
    """What a task needs beside the plan.

    The password is not here but read where the task runs: Spark serves what tasks are made of.
    """

    seeds: tuple[str, ...]
    consumer: ConsumerSettings
    source: SourceSettings
    flow_control: FlowControlSettings
    quiet_seconds: float
    dropped: DroppedPolicy = DroppedPolicy.DELETE
    live: LivePlace | None = None
    """Where tasks show what they see; None: nowhere."""


def receive_function(
    plan: RoundPlan, access: SourceAccess, progress: RoundProgress | None = None
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return the function for ``spark.range(0, tasks, 1, tasks).mapInArrow``."""
    budget = Budget(plan.target_bytes, plan.target_seconds)

    def receive(indices: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return_freed_memory()
        for batch in indices:
            for index in batch.column(0).to_pylist():
                name = f"dcplake-{plan.lake_id[:8]}-r{plan.round}-t{index}.{_attempt()}"
                task = TaskReceiver(plan.tasks[index], plan.round, budget, access, name)
                for rows in task.batches():
                    yield rows
                    if progress is not None:
                        progress.note(index, task.done)

    return receive


def _attempt() -> int:
    from pyspark import TaskContext

    context = TaskContext.get()
    return 0 if context is None else context.attemptNumber()


class TaskReceiver:
    """Streams the vbuckets of one task until each has its outcome."""

    def __init__(
        self,
        plan: TaskPlan,
        round_number: int,
        budget: Budget,
        access: SourceAccess,
        name: str,
    ) -> None:
        self._plan = plan
        self._round = round_number
        self._access = access
        self._policy = EndPolicy(
            budget, access.quiet_seconds, access.consumer.node_deadline_seconds
        )
        self._name = name
        self._histories = Histories()
        self._receipts = {stream.vbucket: Receipt.of(stream) for stream in plan.streams}
        self._open = set(self._receipts)
        self._is_open = np.zeros(U16_MAX + 1, np.bool_)
        self._rows_of = np.zeros(U16_MAX + 1, np.int64)
        self._bytes_of = np.zeros(U16_MAX + 1, np.int64)
        self._largest_of = np.zeros(U16_MAX + 1, np.uint32)
        self._escaped_of = np.zeros(U16_MAX + 1, np.int64)
        self._undecodable_of = np.zeros(U16_MAX + 1, np.int64)
        self._server_logs: dict[int, FailoverLog] = {}
        self._window_bytes = largest_window_bytes(access.flow_control)
        flow = access.flow_control
        flush_bytes = flow.flush_bytes(flow.fixed_window_bytes)
        self._batches = BatchBuilder(round_number, self._histories, flow.batch_rows, flush_bytes)
        self._credits = TaskCredits(flush_bytes, budget.target_bytes)
        self._gathering = Gathering(flow, self._batches, self._credits, monotonic)
        for stream in plan.streams:
            self._is_open[stream.vbucket] = True
            self._histories.set_epoch(stream.vbucket, stream.state.epoch)
            if stream.state.failover_log is not None:
                self._histories.set_log(stream.vbucket, stream.state.failover_log)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows of all streams, then status and position rows.

        Raises:
            TaskError: as for ``stream``.

        """
        yield from self.stream()
        yield from self._closing_rows()

    @property
    def receipts(self) -> Mapping[int, Receipt]:
        """What was received, by vbucket; each has its outcome when ``stream`` has ended."""
        return self._receipts

    @property
    def done(self) -> Done:
        """How far its vbuckets have moved on."""
        seqnos = sum(
            receipt.position.seqno - receipt.plan.state.position.seqno
            for receipt in self._receipts.values()
        )
        return Done(seqnos, int(self._bytes_of.sum()))

    def stream(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows that the streams bring, without status and position rows.

        Raises:
            TaskError: user, password or bucket were refused, or the password is not here.

        """
        try:
            yield from self._stream()
        except (AuthenticationError, BucketError, ConfigError) as error:
            raise TaskError(error) from None

    def _stream(self) -> Iterator[pa.RecordBatch]:
        with task_windows(self._access.flow_control) as windows:
            yield from self._stream_with(windows)

    def _stream_with(self, windows: Windows) -> Iterator[pa.RecordBatch]:
        consumer = Consumer(
            [
                StreamStart(
                    stream.vbucket,
                    stream.node,
                    stream.state.position,
                    stream.state.failover_log,
                    purge_seqno=stream.state.purge_seqno,
                )
                for stream in self._plan.streams
            ],
            self._access.seeds,
            self._access.consumer,
            self._credentials(),
            self._name,
            windows=windows,
        )
        watcher = TaskWatcher(self._name, self._round, lambda: self._state(consumer, windows))
        try:
            with live_board(self._access.live, self._name, watcher.look):
                yield from self._consume(consumer)
                self._note_flow(watcher.look())
        finally:
            consumer.close()
            self._credits.settle(monotonic())

    def _credentials(self) -> Credentials:
        try:
            return self._access.source.credentials()
        except ConfigError as error:
            raise ConfigError(f"a Spark task on {gethostname()}: {error}{_HERE}") from None

    def _consume(self, consumer: Consumer) -> Iterator[pa.RecordBatch]:
        self._policy.begin(monotonic())
        while self._open:
            if self._is_used_up():
                self._end_by_budget(consumer)
                if not self._open:
                    break
            delivery = consumer.next(self._wait_seconds())
            if delivery is not None:
                self._take(delivery, consumer)
            self._end_what_is_over(consumer)
            if self._gathering.is_due(consumer, monotonic()):
                yield from self._hand_over(consumer)
        yield from self._hand_over(consumer)

    def _is_used_up(self) -> bool:
        """Whether the task has received enough, or long enough."""
        return not self._credits.staging.is_open or monotonic() >= self._policy.ends_at

    def _end_by_budget(self, consumer: Consumer) -> None:
        """End all that the budget may end; what is read on goes on alone."""
        over = [vbucket for vbucket in self._open if not self._receipts[vbucket].reads_on]
        goes_on = consumer if len(over) < len(self._open) else None
        for ending in list(self._policy.out_of_budget(sorted(over), consumer)):
            self._end_by(ending, goes_on)

    def _note_flow(self, look: TaskLook) -> None:
        for receipt in self._receipts.values():
            receipt.window_full, receipt.gate = look.window_full_share, look.top_gate

    def _state(self, consumer: Consumer, windows: Windows) -> TaskState:
        """Return how the task stands; called by another thread."""
        streams: dict[NodeAddress, list[int]] = {}
        still_open = list(self._open)
        for vbucket in still_open:
            receipt = self._receipts[vbucket]
            if receipt.node is not None:
                counts = streams.setdefault(receipt.node, [0, 0])
                counts[0] += 1
                counts[1] += not receipt.position.is_complete
        connections = consumer.look()
        batch_bytes = self._access.flow_control.batch_bytes
        return TaskState(
            vbuckets=len(self._receipts),
            open_vbuckets=len(still_open),
            rows=int(self._rows_of.sum()),
            connections=connections,
            stages=(consumer.look_at_buffers(), *self._credits.look(monotonic())),
            streams={node: NodeStreams(*counts) for node, counts in streams.items()},
            windows=share_of(windows),
            bound_bytes=worker_bytes(len(connections), self._window_bytes, batch_bytes),
            undecodable_values=int(self._undecodable_of.sum()),
        )

    # What arrives

    def _take(self, delivery: Delivery, consumer: Consumer) -> None:
        now = monotonic()
        self._policy.received(delivery.node, delivery.frame_bytes, now)
        self._gathering.take_in(delivery, now)
        # Failover logs first: the rows and the rollback of the same delivery need them.
        for event in delivery.events:
            if isinstance(event, StreamOpened) and event.vbucket in self._open:
                self._opened(event, delivery.node, now, consumer)
            elif isinstance(event, FailoverLogReceived) and event.failover_log is not None:
                self._server_logs[event.vbucket] = event.failover_log
            elif isinstance(event, SeqnosReceived) and delivery.node is not None:
                self._policy.answered(delivery.node, dict(event.seqnos), now)
        for event in delivery.events:
            self._handle(event)
        for vbucket, position in delivery.positions.items():
            if vbucket in self._open:
                receipt = self._receipts[vbucket]
                receipt.position = position
                if receipt.target_reached:
                    self._end(receipt, Outcome.REACHED, consumer=consumer)

    def _opened(
        self, event: StreamOpened, node: NodeAddress | None, now: float, consumer: Consumer
    ) -> None:
        receipt = self._receipts[event.vbucket]
        receipt.failover_log = event.failover_log
        receipt.node, receipt.opened_at = node, now
        self._histories.set_log(event.vbucket, event.failover_log)
        if receipt.target_reached:  # all that was asked is whether the producer agrees
            self._end(receipt, Outcome.REACHED, consumer=consumer)

    def _handle(self, event: Event) -> None:
        if isinstance(event, Items):
            self._items(event)
            return
        vbucket = getattr(event, "vbucket", None)
        if vbucket in self._open and (handler := _HANDLERS.get(type(event))) is not None:
            handler(self, event)

    def _items(self, event: Items) -> None:
        columns = event.columns
        wanted = self._is_open[columns.vbucket]
        if not wanted.all():
            columns = columns.take(np.flatnonzero(wanted))
        if len(columns) == 0:
            return
        np.add.at(self._rows_of, columns.vbucket, 1)
        np.add.at(self._bytes_of, columns.vbucket, columns.frame_bytes)
        np.maximum.at(self._largest_of, columns.vbucket, columns.frame_bytes)
        rows = self._batches.add_items(columns)
        for column, counts in (
            (rows.column("key_bytes"), self._escaped_of),
            (rows.column("detail"), self._undecodable_of),
        ):
            if column.null_count < len(column):
                is_set = column.is_valid().to_numpy(zero_copy_only=False)
                np.add.at(counts, columns.vbucket[is_set], 1)

    def _snapshot_started(self, event: SnapshotStarted) -> None:
        if event.purge_seqno is not None:
            self._receipts[event.vbucket].purge_seqno = event.purge_seqno
        self._batches.add_event(
            "snapshot_marker",
            event.vbucket,
            snap_start=event.snapshot.start,
            snap_end=event.snapshot.end,
            snap_flags=event.flags,
        )

    def _at_seqno(self, kind: str, vbucket: int, seqno: int, **values: Any) -> None:
        uuid = self._histories.uuid(vbucket, seqno)
        self._batches.add_event(kind, vbucket, seqno=seqno, vb_uuid=uuid, **values)

    def _snapshot_completed(self, event: SnapshotCompleted) -> None:
        self._at_seqno("complete", event.vbucket, event.seqno)

    def _seqno_advanced(self, event: SeqnoAdvanced) -> None:
        self._at_seqno("seqno_advanced", event.vbucket, event.seqno)

    def _system_event(self, event: SystemEventReceived) -> None:
        if collection_of(event) is not None:
            self._receipts[event.vbucket].brought_collections = True
        self._at_seqno(
            "system_event",
            event.vbucket,
            event.seqno,
            collection_id=emptied_collection(event, self._access.dropped),
            detail=system_event_text(event),
        )

    def _rollback(self, event: RollbackOrdered) -> None:
        requested = event.requested
        order = RollbackOrder(
            requested.vb_uuid, requested.seqno, event.seqno, self._server_logs.get(event.vbucket)
        )
        self._batches.add_event("rollback", event.vbucket, rollback=order_row(order))
        receipt = self._receipts[event.vbucket]
        receipt.order = order
        self._end(receipt, Outcome.ROLLBACK, "rollback", str(order))

    def _stopped(self, event: VbucketStopped) -> None:
        self._end(self._receipts[event.vbucket], Outcome.STOPPED, str(event.reason), event.detail)

    # When a vbucket ends

    def _end(
        self,
        receipt: Receipt,
        outcome: Outcome,
        reason: str = "",
        detail: str = "",
        consumer: Consumer | None = None,
    ) -> None:
        vbucket = receipt.plan.vbucket
        receipt.end(outcome, reason, detail)
        self._open.discard(vbucket)
        self._is_open[vbucket] = False
        if consumer is not None:
            consumer.stop_stream(vbucket)

    def _end_what_is_over(self, consumer: Consumer) -> None:
        if not self._gathering.is_empty:  # a node may be waiting for these bytes to be released
            return
        waiting = [self._receipts[vbucket] for vbucket in self._open]
        for ending in list(self._policy.endings(waiting, consumer, monotonic())):
            self._end_by(ending, consumer)

    def _end_by(self, ending: Ending, consumer: Consumer | None = None) -> None:
        receipt = self._receipts[ending.vbucket]
        self._end(receipt, ending.outcome, ending.reason, ending.detail, consumer)

    # What goes to Spark

    def _wait_seconds(self) -> float:
        now = monotonic()
        deadline = now + _LONGEST_WAIT_SECONDS
        if now < self._policy.ends_at:
            deadline = min(deadline, self._policy.ends_at)
        if not self._gathering.is_empty:
            deadline = min(deadline, self._gathering.due_at)
        return max(0.0, deadline - now)

    def _hand_over(self, consumer: Consumer) -> Iterator[pa.RecordBatch]:
        """Give Spark all that is here."""
        for rows in self._gathering.hand_over(consumer):
            yield rows
            self._policy.handed_over(monotonic())
            reached("round.received")

    def _closing_rows(self) -> Iterator[pa.RecordBatch]:
        for vbucket, receipt in self._receipts.items():
            receipt.rows = int(self._rows_of[vbucket])
            receipt.frame_bytes = int(self._bytes_of[vbucket])
            receipt.largest_bytes = int(self._largest_of[vbucket])
            receipt.escaped_keys = int(self._escaped_of[vbucket])
            receipt.undecodable_values = int(self._undecodable_of[vbucket])
            self._batches.add_event("status", vbucket, detail=receipt.status())
            if receipt.plan.begins_epoch:
                fork = receipt.plan.state.position.seqno
                self._batches.add_event("rollback", vbucket, seqno=fork)
        epochs = {state.vbucket: state.epoch for state in self._plan.carried}
        for left in self._plan.left_out:
            detail = left_out_status(left)
            self._batches.add_event("status", left.vbucket, epochs[left.vbucket], detail=detail)
        for each in self._batches.flush():
            yield each.rows
        states = [receipt.state(self._round) for receipt in self._receipts.values()]
        yield states_to_batch([*states, *self._plan.carried], self._round)
        if self._plan.applied:
            yield applied_to_batch(self._plan.applied, self._round)


_HANDLERS: Final[dict[type[Event], Callable[[TaskReceiver, Any], None]]] = {
    SnapshotStarted: TaskReceiver._snapshot_started,
    SnapshotCompleted: TaskReceiver._snapshot_completed,
    SeqnoAdvanced: TaskReceiver._seqno_advanced,
    SystemEventReceived: TaskReceiver._system_event,
    RollbackOrdered: TaskReceiver._rollback,
    VbucketStopped: TaskReceiver._stopped,
}
