"""Prints the progress of a run: lines and bars for people, JSON for machines."""

from collections.abc import Mapping
from contextlib import ExitStack
from datetime import UTC, datetime
from time import monotonic
from typing import TYPE_CHECKING, Final

from dcp.cli.displays.seqno_progress import seqno_display
from dcp.cli.terminal.output import say, say_json
from dcp.lake.rounds.backfill_plan import BackfillReport
from dcp.lake.rounds.observer import NEXT_ROUND, Observer, RoundProgress, Wait
from dcp.lake.rounds.round_plan import Idle, RoundPlan
from dcp.lake.rounds.round_report import RoundReport
from dcp.lake.tables.applied_version import AppliedVersion
from dcp.records import plain

if TYPE_CHECKING:
    from dcp.lake.config.settings import Settings
    from dcp.lake.run.driver import RunReport

_AGAIN_SECONDS: Final = 60.0


class _Repeated:
    """Something that may be said over and over, and is told when it is news."""

    def __init__(self) -> None:
        self._told = ""
        self._told_at = 0.0

    def is_news(self, text: str, *, again: bool) -> bool:
        """Return whether to print it: it changed, or (``again``) was last printed a while ago."""
        now = monotonic()
        if text == self._told and not (again and now >= self._told_at + _AGAIN_SECONDS):
            return False
        self._told, self._told_at = text, now
        return True


class PlainObserver(Observer):
    """Prints one line per step, and of a long round how far it is."""

    def __init__(self) -> None:
        self._shown = ExitStack()
        self._idle = _Repeated()
        self._trouble = _Repeated()
        self._backfill = _Repeated()

    def planned(self, plan: RoundPlan, progress: RoundProgress | None) -> None:
        """Show the round under way."""
        backlog = sum(task.backlog for task in plan.tasks)
        told = f"{len(plan.streams)} vbuckets, {backlog:,} seqnos behind"
        self._shown.enter_context(seqno_display(f"round {plan.round}", told, backlog, progress))

    def committed(self, report: RoundReport) -> None:
        """Print what a round brought."""
        self.ended()
        say(str(report))

    def ended(self) -> None:
        """Tell no more of a round, also where it failed."""
        self._shown.close()

    def backfill(self, report: BackfillReport) -> None:
        """Print how far a backfill is."""
        if self._backfill.is_news(str(report), again=False):
            say(str(report))

    def applied(self, version: AppliedVersion) -> None:
        """Print what an apply changed."""
        say(f"applied: {version}")

    def erased(self, request_id: str, detail: str) -> None:
        """Print the result of an erasure."""
        say(f"erased, request {request_id}: {detail}")

    def idle(self, idle: Idle) -> None:
        """Print that there is nothing to do: once, and what is left out again now and then."""
        if self._idle.is_news(str(idle), again=bool(idle.left_out)):
            say(str(idle))

    def waiting(self, seconds: float, wait: Wait) -> None:
        """Tell of a cluster out of reach; of the usual wait nothing, it would only fill a log."""
        if wait == NEXT_ROUND:
            self._trouble = _Repeated()
        elif self._trouble.is_news("out of reach", again=True):
            say(f"waiting for {wait.reason}")


def replicate_aloud(title: str, settings: "Settings") -> "RunReport":
    """Replicate once, telling a person of each step under a title."""
    from dcp.lake.run.replicate import run

    say()
    say(f"{title}:")
    return run(settings, once=True, observer=PlainObserver())


class JsonObserver(Observer):
    """Prints one JSON object per step, with its time."""

    def planned(self, plan: RoundPlan, progress: RoundProgress | None) -> None:
        """Print the plan."""
        say_event("planned", plan.to_json())

    def committed(self, report: RoundReport) -> None:
        """Print what a round brought."""
        say_event("committed", report.to_json())

    def backfill(self, report: BackfillReport) -> None:
        """Print how far a backfill is."""
        say_event("backfill", report.to_json())

    def applied(self, version: AppliedVersion) -> None:
        """Print what an apply changed."""
        say_event("applied", plain(version))

    def erased(self, request_id: str, detail: str) -> None:
        """Print the result of an erasure."""
        say_event("erased", {"id": request_id, "detail": detail})

    def idle(self, idle: Idle) -> None:
        """Print that there is nothing to do."""
        say_event("idle", idle.to_json())

    def waiting(self, seconds: float, wait: Wait) -> None:
        """Print what the run waits for."""
        say_event("waiting", {"seconds": round(seconds, 3), "for": wait.reason})


def say_event(event: str, fields: Mapping[str, object]) -> None:
    """Print one step as a JSON object, with its time."""
    now = datetime.now(UTC).isoformat(timespec="milliseconds")
    say_json({"time": now, "event": event, **fields})
