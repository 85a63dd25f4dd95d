"""How far the tasks of a round are, for a progress bar: a number for each, in a file of its own.

Only for tasks on this machine (a local master): others could not write where the driver reads. What
a bar shows decides nothing; a file that cannot be read counts as 0.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory


@dataclass(frozen=True, slots=True)
class RoundProgress:
    """Seqnos that each task of a round has handed to Spark, as files in ``folder``."""

    folder: str

    def note(self, task: int, seqnos: int) -> None:
        """Write down how far a task is; a repeated task begins anew."""
        written = Path(self.folder) / f"{task}.new"
        written.write_text(str(seqnos))
        written.replace(Path(self.folder) / f"{task}.task")

    def seqnos(self) -> int:
        """Return how far all tasks are."""
        total = 0
        for file in Path(self.folder).glob("*.task"):
            try:
                total += int(file.read_text())
            except (OSError, ValueError):
                continue
        return total


@contextmanager
def round_progress(*, is_local: bool) -> Iterator[RoundProgress | None]:
    """Make a place for a round's progress, and remove it after; None where tasks are elsewhere."""
    if not is_local:
        yield None
        return
    with TemporaryDirectory(prefix="dcplake-progress-", ignore_cleanup_errors=True) as folder:
        yield RoundProgress(folder)
