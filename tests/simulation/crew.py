"""Processes with the product's driver, and everything that may stop one on its way.

A driver dies at a step, or stands still there while another one works, and wakes.
"""

from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, contextmanager
from random import Random
from threading import Event
from typing import Final, cast
from unittest.mock import patch

import pyarrow as pa

import dcp.lake.apply.applier
import dcp.lake.apply.audit
import dcp.lake.apply.commit
import dcp.lake.change_log.changes
import dcp.lake.run.driver
import dcp.lake.run.driver_erasures
from dcp.errors import (
    DcplakeError,
    FencedError,
    IncompleteRunError,
    LakeError,
    StoppedError,
    StoreUnavailableError,
)
from dcp.lake.change_log.control import Control, pause_of
from dcp.lake.config.settings import Settings
from dcp.lake.receive.source_access import SourceAccess, query_cluster
from dcp.lake.rounds.observer import Observer
from dcp.lake.run.driver import Driver
from dcp.lake.spark.task_errors import TaskError, original_error
from dcp.lake.store.lake_store import BatchFunction
from dcp.lake.store.table import MissingVersionError
from tests.lake.memory_store import task_number
from tests.lake.watched_lake import WatchedLake
from tests.simulation.faults import Counts, Options
from tests.simulation.typed import Contracts
from tests.simulation.virtual_loop import VirtualEvent, VirtualLoop

STEPS: Final = (
    "pass.begun",
    "round.planned",
    "round.received",
    "changes.committing",
    "round.committed",
    "round.read_back",
    "apply.planned",
    "docs.committing",
    "apply.committed",
    "apply.read_back",
    "audit.committed",
    "erase.round",
    "erase.applied",
    "erase.log",
    "erase.purged",
)


@contextmanager
def steps_told(reached: Callable[[str], None]) -> Iterator[None]:
    """Let the product's steps (`dcp.lake.change_log.stop_points`) call ``reached`` meanwhile."""
    modules = (
        dcp.lake.apply.applier,
        dcp.lake.apply.commit,
        dcp.lake.apply.audit,
        dcp.lake.change_log.changes,
        dcp.lake.run.driver,
        dcp.lake.run.driver_erasures,
    )
    with ExitStack() as stack:
        for module in modules:
            stack.enter_context(patch.object(module, "reached", reached))
        yield


class DriverDied(BaseException):
    """The process of a driver is gone; no code of its own runs any more."""


class Process:
    """One process; another one begins where it ends.

    What it applies is handed over as to the product's thread of applies: at once, or while the next
    round is received.
    """

    def __init__(self, crew: "Crew") -> None:
        self._crew = crew
        self.stop = VirtualEvent(crew.loop)
        lake = crew.lake.open(crew.bucket_uuid)
        if crew.contracts is not None:
            crew.contracts.replace(is_calm=crew.is_calm)
        self.driver = Driver(lake, crew.settings, crew.access, Observer())
        self._wanted: int | None = None
        self._failure: Exception | None = None
        self.has_stalled = False
        self.overtaken = False
        """Whether another one committed a round while this one stood still inside a pass."""
        self.rounds_when_overtaken = 0

    def look(self) -> None:
        """Do a pass of a run without end."""
        self._check()
        self.driver.poll(self._hand_over, cast(Event, self.stop))
        self._check()

    def run_once(self) -> None:
        """Do a bounded run."""
        self.driver.once(query_cluster(self._crew.access), cast(Event, self.stop))

    def apply_handed_over(self) -> None:
        """Apply what waits, as the thread of applies does."""
        if self._wanted is None or self._failure is not None:
            return
        to_round, self._wanted = self._wanted, None
        try:
            self.driver.apply_newest(to_round)
        except Exception as failure:
            self._failure = failure

    def _hand_over(self, to_round: int) -> None:
        self._check()
        self._wanted = to_round
        if self._crew.is_calm or self._crew.random.random() < 0.7:
            self.apply_handed_over()

    def _check(self) -> None:
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure


