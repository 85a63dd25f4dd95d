"""Flow control of each stream of one DCP connection, beside the connection's own.

A stream is named by its opaque, so streams that share one share a window. Each window is a
``FlowControl`` of its own: a message is charged to its stream's and to the connection's, and may be
sent while both have room. An acknowledgement gives back to one of the two: with opaque 0 to the
connection's, with a stream's opaque to that stream's only (``docs/dcp/documentation/
flow-control.md``). So who uses both acknowledges every message twice.

Opaque 0 can therefore be no stream's: one that was opened with it before windows were on has none.
A stream that has ended returns what it held; acknowledgements that are late for that are not
mistaken, those for what was never a stream are.
"""

from typing import Final

from dcp.producer.flow_control import UNLIMITED, FlowControl

CONNECTION_OPAQUE: Final = 0
_REMEMBERED: Final = 16 * 1024
"""Opaques of ended streams that are still known: as many as a connection has streams at most."""


class _Account:
    """What the streams of one opaque have outstanding; ``streams`` is how many there are."""

    __slots__ = ("flow", "streams")

    def __init__(self, window_bytes: int) -> None:
        self.flow = FlowControl()
        self.flow.set_window(window_bytes)
        self.streams = 0


class StreamWindows:
    """All windows of a connection's streams; they have one size, 0 while they are off."""

    def __init__(self) -> None:
        self.window_bytes = 0
        self.peak_bytes = 0
        self.streams = 0
        """Streams that are there; those too that have only to say that they end."""
        self._accounts: dict[int, _Account] = {}
        self._ended: dict[int, None] = {}

    @property
    def is_on(self) -> bool:
        """Whether streams have windows, and opaques of acknowledgements a meaning."""
        return self.window_bytes > 0

    def opened(self, opaque: int) -> None:
        """Take note of a stream that may send from now on."""
        self.streams += 1
        self._ended.pop(opaque, None)
        if opaque not in self._accounts:
            self._accounts[opaque] = _Account(self.window_bytes)
        self._accounts[opaque].streams += 1

    def ended(self, opaque: int) -> None:
        """Forget a stream that has said its last word, and what it has outstanding."""
        self.streams -= 1
        account = self._accounts[opaque]
        account.streams -= 1
        if account.streams:
            return
        del self._accounts[opaque]
        self._ended[opaque] = None
        if len(self._ended) > _REMEMBERED:
            del self._ended[next(iter(self._ended))]

    def clear(self) -> None:
        """Forget all streams."""
        self._accounts.clear()
        self._ended.clear()
        self.streams = 0

    def set_window(self, window_bytes: int) -> None:
        """Take the value of the control ``stream_buffer_size``, for all streams at once."""
        self.window_bytes = window_bytes
        for account in self._accounts.values():
            account.flow.set_window(window_bytes)

    def flow(self, opaque: int) -> FlowControl | None:
        """Return the account of an opaque; None where there is no such stream."""
        account = self._accounts.get(opaque)
        return None if account is None else account.flow

    def room_bytes(self, opaque: int) -> int:
        """While positive, the stream may send one more message of any size."""
        if opaque == CONNECTION_OPAQUE:
            return UNLIMITED
        return self._accounts[opaque].flow.room_bytes

    def charge(self, opaque: int, frame_bytes: int) -> None:
        """Count what a stream sent."""
        flow = self._accounts[opaque].flow
        flow.charge(frame_bytes)
        if self.window_bytes and opaque != CONNECTION_OPAQUE:
            self.peak_bytes = max(self.peak_bytes, flow.outstanding_bytes)

    def acknowledge(self, opaque: int, frame_bytes: int) -> bool:
        """Take an acknowledgement that names a stream; whether there is or was such a stream."""
        account = self._accounts.get(opaque)
        if account is None:
            return opaque in self._ended
        account.flow.acknowledge(frame_bytes)
        return True
