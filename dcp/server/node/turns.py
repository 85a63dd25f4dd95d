"""Schedules connections in small turns, since all of a process share one loop.

In one iteration of the loop no more than ``ITERATION_FRAMES`` requests are acted on, of all
connections together, and none is begun after ``ITERATION_SECONDS``. Who comes with something new
has a turn before or right after one of those that still have more of what they said before: so a
client that asks now and then is answered soon, however many others flood us, and however much they
said at once (``fq_codel`` of Linux serves new flows first for the same reason).
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

ITERATION_FRAMES: Final = 32
ITERATION_SECONDS: Final = 0.002

Turn = Callable[[int, float], int]
"""Acts on at most so many requests, on no second one after that time; returns on how many."""
_Waiting = tuple[Turn, "asyncio.Future[int]"]


class Turns:
    """The connections that wait to act on what they received. For one loop, in its thread."""

    def __init__(self) -> None:
        self._new: deque[_Waiting] = deque()
        self._going_on: deque[_Waiting] = deque()
        self._is_new_next = True
        self._is_round_due = False

    async def take(self, turn: Turn, *, is_new: bool) -> int:
        """Do ``turn`` when it may be done, and return what it returns, or raise what it raises.

        ``is_new``: it is the first one for what was received.
        """
        loop = asyncio.get_running_loop()
        done: asyncio.Future[int] = loop.create_future()
        (self._new if is_new else self._going_on).append((turn, done))
        if not self._is_round_due:
            self._is_round_due = True
            loop.call_soon(self._round, loop)
        return await done

    def _round(self, loop: asyncio.AbstractEventLoop) -> None:
        left, end = ITERATION_FRAMES, loop.time() + ITERATION_SECONDS
        while left > 0 and (self._new or self._going_on):
            turn, done = self._next()
            if done.done():  # its connection is over
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
        self._is_round_due = bool(self._new or self._going_on)
        if self._is_round_due:
            loop.call_soon(self._round, loop)

    def _next(self) -> _Waiting:
        """Return one that is new and one that goes on by turns, where there are both."""
        first, second = self._new, self._going_on
        if not self._is_new_next:
            first, second = second, first
        queue = first or second
        self._is_new_next = queue is not self._new
        return queue.popleft()
