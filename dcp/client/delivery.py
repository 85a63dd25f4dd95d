"""What a reader thread hands to the application, and the queue between them.

The queue itself has no bound because its producer has one: a node may send only the flow-control
window (plus one message) beyond what the application released, and the reader stops reading a
socket at ``ConnectionSettings.held_limit_bytes``, whatever the node does. What of it waits here is
a stage of its own, ``handover``: each delivery takes a credit when it enters and releases it when
it leaves, be it that the application takes it or that the queue is closed.
"""

import threading
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from time import monotonic

from dcp.client.addresses import NodeAddress
from dcp.client.looks import StageLook
from dcp.errors import DcplakeError, LocalProtocolError
from dcp.protocol.credits import Credit, Credits
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
        self._entries: deque[tuple[Delivery | ConnectionEnded, Credit | None]] = deque()
        self._accounts: dict[str, Credits] = {}
        self._changed = threading.Condition()
        self._closed = False

    def open_account(self, connection_name: str, high_bytes: int) -> None:
        """Count what waits of a connection; ``high_bytes`` is what its node lets wait at most."""
        with self._changed:
            self._accounts[connection_name] = Credits("handover", high_bytes, high_bytes // 2)

    def look(self, connection_name: str, now: float) -> StageLook | None:
        """Return how much of a connection waits here; None where nobody counts it."""
        with self._changed:
            account = self._accounts.get(connection_name)
            return None if account is None else StageLook.of(account, now)

    def put(self, entry: Delivery | ConnectionEnded) -> None:
        """Append ``entry``; what arrives after ``close`` is dropped."""
        with self._changed:
            if not self._closed:
                account = self._accounts.get(entry.connection_name)
                credit = None
                if account is not None and isinstance(entry, Delivery):
                    credit = account.take(entry.frame_bytes, monotonic())
                self._entries.append((entry, credit))
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
            entry, credit = self._entries.popleft()
            if credit is not None:
                credit.release(monotonic())
            if isinstance(entry, ConnectionEnded):
                self._accounts.pop(entry.connection_name, None)
            return entry

    def holds(self, connection_name: str | None) -> bool:
        """Whether something of a connection is queued; None: of any."""
        with self._changed:
            return any(
                connection_name in (None, entry.connection_name) for entry, _ in self._entries
            )

    def close(self) -> None:
        """Drop what is queued and wake up whoever waits; may be called from any thread."""
        with self._changed:
            self._closed = True
            for _, credit in self._entries:
                if credit is not None:
                    credit.release(monotonic())
            self._entries.clear()
            self._changed.notify_all()
