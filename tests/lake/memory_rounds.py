"""Rounds from a real producer into a lake in memory, by the product's driver."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pyarrow as pa

from dcp.lake.config.settings import Settings
from dcp.lake.receive.source_access import SourceAccess, query_cluster, source_access
from dcp.lake.receive.task_receiver import receive_function
from dcp.lake.rounds.observer import Observer
from dcp.lake.rounds.round_plan import Idle, RoundPlan
from dcp.lake.run.driver import Driver
from tests.lake.memory_store import run_task
from tests.lake.watched_lake import Row, Version, WatchedLake


class MemoryRounds:
    """One driver at a time; `restart` lets another process go on."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.access: SourceAccess = source_access(settings)
        self._bucket = query_cluster(self.access).map
        self.lake = WatchedLake(self._bucket.vbucket_count)
        self.restart()

    def restart(self) -> None:
        """Let the driver be gone, and another one begin."""
        lake = self.lake.open(self._bucket.bucket_uuid)
        self.driver = Driver(lake, self.settings, self.access, Observer())

    def prepare_round(self) -> RoundPlan | Idle:
        """Plan what comes next."""
        return self.driver.prepare_round(query_cluster(self.access))

    def plan(self) -> RoundPlan | None:
        """Plan a round; None where there is nothing to do."""
        plan = self.prepare_round()
        return plan if isinstance(plan, RoundPlan) else None

    def received(self, plan: RoundPlan, on_batch: Callable[[], None] | None = None) -> list[Row]:
        """Run a round without committing it: killed before its commit, it leaves nothing."""
        receive = receive_function(plan, self.access)
        batches: list[pa.RecordBatch] = []
        for number in range(len(plan.tasks)):
            for batch in run_task(number, receive):
                batches.append(batch)
                if on_batch is not None:
                    on_batch()
        rows: list[Row] = pa.Table.from_batches(batches).to_pylist()
        return rows

    def run(self, plan: RoundPlan | None = None) -> bool:
        """Plan and commit a round; False where there is nothing to do."""
        plan = plan or self.plan()
        if plan is None:
            return False
        self.driver.round(plan)
        return True

    def until_idle(self, most: int = 12) -> None:
        """Run rounds until nothing is left to do."""
        for _ in range(most):
            if not self.run():
                return
        raise AssertionError(f"found work after {most} rounds, expected none")

    def apply(self, to_round: int | None = None) -> Version | None:
        """Apply up to a round, or the newest; None where nothing is to be done for it."""
        made = self.driver.apply(self.lake.round if to_round is None else to_round, force=True)
        return self.lake.versions[-1] if made else None

    def with_budget(self, target_bytes: int) -> None:
        """Let rounds from here on end after so many bytes, under another driver."""
        changed: dict[str, Any] = {"target_bytes": target_bytes}
        self.settings = replace(self.settings, round=replace(self.settings.round, **changed))
        self.restart()
