"""Receives a round on the executors: from streams to Arrow batches, position rows last.

Runs inside ``mapInArrow``, one call for each task of the plan. The bytes of all gathered rows are
released together, when Spark has taken the last batch of them. Until then the node may only send
the rest of the window (``batch_flusher.py``). A failure at the source ends a vbucket
with a ``status`` row and never the task: one dead or refusing node does not discard the rows of
another. A refused password or bucket fails the task only if all nodes of the plan refuse or are out
of reach, and none has accepted them (`Consumer.next`).
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from time import monotonic, sleep
from typing import Final

import psutil
import pyarrow as pa

from dcp.client.addresses import NodeAddress
from dcp.client.consumer_events import VbucketStopped
from dcp.client.delivery import Delivery
from dcp.lake.change_log.applied import applied_to_batch
from dcp.lake.change_log.collection_events import begin_text, policies_to_batch
from dcp.lake.change_log.stop_points import reached
from dcp.lake.config.memory import worker_bytes
from dcp.lake.receive.batch_flusher import BatchFlusher
from dcp.lake.receive.batches import BatchBuilder
from dcp.lake.receive.dropped_policies import collection_of
from dcp.lake.receive.private_values import PrivateValues
from dcp.lake.receive.source_access import SourceAccess
from dcp.lake.receive.stop_policy import LONGEST_WAIT_SECONDS, StopPolicy, VbucketStop
from dcp.lake.receive.task_consumer import task_consumer
from dcp.lake.receive.wanted_rows import WantedRows
from dcp.lake.rounds.observer import RoundProgress, StreamProgress
from dcp.lake.rounds.rollback_plan import start_seqno_on
from dcp.lake.rounds.round_plan import RoundPlan, TaskBudget, TaskPlan
from dcp.lake.rounds.stream_result import StreamResult
from dcp.lake.spark.task_errors import carried_errors
from dcp.lake.store.lake_store import BatchFunction
from dcp.lake.tables.round_record import Outcome, StuckReason, VbucketReport, states_to_batch
from dcp.lake.tables.schema import RowKind
from dcp.lake.tables.vbucket_state import RollbackOrder
from dcp.lake.task_board.board_files import TaskWatcher, shown_on_board
from dcp.lake.task_board.task_stats import NodeStreams, TaskStats, connection_of
from dcp.protocol.events import (
    Event,
    FailoverLogReceived,
    Items,
    RollbackOrdered,
    SeqnosReceived,
    SnapshotStarted,
    StreamOpened,
    SystemEventReceived,
)
from dcp.records import row_of
from dcp.types import FailoverLog
from dcp.wire.system_event import CollectionEnded


class TaskReceiver:
    """Streams the vbuckets of one task until each has its `StreamResult`."""

    def __init__(
        self,
        plan: TaskPlan,
        round_number: int,
        budget: TaskBudget,
        access: SourceAccess,
        name: str,
    ) -> None:
        """Asks nothing of the source yet.

        Raises:
            ConfigError: the password, or the key of hashes, is not on this machine.
        """
        self._plan = plan
        self._round = round_number
        self._access = access
        self._budget = budget
        self._name = name
        self._rate = None if plan.backfill is None else plan.backfill.bytes_per_second
        self._policy = StopPolicy(
            budget, access.quiet_seconds, access.consumer.node_deadline_seconds
        )
        self._consumer = task_consumer(plan, access, name)
        private = private_values(plan, access)
        self.results = {
            stream.vbucket: StreamResult(stream, self._consumer.position) for stream in plan.streams
        }
        """The results by vbucket; complete when ``stream`` has ended."""
        self._open = set(self.results)
        self._server_failover_logs: dict[int, FailoverLog] = {}
        flow = access.flow_control
        self._batches = BatchBuilder(
            round_number,
            flow.batch_rows,
            flow.batch_bytes,
            system_xattrs=plan.document_filter.rules.system_xattrs,
            private=private,
        )
        branches = self._batches.branches
        for stream in plan.streams:
            branches.set_epoch(stream.vbucket, stream.epoch)
            if stream.state.failover_log is not None:
                branches.set_failover_log(stream.vbucket, stream.state.failover_log)
        self._wanted = WantedRows(plan.document_filter, plan.streams)
        self._flusher = BatchFlusher(flow, self._batches, monotonic)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows of all streams, then status and position rows.

        Raises:
            AuthenticationError, BucketError, QualityError: see `stream`.
        """
        yield from self.stream()
        yield from self._closing_rows()

    @property
    def done(self) -> StreamProgress:
        """The sum of the seqnos by which its vbuckets advanced, and the received bytes."""
        results = self.results.values()
        seqnos = sum(each.position.seqno - each.plan.position.seqno for each in results)
        return StreamProgress(seqnos, int(self._batches.counts.frame_bytes.sum()))

    def stream(self) -> Iterator[pa.RecordBatch]:
        """Yield the streams' rows, without status and position rows.

        Raises:
            AuthenticationError, BucketError: user, password or bucket were refused, as
                `Consumer.next` says.
            QualityError: see `PrivateValues.taken_out`.
        """
        watcher = TaskWatcher(self._stats)
        try:
            with shown_on_board(self._access.board, self._name, watcher.stats):
                yield from self._consume()
                sample = watcher.stats()
                for result in self.results.values():
                    result.window_full = sample.window_full_share
                    result.bottleneck = sample.top_bottleneck
        finally:
            self._consumer.close()

    def _consume(self) -> Iterator[pa.RecordBatch]:
        self._policy.begin(monotonic())
        while self._open:
            enough = self._flusher.taken_bytes >= self._budget.target_bytes
            if enough or monotonic() >= self._policy.ends_at:
                self._end_by_budget()
                if not self._open:
                    break
            reading_seconds = monotonic() - self._policy.began_at
            if self._rate and self._flusher.taken_bytes > self._rate * reading_seconds:
                sleep(self._wait_seconds())
                self._policy.resumed_reading(monotonic())
            else:
                delivery = self._consumer.next(self._wait_seconds())
                self._policy.listened(monotonic())
                if delivery is not None:
                    self._take(delivery)
            waiting = (self.results[vbucket] for vbucket in self._open)
            for stop in list(self._policy.stops(waiting, self._consumer)):
                self._end(stop)
            if self._flusher.is_due():
                yield from self._flush()
        yield from self._flush()

    def _end_by_budget(self) -> None:
        """End the streams that the budget may end; the others read on."""
        still_open = [self.results[vbucket] for vbucket in sorted(self._open)]
        over = [
            result
            for result in still_open
            if result.position.complete_seqno >= result.plan.least_complete_seqno
        ]
        closes = len(over) < len(self._open)  # otherwise the connections end with the task
        for stop in list(self._policy.out_of_budget(over, self._consumer, self._round)):
            self._end(stop, closes=closes)

    def _wait_seconds(self) -> float:
        now = monotonic()
        deadline = now + LONGEST_WAIT_SECONDS
        if now < self._policy.ends_at:
            deadline = min(deadline, self._policy.ends_at)
        if not self._flusher.is_empty:
            deadline = min(deadline, self._flusher.due_at)
        return max(0.0, deadline - now)

    # What arrives

    def _take(self, delivery: Delivery) -> None:
        self._flusher.add(delivery)
        moved = set(delivery.positions)
        if delivery.node is not None:  # otherwise the consumer itself reports something
            for event in delivery.events:
                self._learn(event, delivery.node)
                if isinstance(event, StreamOpened):
                    moved.add(event.vbucket)  # to be accepted may be all that was wanted
            self._policy.moved(delivery.node, delivery.positions)
        for event in delivery.events:
            if isinstance(event, Items):
                if len(wanted := self._wanted.documents(event.columns)):
                    self._batches.add_documents(wanted)
            elif getattr(event, "vbucket", None) in self._open:
                self._take_event(event)
        # Last, since positions are behind all rows of the delivery.
        for vbucket in moved & self._open:
            result = self.results[vbucket]
            if result.position.complete_seqno >= result.plan.target_seqno:
                self._end(VbucketStop(vbucket, Outcome.REACHED))

    def _learn(self, event: Event, node: NodeAddress) -> None:
        match event:
            case StreamOpened() if event.vbucket in self._open:
                self._opened(event, node)
            case FailoverLogReceived() if event.failover_log is not None:
                self._server_failover_logs[event.vbucket] = event.failover_log
            case SeqnosReceived():
                self._policy.answered(node, dict(event.seqnos))
            case SnapshotStarted():
                self._wanted.learn(event)
                self._policy.snapshot_started(event.vbucket, event.flags)
            case SystemEventReceived():
                self._wanted.learn(event)
                if self._batches.private is not None:
                    self._batches.private.learn(self._wanted.document_filter.names)

    def _opened(self, event: StreamOpened, node: NodeAddress) -> None:
        result = self.results[event.vbucket]
        result.failover_log = event.failover_log
        result.start_seqno = start_seqno_on(result.plan.state, event.failover_log)
        self._wanted.drop_up_to(event.vbucket, result.start_seqno or 0)
        result.node = node
        self._policy.opened(node, event.vbucket)
        self._batches.branches.set_failover_log(event.vbucket, event.failover_log)

    def _take_event(self, event: Event) -> None:
        match event:
            case RollbackOrdered():
                self._roll_back(event)
                return
            case VbucketStopped():
                reason = str(event.reason)
                self._end(VbucketStop(event.vbucket, Outcome.STOPPED, reason, event.detail))
                return
            case SnapshotStarted() if event.purge_seqno is not None:
                self.results[event.vbucket].purge_seqno = event.purge_seqno
            case SystemEventReceived() if not self._wanted.wants(event):
                return
            case SystemEventReceived() if (collection_id := collection_of(event)) is not None:
                self.results[event.vbucket].brought_collections = True
                if isinstance(event.meaning, CollectionEnded):
                    self.results[event.vbucket].dropped.add(collection_id)
        self._batches.add_stream_event(event)

    def _roll_back(self, event: RollbackOrdered) -> None:
        requested = event.requested
        order = RollbackOrder(
            requested.seqno,
            event.seqno,
            requested.vb_uuid,
            self._server_failover_logs.get(event.vbucket),
        )
        self._batches.add_event(RowKind.ROLLBACK, event.vbucket, rollback=row_of(order))
        self.results[event.vbucket].order = order
        reason = StuckReason.ROLLBACK
        self._end(VbucketStop(event.vbucket, Outcome.ROLLBACK, reason, str(order)))

    # When a vbucket ends

    def _end(self, stop: VbucketStop, *, closes: bool = True) -> None:
        """End a vbucket's part at its present position; an open stream brings nothing more."""
        result = self.results[stop.vbucket]
        result.outcome, result.reason, result.detail = stop.outcome, stop.reason, stop.detail
        self._open.discard(stop.vbucket)
        if closes:
            self._consumer.stop_stream(stop.vbucket)

    # What goes to Spark

    def _flush(self) -> Iterator[pa.RecordBatch]:
        for rows in self._flusher.flush():
            yield rows
            self._policy.resumed_reading(monotonic())
            reached("round.received")

    def _closing_rows(self) -> Iterator[pa.RecordBatch]:
        for vbucket, result in self.results.items():
            counts = self._batches.counts.of(vbucket)
            result.brought_rows = counts["rows"] > 0
            told = result.report(counts)
            self._batches.add_event(RowKind.STATUS, vbucket, detail=told.status())
            if (restart := result.plan.restart) is not None and not restart.seqno:
                self._add_begins(result)
        epochs = {state.vbucket: state.epoch for state in self._plan.unstreamed}
        for left in self._plan.left_out:
            told = VbucketReport(
                left.vbucket,
                Outcome.LEFT_OUT,
                largest_bytes=0,
                reason=left.reason,
                detail=left.detail,
            )
            self._batches.add_event(
                RowKind.STATUS, left.vbucket, epochs[left.vbucket], detail=told.status()
            )
        yield from self._batches.flush()
        states = [result.state(self._round) for result in self.results.values()]
        states += self._plan.unstreamed
        restarts = (each.restart for each in self._plan.streams if each.restart is not None)
        yield states_to_batch(states, self._round, restarts)
        dropped = {each for result in self.results.values() for each in result.dropped}
        if undecided := self._access.dropped.undecided(dropped):
            yield policies_to_batch(undecided, self._round)
        if self._plan.applied:
            yield applied_to_batch(self._plan.applied, self._round)

    def _add_begins(self, result: StreamResult) -> None:
        for collection_id in self._access.dropped.present:
            result.brought_collections = True
            self._batches.add_event(
                RowKind.SYSTEM_EVENT,
                result.plan.vbucket,
                seqno=0,
                collection_id=collection_id,
                detail=begin_text(collection_id),
            )

    # What others see

    def _stats(self) -> TaskStats:
        """Return the task's state; another thread calls this."""
        still_open = list(self._open)
        streaming: Counter[NodeAddress | None] = Counter()
        in_snapshot: Counter[NodeAddress | None] = Counter()
        for vbucket in still_open:
            result = self.results[vbucket]
            streaming[result.node] += 1
            in_snapshot[result.node] += not result.position.is_complete
        connections = self._consumer.stats()
        batch_bytes = self._access.flow_control.batch_bytes
        unreleased_limit_bytes = self._plan.windows.unreleased_limit_bytes
        stages = (
            self._consumer.buffer_stats(),
            *self._flusher.stats(self._budget.target_bytes),
        )
        return TaskStats(
            self._name,
            self._round,
            vbuckets=len(self.results),
            open_vbuckets=len(still_open),
            rows=int(self._batches.counts.rows.sum()),
            bytes=self._flusher.taken_bytes,
            connections=tuple(
                connection_of(
                    each,
                    stages,
                    NodeStreams(streaming[each.node], in_snapshot[each.node]),
                    batch_bytes,
                )
                for each in connections
            ),
            stages=stages,
            windows=self._plan.windows,
            resident_bytes=psutil.Process().memory_info().rss,
            bound_bytes=worker_bytes(
                len(connections),
                unreleased_limit_bytes,
                batch_bytes,
                edits_values=self._batches.private is not None,
            ),
            undecodable_values=int(self._batches.counts.undecodable_values.sum()),
        )


