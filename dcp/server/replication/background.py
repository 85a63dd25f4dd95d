"""Keeps a cluster's background tasks running, and logs each of their failures once."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from typing import Any, Final

_LOGGER = logging.getLogger(__name__)
FIRST_WAIT_SECONDS: Final = 0.02
LONGEST_WAIT_SECONDS: Final = 1.0


async def keep_running(name: str, work: Callable[[], Awaitable[None]]) -> None:
    """Run ``work`` until it returns or is cancelled; after an error, log it and start again.

    The wait before a restart doubles while ``work`` keeps failing at once.
    """
    loop = asyncio.get_running_loop()
    wait_seconds = FIRST_WAIT_SECONDS
    while True:
        begun = loop.time()
        try:
            return await work()
        except Exception:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            _LOGGER.exception("%s failed and starts again", name)
        # A run that lasted a while counts as healthy, so its next failure restarts it soon.
        if loop.time() - begun > LONGEST_WAIT_SECONDS:
            wait_seconds = FIRST_WAIT_SECONDS
        await asyncio.sleep(wait_seconds)
        wait_seconds = min(2 * wait_seconds, LONGEST_WAIT_SECONDS)


async def ended(
    name: str, *tasks: asyncio.Future[Any], expected: tuple[type[Exception], ...] = ()
) -> None:
    """Wait for cancelled tasks to end, and log each error except those of ``expected``."""
    for result in await asyncio.gather(*tasks, return_exceptions=True):
        if isinstance(result, Exception) and not isinstance(result, expected):
            _LOGGER.error("%s failed while it stopped", name, exc_info=result)


def log_failure(name: str) -> Callable[[asyncio.Future[Any] | Future[Any]], None]:
    """Return a callback for ``add_done_callback``: nobody awaits the task, so it logs the error."""

    def done(task: asyncio.Future[Any] | Future[Any]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            _LOGGER.error("%s failed", name, exc_info=error)

    return done
