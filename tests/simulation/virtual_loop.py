"""asyncio's own event loop over a clock that only its timers move: no thread, no socket.

What blocks in the product (a driver, a task of a round) runs above the loop and waits by ``wait``,
which lets the loop go on until what is waited for is there. What happens to the system from outside
(writes, faults) is an ``Incident``: it runs between two turns of the loop, as if of another thread,
and never inside another one.
"""

import asyncio
from asyncio import events
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor
from functools import partial
from typing import Any, Final

_RESOLUTION_SECONDS: Final = 1e-6
EPOCH_SECONDS: Final = 1_700_000_000.0
"""What the wall clock says when a seed begins."""
_MOST_TURNS: Final = 150_000
"""A seed takes some thousand turns; who needs so many goes round and round."""
Incident = Callable[[], None]


class VirtualLoop(asyncio.BaseEventLoop):
    """A loop whose time stands still while it works, and jumps when it is idle."""

    def __init__(self) -> None:
        super().__init__()
        self._now = 0.0
        self._selector = self  # what BaseEventLoop waits by
        self._clock_resolution = _RESOLUTION_SECONDS
        self._incidents: deque[Incident] = deque()
        self._is_in_incident = False
        self.turns = 0
        self.connect: Callable[..., Any] = _nowhere
        """Makes the transport of ``asyncio.open_connection``: given by the network."""
        self.disk_seconds: Callable[[], float] = lambda: 0.0
        """How long the next piece of work takes that is given to a thread: the product's are all of
        its disk."""

    # --- what BaseEventLoop needs

    def time(self) -> float:
        """Seconds since the loop was made."""
        return self._now

    def select(self, timeout: float | None) -> list[Any]:
        """Let the time pass instead of waiting for sockets, of which there are none."""
        if timeout is None:
            raise RuntimeError("deadlock: nothing is ready, and no timer is set")
        self._now += timeout
        return []

    def _process_events(self, _: list[Any]) -> None:
        """Take what ``select`` found: nothing."""

    def _write_to_self(self) -> None:
        """Wake nobody: there is one thread."""

    def run_in_executor(  # type: ignore[override]  # asyncio's own has a coroutine's return type
        self, _: Executor | None, function: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        """Do at a later time what a thread would do meanwhile."""
        done: asyncio.Future[Any] = self.create_future()

        def run() -> None:
            if done.done():
                return
            try:
                done.set_result(function(*args))
            except Exception as error:
                done.set_exception(error)

        self.call_later(self.disk_seconds(), run)
        return done

    async def create_connection(  # type: ignore[override]  # of its many arguments the three we use
        self, protocol_factory: Callable[[], asyncio.Protocol], host: str, port: int, **_: Any
    ) -> tuple[asyncio.Transport, asyncio.Protocol]:
        """Connect over the network in memory."""
        protocol = protocol_factory()
        return await self.connect(protocol, host, port), protocol

    # --- what the simulation runs by

    def incident_at(self, at: float, incident: Incident) -> None:
        """Let something happen to the system then."""
        self.call_at(at, partial(self._incidents.append, incident))

    def wait(self, is_there: Callable[[], object], timeout_seconds: float | None = None) -> bool:
        """Go on until something is there, or the time is over; return whether it is there."""
        timer = None
        deadline = None
        if timeout_seconds is not None:
            deadline = self._now + max(0.0, timeout_seconds)
            timer = self.call_at(deadline, _nothing)
        try:
            while not is_there():
                if deadline is not None and self._now >= deadline:
                    return False
                self.turn()
            return True
        finally:
            if timer is not None:
                timer.cancel()

    def sleep(self, seconds: float) -> None:
        """Let so much time pass."""
        self.wait(bool, seconds)

    def turn(self) -> None:
        """Do what is ready, or let the time pass to the next timer; then incidents."""
        self.turns += 1
        if self.turns == _MOST_TURNS:
            raise AssertionError(f"P6: {_MOST_TURNS} turns, at {self._now:.1f} s: it never ends")
        events._set_running_loop(self)
        try:
            self._run_once()  # type: ignore[attr-defined]  # asyncio has no public step
        finally:
            events._set_running_loop(None)
        if not self._is_in_incident:
            self._is_in_incident = True
            try:
                while self._incidents:
                    self._incidents.popleft()()
            finally:
                self._is_in_incident = False

    @property
    def is_inside(self) -> bool:
        """Whether our caller is called by the loop."""
        return events._get_running_loop() is self

    def finish(self) -> None:
        """Cancel what still runs, and close."""
        events._set_running_loop(self)
        tasks = sorted(asyncio.all_tasks(self), key=lambda task: task.get_name())
        for task in tasks:
            task.cancel()
        events._set_running_loop(None)
        for _ in range(100):
            if all(task.done() for task in tasks):
                break
            self.turn()
        self.close()


def _nothing() -> None:
    """Be a timer whose time is what matters."""


async def _nowhere(*_: Any) -> None:
    raise ConnectionRefusedError("no network")


class VirtualEvent:
    """Stands for ``threading.Event``: who waits for it lets the loop go on."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop, self._is_set = loop, False

    def set(self) -> None:
        """Let those go on who wait."""
        self._is_set = True

    def is_set(self) -> bool:
        """Whether it is set."""
        return self._is_set

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it is set, or the time is over."""
        return self._loop.wait(self.is_set, timeout)
