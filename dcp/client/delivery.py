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
    """The stage at which the bytes of a delivery are."""

    QUEUED = auto()
    TAKEN = auto()
    GIVEN = auto()
    RELEASED = auto()


class Receipt:
    """The bytes of one delivery: one connection's, and where streams have windows, those of each.

    Its methods are the application's; any thread may call them.
    """

    __slots__ = ("_flow", "_lock", "_on_release", "charges", "state")

    def __init__(
        self,
        charges: tuple[Charge, ...],
        flow: FlowControl,
        lock: threading.Lock,
        on_release: Callable[[bool], None],
    ) -> None:
        """``lock`` is of the connection; ``on_release`` hears whether its reader is needed now."""
        self.charges = charges
        self.state = ReceiptState.QUEUED
        self._flow = flow
        self._lock = lock
        self._on_release = on_release

    @property
    def windows(self) -> list[Window]:
        """The windows that it occupies a part of."""
        return [window for window, _ in self.charges]

    def take(self) -> None:
        """Note that the application has taken the delivery out of the queue."""
        with self._lock:
            if self.state is ReceiptState.QUEUED:
                self._step(ReceiptState.TAKEN)

    def give(self) -> None:
        """Note that its rows are given to the sink."""
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
    """Events of one received block, in order, with positions behind them and their bytes.

    ``positions`` has the vbuckets that moved: what may be stored once their rows are. ``node`` and
    ``receipt`` are None where the consumer itself reports something.
    """

    node: NodeAddress | None
    events: Sequence[Event]
    receipt: Receipt | None = None
    frame_bytes: int = 0
    positions: Mapping[int, Position] = field(default_factory=dict)
    connection_name: str = ""

    def take(self) -> None:
        """Note that the application has it."""
        if self.receipt is not None:
            self.receipt.take()

    def release(self) -> None:
        """Note that the application is done with it, once; again changes nothing."""
        if self.receipt is not None:
            self.receipt.release()


@dataclass(frozen=True, slots=True, eq=False)
class ConnectionEnded:
    """The last entry of a connection: why it ended; None where we closed it."""

    connection_name: str
    node: NodeAddress
    error: DcplakeError | None


class DeliveryQueue:
    """A queue from any number of reader threads to one application thread, in order of arrival."""

    def __init__(self) -> None:
        """Start empty and open."""
        self._entries: deque[Delivery | ConnectionEnded] = deque()
        self._changed = threading.Condition()
        self._closed = False

    def put(self, entry: Delivery | ConnectionEnded) -> None:
        """Append ``entry``; what arrives after ``close`` is dropped."""
        with self._changed:
            if not self._closed:
                self._entries.append(entry)
                self._changed.notify()

    def get(self, timeout_seconds: float) -> Delivery | ConnectionEnded | None:
        """Return the next entry; None when none came within the time (0 only looks).

        Raises:
            LocalProtocolError: the queue is closed, or was closed by another thread meanwhile.
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
        """Drop what is queued and wake up whoever waits; may be called from any thread."""
        with self._changed:
            self._closed = True
            self._entries.clear()
            self._changed.notify_all()
