import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

_STOPS: Final = (signal.SIGTERM, signal.SIGINT)
_LOOK_SECONDS: Final = 0.2


@contextmanager
def stop_signals() -> Iterator[Callable[[], bool]]:
    """Yield a function that waits briefly for SIGTERM or SIGINT, and returns True once one came.

    A server can then stop cleanly instead of being interrupted. Call it in the main thread.
    """
    come: list[int] = []
    # Blocking the signals is not enough: NumPy's threads do not block them, and a signal to any
    # thread interrupts the main thread.
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
