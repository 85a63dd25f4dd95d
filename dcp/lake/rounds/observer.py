"""The callbacks of a run: the command line prints them, tests collect them."""

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from dcp.lake.log.applied import AppliedVersion
    from dcp.lake.rounds.backfill_report import BackfillReport
    from dcp.lake.rounds.progress import RoundProgress
    from dcp.lake.rounds.round_plan import Idle, RoundPlan
    from dcp.lake.rounds.round_report import RoundReport

NEXT_ROUND: Final = "the next round"
"""What a run waits for when all is well."""

PAUSED: Final = "dcplake resume"
"""What it waits for while it is paused; by whom is said behind it."""


class Observer:
    """Base class of run observers: does nothing on each step. Methods must return quickly.

    ``applied`` is called by the threads that apply, the others by the thread that runs rounds;
    ``waiting`` by both.
    """

    def planned(self, plan: "RoundPlan", progress: "RoundProgress | None") -> None:
        """Called when a round begins; ``progress`` reads its progress, where that is known."""

    def committed(self, report: "RoundReport") -> None:
        """Called when a round is durable."""

    def idle(self, idle: "Idle") -> None:
        """Called when there is nothing to stream."""

    def backfill(self, report: "BackfillReport") -> None:
        """Called before each round of a backfill."""

    def applied(self, version: "AppliedVersion") -> None:
        """Called when a replica table has a new version."""

    def waiting(self, seconds: float, reason: str) -> None:
        """Called when the run waits, with the reason."""

    def ended(self) -> None:
        """Called when a round has failed, and when the run is over, however it ended."""
