"""What a reader thread hands to the application, and the queue between them.

The queue itself has no bound because its producer has one: what waits here is in the account
``handover`` of its connection (``reader_credits.py``), whose reader stops reading when it is full.
"""

import threading
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from time import monotonic

from dcp.client.addresses import NodeAddress
from dcp.errors import DcplakeError, LocalProtocolError
from dcp.protocol.events import Event
from dcp.protocol.position import Position


@dataclass(frozen=True, slots=True, eq=False)
class Delivery:
    """Events of one received block, in order, and the bytes to release when they were handed on.

    ``positions`` says where each vbucket that the events touch stands behind them: what may be
    stored once their rows are. ``node`` is None where the consumer itself reports something.
    ``connection_name`` and ``serial`` make releasing exact and idempotent. ``stream_bytes`` is what
    of ``frame_bytes`` is in the windows of single streams, by the opaques of that connection; where
    streams have no windows, nothing.
    """

    node: NodeAddress | None
    events: Sequence[Event]
    frame_bytes: int = 0
    positions: Mapping[int, Position] = field(default_factory=dict)
    connection_name: str = ""
    serial: int = 0
    stream_bytes: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class ConnectionEnded:
    """The last entry of a connection: why it ended; None where we closed it."""

    connection_name: str
    node: NodeAddress
    error: DcplakeError | None


class Handover:
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
        """Whether something of a connection is queued; None: of any."""
        with self._changed:
            return any(connection_name in (None, each.connection_name) for each in self._entries)

    def close(self) -> None:
        """Drop what is queued and wake up whoever waits; may be called from any thread."""
        with self._changed:
            self._closed = True
            self._entries.clear()
            self._changed.notify_all()
