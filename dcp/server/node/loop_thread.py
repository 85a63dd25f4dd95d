import asyncio
import logging
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from contextlib import suppress
from threading import Event, Thread, get_ident
from typing import Any, Final, TypeVar

from dcp.errors import LocalProtocolError, SourceError
from dcp.server.replication.background import log_failure

_LOGGER = logging.getLogger(__name__)
_START_SECONDS: Final = 30.0
_WAIT_SECONDS: Final = 30.0
T = TypeVar("T")
Work = Coroutine[Any, Any, T]


class LoopThread:
    """An event loop in a thread, which can start and stop repeatedly.

    Any thread may call all methods but ``drained``. ``call`` waits for the work, unless the caller
    is inside the loop: a connection that carries out an order cannot wait for itself.
    """

    def __init__(self, name: str) -> None:
        """``name`` is the thread's, and its name in errors."""
        self._name = name
        self._thread: Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._under_way: set[asyncio.Task[None]] = set()

    @property
    def is_running(self) -> bool:
        return self._loop is not None

    @property
    def is_inside(self) -> bool:
        return self._thread is not None and get_ident() == self._thread.ident

    def start(self, begin: Callable[[], Work[None]]) -> None:
        """Start the loop; return when ``begin`` is done, or raise its error.

        Raises:
            SourceError: it took too long; it was cancelled, and the thread has ended.
        """
        self._loop = loop = asyncio.new_event_loop()
        begun = Event()
        failed: list[BaseException] = []
        beginning = loop.create_task(begin())
        self._thread = Thread(
            target=self._run, args=(loop, beginning, begun, failed), name=self._name, daemon=True
        )
        self._thread.start()
        if not begun.wait(_START_SECONDS):
            with suppress(RuntimeError):  # the loop failed and closed at this instant
                loop.call_soon_threadsafe(beginning.cancel)  # no effect if it is done after all
            if not begun.wait(_WAIT_SECONDS):
                failed.append(asyncio.CancelledError())
        if failed:
            self._join()
            if isinstance(failed[0], asyncio.CancelledError):
                text = f"{self._name}: did not start in {_START_SECONDS:g} seconds"
                raise SourceError(text)
            raise failed[0]

    def _run(
        self,
        loop: asyncio.AbstractEventLoop,
        beginning: asyncio.Task[None],
        begun: Event,
        failed: list[BaseException],
    ) -> None:
        asyncio.set_event_loop(loop)
        try:
            loop.run_until_complete(beginning)
        except (Exception, asyncio.CancelledError) as error:  # ``start`` raises it
            failed.append(error)
        begun.set()
        if not failed:
            loop.run_forever()
        self._loop = None
        loop.close()

    def stop(self, end: Callable[[], Work[None]]) -> None:
        """Run ``end``, log its failure, and end the thread, if it runs."""
        loop = self._loop
        if loop is None:
            return
        try:
            self.call(end())
        except Exception:  # the thread must end in any case
            _LOGGER.exception("%s: did not end cleanly", self._name)
        loop.call_soon_threadsafe(loop.stop)
        self._join()

    def _join(self) -> None:
        if self._thread is not None:
            self._thread.join(_WAIT_SECONDS)
            if self._thread.is_alive():
                _LOGGER.error("%s: has not ended after %g seconds", self._name, _WAIT_SECONDS)
        self._thread = self._loop = None

    def call_soon(self, function: Callable[[], object]) -> None:
        """Call a function in the loop; never if the loop does not run."""
        loop = self._loop
        if loop is not None:
            with suppress(RuntimeError):  # the loop closed at this instant
                loop.call_soon_threadsafe(function)

    def begin(self, work: Work[T]) -> Future[T]:
        """Start work in the loop, from outside.

        Raises:
            LocalProtocolError: the loop does not run.
        """
        return asyncio.run_coroutine_threadsafe(work, self._running_loop(work))

    def call(self, work: Work[None]) -> None:
        """Do work in the loop; return when it is done, or at once if the caller is inside.

        Raises:
            LocalProtocolError: the loop does not run.
            TimeoutError: the work takes over half a minute; it goes on.
        """
        loop = self._running_loop(work)
        if self.is_inside:
            task = loop.create_task(work)
            self._under_way.add(task)
            task.add_done_callback(self._under_way.discard)
            task.add_done_callback(log_failure("an order over the protocol"))
            return
        done = self.begin(work)
        try:
            done.result(_WAIT_SECONDS)
        except TimeoutError:
            if not done.done():  # nobody will read its result
                done.add_done_callback(log_failure("work that took too long"))
            raise

    def _running_loop(self, work: Work[Any]) -> asyncio.AbstractEventLoop:
        loop = self._loop
        if loop is None:
            work.close()
            raise LocalProtocolError(f"{self._name}: does not run")
        return loop

    async def drained(self) -> None:
        """Return when all work ordered from inside is over."""
        if self._under_way:
            await asyncio.wait(self._under_way)


async def now(action: Callable[[], object]) -> None:
    """Make a coroutine of ``action``."""
    action()
