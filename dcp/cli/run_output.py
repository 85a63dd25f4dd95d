"""What a run prints while it goes on: lines and bars for a person, JSON for a machine."""

import sys
from dataclasses import asdict
from threading import Event, Thread
from typing import Final

from tqdm import tqdm

from dcp.cli.output import say, say_json
from dcp.lake.applied import AppliedVersion
from dcp.lake.observer import Observer
from dcp.lake.plan import Idle, RoundPlan
from dcp.lake.round import RoundReport


class PlainObserver(Observer):
    """Prints one line per step."""

    def committed(self, report: RoundReport) -> None:
        """Print what a round brought."""
        say(str(report))

    def applied(self, version: AppliedVersion) -> None:
        """Print what an apply changed."""
        say(f"applied: {version}")

    def idle(self, idle: Idle) -> None:
        """Print that there is nothing to do."""
        say(str(idle))

    def waiting(self, seconds: float, reason: str) -> None:
        """Say nothing: a quiet bucket should not fill a log."""


_TICK_SECONDS: Final = 0.5


class BarObserver(PlainObserver):
    """The same lines, and while a round is under way a bar with its backlog and its time."""

    def __init__(self) -> None:
        self._stop = Event()
        self._ticker: Thread | None = None

    def planned(self, plan: RoundPlan) -> None:
        """Show the round's bar; the rows fill it when they are durable."""
        backlog = sum(task.backlog for task in plan.tasks)
        bar = tqdm(total=backlog, desc=f"round {plan.round}", unit="rows", leave=False)
        self._stop = Event()
        self._ticker = Thread(target=_tick, args=(bar, self._stop), daemon=True)
        self._ticker.start()

    def committed(self, report: RoundReport) -> None:
        """Take the bar away and print what the round brought."""
        self._stop.set()
        if self._ticker is not None:
            self._ticker.join()
        super().committed(report)


def _tick(bar: "tqdm[None]", stop: Event) -> None:
    while not stop.wait(_TICK_SECONDS):
        bar.refresh()
    bar.close()


def observer_for_people() -> PlainObserver:
    """Return the observer for a person: with bars where there is a terminal."""
    return BarObserver() if sys.stderr.isatty() else PlainObserver()


class JsonObserver(Observer):
    """Prints one JSON object per step."""

    def planned(self, plan: RoundPlan) -> None:
        """Print the plan."""
        say_json({"event": "planned", **plan.to_json()})

    def committed(self, report: RoundReport) -> None:
        """Print what a round brought."""
        say_json({"event": "committed", **report.to_json()})

    def applied(self, version: AppliedVersion) -> None:
        """Print what an apply changed."""
        say_json({"event": "applied", **asdict(version)})

    def idle(self, idle: Idle) -> None:
        """Print that there is nothing to do."""
        say_json({"event": "idle", **idle.to_json()})

    def waiting(self, seconds: float, reason: str) -> None:
        """Print what the run waits for."""
        say_json({"event": "waiting", "seconds": round(seconds, 3), "for": reason})
