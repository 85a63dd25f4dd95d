"""Runs the background tasks of a cluster: restarts those that fail, and logs the failure.

Also logs failures of tasks whose results are not awaited, and failures at their end: each once.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from typing import Any, Final

_LOG = logging.getLogger(__name__)
FIRST_WAIT_SECONDS: Final = 0.02
LONGEST_WAIT_SECONDS: Final = 1.0


async def keep_running(name: str, work: Callable[[], Awaitable[None]]) -> None:
    """Do ``work`` until it returns or is cancelled; a failure is logged, and it starts again.

    Soon at first and, while it goes on failing at once, with longer waits.
    """
    loop = asyncio.get_running_loop()
    wait_seconds = FIRST_WAIT_SECONDS
    while True:
        begun = loop.time()
        try:
            return await work()
        except Exception:
            task = asyncio.current_task()
            if task is not None and task.cancelling():  # it failed as it ended
                raise
            _LOG.exception("%s failed; it begins again", name)
        if loop.time() - begun > LONGEST_WAIT_SECONDS:
            wait_seconds = FIRST_WAIT_SECONDS
        await asyncio.sleep(wait_seconds)
        wait_seconds = min(2 * wait_seconds, LONGEST_WAIT_SECONDS)


async def ended(
    name: str, *tasks: asyncio.Future[Any], expected: tuple[type[Exception], ...] = ()
) -> None:
    """Return when cancelled tasks have ended; log the failure of one that failed.

    ``expected`` are errors that are not logged.
    """
    for result in await asyncio.gather(*tasks, return_exceptions=True):
        if isinstance(result, Exception) and not isinstance(result, expected):
            _LOG.error("%s failed as it ended", name, exc_info=result)


def log_failure(name: str) -> Callable[[asyncio.Future[Any] | Future[Any]], None]:
    """Return a done callback that logs the failure of a task."""

    def done(task: asyncio.Future[Any] | Future[Any]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            _LOG.error("%s failed", name, exc_info=error)

    return done
