"""One seed: a system, a storm of faults, then calm; and what was seen of it."""

import gc
import hashlib
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Final
from unittest.mock import patch

import dcp.lake.apply.applier
from dcp.errors import DcplakeError
from dcp.lake.apply.merge_plan import RowBudget
from dcp.lake.config.filter_settings import FilterSettings
from dcp.lake.config.flow_control_settings import FlowControlSettings
from dcp.lake.config.settings import (
    INSTALLED_SUITE,
    ApplySettings,
    PolicySettings,
    QualitySettings,
    RoundSettings,
    Settings,
    SourceSettings,
)
from dcp.lake.maintain.cleaning import clean
from dcp.lake.maintain.work import MaintenanceWork
from dcp.lake.receive.source_access import SourceAccess, query_cluster, source_access
from dcp.lake.run.persistence_gate import PersistenceGate
from dcp.lake.tables.history import WHOLE, history
from dcp.lake.tables.horizon import Horizon, version_at
from dcp.lake.tables.lake_tables import replicas_in
from tests.lake.watched_lake import WatchedLake, WrongCommitError
from tests.simulation.checked import rows_checked
from tests.simulation.client_shell import SteppedReader
from tests.simulation.crew import Crew, steps_told
from tests.simulation.faults import Counts, Options, Run
from tests.simulation.injection import injected
from tests.simulation.network import Network
from tests.simulation.operators import Operators
from tests.simulation.oracle import Oracle
from tests.simulation.relaying import RelayInFolder
from tests.simulation.source import Source
from tests.simulation.typed import Contracts
from tests.simulation.virtual_loop import EPOCH_SECONDS, Incident, VirtualLoop

USER: Final = "Administrator"
PASSWORD: Final = {"DCPLAKE_PASSWORD": "password"}
"""The environment in which drivers, tasks and the relay find it."""
CALM_SECONDS: Final = 120.0
"""Within so much time after the last fault all must be read and published."""
_PAUSE_SECONDS: Final = 0.3


class BrokenPromiseError(AssertionError):
    """A promise was broken; says in which seed, and how to see it again."""


