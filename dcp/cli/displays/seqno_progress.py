"""Progress of the streams while Spark works."""

from contextlib import AbstractContextManager
from time import monotonic

from dcp.cli.terminal.progress import display
from dcp.lake.rounds.observer import RoundProgress


def seqno_display(
    name: str, backlog: str, seqnos: int, progress: RoundProgress | None
) -> AbstractContextManager[object]:
    """Return a context that shows how far the streams called ``name`` are, of so many seqnos.

    Where the tasks are on other machines there is no progress to show until they are done: then a
    terminal shows the backlog, in words, and the time.
    """
    begun = monotonic()

    def look() -> tuple[int, str]:
        assert progress is not None
        done = progress.total()
        return done.seqnos, f"{done.frame_bytes / 1e6 / (monotonic() - begun):,.1f} MB/s"

    if progress is None:
        return display(f"{name}: {backlog}", None, "seqnos", look)
    return display(name, seqnos, "seqnos", look)
