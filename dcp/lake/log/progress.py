"""How far the tasks of a round are, for a person to see: two numbers of each, in a file of its own.

Only for tasks on this machine (a local master): others could not write where the driver reads. What
is shown decides nothing; a file that cannot be read counts as 0.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory


@dataclass(frozen=True, slots=True)
class Done:
    """Seqnos that vbuckets have moved on, and the bytes on the wire that brought it."""

    seqnos: int = 0
    frame_bytes: int = 0


@dataclass(frozen=True, slots=True)
class RoundProgress:
    """What each task of a round has handed to Spark, as files in ``folder``."""

    folder: str

    def note(self, task: int, done: Done) -> None:
        """Write down how far a task is; a repeated task begins anew."""
        written = Path(self.folder) / f"{task}.new"
        written.write_text(f"{done.seqnos} {done.frame_bytes}")
        written.replace(Path(self.folder) / f"{task}.task")

    def done(self) -> Done:
        """Return how far all tasks are together."""
        seqnos = frame_bytes = 0
        for file in Path(self.folder).glob("*.task"):
            try:
                told = [int(number) for number in file.read_text().split()]
                seqnos, frame_bytes = seqnos + told[0], frame_bytes + told[1]
            except (OSError, ValueError, IndexError):
                continue
        return Done(seqnos, frame_bytes)


@contextmanager
def round_progress(*, is_local: bool) -> Iterator[RoundProgress | None]:
    """Make a place for a round's progress, and remove it after; None where tasks are elsewhere."""
    if not is_local:
        yield None
        return
    with TemporaryDirectory(prefix="dcplake-progress-", ignore_cleanup_errors=True) as folder:
        yield RoundProgress(folder)
