"""What goes on in the background of a cluster: it is begun again when it fails, and says so."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

_LOG = logging.getLogger(__name__)
FIRST_WAIT_SECONDS: Final = 0.02
LONGEST_WAIT_SECONDS: Final = 1.0


async def keep_running(name: str, work: Callable[[], Awaitable[None]]) -> None:
    """Do ``work`` until it returns or is cancelled; what fails is logged and begun again.

    Soon at first and, while it goes on failing at once, with longer waits.
    """
    loop = asyncio.get_running_loop()
    wait_seconds = FIRST_WAIT_SECONDS
    while True:
        begun = loop.time()
        try:
            return await work()
        except Exception:
            _LOG.exception("%s failed; it begins again", name)
        if loop.time() - begun > LONGEST_WAIT_SECONDS:
            wait_seconds = FIRST_WAIT_SECONDS
        await asyncio.sleep(wait_seconds)
        wait_seconds = min(2 * wait_seconds, LONGEST_WAIT_SECONDS)


def log_failure(name: str) -> Callable[[asyncio.Task[None]], None]:
    """Return a done callback: a task that is over, and failed, says so."""

    def done(task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            _LOG.error("%s failed", name, exc_info=error)

    return done
