import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

ITERATION_FRAMES: Final = 32
"""Most requests that all connections together handle in one iteration of the loop."""
ITERATION_SECONDS: Final = 0.002
"""No turn begins after this time of an iteration."""

Turn = Callable[[int, float], int]
"""Handles at most so many requests, starts none after that time, and returns their number."""
_Waiting = tuple[Turn, "asyncio.Future[int]"]


class Turns:
    """Schedules connections in small turns, as all of a process share one loop.

    Connections with new requests alternate with those that still handle old ones. A client that
    asks rarely is answered soon, however much others send. (Linux's ``fq_codel`` favours new flows
    alike.)
    """

    def __init__(self) -> None:
        self._new: deque[_Waiting] = deque()
        self._continuing: deque[_Waiting] = deque()
        self._is_new_next = True
        self._is_round_due = False

    async def take(self, turn: Turn, *, is_new: bool) -> int:
        """Run ``turn`` when its turn comes, and return its result or raise its error.

        ``is_new``: it is the first turn for the received bytes.
        """
        loop = asyncio.get_running_loop()
        done: asyncio.Future[int] = loop.create_future()
        (self._new if is_new else self._continuing).append((turn, done))
        if not self._is_round_due:
            self._is_round_due = True
            loop.call_soon(self._round, loop)
        return await done

    def _round(self, loop: asyncio.AbstractEventLoop) -> None:
        left, end = ITERATION_FRAMES, loop.time() + ITERATION_SECONDS
        while left > 0 and (self._new or self._continuing):
            turn, done = self._next()
            if done.done():  # the connection ended while it waited
                continue
            try:
                frames = turn(left, end)
            except Exception as error:
                done.set_exception(error)
                continue
            done.set_result(frames)
            left -= frames
            if loop.time() >= end:
                break
        self._is_round_due = bool(self._new or self._continuing)
        if self._is_round_due:
            loop.call_soon(self._round, loop)

    def _next(self) -> _Waiting:
        """Return a new and an old one alternately, if there are both."""
        first, second = self._new, self._continuing
        if not self._is_new_next:
            first, second = second, first
        queue = first or second
        self._is_new_next = queue is not self._new
        return queue.popleft()
