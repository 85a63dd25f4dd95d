"""The callbacks of a run: the command line prints them, tests collect them."""

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from dcp.lake.rounds.backfill_report import BackfillReport
    from dcp.lake.rounds.progress import RoundProgress
    from dcp.lake.rounds.round_plan import Idle, RoundPlan
    from dcp.lake.rounds.round_report import RoundReport
    from dcp.lake.tables.applied_version import AppliedVersion

NEXT_ROUND: Final = "the next round"
"""A run waits for this when all is well."""

PAUSED: Final = "dcplake resume"
"""A paused run waits for this; the pauser's name follows."""


class Observer:
    """Base class of run observers: does nothing on each step. Methods must return quickly.

    The threads that apply call ``applied``, the thread that runs rounds calls the others; both call
    ``waiting``.
    """

    def planned(self, plan: "RoundPlan", progress: "RoundProgress | None") -> None:
        """A round begins; ``progress``, if known, reads its progress."""

    def committed(self, report: "RoundReport") -> None:
        """A round is durable."""

    def idle(self, idle: "Idle") -> None: ...

    def backfill(self, report: "BackfillReport") -> None:
        """A round of a backfill comes next."""

    def applied(self, version: "AppliedVersion") -> None: ...

    def waiting(self, seconds: float, reason: str) -> None:
        """The run waits."""

    def ended(self) -> None:
        """A round has failed, or the run is over, however it ended."""
