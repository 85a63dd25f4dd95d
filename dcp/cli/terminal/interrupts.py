"""Ends a command that SIGTERM or SIGINT interrupts: soon, with a line and an exit code.

The interrupt is a KeyboardInterrupt in the main thread. It can be lost there (Python ignores what
is raised in a destructor, as Py4J has them), and what cleans up can hang on a JVM. So a command
that goes on after some seconds is ended from another thread.
"""

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

from dcp.cli.terminal.logs import log_end

INTERRUPTED: Final = 128 + signal.SIGINT
"""The exit code, whichever the signal was."""

_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
_END_SECONDS: Final = 15.0
"""How long an interrupted command may clean up."""


@contextmanager
def interruptible(program: str, *, as_json: bool) -> Iterator[None]:
    """Let both signals interrupt what is within, also those that were blocked and waited.

    Outside the main thread nothing is done.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end() -> None:
        log_end(program, "stopped", INTERRUPTED, as_json=as_json)
        sys.stdout.flush()
        os._exit(INTERRUPTED)

    ending = threading.Timer(_END_SECONDS, end)
    ending.daemon = True

    def interrupt(_: int, __: FrameType | None) -> None:
        if ending.ident is None:
            ending.start()
        raise KeyboardInterrupt

    before = {each: signal.signal(each, interrupt) for each in _SIGNALS}
    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
        yield
    finally:
        ending.cancel()
        for each, handler in before.items():
            signal.signal(each, handler)


def end_at_once(exit_code: int) -> None:
    """Let signals end the process with this code from here on: its work is done, it only exits."""
    for each in _SIGNALS:
        signal.signal(each, lambda _, __: os._exit(exit_code))
