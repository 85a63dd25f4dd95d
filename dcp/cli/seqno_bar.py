"""A bar of the seqnos that streams have read, redrawn by a thread of its own while Spark works."""

from threading import Event, Thread
from typing import Final

from tqdm import tqdm

from dcp.lake.progress import RoundProgress

_TICK_SECONDS: Final = 0.5


class SeqnoBar:
    """One bar at a time.

    Where the tasks are on other machines, nothing is known until they are done: then a line tells
    the backlog and the time.
    """

    def __init__(self) -> None:
        """Show nothing yet."""
        self._stop = Event()
        self._ticker: Thread | None = None

    def show(self, name: str, told: str, seqnos: int, progress: RoundProgress | None) -> None:
        """Show a bar called ``name``; ``told`` is added where there is no progress to show."""
        bar = tqdm(
            desc=f"{name}: {told}" if progress is None else name,
            total=seqnos,
            unit=" seqnos",
            bar_format="{desc}, {elapsed}" if progress is None else None,
            leave=False,
        )
        self._stop = Event()
        self._ticker = Thread(target=_tick, args=(bar, progress, self._stop), daemon=True)
        self._ticker.start()

    def take_away(self) -> None:
        """Remove the bar; harmless where there is none."""
        self._stop.set()
        if self._ticker is not None:
            self._ticker.join()
            self._ticker = None


def _tick(bar: "tqdm[None]", progress: RoundProgress | None, stop: Event) -> None:
    while not stop.wait(_TICK_SECONDS):
        if progress is not None:
            bar.n = min(progress.seqnos(), bar.total or 0)  # writes go on meanwhile
        bar.refresh()
    bar.close()
