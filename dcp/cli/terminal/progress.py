"""Progress of long work: a bar on a terminal, anywhere else a line now and then."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic
from typing import Final

from dcp.cli.terminal.output import say

_TELL_SECONDS: Final = 10.0
"""How often progress is told where there is no terminal."""

Advance = Callable[[int], object]
"""Tells a progress display that so many more units are done."""


@contextmanager
def progress(title: str, total: int, unit: str) -> Iterator[Advance]:
    """Show progress with a rate."""
    done = 0
    begun = told = monotonic()

    def count(more: int) -> None:
        nonlocal done
        done += more

    def count_and_tell(more: int) -> None:
        nonlocal told
        count(more)
        now = monotonic()
        if now - told >= _TELL_SECONDS:
            told = now
            say(f"{title}: {done:,} of {total:,} {unit}, {rate(done, now - begun)}")

    if sys.stderr.isatty():
        from dcp.cli.terminal.bar import TerminalBar

        with TerminalBar(
            title, total, lambda: (done, f"{unit}, {rate(done, monotonic() - begun)}")
        ):
            yield count
    else:
        yield count_and_tell
        say(f"{title}: {done:,} {unit}, {rate(done, monotonic() - begun)}")


def rate(count: int, seconds: float) -> str:
    """Return how many that is in a second, in words."""
    return f"{count / max(seconds, 0.001):,.0f} a second"
