"""Polls answers that wait for copies or for the disk, in the event loop."""

import asyncio
from collections.abc import Callable
from threading import RLock
from typing import Final, Protocol

from dcp.server.model.listeners import Listeners

_PAUSE_SECONDS: Final = 0.01


class Board(Protocol):
    """A holder of answers that wait; ``on_pending`` is called when there may be one more."""

    on_pending: Listeners[[]]

    @property
    def has_pending(self) -> bool:
        """True if an answer waits."""

    def check(self) -> None:
        """Give the answers that can be given now."""


class WaitWatch:
    """Made in the loop that runs it; ``call_soon`` runs a function in that loop from any thread."""

    def __init__(
        self,
        board: Board,
        lock: RLock,
        call_soon: Callable[[Callable[[], None]], None],
    ) -> None:
        """``board`` is used with ``lock`` held."""
        self._board = board
        self._lock = lock
        self._is_wanted = asyncio.Event()
        self._is_wanted.set()
        self._call_soon = call_soon

    async def run(self) -> None:
        """Let what waits go on, for ever; what ``check`` raises is raised, and may be again."""
        self._board.on_pending.add(self._wake)
        try:
            while True:
                await self._is_wanted.wait()
                with self._lock:
                    self._board.check()
                    if not self._board.has_pending:
                        self._is_wanted.clear()
                await asyncio.sleep(_PAUSE_SECONDS)
        finally:
            self._board.on_pending.remove(self._wake)

    def _wake(self) -> None:
        self._call_soon(self._is_wanted.set)
