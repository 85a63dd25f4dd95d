"""Flow control of one DCP connection, as the producer keeps it.

Every counted message is charged with its full frame length (header, framing extras, extras, key,
value as sent). A message may be sent while ``outstanding < window``, whatever its size: the window
is overshot by at most one message, and one message larger than the window still passes. NOOPs and
answers are not counted. An acknowledgement beyond what is outstanding is clamped. Window 0 turns
flow control off and clears the counter; the counter also grows while it is off, so a client that
enables it late starts with all that was sent outstanding (kv_engine ``dcp/producer.cc``, BufferLog;
``docs/dcp/documentation/flow-control.md``).
"""

from typing import Final

UNLIMITED: Final = 2**62


class FlowControl:
    """Window and outstanding bytes; plain arithmetic."""

    __slots__ = ("acked_bytes", "acks", "outstanding_bytes", "peak_bytes", "window_bytes")

    def __init__(self) -> None:
        self.window_bytes = 0
        self.outstanding_bytes = 0
        self.peak_bytes = 0
        self.acks = self.acked_bytes = 0

    def set_window(self, window_bytes: int) -> None:
        """Take the value of the control ``connection_buffer_size``."""
        self.window_bytes = window_bytes
        if window_bytes == 0:
            self.outstanding_bytes = 0

    @property
    def room_bytes(self) -> int:
        """While positive, one more message of any size may be sent."""
        if self.window_bytes == 0:
            return UNLIMITED
        return self.window_bytes - self.outstanding_bytes

    def charge(self, frame_bytes: int) -> None:
        """Count what was sent."""
        self.outstanding_bytes += frame_bytes
        self.peak_bytes = max(self.peak_bytes, self.outstanding_bytes)

    def acknowledge(self, frame_bytes: int) -> None:
        """Take a DCP_BUFFER_ACK; without meaning while flow control is off."""
        self.acks += 1
        if self.window_bytes:
            self.acked_bytes += frame_bytes
            self.outstanding_bytes = max(0, self.outstanding_bytes - frame_bytes)