def private_values(plan: TaskPlan, access: SourceAccess) -> PrivateValues | None:
    """Return what takes values out of a task's documents; None if it has no rules, or no values.

    Raises:
        ConfigError: a rule hashes, and the key is not here.
    """
    privacy, kept_out = plan.document_filter.privacy, plan.document_filter.kept_out
    if not (privacy.rules or kept_out) or access.consumer.connection.metadata_only:
        return None
    found = PrivateValues(privacy, kept_out)
    found.learn(plan.document_filter.names)
    return found


_DECAY_MS: Final = 50
"""jemalloc keeps free memory for this time, so each block reuses the memory of earlier ones.

With 0 each block is mapped anew: a third more CPU for a task, all in page faults. With 250 a task
with documents of 20 MiB takes 40 MiB more.
"""


def receive_function(
    plan: RoundPlan, access: SourceAccess, progress: RoundProgress | None = None
) -> BatchFunction:
    name = f"dcplake-{plan.lake_id[:8]}-r{plan.round}"
    rows_of = TaskReceiver.batches
    return task_function(plan.tasks, plan.round, plan.budget, access, name, rows_of, progress)


def task_function(
    tasks: Sequence[TaskPlan],
    round_number: int,
    budget: TaskBudget,
    access: SourceAccess,
    name: str,
    rows_of: Callable[[TaskReceiver], Iterator[pa.RecordBatch]],
    progress: RoundProgress | None,
) -> BatchFunction:
    """Return the function for ``mapInArrow``; ``name`` begins the names of the tasks."""

    def receive(indices: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        _return_freed_memory()
        numbers = (index for batch in indices for index in batch.column(0).to_pylist())
        with carried_errors():
            for index in numbers:
                of_task = f"{name}-t{index}.{_attempt()}"
                receiver = TaskReceiver(tasks[index], round_number, budget, access, of_task)
                for rows in rows_of(receiver):
                    yield rows
                    if progress is not None:
                        progress.note(index, receiver.done)

    return receive


def _return_freed_memory() -> None:
    """Let Arrow return freed memory to the system, in this process.

    Its default pool (mimalloc) keeps 70 MiB more after documents of 20 MiB, with batches of 4 MiB
    and no less time. An Arrow without jemalloc (Windows) keeps it.
    """
    try:
        pool = pa.jemalloc_memory_pool()
    except NotImplementedError:
        return
    pa.set_memory_pool(pool)
    pa.jemalloc_set_decay_ms(_DECAY_MS)


def _attempt() -> int:
    from pyspark import TaskContext

    context = TaskContext.get()
    return 0 if context is None else context.attemptNumber()
