"""Turns SIGTERM and SIGINT into a stop after the round under way; a second signal stops at once.

While Spark starts no round is under way: then the first one stops at once, too.
"""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

from dcp.lake.spark.session import is_starting

_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


@contextmanager
def stop_on_signals() -> Iterator[threading.Event]:
    """Give an event that the first signal sets; outside the main thread nothing sets it."""
    event = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield event
        return
    before = {each: signal.getsignal(each) for each in _SIGNALS}

    def ask_to_stop(number: int, frame: FrameType | None) -> None:
        event.set()
        handler = before[signal.Signals(number)]
        signal.signal(number, handler)
        if is_starting() and callable(handler):
            handler(number, frame)

    for each in _SIGNALS:
        signal.signal(each, ask_to_stop)
    try:
        yield event
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
