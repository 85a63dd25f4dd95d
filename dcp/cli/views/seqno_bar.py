"""How far streams are while Spark works, as a bar on a terminal."""

from time import monotonic

from rich.progress import Progress

from dcp.cli.terminal.bar import TerminalBar, TerminalClock
from dcp.cli.views.seqno_lines import megabytes_text
from dcp.lake.log.progress import RoundProgress


class SeqnoBar:
    """One bar at a time.

    Where the tasks are on other machines, nothing is known until they are done: then a line tells
    the backlog and the time.
    """

    def __init__(self) -> None:
        """Show nothing yet."""
        self._shown: Progress | None = None

    def show(self, name: str, told: str, seqnos: int, progress: RoundProgress | None) -> None:
        """Show a bar called ``name``; ``told`` is added where there is no progress to show."""
        if progress is None:
            self._shown = TerminalClock(f"{name}: {told}")
        else:
            self._shown = _bar(name, seqnos, progress)
        self._shown.start()

    def take_away(self) -> None:
        """Remove the bar; harmless where there is none."""
        if self._shown is not None:
            self._shown.stop()
            self._shown = None


def _bar(name: str, seqnos: int, progress: RoundProgress) -> TerminalBar:
    begun = monotonic()

    def look() -> tuple[int, str]:
        done = progress.done()
        told = f"seqnos, {megabytes_text(done, monotonic() - begun)}"
        return min(done.seqnos, seqnos), told  # writes go on meanwhile

    return TerminalBar(name, seqnos, look, is_transient=True)
