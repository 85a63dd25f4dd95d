"""Progress of long work: a bar on a terminal, anywhere else a line now and then.

Both are told by a thread of their own, which looks how much is done.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from threading import Event, Thread
from time import monotonic
from typing import Final

from dcp.cli.terminal.output import say

_TELL_SECONDS: Final = 10.0

Look = Callable[[], tuple[int, str]]
"""Says how much is done, and what else there is to tell of it."""


def display(title: str, total: int | None, unit: str, look: Look) -> AbstractContextManager[object]:
    """Return a context that shows this progress; where the total is not known, the time alone."""
    if sys.stderr.isatty():
        from dcp.cli.terminal.bar import TerminalBar

        return TerminalBar(title, total, unit, look)
    return nullcontext() if total is None else _log_lines(title, total, unit, look)


@contextmanager
def progress(title: str, total: int, unit: str) -> Iterator[Callable[[int], None]]:
    """Show progress, with a line at the end; yields what is called with how many more are done."""
    done = 0
    begun = monotonic()

    def advance(count: int) -> None:
        nonlocal done
        done += count

    with display(title, total, unit, lambda: (done, "")):
        yield advance
    say(f"{title}: {done:,} {unit}, {rate(done, monotonic() - begun)}")


def rate(count: int, seconds: float) -> str:
    """Return how many that is in a second, in words."""
    return f"{count / max(seconds, 0.001):,.0f} a second"


@contextmanager
def _log_lines(title: str, total: int, unit: str, look: Look) -> Iterator[None]:
    """Print a line every ten seconds, with the time that is left."""
    stopped = Event()
    teller = Thread(target=_tell, args=(stopped, title, total, unit, look), daemon=True)
    teller.start()
    try:
        yield
    finally:
        stopped.set()
        teller.join()


def _tell(stopped: Event, title: str, total: int, unit: str, look: Look) -> None:
    begun = monotonic()
    while not stopped.wait(_TELL_SECONDS):
        done, told = look()
        seconds = monotonic() - begun
        to_go = total - done  # none where more comes meanwhile
        of = f" of {total:,}" if to_go > 0 else ""
        left = f"{to_go * seconds / done:,.0f} s left" if to_go > 0 and done else ""
        parts = [f"{title}: {done:,}{of} {unit}", rate(done, seconds), told, left]
        with suppress(BrokenPipeError):  # the command's own next line ends it
            say(", ".join(part for part in parts if part))
