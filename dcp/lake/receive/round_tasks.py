"""Runs the tasks of a round on the executors: the function that Spark calls there."""

from collections.abc import Callable, Iterator, Sequence

import pyarrow as pa

from dcp.lake.receive.arrow_memory import return_freed_memory
from dcp.lake.receive.receive import TaskReceiver
from dcp.lake.receive.source_access import SourceAccess
from dcp.lake.receive.stop_policy import TaskBudget
from dcp.lake.rounds.progress import RoundProgress
from dcp.lake.rounds.round_plan import RoundPlan, TaskPlan
from dcp.lake.store.lake_store import BatchFunction


def receive_function(
    plan: RoundPlan, access: SourceAccess, progress: RoundProgress | None = None
) -> BatchFunction:
    budget = TaskBudget(plan.target_bytes, plan.target_seconds)
    name = f"dcplake-{plan.lake_id[:8]}-r{plan.round}"
    rows_of = TaskReceiver.batches
    return task_function(plan.tasks, plan.round, budget, access, name, rows_of, progress)


def task_function(
    tasks: Sequence[TaskPlan],
    round_number: int,
    budget: TaskBudget,
    access: SourceAccess,
    name: str,
    rows_of: Callable[[TaskReceiver], Iterator[pa.RecordBatch]],
    progress: RoundProgress | None,
) -> BatchFunction:
    """Return the function for ``spark.range(0, tasks, 1, tasks).mapInArrow``.

    ``name`` begins the names of the tasks.
    """

    def receive(indices: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return_freed_memory()
        for batch in indices:
            for index in batch.column(0).to_pylist():
                of_task = f"{name}-t{index}.{_attempt()}"
                receiver = TaskReceiver(tasks[index], round_number, budget, access, of_task)
                for rows in rows_of(receiver):
                    yield rows
                    if progress is not None:
                        progress.note(index, receiver.done)

    return receive


def _attempt() -> int:
    from pyspark import TaskContext

    context = TaskContext.get()
    return 0 if context is None else context.attemptNumber()
