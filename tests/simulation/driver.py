"""A driver of rounds: plan, receive, append, apply, with everything that may stop it on the way.

It does what ``dcp.lake.run.driver.Driver`` does, whose own code is bound to Spark; each step is the
product's. A driver dies at a step, or stands still there while another one works, and wakes.
"""

import json
from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Final

import pyarrow as pa

from dcp.client.probe import ClusterView
from dcp.errors import FencedError, LakeError, SourceError
from dcp.lake.apply.apply import run_apply
from dcp.lake.config.settings import Settings
from dcp.lake.log.changes import append_round
from dcp.lake.receive.round_tasks import task_batches
from dcp.lake.receive.source_access import SourceAccess, query_cluster
from dcp.lake.receive.stop_policy import TaskBudget
from dcp.lake.rounds.backfill_plan import BackfillPlan, BackfillRequest, BackfillStream
from dcp.lake.rounds.planning import LakePosition, plan_round
from dcp.lake.rounds.rollback_plan import RollbackPolicy
from dcp.lake.rounds.round_plan import BackfillSource, RoundPlan, TaskPlan
from dcp.lake.run.backfills import held_seqnos
from dcp.lake.tables.document_filter import EVERYTHING, DocumentFilter
from dcp.lake.tables.round_record import Outcome
from dcp.lake.tables.tables import DOCS as DOCS_TABLE
from tests.lake.memory_lake import Row
from tests.simulation.delta_tables import CHANGES, RowsToWrite, TablesInMemory
from tests.simulation.faults import Counts, Options
from tests.simulation.virtual_loop import VirtualLoop

STEPS: Final = (
    "round.planned",
    "round.received",
    "round.committed",
    "round.read_back",
    "apply.planned",
    "apply.committed",
    "apply.read_back",
)


class DriverDied(BaseException):
    """The process of a driver is gone; no code of its own runs any more."""


class Driver:
    """One process; another one begins where it ends."""

    def __init__(self, crew: "Crew", number: int) -> None:
        self.writer_id = f"writer-{number}"
        self._crew = crew
        self.has_stalled = False
        self.overtaken = False
        """Whether another one committed a round while this one stood still inside a pass."""
        self.rounds_when_overtaken = 0

    def run(self) -> bool:
        """Plan and commit a round, and apply; return whether there was anything to do."""
        crew, tables = self._crew, self._crew.tables
        cluster = query_cluster(crew.access)
        document_filter = crew.filter_of(cluster)
        position = replace(tables.position(RollbackPolicy.REWRITE), document_filter=document_filter)
        plan = plan_round(
            replace(position, backfill=crew.backfill(position, cluster)),
            cluster,
            crew.settings.round,
            crew.settings.flow_control,
            crew.options.tasks,
        )
        worked = False
        if isinstance(plan, RoundPlan):
            crew.reached("round.planned")
            rows = RowsToWrite(tables, lambda: crew.received(plan))
            append_round(tables.handle, rows, plan.round, self.writer_id)  # type: ignore[arg-type]  # no Spark
            crew.reached("round.read_back")
            worked = True
        if crew.is_calm or crew.random.random() < 0.7:
            worked = self._apply() or worked
        return worked

    def _apply(self) -> bool:
        crew, tables = self._crew, self._crew.tables
        to_round = tables.round
        if not crew.is_calm and to_round > 1 and crew.random.random() < 0.2:
            to_round -= 1
        plan = tables.planned_apply(to_round)
        if plan is None:
            return False
        crew.reached("apply.planned")
        run_apply(tables.handle, plan, self.writer_id)
        return True


def _came(plan: RoundPlan, rows: list[Row]) -> int:
    """Count what was read though the plan had left it out."""
    awaited = {vbucket for task in plan.tasks for vbucket in task.awaited}
    told = [row["detail"] for row in rows if row["kind"] == "status" and row["vbucket"] in awaited]
    return sum(json.loads(detail)["outcome"] != Outcome.LEFT_OUT for detail in told)


