"""How far streams are, told by a thread of its own while Spark works: a bar, or lines in a log."""

from collections.abc import Callable
from contextlib import suppress
from threading import Event, Thread
from time import monotonic
from typing import Any, Final

from tqdm import tqdm

from dcp.cli.output import say
from dcp.lake.log.progress import Done, RoundProgress

_TICK_SECONDS: Final = 0.5
_TELL_SECONDS: Final = 10.0


class SeqnoBar:
    """One bar at a time, for a terminal.

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
        self._begin(lambda stop: _tick(bar, progress, stop))

    def take_away(self) -> None:
        """Remove the bar; harmless where there is none."""
        self._stop.set()
        if self._ticker is not None:
            self._ticker.join()
            self._ticker = None

    def _begin(self, work: Callable[[Event], None]) -> None:
        self._stop = Event()
        self._ticker = Thread(target=work, args=(self._stop,), daemon=True)
        self._ticker.start()


class SeqnoLines(SeqnoBar):
    """The same as a line every ten seconds, for a log; none where the tasks are elsewhere."""

    def show(self, name: str, told: str, seqnos: int, progress: RoundProgress | None) -> None:
        """Begin to tell how far ``name`` is."""
        if progress is not None:
            self._begin(lambda stop: _tell(name, seqnos, progress, stop))


def _tick(bar: "tqdm[Any]", progress: RoundProgress | None, stop: Event) -> None:
    begin = monotonic()
    while not stop.wait(_TICK_SECONDS):
        if progress is not None:
            done = progress.done()
            bar.n = min(done.seqnos, bar.total or 0)  # writes go on meanwhile
            bar.set_postfix_str(_megabytes(done, monotonic() - begin), refresh=False)
        bar.refresh()
    bar.close()


def _tell(name: str, seqnos: int, progress: RoundProgress, stop: Event) -> None:
    begin = monotonic()
    while not stop.wait(_TELL_SECONDS):
        done, seconds = progress.done(), monotonic() - begin
        a_second = done.seqnos / seconds
        to_go = seqnos - done.seqnos  # none where writes go on meanwhile
        of = f" of {seqnos:,}" if to_go > 0 else ""
        left = f", {to_go / a_second:,.0f} s left" if to_go > 0 and a_second else ""
        with suppress(BrokenPipeError):  # the command's own next line ends it
            say(
                f"{name}: {done.seqnos:,}{of} seqnos, {a_second:,.0f} a second, "
                f"{_megabytes(done, seconds)}{left}"
            )


def _megabytes(done: Done, seconds: float) -> str:
    return f"{done.frame_bytes / 1e6 / seconds:,.1f} MB/s"
