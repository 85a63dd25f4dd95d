"""The callbacks of a run: the command line prints them, tests collect them."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from dcp.lake.rounds.backfill_plan import BackfillReport
    from dcp.lake.rounds.round_plan import Idle, RoundPlan
    from dcp.lake.rounds.round_report import RoundReport
    from dcp.lake.tables.applied_version import AppliedVersion


@dataclass(frozen=True, slots=True)
class StreamProgress:
    """The progress of streams: seqnos passed, and bytes received on the wire."""

    seqnos: int = 0
    frame_bytes: int = 0


@dataclass(frozen=True, slots=True)
class RoundProgress:
    folder: str

    def note(self, task: int, done: StreamProgress) -> None:
        written = Path(self.folder) / f"{task}.new"
        written.write_text(f"{done.seqnos} {done.frame_bytes}")
        written.replace(Path(self.folder) / f"{task}.task")

    def total(self) -> StreamProgress:
        seqnos = frame_bytes = 0
        for file in Path(self.folder).glob("*.task"):
            try:
                told = [int(number) for number in file.read_text().split()]
                seqnos, frame_bytes = seqnos + told[0], frame_bytes + told[1]
            except (OSError, ValueError, IndexError):
                continue
        return StreamProgress(seqnos, frame_bytes)


@contextmanager
def round_progress(*, is_local: bool) -> Iterator[RoundProgress | None]:
    """Make a place for a round's progress, and remove it after; None if tasks run elsewhere."""
    if not is_local:
        yield None
        return
    with TemporaryDirectory(prefix="dcplake-progress-", ignore_cleanup_errors=True) as folder:
        yield RoundProgress(folder)


NEXT_ROUND: Final = "the next round"
"""A run waits for this when all is well."""

ERASURE: Final = "an apply to end, before an erasure"

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
