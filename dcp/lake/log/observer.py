"""What a run tells while it goes on; the command line prints it, tests collect it."""

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from dcp.lake.log.applied import AppliedVersion
    from dcp.lake.log.progress import RoundProgress
    from dcp.lake.log.round_plan import Idle, RoundPlan
    from dcp.lake.log.round_report import RoundReport

NEXT_ROUND: Final = "the next round"
"""What a run waits for when all is well."""


class Observer:
    """Hears of each step of a run; this one ignores all. Methods must return quickly.

    ``applied`` is called by the threads that apply, the others by the one that runs the rounds.
    """

    def planned(self, plan: "RoundPlan", progress: "RoundProgress | None") -> None:
        """Hear that a round begins; ``progress`` tells how far it is, where that is known."""

    def committed(self, report: "RoundReport") -> None:
        """Hear that a round is durable."""

    def idle(self, idle: "Idle") -> None:
        """Hear that there is nothing to stream."""

    def applied(self, version: "AppliedVersion") -> None:
        """Hear that a replica table has a new version."""

    def waiting(self, seconds: float, reason: str) -> None:
        """Hear that the run waits, and what for."""

    def ended(self) -> None:
        """Hear that the run is over, however it ended."""