class Crew:
    """All drivers of one lake, one after the other, or one over the head of another."""

    def __init__(
        self,
        loop: VirtualLoop,
        tables: TablesInMemory,
        access: Callable[[], SourceAccess],
        settings: Settings,
        options: Options,
        random: Random,
        counts: Counts,
    ) -> None:
        self.tables, self.options, self.settings = tables, options, settings
        self.random, self.counts = random, counts
        self.is_calm = False
        self.errors: list[str] = []
        self._loop, self._access = loop, access
        self._stack: list[Driver] = []
        self._begun = 0
        self._current: Driver | None = None
        tables.reached = self.reached

    @property
    def access(self) -> SourceAccess:
        """How the source is reached now."""
        return self._access()

    def run(self) -> bool:
        """Let the present driver do a pass; one that dies has a successor."""
        if self._current is None:
            self._current = self._new_driver()
        driver = self._current
        self._stack.append(driver)
        try:
            worked = driver.run()
        except DriverDied:
            self._current, worked = None, True
        except FencedError:
            if not (driver.has_stalled or driver.overtaken):
                raise
            self.counts.add("stalled driver fenced")
            self._current, worked = None, True
        except LakeError as error:
            if not driver.has_stalled:
                raise
            self._note(error)
            self._current, worked = None, True
        except SourceError as error:
            self._note(error)
            worked = False
        finally:
            self._stack.pop()
        if driver.overtaken:
            found = self._rounds_of(driver)
            assert found == driver.rounds_when_overtaken, (
                f"P7: {driver.writer_id} committed a round after another driver had committed one"
            )
        driver.has_stalled = False
        # One that has committed no round yet may go on after others, which it takes for ended: only
        # during the pass in which it stood still is it held to P7.
        if not driver.rounds_when_overtaken:
            driver.overtaken = False
        return worked

    def _rounds_of(self, driver: Driver) -> int:
        commits = self.tables.logs[CHANGES].commits
        return sum(each.writer == driver.writer_id for each in commits)

    def _note(self, error: Exception) -> None:
        self.errors.append(f"{self._loop.time():.3f} {type(error).__name__}: {error}")

    def _new_driver(self) -> Driver:
        self._begun += 1
        return Driver(self, self._begun)

    # --- what happens to a driver

    def reached(self, step: str) -> None:
        """Die here, or stand still, if that is drawn."""
        if self.is_calm or step not in STEPS:
            return
        chances, driver = self.options.driver, self._stack[-1]
        if self.random.random() < chances.get("driver_crash", 0.0):
            self.counts.add(f"driver died: {step}")
            raise DriverDied
        if len(self._stack) == 1 and self.random.random() < chances.get("driver_stall", 0.0):
            self._stall(driver, step)

    def _stall(self, driver: Driver, step: str) -> None:
        """Let other drivers work while this one stands still."""
        self.counts.add("driver stalled")
        driver.has_stalled = True
        driver.rounds_when_overtaken = self._rounds_of(driver)
        rounds, versions = self.tables.round, len(self.tables.versions)
        self._current = None
        for _ in range(self.random.randint(1, 3)):
            self._loop.sleep(0.2)
            self.run()
        if self.tables.round > rounds:
            self.counts.add("stalled driver overtaken")
            driver.overtaken = True
        if len(self.tables.versions) > versions and step == "apply.planned":
            self.counts.add("stalled apply overtaken")
        self._current = driver

    def filter_of(self, cluster: ClusterView) -> DocumentFilter:
        """Return the lake's filter."""
        since = "now" if self.options.starts_now else ""
        rules = replace(EVERYTHING.rules, since=since)
        return DocumentFilter.resolve(rules, cluster.manifest)

    def backfill(self, position: LakePosition, cluster: ClusterView) -> BackfillPlan | None:
        """Let some vbuckets get the collection anew, if that is drawn."""
        if self.is_calm or self.random.random() >= self.options.driver.get("backfill", 0.0):
            return None
        streams, collections = {}, frozenset({DOCS_TABLE.collection_id})
        source = BackfillSource(reads_replicas=False)
        everything = frozenset(cluster.high_seqnos)
        request = BackfillRequest("", everything, source, 0, collections=collections)
        held = held_seqnos(cluster, self.access, request)
        for vbucket, high in cluster.high_seqnos.items():
            node, state = cluster.map.owner(vbucket), position.state(vbucket)
            if node is None or state.order is not None or not 0 < state.complete_seqno <= high:
                continue
            if self.random.random() < 0.5 and vbucket in held.get(node, {}):
                seqno = held[node][vbucket]
                streams[vbucket] = BackfillStream(node, high, True, collections, seqno)
        return BackfillPlan(source, streams)

    def received(self, plan: RoundPlan) -> list[Row]:
        """Run the tasks of a round; attempts may die and are tried again, and the sink be slow."""
        batches: list[pa.RecordBatch] = []
        for task in plan.tasks:
            attempt = 0
            while (found := self._attempt(plan, task, attempt)) is None:
                attempt += 1
            batches += found
        self.reached("round.received")
        rows: list[Row] = pa.Table.from_batches(batches).to_pylist()
        brought = sum(row["kind"] == "backfill" for row in rows)
        partial = sum(stream.partial is not None for stream in plan.streams)
        self.counts.add("awaited vbucket came", _came(plan, rows))
        self.counts.add("collection brought anew", brought)
        self.counts.add("backfill of a collection in vain", partial - brought)
        return rows

    def _attempt(
        self, plan: RoundPlan, task: TaskPlan, attempt: int
    ) -> list[pa.RecordBatch] | None:
        budget = TaskBudget(plan.target_bytes, plan.target_seconds)
        name = f"dcplake-r{plan.round}-t{task.index}.{attempt}"
        found: list[pa.RecordBatch] = []
        batches = task_batches(plan, task.index, budget, self.access, name)
        chances = {} if self.is_calm else self.options.driver
        for batch, _ in batches:
            found.append(batch)
            if self.random.random() < chances.get("slow_sink", 0.0):
                self.counts.add("slow sink")
                self._loop.sleep(self.random.uniform(0.1, 2.0))
            if attempt < 2 and self.random.random() < chances.get("attempt_dies", 0.0):
                self.counts.add("attempt of a task died")
                batches.close()  # type: ignore[attr-defined]  # it is a generator
                return None
        return found
