import asyncio
from collections.abc import Callable
from functools import partial
from threading import RLock
from typing import Final, Protocol

from dcp.server.model.listeners import Listeners

_PAUSE_SECONDS: Final = 0.01


class Board(Protocol):
    """Answers that wait for replicas or for the disk.

    ``on_pending`` is called when a wait begins.
    """

    on_pending: Listeners[[]]

    @property
    def has_pending(self) -> bool: ...

    def check(self) -> None:
        """Send all answers that are decided."""


async def watch_waits(
    board: Board, lock: RLock, call_soon: Callable[[Callable[[], None]], None]
) -> None:
    """Poll a board while answers wait, until cancelled.

    ``call_soon`` runs a function in the loop from any thread; ``board`` needs ``lock``.
    """
    is_wanted = asyncio.Event()
    is_wanted.set()
    wake = partial(call_soon, is_wanted.set)
    board.on_pending.add(wake)
    try:
        while True:
            await is_wanted.wait()
            with lock:
                board.check()
                if not board.has_pending:
                    is_wanted.clear()
            # Waits pile up meanwhile and are checked together.
            await asyncio.sleep(_PAUSE_SECONDS)
    finally:
        board.on_pending.remove(wake)
