import asyncio
from collections.abc import Callable
from threading import RLock
from typing import Final, Protocol

from dcp.server.model.listeners import Listeners

_PAUSE_SECONDS: Final = 0.01


class Board(Protocol):
    """Answers that wait for copies or for the disk.

    ``on_pending`` is called when a wait begins.
    """

    on_pending: Listeners[[]]

    @property
    def has_pending(self) -> bool: ...

    def check(self) -> None:
        """Send all answers that are decided."""


class WaitWatch:
    """Polls a board while answers wait; create it in the loop that runs it."""

    def __init__(
        self,
        board: Board,
        lock: RLock,
        call_soon: Callable[[Callable[[], None]], None],
    ) -> None:
        """``call_soon`` runs a function in the loop from any thread; ``board`` needs ``lock``."""
        self._board = board
        self._lock = lock
        self._is_wanted = asyncio.Event()
        self._is_wanted.set()
        self._call_soon = call_soon

    async def run(self) -> None:
        """Poll until cancelled; errors of ``check`` end it, and it can run again."""
        self._board.on_pending.add(self._wake)
        try:
            while True:
                await self._is_wanted.wait()
                with self._lock:
                    self._board.check()
                    if not self._board.has_pending:
                        self._is_wanted.clear()
                # Waits pile up meanwhile and are checked together.
                await asyncio.sleep(_PAUSE_SECONDS)
        finally:
            self._board.on_pending.remove(self._wake)

    def _wake(self) -> None:
        self._call_soon(self._is_wanted.set)
