"""Runs the tasks of a round on the executors: the function that Spark calls there."""

from collections.abc import Callable, Iterator

import pyarrow as pa

from dcp.lake.receive.arrow_memory import return_freed_memory
from dcp.lake.receive.receive import TaskReceiver
from dcp.lake.receive.source_access import SourceAccess
from dcp.lake.receive.stop_policy import TaskBudget
from dcp.lake.rounds.progress import RoundProgress
from dcp.lake.rounds.round_plan import RoundPlan


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
                receiver = TaskReceiver(plan.tasks[index], plan.round, budget, access, name)
                for rows in receiver.batches():
                    yield rows
                    if progress is not None:
                        progress.note(index, receiver.done)

    return receive


def _attempt() -> int:
    from pyspark import TaskContext

    context = TaskContext.get()
    return 0 if context is None else context.attemptNumber()
