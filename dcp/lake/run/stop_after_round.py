"""Turns SIGTERM and SIGINT into a stop after the running round; a second signal stops at once.

While Spark starts, the first signal ends the run at once. A JVM that does not answer can hang a
round: after a limit the run sends itself the second signal.
"""

import logging
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from queue import SimpleQueue
from types import FrameType
from typing import Final

from dcp.lake.spark.session import is_starting

_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
_TELL_SECONDS: Final = 1.0
"""A run that ends within this time after a signal logs nothing about it."""
_LOGGER = logging.getLogger(__name__)


@contextmanager
def stop_on_signals(limit_seconds: float) -> Iterator[threading.Event]:
    """Give an event that the first signal sets. Outside the main thread nothing sets it.

    If the block goes on for ``limit_seconds`` after the first signal, the second one follows.
    """
    event = threading.Event()
    main = threading.current_thread()
    if main is not threading.main_thread():
        yield event
        return
    before = {each: signal.getsignal(each) for each in _SIGNALS}
    has_ended = threading.Event()
    # The handler may interrupt whoever holds the lock of an event or of a logger: it takes neither.
    heard: SimpleQueue[int | None] = SimpleQueue()

    def put_back() -> None:
        for each, handler in before.items():
            signal.signal(each, handler)

    def follow() -> None:
        number = heard.get()
        if number is None:
            return
        event.set()
        if has_ended.wait(_TELL_SECONDS):
            return
        _LOGGER.warning(
            "%s: the round or apply under way ends first, within %.0f s; a second signal ends it "
            "at once",
            signal.Signals(number).name,
            limit_seconds,
        )
        if not has_ended.wait(limit_seconds):
            _LOGGER.warning(
                "the round or apply under way did not end within %.0f s of %s: it is given up, the "
                "next run does it again",
                limit_seconds,
                signal.Signals(number).name,
            )
            assert main.ident is not None
            signal.pthread_kill(main.ident, number)  # it ends a wait for an answer of the JVM, too

    def ask_to_stop(number: int, _: FrameType | None) -> None:
        heard.put(number)
        put_back()
        if is_starting():
            signal.raise_signal(number)

    threading.Thread(target=follow, name="dcplake-stop", daemon=True).start()
    for each in _SIGNALS:
        signal.signal(each, ask_to_stop)
    try:
        yield event
    finally:
        has_ended.set()
        heard.put(None)
        put_back()