class Crew:
    """All drivers of one lake, one after the other, or one over the head of another."""

    def __init__(
        self,
        loop: VirtualLoop,
        lake: WatchedLake,
        source: tuple[Callable[[], SourceAccess], str],
        settings: Settings,
        options: Options,
        random: Random,
        counts: Counts,
    ) -> None:
        """``source``: how it is reached, and the bucket's uuid."""
        self.loop, self.lake, self.options, self.settings = loop, lake, options, settings
        self._access, self.bucket_uuid = source
        self.random, self.counts = random, counts
        self.is_calm = False
        self.contracts: Contracts | None = None
        self.errors: list[str] = []
        self._stack: list[Process] = []
        self._current: Process | None = None
        lake.store.slots = options.tasks
        lake.store.run_task = self._run_task
        lake.store.between = lambda table: self.reached(f"{table}.committing")

    @property
    def access(self) -> SourceAccess:
        """How the source is reached now."""
        return self._access()

    def run(self) -> None:
        """Let the present driver do a pass; one that dies or is fenced has a successor."""
        process: Process | None = None
        try:
            process = self._current = self._current or Process(self)
            self._pass(process)
        except DriverDied:
            self._current = None
        except FencedError:
            if process is None or not (process.has_stalled or process.overtaken):
                raise
            self.counts.add("stalled driver fenced")
            self._current = None
        except (IncompleteRunError, StoppedError) as error:
            self._note(error)
            self._current = None
        except (LakeError, MissingVersionError) as error:
            # While it stood still, another driver may have erased a version that its apply reads.
            if process is None or not process.has_stalled:
                raise
            self._note(error)
            self._current = None
        except DcplakeError as error:
            self._note(error)
        if process is not None:
            self._require_fenced(process)

    def finish(self, seconds: float) -> None:
        """Let a bounded run of a new driver do all that there is to do.

        Raises:
            DcplakeError: it could not.

        """
        process = Process(self)
        self.loop.incident_at(self.loop.time() + seconds, process.stop.set)
        self._stack.append(process)
        try:
            process.run_once()
        finally:
            self._stack.pop()

    def _pass(self, process: Process) -> None:
        self._stack.append(process)
        try:
            self.reached("pass.begun")
            if self.random.random() < self.options.driver.get("once", 0.0):
                self.counts.add("bounded run")
                until = self.loop.time() + self.random.uniform(0.2, 3.0)
                stop = process.stop = VirtualEvent(self.loop)
                self.loop.incident_at(until, stop.set)
                process.run_once()
            else:
                self._look(process)
        finally:
            self._stack.pop()

    def _look(self, process: Process) -> None:
        """A driver that finds the lake paused commits no round."""
        pause = pause_of(Control(process.driver.lake).requests())
        rounds = self.lake.round
        process.look()
        if pause is not None and not process.has_stalled:
            self.counts.add("pass while paused")
            assert self.lake.round == rounds, f"paused: a driver ran a round in spite of {pause}"

    def _require_fenced(self, process: Process) -> None:
        """P7: who was overtaken commits no round any more."""
        if process.overtaken:
            found = self._rounds_of(process)
            assert found == process.rounds_when_overtaken, (
                f"P7: {process.driver.writer_id} committed a round after another driver had "
                "committed one"
            )
        process.has_stalled = False
        # One that has committed no round yet may go on after others, which it takes for ended: only
        # during the pass in which it stood still is it held to P7.
        if not process.rounds_when_overtaken:
            process.overtaken = False

    def _rounds_of(self, process: Process) -> int:
        return self.lake.writers.count(process.driver.writer_id)

    def _note(self, error: Exception) -> None:
        self.errors.append(f"{self.loop.time():.3f} {type(error).__name__}: {error}")

    # --- what happens to a driver

    def reached(self, step: str) -> None:
        """Die here, stand still, or get no answer from the lake's store, if that is drawn."""
        if self.is_calm or step not in STEPS or not self._stack:
            return
        chances, process = self.options.driver, self._stack[-1]
        if self.random.random() < chances.get("driver_crash", 0.0):
            self.counts.add(f"driver died: {step}")
            raise DriverDied
        if step != "pass.begun" and self.random.random() < chances.get("store_fails", 0.0):
            self.counts.add(f"store failed: {step}")
            raise StoreUnavailableError("the store does not answer; run it again")
        if len(self._stack) == 1 and self.random.random() < chances.get("driver_stall", 0.0):
            self._stall(process, step)

    def _stall(self, process: Process, step: str) -> None:
        """Let other drivers work while this one stands still."""
        self.counts.add("driver stalled")
        process.has_stalled = True
        process.rounds_when_overtaken = self._rounds_of(process)
        rounds, versions = self.lake.round, len(self.lake.versions)
        self._current = None
        for _ in range(self.random.randint(1, 3)):
            self.loop.sleep(0.2)
            self.run()
        self.loop.sleep(self.random.uniform(0.0, 1.0))  # so that it finds something to read
        if self.lake.round > rounds:
            self.counts.add("stalled driver overtaken")
            # Who has committed no round yet, and planned none, goes on after others.
            process.overtaken = step != "pass.begun" or bool(process.rounds_when_overtaken)
        if len(self.lake.versions) > versions and step in ("apply.planned", "docs.committing"):
            self.counts.add("stalled apply overtaken")
        self._current = process

    def _run_task(self, number: int, receive: BatchFunction) -> list[pa.RecordBatch]:
        """Run a task of a round; its attempts may die and are made again, and the sink be slow."""
        attempt = 0
        try:
            while (found := self._attempt(number, receive, attempt)) is None:
                attempt += 1
        except TaskError as error:
            raise original_error(str(error)) or error from error
        if self._stack:
            self._stack[-1].apply_handed_over()
        self.reached("round.received")
        return found

    def _attempt(
        self, number: int, receive: BatchFunction, attempt: int
    ) -> list[pa.RecordBatch] | None:
        found: list[pa.RecordBatch] = []
        batches = receive(iter([task_number(number)]))
        chances = {} if self.is_calm else self.options.driver
        for batch in batches:
            found.append(batch)
            if self.random.random() < chances.get("slow_sink", 0.0):
                self.counts.add("slow sink")
                self.loop.sleep(self.random.uniform(0.1, 2.0))
            if attempt < 2 and self.random.random() < chances.get("attempt_dies", 0.0):
                self.counts.add("attempt of a task died")
                if isinstance(batches, Generator):
                    batches.close()
                return None
        return found
