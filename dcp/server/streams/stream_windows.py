"""Flow control of each stream of one DCP connection, beside the connection's own.

A stream is named by its opaque, so streams that share one share a window. Each window is a
``SendWindow`` of its own: a message is charged to its stream's and to the connection's, and may be
sent while both have room. An acknowledgement gives back to one of the two: with opaque 0 to the
connection's, with a stream's opaque to that stream's only (``docs/dcp/documentation/
flow-control.md``). So a client that uses both acknowledges every message twice.

Opaque 0 can therefore be no stream's: one that was opened with it before windows were on has none.
A stream that has ended returns what it held; acknowledgements that are late for that are not
mistaken, those for what was never a stream are.
"""

from typing import Final

from dcp.server.model.send_window import UNLIMITED, SendWindow

CONNECTION_OPAQUE: Final = 0
_REMEMBERED: Final = 16 * 1024
"""Opaques of ended streams that are still known: as many as a connection has streams at most."""


class _StreamFlow(SendWindow):
    """The outstanding bytes of the streams of one opaque; ``streams`` is their number.

    ``switch_offs`` is how often windows were switched off when it was last looked at.
    """

    __slots__ = ("streams", "switch_offs")

    def __init__(self, switch_offs: int) -> None:
        super().__init__()
        self.streams = 0
        self.switch_offs = switch_offs


class StreamWindows:
    """All windows of a connection's streams; they have one size, 0 while they are off.

    A new size is taken over by each stream when it is next looked at: a client that sends sizes
    without end makes no work for the thousands of streams that it may have.
    """

    def __init__(self) -> None:
        self.window_bytes = 0
        self.peak_bytes = 0
        self.streams = 0
        """Streams that are there; those too that have only to say that they end."""
        self.names_streams = False
        """True if opaques of acknowledgements have a meaning: from the first window on."""
        self.over_acked_bytes = 0
        """Acknowledged beyond what streams had outstanding; of those too that have ended."""
        self._switch_offs = 0
        self._flows: dict[int, _StreamFlow] = {}
        self._ended: dict[int, None] = {}

    @property
    def is_on(self) -> bool:
        """True if streams have windows."""
        return self.window_bytes > 0

    def opened(self, opaque: int) -> None:
        """Take note of a stream that may send from now on."""
        self.streams += 1
        self._ended.pop(opaque, None)
        if opaque not in self._flows:
            self._flows[opaque] = _StreamFlow(self._switch_offs)
        self._flows[opaque].streams += 1

    def ended(self, opaque: int) -> None:
        """Forget a stream that has ended, and its outstanding bytes."""
        self.streams -= 1
        flow = self._flows[opaque]
        flow.streams -= 1
        if flow.streams:
            return
        del self._flows[opaque]
        self._ended[opaque] = None
        if len(self._ended) > _REMEMBERED:
            del self._ended[next(iter(self._ended))]

    def clear(self) -> None:
        """Forget all streams."""
        self._flows.clear()
        self._ended.clear()
        self.streams = 0

    def set_window(self, window_bytes: int) -> None:
        """Take the value of the control ``stream_buffer_size``, for all streams at once."""
        self.window_bytes = window_bytes
        self.names_streams |= window_bytes > 0
        self._switch_offs += window_bytes == 0

    def flow(self, opaque: int) -> SendWindow | None:
        """Return the account of an opaque; None where there is no such stream."""
        flow = self._flows.get(opaque)
        if flow is None:
            return None
        if flow.switch_offs != self._switch_offs:
            flow.switch_offs = self._switch_offs
            flow.set_window(0)
        if flow.window_bytes != self.window_bytes:
            flow.set_window(self.window_bytes)
        return flow

    def room_bytes(self, opaque: int) -> int:
        """While positive, the stream may send one more message of any size."""
        flow = self.flow(opaque)
        return UNLIMITED if flow is None or opaque == CONNECTION_OPAQUE else flow.room_bytes

    def acked_bytes(self, opaque: int) -> int:
        """Return the bytes acknowledged to a stream's own window."""
        flow = self.flow(opaque)
        return 0 if flow is None else flow.acked_bytes

    def charge(self, opaque: int, frame_bytes: int) -> None:
        """Count sent bytes of a stream."""
        flow = self.flow(opaque)
        if flow is None:
            return
        flow.charge(frame_bytes)
        if self.window_bytes and opaque != CONNECTION_OPAQUE:
            self.peak_bytes = max(self.peak_bytes, flow.outstanding_bytes)

    def acknowledge(self, opaque: int, frame_bytes: int) -> bool:
        """Take an acknowledgement that names a stream; return if there is or was such a stream."""
        flow = self.flow(opaque)
        if flow is None:
            return opaque in self._ended
        self.over_acked_bytes += flow.acknowledge(frame_bytes)
        return True
