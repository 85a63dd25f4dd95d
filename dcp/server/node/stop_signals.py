"""Lets a server end in good order on SIGTERM or SIGINT, instead of being interrupted.

The signals are noted by handlers and not blocked: threads that were started before (those of NumPy)
do not block them, and the one that gets a signal would interrupt the main thread all the same.
"""

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

_STOPS: Final = (signal.SIGTERM, signal.SIGINT)
_LOOK_SECONDS: Final = 0.2


@contextmanager
def stop_signals() -> Iterator[Callable[[], bool]]:
    """Give a function that waits a little for a signal, and returns whether one has come.

    Call it from the main thread.
    """
    come: list[int] = []
    before = {each: signal.signal(each, lambda number, _: come.append(number)) for each in _STOPS}

    def wait_for_stop() -> bool:
        if not come:
            time.sleep(_LOOK_SECONDS)
        return bool(come)

    try:
        yield wait_for_stop
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
