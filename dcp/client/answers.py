"""Lets a thread wait for one event. The reader thread gives it that event, not the queue."""

import threading
from collections.abc import Collection
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import Generic, TypeVar

from dcp.errors import DcplakeError, NodeUnavailableError
from dcp.protocol.events import Event, FailoverLogReceived, PersistenceReceived

E = TypeVar("E", bound=Event)


class Awaited(Generic[E]):
    """An event of one kind that a thread waits for."""

    def __init__(self, kind: type[E]) -> None:
        self._kind = kind
        self.future: Future[E] = Future()

    def take(self, event: Event) -> bool:
        """Accept ``event`` if the thread waits for it; return whether it does."""
        if self.future.done() or not isinstance(event, self._kind):
            return False
        self.future.set_result(event)
        return True


V = TypeVar("V", bound=FailoverLogReceived | PersistenceReceived)


class AwaitedOfVbuckets(Awaited[V]):
    """One event of each of several vbuckets, requested together. The last one ends the wait."""

    def __init__(self, kind: type[V], vbuckets: Collection[int]) -> None:
        """``vbuckets`` must not be empty."""
        super().__init__(kind)
        self._missing = set(vbuckets)
        self.events: list[V] = []

    def take(self, event: Event) -> bool:
        if not isinstance(event, self._kind) or event.vbucket not in self._missing:
            return False
        self._missing.discard(event.vbucket)
        self.events.append(event)
        if not self._missing:
            self.future.set_result(event)
        return True


class AnswerBoard:
    """The events that threads wait for, in the order of their questions."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: list[Awaited[Event]] = []
        self._ended: DcplakeError | None = None

    def add(self, awaited: Awaited[E]) -> None:
        """Register a wait. Raises the error that ended the connection, if it has ended."""
        with self._lock:
            if self._ended is not None:
                raise self._ended
            self._waiting.append(awaited)  # type: ignore[arg-type]  # Awaited only reads events

    def wait(self, awaited: Awaited[E], timeout_seconds: float, what: str) -> E:
        """Return the event.

        Raises:
            NodeUnavailableError: it did not come in time; the message names ``what``.
            DcplakeError: the error that ended the connection meanwhile.
        """
        try:
            return awaited.future.result(timeout_seconds)
        except FutureTimeoutError:
            raise NodeUnavailableError(f"waited {timeout_seconds:.1f} s for {what}") from None
        finally:
            self.forget(awaited)

    def forget(self, awaited: Awaited[E]) -> None:
        """Stop waiting. The event will go to the next waiting thread, or to the queue."""
        with self._lock:
            self._waiting = [each for each in self._waiting if each is not awaited]

    def sift(self, events: list[Event]) -> list[Event]:
        """Give events to the waiting threads; return the others."""
        with self._lock:
            if not self._waiting:
                return events
            return [event for event in events if not self._give(event)]

    def fail(self, error: DcplakeError) -> None:
        """End all present and future waits with ``error``."""
        with self._lock:
            self._ended = error
            for awaited in self._waiting:
                if not awaited.future.done():
                    awaited.future.set_exception(error)

    def _give(self, event: Event) -> bool:
        return any(awaited.take(event) for awaited in self._waiting)
