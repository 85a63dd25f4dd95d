"""Lets a thread wait for some events. The reader thread gives it those, not the queue."""

import threading
from collections.abc import Collection
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import Generic, TypeVar

from dcp.errors import DcplakeError, NodeUnavailableError
from dcp.protocol.events import Event

E = TypeVar("E", bound=Event)


class Awaited(Generic[E]):
    """Events of one kind that a thread waits for: one, or one of each vbucket."""

    def __init__(self, kind: type[E], vbuckets: Collection[int | None] = (None,)) -> None:
        """``vbuckets``, at least one, are requested together; None: an event of no vbucket."""
        self._kind = kind
        self._missing = set(vbuckets)
        self._events: list[E] = []
        self.future: Future[list[E]] = Future()

    def take(self, event: Event) -> bool:
        """Accept ``event`` if the thread waits for it; return whether it does."""
        vbucket = getattr(event, "vbucket", None)
        if not isinstance(event, self._kind) or vbucket not in self._missing:
            return False
        self._missing.discard(vbucket)
        self._events.append(event)
        if not self._missing:
            self.future.set_result(self._events)
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

    def wait(self, awaited: Awaited[E], timeout_seconds: float, what: str) -> list[E]:
        """Return the events.

        Raises:
            NodeUnavailableError: they did not come in time; the message names ``what``.
            DcplakeError: the error that ended the connection meanwhile.
        """
        try:
            return awaited.future.result(timeout_seconds)
        except FutureTimeoutError:
            raise NodeUnavailableError(f"waited {timeout_seconds:.1f} s for {what}") from None
        finally:
            self.forget(awaited)

    def forget(self, awaited: Awaited[E]) -> None:
        """Stop waiting. The events will go to the next waiting thread, or to the queue."""
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
