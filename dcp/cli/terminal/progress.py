"""Progress of long work: a bar on a terminal, anywhere else a line now and then.

Both are told by a thread of their own, which looks how much is done.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from threading import Event, Thread
from time import monotonic
from typing import Final, Protocol

from dcp.cli.terminal.output import say

_TELL_SECONDS: Final = 10.0

Look = Callable[[], tuple[int, str]]
"""Says how much is done, and what else there is to tell of it."""


class ProgressDisplay(Protocol):
    """Shows progress from its start until it is stopped."""

    def start(self) -> None:
        """Begin to show it."""

    def stop(self) -> None:
        """Take it away; harmless where it is gone."""


def display(title: str, total: int | None, unit: str, look: Look) -> ProgressDisplay:
    """Return what shows this progress; where the total is not known, the time alone."""
    if sys.stderr.isatty():
        from dcp.cli.terminal.bar import TerminalBar

        return TerminalBar(title, total, unit, look)
    return _LogLines(title, total, unit, look)


@contextmanager
def progress(title: str, total: int, unit: str) -> Iterator[Callable[[int], None]]:
    """Show progress, with a line at the end; yields what is called with how many more are done."""
    done = 0
    begun = monotonic()

    def advance(count: int) -> None:
        nonlocal done
        done += count

    shown = display(title, total, unit, lambda: (done, ""))
    shown.start()
    try:
        yield advance
    finally:
        shown.stop()
    say(f"{title}: {done:,} {unit}, {rate(done, monotonic() - begun)}")


def rate(count: int, seconds: float) -> str:
    """Return how many that is in a second, in words."""
    return f"{count / max(seconds, 0.001):,.0f} a second"


class _LogLines:
    """A line every ten seconds, with the time that is left; none where the total is not known."""

    def __init__(self, title: str, total: int | None, unit: str, look: Look) -> None:
        self._title, self._total, self._unit, self._look = title, total, unit, look
        self._stopped = Event()
        self._teller = Thread(target=self._tell, daemon=True)

    def start(self) -> None:
        self._begun = monotonic()
        self._teller.start()

    def stop(self) -> None:
        self._stopped.set()
        self._teller.join()

    def _tell(self) -> None:
        while self._total is not None and not self._stopped.wait(_TELL_SECONDS):
            done, told = self._look()
            seconds = monotonic() - self._begun
            to_go = self._total - done  # none where more comes meanwhile
            of = f" of {self._total:,}" if to_go > 0 else ""
            left = f"{to_go * seconds / done:,.0f} s left" if to_go > 0 and done else ""
            parts = [f"{self._title}: {done:,}{of} {self._unit}", rate(done, seconds), told, left]
            with suppress(BrokenPipeError):  # the command's own next line ends it
                say(", ".join(part for part in parts if part))
