"""Runs the tasks of a round on the executors: the function that Spark calls there.

A task of a backfill of some collections (`PartialBackfill`) reads those first, by streams that
bring nothing else; then it goes on with the vbuckets' own streams.
"""

from collections.abc import Callable, Iterator, Mapping

import pyarrow as pa

from dcp.lake.receive.arrow_memory import return_freed_memory
from dcp.lake.receive.receive import TaskReceiver
from dcp.lake.receive.source_access import SourceAccess
from dcp.lake.receive.stop_policy import UNLIMITED, TaskBudget
from dcp.lake.receive.vbucket_counts import VbucketCounts
from dcp.lake.rounds.progress import RoundProgress, StreamProgress
from dcp.lake.rounds.round_plan import CollectionsRead, RoundPlan
from dcp.lake.rounds.stream_result import StreamResult
from dcp.lake.tables.round_record import Outcome


def receive_function(
    plan: RoundPlan, access: SourceAccess, progress: RoundProgress | None = None
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return the function for ``spark.range(0, tasks, 1, tasks).mapInArrow``."""
    budget = TaskBudget(plan.target_bytes, plan.target_seconds)

    def receive(indices: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return_freed_memory()
        for batch in indices:
            for index in batch.column(0).to_pylist():
                name = f"dcplake-{plan.lake_id[:8]}-r{plan.round}-t{index}.{_attempt()}"
                for rows, done in task_batches(plan, index, budget, access, name):
                    yield rows
                    if progress is not None:
                        progress.note(index, done)

    return receive


def task_batches(
    plan: RoundPlan, index: int, budget: TaskBudget, access: SourceAccess, name: str
) -> Iterator[tuple[pa.RecordBatch, StreamProgress]]:
    """Yield what a task of a round writes, and how far it is behind each batch.

    Raises:
        TaskError: as for `TaskReceiver.stream`.

    """
    task, counts, before = plan.tasks[index], VbucketCounts(), 0
    if (first := task.collections_first) is not None:
        reading = TaskReceiver(first, plan.round, UNLIMITED, access, f"{name}.c", counts)
        for rows in reading.stream():
            yield rows, reading.done
        before = reading.done.seqnos
        task = task.after_collections(_collections_read(reading.results))
    receiver = TaskReceiver(task, plan.round, budget, access, name, counts)
    for rows in receiver.batches():
        done = receiver.done
        yield rows, StreamProgress(before + done.seqnos, done.frame_bytes)


def _attempt() -> int:
    from pyspark import TaskContext

    context = TaskContext.get()
    return 0 if context is None else context.attemptNumber()


def _collections_read(results: Mapping[int, StreamResult]) -> dict[int, CollectionsRead]:
    """Return what came of the vbuckets whose collections were read.

    What came of a stream that ended before it had all of them counts for nothing.
    """
    read = {}
    for vbucket, result in results.items():
        seqno, log = result.position.complete_seqno, result.failover_log
        if result.outcome in (Outcome.REACHED, Outcome.CAUGHT_UP) and log is not None:
            read[vbucket] = CollectionsRead(seqno, log.uuid_at(seqno))
        else:
            reason = result.reason or "stream ended"
            read[vbucket] = CollectionsRead(reason=reason, detail=result.detail)
    return read
