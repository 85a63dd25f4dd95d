"""Runs the applies of a continuous run in their own thread, while the run receives rounds.

While an apply runs, only the newest submitted round is kept for the next one.
"""

import logging
from collections.abc import Callable
from threading import Condition
from types import TracebackType

from dcp.threads import in_thread

_LOGGER = logging.getLogger(__name__)


class ApplyThread:
    """Applies in its own thread while its context is open.

    Leaving the context waits until the submitted rounds are applied. After an error, it calls
    ``leave_the_rest``, which makes ``apply`` end early, and waits for that.
    """

    def __init__(
        self, apply: Callable[[int], object], leave_the_rest: Callable[[], object]
    ) -> None:
        self._apply = apply
        self._leave_the_rest = leave_the_rest
        self._changed = Condition()  # guards the three attributes below
        self._wanted: int | None = None
        self._is_busy = False
        self._is_leaving = False

    def __enter__(self) -> "ApplyThread":
        self._end = in_thread(self._work)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        failure: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Wait for the thread, unless an interrupt ends the process."""
        with self._changed:
            self._is_leaving = True
            if failure is not None:
                self._wanted = None
            self._changed.notify()
        if failure is None:
            self._end.result()
            return
        self._leave_the_rest()
        if isinstance(failure, Exception):  # a KeyboardInterrupt waits for nothing
            another = self._end.exception()
            if another is not None and another is not failure:
                _LOGGER.warning("an apply failed, too: %s", another)

    def is_busy(self) -> bool:
        with self._changed:
            return self._is_busy or self._wanted is not None

    def check(self) -> None:
        if self._end.done():
            self._end.result()

    def submit(self, to_round: int) -> None:
        self.check()
        with self._changed:
            self._wanted = to_round
            self._changed.notify()

    def _work(self) -> None:
        while (to_round := self._next()) is not None:
            self._apply(to_round)

    def _next(self) -> int | None:
        with self._changed:
            self._is_busy = False
            while self._wanted is None:
                if self._is_leaving:
                    return None
                self._changed.wait()
            to_round, self._wanted = self._wanted, None
            self._is_busy = True
            return to_round
