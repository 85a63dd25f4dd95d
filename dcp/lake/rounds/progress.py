"""Reports the progress of a round: two counters of each task, in a file of its own.

Only for tasks on this machine (a local master): others could not write where the driver reads. What
is shown decides nothing; a file that cannot be read counts as 0.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory


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
