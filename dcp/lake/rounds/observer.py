"""The callbacks of a run, which the command line prints and tests collect."""

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
    """The progress of streams: passed seqnos, and bytes received on the wire."""

    seqnos: int = 0
    frame_bytes: int = 0


@dataclass(frozen=True, slots=True)
class RoundProgress:
    """The progress of a round's tasks, also of those that have ended.

    The task board cannot tell it: a task leaves the board with its end, and no decision (here: the
    health of a run) may depend on the board.
    """

    folder: str

    def note(self, task: int, done: StreamProgress) -> None:
        written = Path(self.folder) / f"{task}.new"
        written.write_text(f"{done.seqnos} {done.frame_bytes}")
        # `total` runs in another process: the rename shows it whole files only.
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
    """Make a folder for a round's progress, and remove it later; None if tasks run elsewhere."""
    if not is_local:
        yield None
        return
    with TemporaryDirectory(prefix="dcplake-progress-", ignore_cleanup_errors=True) as folder:
        yield RoundProgress(folder)


@dataclass(frozen=True, slots=True)
class Wait:
    """The wait of a run until its next pass."""

    reason: str
    is_trouble: bool
    """False if the run is well as long as it waits."""


NEXT_ROUND: Final = Wait("the next round", is_trouble=False)
ERASURE: Final = Wait("an apply to end, before an erasure", is_trouble=False)


class Observer:
    """Base class of run observers; its methods do nothing. Methods must return quickly.

    The applying threads call ``applied``; the thread that runs rounds calls the other methods. Both
    call ``waiting``.
    """

    def planned(self, plan: "RoundPlan", progress: "RoundProgress | None") -> None:
        """A round begins; ``progress`` reads how far its tasks are, if they run on this machine."""

    def committed(self, report: "RoundReport") -> None:
        """A round is durable."""

    def idle(self, idle: "Idle") -> None: ...

    def backfill(self, report: "BackfillReport") -> None:
        """A round with a part of this backfill comes next."""

    def applied(self, version: "AppliedVersion") -> None: ...

    def erased(self, request_id: str, detail: str) -> None: ...

    def waiting(self, seconds: float, wait: Wait) -> None: ...

    def ended(self) -> None:
        """A round has failed, or the run is over for any reason."""
