"""Flow control of single streams, in addition to that of the connection.

The opaque names a stream; streams with the same opaque share a window. Each message is charged to
the stream's window and to the connection's, and is sent only if both have room. An acknowledgement
returns bytes to one of them: with opaque 0 to the connection's, else to that stream's
(``docs/dcp/documentation/flow-control.md``). So a client with both acknowledges each message twice.

Therefore a stream that was opened with opaque 0, before windows were on, has no window. A stream
that ends returns what it held. Late acknowledgements for it are accepted; an opaque that never
named a stream is an error.
"""

from typing import Final

from dcp.server.model.send_window import UNLIMITED, SendWindow

CONNECTION_OPAQUE: Final = 0
_REMEMBERED: Final = 16 * 1024
"""Number of ended streams that are remembered: the most streams of a connection."""


class _StreamFlow(SendWindow):
    """The window of the streams with one opaque."""

    __slots__ = ("streams", "switch_offs")

    def __init__(self, switch_offs: int) -> None:
        super().__init__()
        self.streams = 0
        """Number of streams with this opaque."""
        self.switch_offs = switch_offs
        """``StreamWindows._switch_offs`` at the last look."""


class StreamWindows:
    """The windows of a connection's streams, all of one size; 0 means off.

    A stream takes over a new size when it is next used. So a client that changes sizes endlessly
    makes no work for its thousands of streams.
    """

    def __init__(self) -> None:
        self.window_bytes = 0
        self.peak_bytes = 0
        self.streams = 0
        """Open streams, including those that only have to send STREAM_END."""
        self.names_streams = False
        """True from the first window on: opaques of acknowledgements then name streams."""
        self.over_acked_bytes = 0
        """Acknowledged beyond what streams had outstanding, ended streams included."""
        self._switch_offs = 0
        """How often windows were switched off. That resets a stream's account, even if the client
        switches them on again before the stream is next used.
        """
        self._flows: dict[int, _StreamFlow] = {}
        self._ended: dict[int, None] = {}

    @property
    def is_on(self) -> bool:
        return self.window_bytes > 0

    def opened(self, opaque: int) -> None:
        self.streams += 1
        self._ended.pop(opaque, None)
        if opaque not in self._flows:
            self._flows[opaque] = _StreamFlow(self._switch_offs)
        self._flows[opaque].streams += 1

    def ended(self, opaque: int) -> None:
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
        self._flows.clear()
        self._ended.clear()
        self.streams = 0

    def set_window(self, window_bytes: int) -> None:
        self.window_bytes = window_bytes
        self.names_streams |= window_bytes > 0
        self._switch_offs += window_bytes == 0

    def flow(self, opaque: int) -> SendWindow | None:
        """Return the window of an opaque; None if it has no stream."""
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
        """Return the room: while it is positive, one more message of any size may go."""
        flow = self.flow(opaque)
        return UNLIMITED if flow is None or opaque == CONNECTION_OPAQUE else flow.room_bytes

    def acked_bytes(self, opaque: int) -> int:
        flow = self.flow(opaque)
        return 0 if flow is None else flow.acked_bytes

    def charge(self, opaque: int, frame_bytes: int) -> None:
        flow = self.flow(opaque)
        if flow is None:
            return
        flow.charge(frame_bytes)
        if self.window_bytes and opaque != CONNECTION_OPAQUE:
            self.peak_bytes = max(self.peak_bytes, flow.outstanding_bytes)

    def acknowledge(self, opaque: int, frame_bytes: int) -> bool:
        """Take an acknowledgement; return False if the opaque never named a stream."""
        flow = self.flow(opaque)
        if flow is None:
            return opaque in self._ended
        self.over_acked_bytes += flow.acknowledge(frame_bytes)
        return True
