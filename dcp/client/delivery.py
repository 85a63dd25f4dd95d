"""Passes events from reader threads to the application, with one receipt for their bytes.

    state      take    give     release
    QUEUED     TAKEN   -        RELEASED
    TAKEN      -       GIVEN    RELEASED
    GIVEN      -       -        RELEASED
    RELEASED   -       -        -

``-`` changes nothing: a second release is no mistake, nor is one whose connection is gone. Each
step moves counters of the windows that the delivery occupies (``dcp/protocol/window.py``).

The queue has no bound of its own because what fills it has one: it holds ``received - taken`` of
each connection, whose reader stops reading at its limit (``reader.py``).
"""

import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from time import monotonic

from dcp.client.addresses import NodeAddress
from dcp.errors import DcplakeError, LocalProtocolError
from dcp.protocol.events import Event
from dcp.protocol.position import Position
from dcp.protocol.window import Charge, FlowControl, Window


class ReceiptState(Enum):
    """The stage of a delivery's bytes."""

    QUEUED = auto()
    TAKEN = auto()
    GIVEN = auto()
    RELEASED = auto()


class Receipt:
    """The bytes of one delivery, in the connection's window and in those of its streams.

    Any thread of the application may call its methods.
    """

    __slots__ = ("_flow", "_lock", "_on_release", "charges", "state")

    def __init__(
        self,
        charges: tuple[Charge, ...],
        flow: FlowControl,
        lock: threading.Lock,
        on_release: Callable[[bool], None],
    ) -> None:
        """``lock`` is the connection's. ``on_release`` gets whether the reader is needed at
        once.
        """
        self.charges = charges
        self.state = ReceiptState.QUEUED
        self._flow = flow
        self._lock = lock
        self._on_release = on_release

    @property
    def windows(self) -> list[Window]:
        """The windows in which the delivery occupies bytes."""
        return [window for window, _ in self.charges]

    def take(self) -> None:
        """Note that the application has taken the delivery out of the queue."""
        with self._lock:
            if self.state is ReceiptState.QUEUED:
                self._step(ReceiptState.TAKEN)

    def give(self) -> None:
        """Note that the sink has its rows."""
        with self._lock:
            if self.state is ReceiptState.TAKEN:
                self._step(ReceiptState.GIVEN)

    def release(self) -> None:
        """Note that the application is done with it: its bytes may be acknowledged."""
        with self._lock:
            if self.state is ReceiptState.RELEASED:
                return
            if self.state is ReceiptState.QUEUED:
                self._step(ReceiptState.TAKEN)
            if self.state is ReceiptState.TAKEN:
                self._step(ReceiptState.GIVEN)
            self.state = ReceiptState.RELEASED
            is_due = self._flow.release(self.charges)
        self._on_release(is_due)

    def _step(self, state: ReceiptState) -> None:
        self.state = state
        for window, frame_bytes in self.charges:
            if state is ReceiptState.TAKEN:
                window.take(frame_bytes)
            else:
                window.give(frame_bytes)


@dataclass(frozen=True, slots=True, eq=False)
class Delivery:
    """Events of one received block, in order, with their bytes and the positions after them.

    ``positions`` has the vbuckets that moved; a position may be stored once the rows are stored.
    ``node`` and ``receipt`` are None if the consumer itself reports something.
    """

    node: NodeAddress | None
    events: Sequence[Event]
    receipt: Receipt | None = None
    frame_bytes: int = 0
    positions: Mapping[int, Position] = field(default_factory=dict)
    connection_name: str = ""

    def take(self) -> None:
        if self.receipt is not None:
            self.receipt.take()

    def release(self) -> None:
        """Note that the application is done with it. Further calls change nothing."""
        if self.receipt is not None:
            self.receipt.release()


@dataclass(frozen=True, slots=True, eq=False)
class ConnectionEnded:
    """The last entry of a connection: the error that ended it; None if our side closed it."""

    connection_name: str
    node: NodeAddress
    error: DcplakeError | None


class DeliveryQueue:
    """A queue from any number of reader threads to one application thread, in order of arrival."""

    def __init__(self) -> None:
        self._entries: deque[Delivery | ConnectionEnded] = deque()
        self._changed = threading.Condition()
        self._closed = False

    def put(self, entry: Delivery | ConnectionEnded) -> None:
        """Append ``entry``. Entries after ``close`` are dropped."""
        with self._changed:
            if not self._closed:
                self._entries.append(entry)
                self._changed.notify()

    def get(self, timeout_seconds: float) -> Delivery | ConnectionEnded | None:
        """Return the next entry; None if none came in time (0 only looks).

        Raises:
            LocalProtocolError: the queue is closed, or another thread closed it meanwhile.
        """
        deadline = monotonic() + timeout_seconds
        with self._changed:
            while not self._entries and not self._closed:
                left = deadline - monotonic()
                if left <= 0:
                    return None
                self._changed.wait(left)
            if self._closed:
                raise LocalProtocolError("next() on a consumer or connection that was closed")
            return self._entries.popleft()

    def holds(self, connection_name: str | None) -> bool:
        """Return whether an entry of a connection is queued; None: of any connection."""
        with self._changed:
            return any(connection_name in (None, each.connection_name) for each in self._entries)

    def close(self) -> None:
        """Drop the queued entries and wake up the waiting thread; from any thread."""
        with self._changed:
            self._closed = True
            self._entries.clear()
            self._changed.notify_all()