class Simulation:
    """Everything of one seed. Use it once."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.random = Random(seed)
        self.options = Options.drawn(self.random)
        self.counts = Counts()
        self.loop = VirtualLoop()
        self._digest = hashlib.sha256()
        self.network = Network(self.loop, self._fork(), self.options.network, self.counts)
        self.network.trace = self.note
        self.loop.disk_seconds = partial(self._fork().uniform, 0.0, 0.01)
        self.log: list[str] = []
        self._is_calm = False

    def _fork(self) -> Random:
        return Random(self.random.getrandbits(64))

    def note(self, what: str, data: bytes = b"") -> None:
        """Let something be part of the trace."""
        self._digest.update(f"{self.loop.time():.9f} {what} {len(data)} ".encode() + data)

    # --- the run

    def run(self) -> Run:
        """Run the seed.

        Raises:
            BrokenPromiseError: a promise was broken.
        """
        try:
            with (
                injected(self.network, self._fork()),
                patch.dict(os.environ, PASSWORD),
                ExitStack() as stack,
            ):
                return self._run(stack)
        except (Exception, WrongCommitError) as error:
            raise BrokenPromiseError(self._report(error)) from error
        finally:
            self.loop.finish()

    def _now(self) -> datetime:
        return datetime.fromtimestamp(EPOCH_SECONDS + self.loop.time(), UTC)

    def _run(self, stack: ExitStack) -> Run:
        options, loop = self.options, self.loop
        self.source = Source(loop, options, self._fork(), self.counts, self.seed)
        cluster = self.source.cluster
        cluster.start()
        self.lake = WatchedLake(options.vbuckets, self._now)
        self.oracle = Oracle(self.lake, cluster, self.counts)
        self.source.published = self.oracle.published
        self.oracle.largest_frame_bytes = options.value_bytes + 400
        self.oracle.persist_to = options.persist_to
        self.oracle.has_gate = options.gate
        stack.enter_context(rows_checked(partial(self.counts.add, "apply held by the gate")))
        if options.contracts:
            folder = Path(stack.enter_context(TemporaryDirectory()))
            self.oracle.contracts = Contracts(folder, self._fork(), options.contracts)
        settings = self._settings(tuple(cluster.seeds))
        direct = source_access(settings)
        self.relay = None
        if options.relay:
            self.relay = RelayInFolder(
                cluster,
                self.network,
                settings.source.credentials(),
                self._fork(),
                self.counts,
                self.seed,
            )
            self.relay.start()
        access = self._access(direct)
        uuid = query_cluster(direct).map.bucket_uuid
        self.crew = Crew(
            loop, self.lake, (access, uuid), settings, options, self._fork(), self.counts
        )
        self.crew.contracts = self.oracle.contracts
        horizon = patch.object(Horizon, "of_hours", lambda _: Horizon(options.horizon_seconds))
        self.operators = Operators(
            lambda: self.lake.open(uuid), self.lake, options, self._fork(), self.counts
        )
        budget = patch.object(dcp.lake.apply.applier, "ROW_BUDGET", RowBudget(options.apply_rows))
        gate = patch.object(PersistenceGate, "lets_pass", self._gate(PersistenceGate.lets_pass))
        try:
            with steps_told(self.crew.reached), self._readers_checked(), horizon, budget, gate:
                self._storm()
                self._calm()
        finally:
            if self.relay is not None:
                self.relay.close()
        cluster.stop()
        return self.result()

    def result(self) -> Run:
        """Return what came of it so far."""
        return Run(
            self.seed,
            self.loop.time(),
            self.loop.turns,
            self.lake.round,
            sum(each.commit.is_apply for each in self.lake.versions),
            self._digest.hexdigest(),
            self.counts.happened,
        )

    def _settings(self, seeds: tuple[str, ...]) -> Settings:
        options, contracts = self.options, self.oracle.contracts
        return Settings(
            source=SourceSettings(
                seeds=seeds,
                username=USER,
                allow_plain=not options.scram,
                noop_interval_seconds=1.0,
                connect_timeout_seconds=3.0,
                bootstrap_timeout_seconds=3.0,
            ),
            apply=ApplySettings(
                when=options.apply_when,
                pending_fraction=0.3,
                age_seconds=1.0,
                contracts_folder=str(contracts.folder) if contracts else "",
            ),
            filter=FilterSettings(since="now" if options.starts_now else ""),
            quality=QualitySettings(gate=INSTALLED_SUITE if options.gate else ""),
            policy=PolicySettings(persist_to=options.persist_to),
            flow_control=FlowControlSettings(
                window_bytes=options.window_bytes,
                batch_bytes=max(1024, options.window_bytes // 4),
                batch_seconds=0.05,
                ack_seconds=0.2,
            ),
            round=RoundSettings(
                tasks=options.tasks,
                minimum_interval_seconds=_PAUSE_SECONDS,
                quiet_seconds=0.2,
                node_deadline_seconds=4.0,
                target_bytes=options.target_bytes,
                target_seconds=10.0,
            ),
        )

    def _access(self, direct: SourceAccess) -> Callable[[], SourceAccess]:
        if self.relay is None:
            return lambda: direct
        source = replace(direct.source, seeds=tuple(self.relay.seeds))
        behind = replace(direct, source=source)
        return lambda: behind

    def _gate(self, lets_pass: Callable[..., bool]) -> Callable[..., bool]:
        """Count the applies that the gate holds back."""

        def counted(gate: PersistenceGate, *asked: int, waits: bool) -> bool:
            may = lets_pass(gate, *asked, waits=waits)
            self.counts.add("apply held back", not may)
            return may

        return counted

    @contextmanager
    def _readers_checked(self) -> Iterator[None]:
        before = SteppedReader.on_turn
        SteppedReader.on_turn = staticmethod(self.oracle.check_reader)
        try:
            yield
        finally:
            SteppedReader.on_turn = staticmethod(before)

    # --- storm and calm

    def _storm(self) -> None:
        for _ in range(3):  # so that there is something to lose
            self.source.write()
            self.crew.run()
        self._again(self.source.write, self.options.writes_per_second)
        for name, rate in self.options.rates.items():
            self._again(partial(self._fault, name), rate)
        until = self.loop.time() + self.options.storm_seconds
        while self.loop.time() < until:
            self.crew.run()
            self._meddle()
            self.operators.ask()
            self.loop.sleep(self.random.uniform(0.0, 2 * _PAUSE_SECONDS))

    def _again(self, incident: Incident, rate: float) -> None:
        def then() -> None:
            if not self._is_calm:
                incident()
                self._again(incident, rate)

        self.loop.incident_at(self.loop.time() + self.random.expovariate(rate), then)

    def _fault(self, name: str) -> None:
        self.note(name)
        self.log.append(f"{self.loop.time():.3f} {name}")
        match name:
            case "cut":
                self.network.cut_one()
            case "half_open":
                self.network.half_open_one()
            case "relay_crash" if self.relay is not None:
                self.relay.crash(keeps_data=True)
            case "relay_disk_loss" if self.relay is not None:
                self.relay.crash(keeps_data=False)
            case "relay_cut" if self.relay is not None:
                self.relay.cut_upstream()
            case _:
                getattr(self.source, name)()

    def _meddle(self) -> None:
        """Let somebody take the table back, or maintenance clean the log."""
        lake, chances = self.lake, self.options.driver
        old = [
            each.current.version
            for each in lake.versions[1:]
            if each.current.version not in lake.unreadable
        ]
        if old and self.random.random() < chances.get("restore", 0.0):
            lake.docs.restore(self.random.choice(old))
            self.counts.add("table restored")
        if old and self.random.random() < chances.get("clean", 0.0):
            self._clean(self.random.uniform(0.0, 3.0))

    def _clean(self, kept_seconds: float) -> None:
        """Do what `maintain` does once versions are older than the horizon."""
        lake = self.lake.open(self.crew.bucket_uuid)
        kept = Horizon(kept_seconds)
        now = self.lake.now()
        work = MaintenanceWork(lake, replicas_in(lake), kept, kept, now)
        if any(report.done for report in clean(work)):
            self.counts.add("log cleaned")
        oldest = version_at(history(self.lake.docs, WHOLE), kept.start(now))
        if oldest is not None:
            self.lake.unreadable.update(range(oldest.version))

    def _calm(self) -> None:
        self._is_calm = self.crew.is_calm = True
        self.network.calm()
        self.source.calm()
        self.note("calm")
        if self.relay is not None:
            self.relay.start_again()
        self.operators.calm()
        deadline = self.loop.time() + CALM_SECONDS
        while lack := self._lack():
            if self.loop.time() >= deadline:
                raise AssertionError(f"P6: {CALM_SECONDS:.0f} s after the last fault: {lack}")
            self.loop.sleep(_PAUSE_SECONDS)
        self.oracle.check_version(self.lake.versions[-1])
        self.operators.count()
        for table in (self.lake.docs, self.lake.changes):
            commits = history(table, WHOLE)
            self.counts.add("heartbeat", sum(each.is_heartbeat for each in commits))

    def _lack(self) -> str:
        """Let a bounded run do all that is left; say what is still not done."""
        done = self.lake.round, len(self.lake.versions)
        try:
            self.crew.finish(CALM_SECONDS)
        except DcplakeError as error:
            return str(error)
        if done != (self.lake.round, len(self.lake.versions)):
            return self.oracle.lacks() or "a driver that always finds work"
        return self.oracle.lacks()

    def _report(self, error: BaseException) -> str:
        found = [str(error) or type(error).__name__, f"options: {self.options}"]
        found.append("faults: " + "; ".join(self.log[-40:]))
        if hasattr(self, "crew"):
            found.append("driver: " + " | ".join(self.crew.errors[-10:]))
        found.append(f"repeat it with: .venv/bin/python -m tests.simulation {self.seed}")
        return "\n".join(found)


def run_seed(seed: int) -> Run:
    """Run one seed, and leave nothing behind."""
    logged = logging.root.manager.disable
    logging.disable(logging.CRITICAL)  # thousands of lost connections
    gc.disable()
    try:
        return Simulation(seed).run()
    finally:
        gc.enable()
        logging.disable(logged)
