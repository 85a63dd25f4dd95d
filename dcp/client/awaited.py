"""Lets a thread wait for events. The reader thread gives it those events, not the queue."""

from collections.abc import Collection
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import Generic, TypeVar

from dcp.errors import DcplakeError, NodeUnavailableError
from dcp.protocol.events import Event

E = TypeVar("E", bound=Event)


class Awaited(Generic[E]):
    """An event of one kind that a thread waits for; with ``vbuckets``, one event of each."""

    def __init__(self, kind: type[E], vbuckets: Collection[int] = ()) -> None:
        self._kind = kind
        self._vbuckets = vbuckets
        self._missing = set(vbuckets)
        self._events: list[E] = []
        self._future: Future[list[E]] = Future()

    def wait(self, timeout_seconds: float, what: str) -> list[E]:
        """Return the events. Later ones go to the next waiting thread, or to the queue.

        Raises:
            NodeUnavailableError: they did not come in time; the message names ``what``.
            DcplakeError: the error that ended the connection meanwhile.
        """
        try:
            return self._future.result(timeout_seconds)
        except FutureTimeoutError:
            raise NodeUnavailableError(f"waited {timeout_seconds:.1f} s for {what}") from None
        finally:
            self._future.cancel()

    # --- for the reader thread

    @property
    def is_over(self) -> bool:
        """True if nobody waits any longer."""
        return self._future.done()

    def take(self, event: Event) -> bool:
        """Accept ``event`` if the thread waits for it; return whether it does."""
        if self.is_over or not isinstance(event, self._kind):
            return False
        if self._vbuckets:
            vbucket = getattr(event, "vbucket", None)
            if vbucket not in self._missing:
                return False
            self._missing.discard(vbucket)
        self._events.append(event)
        if not self._missing and self._future.set_running_or_notify_cancel():
            self._future.set_result(self._events)
        return True

    def fail(self, error: DcplakeError) -> None:
        """End the wait with ``error``."""
        if not self.is_over and self._future.set_running_or_notify_cancel():
            self._future.set_exception(error)
