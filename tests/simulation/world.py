"""One seed: a system, a storm of faults, then calm; and what was seen of it."""

import gc
import hashlib
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from random import Random
from typing import Final
from unittest.mock import patch

from dcp.lake.config.flow_control_settings import FlowControlSettings
from dcp.lake.config.settings import RoundSettings, Settings, SourceSettings
from dcp.lake.receive.source_access import SourceAccess, source_access
from tests.simulation.client_shell import SteppedReader
from tests.simulation.delta_tables import TablesInMemory, tables_behind
from tests.simulation.driver import Crew
from tests.simulation.faults import Counts, Options, Run
from tests.simulation.injection import injected
from tests.simulation.network import Network
from tests.simulation.oracle import Oracle
from tests.simulation.relaying import RelayInFolder
from tests.simulation.source import Source
from tests.simulation.virtual_loop import Incident, VirtualLoop

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
            with injected(self.network, self._fork()), patch.dict(os.environ, PASSWORD):
                return self._run()
        except Exception as error:
            raise BrokenPromiseError(self._report(error)) from error
        finally:
            self.loop.finish()

    def _run(self) -> Run:
        options, loop = self.options, self.loop
        self.source = Source(loop, options, self._fork(), self.counts, self.seed)
        cluster = self.source.cluster
        cluster.start()
        self.tables = TablesInMemory(options.vbuckets, loop.time)
        self.oracle = Oracle(self.tables, cluster, self.counts)
        self.source.complete_seqnos = self.oracle.published
        self.oracle.largest_frame_bytes = options.value_bytes + 400
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
        self.crew = Crew(loop, self.tables, access, settings, options, self._fork(), self.counts)
        try:
            with tables_behind(lambda: self.tables), self._readers_checked():
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
            self.tables.round,
            len(self.tables.versions) - 1,
            self._digest.hexdigest(),
            self.counts.happened,
        )

    def _settings(self, seeds: tuple[str, ...]) -> Settings:
        options = self.options
        return Settings(
            source=SourceSettings(
                seeds=seeds,
                username=USER,
                allow_plain=not options.scram,
                noop_interval_seconds=1.0,
                connect_timeout_seconds=3.0,
                bootstrap_timeout_seconds=3.0,
            ),
            flow_control=FlowControlSettings(
                window_bytes=options.window_bytes,
                batch_bytes=max(1024, options.window_bytes // 4),
                batch_seconds=0.05,
                ack_seconds=0.2,
            ),
            round=RoundSettings(
                quiet_seconds=0.2,
                node_deadline_seconds=4.0,
                target_bytes=options.target_bytes,
                target_seconds=10.0,
            ),
        )

    def _access(self, direct: SourceAccess) -> Callable[[], SourceAccess]:
        if self.relay is None:
            return lambda: direct
        behind = replace(direct, seeds=tuple(self.relay.seeds))
        return lambda: behind

    @contextmanager
    def _readers_checked(self) -> Iterator[None]:
        before = SteppedReader.on_turn
        SteppedReader.on_turn = staticmethod(self.oracle.check_reader)
        try:
            yield
        finally:
            SteppedReader.on_turn = before

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
        tables, chances = self.tables, self.options.driver
        old = [each for each in range(1, len(tables.versions)) if each not in tables.unreadable]
        for name in ("restore", "clean"):
            if old and self.random.random() < chances.get(name, 0.0):
                before = tables.cleaned_round
                getattr(tables, name)(self.random.choice(old))
                if name == "restore" or tables.cleaned_round != before:
                    self.counts.add("table restored" if name == "restore" else "log cleaned")

    def _calm(self) -> None:
        self._is_calm = self.crew.is_calm = True
        self.network.calm()
        self.source.calm()
        self.note("calm")
        if self.relay is not None:
            self.relay.start_again()
        deadline = self.loop.time() + CALM_SECONDS
        while self.crew.run() or self.oracle.lacks():
            if self.loop.time() >= deadline:
                lack = self.oracle.lacks() or "a driver that always finds work"
                raise AssertionError(f"P6: {CALM_SECONDS:.0f} s after the last fault: {lack}")
            self.loop.sleep(_PAUSE_SECONDS)
        self.oracle.check_version(self.tables.versions[-1])

    def _report(self, error: Exception) -> str:
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
