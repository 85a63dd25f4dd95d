"""The asyncio edge of answers that wait, for copies or for the disk: looks again and again."""

import asyncio
from collections.abc import Callable, Sequence
from threading import RLock
from typing import Final, Protocol

_PAUSE_SECONDS: Final = 0.01


class Board(Protocol):
    """What has answers that wait; ``on_pending`` is to be called when there may be one more."""

    on_pending: Callable[[], None]

    @property
    def has_pending(self) -> bool:
        """Whether any answer waits."""

    def check(self) -> None:
        """Give the answers that can be given now."""


class WaitWatch:
    """Made in the loop that runs it; ``call_soon`` runs a function in that loop from any thread."""

    def __init__(
        self,
        boards: Sequence[Board],
        lock: RLock,
        call_soon: Callable[[Callable[[], None]], None],
    ) -> None:
        """``boards`` are used with ``lock`` held."""
        self._boards = boards
        self._lock = lock
        self._is_wanted = asyncio.Event()
        self._is_wanted.set()
        for board in boards:
            board.on_pending = lambda: call_soon(self._is_wanted.set)

    async def run(self) -> None:
        """Let what waits go on, for ever."""
        while True:
            await self._is_wanted.wait()
            with self._lock:
                for board in self._boards:
                    board.check()
                if not any(board.has_pending for board in self._boards):
                    self._is_wanted.clear()
            await asyncio.sleep(_PAUSE_SECONDS)
