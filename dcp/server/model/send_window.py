"""The producer's side of flow control of one DCP connection.

Every counted message is charged with its full frame length (header, framing extras, extras, key,
value as sent). A message may be sent while ``outstanding < window``, whatever its size: the window
is overshot by at most one message, and one message larger than the window still passes. NOOPs and
answers are not counted. An acknowledgement beyond what is outstanding is clamped, and counted as
given. Window 0 turns flow control off and clears both counters; what is sent also counts while it
is off and acknowledgements do not, so a client that enables it late starts with all that was sent
outstanding.

A consumer is *stuck* when the window is full and nothing was acknowledged for a time. The first
look remembers; any acknowledgement begins anew, also one that does not make room; looks while there
is room see nothing. A larger window is no acknowledgement: a consumer that gets one, and fills it
without acknowledging anything, is stuck since the look before. (kv_engine ``dcp/producer.cc``,
BufferLog; since 7.2.7 with the stuck rule; ``docs/dcp/documentation/flow-control.md``.) Turning
flow control off forgets that look here, unlike there: the counter begins anew, and may come to the
same number.
"""

from typing import Final

UNLIMITED: Final = 2**62


class SendWindow:
    """Window and outstanding bytes; plain arithmetic."""

    __slots__ = (
        "_looked_at",
        "_looked_at_acked_bytes",
        "acked_bytes",
        "acks",
        "outstanding_bytes",
        "over_acked_bytes",
        "peak_bytes",
        "window_bytes",
    )

    def __init__(self) -> None:
        self.window_bytes = 0
        self.outstanding_bytes = 0
        self.peak_bytes = 0
        self.acks = self.acked_bytes = 0
        self.over_acked_bytes = 0
        self._looked_at = 0.0
        self._looked_at_acked_bytes: int | None = None

    def set_window(self, window_bytes: int) -> None:
        """Take the value of the control ``connection_buffer_size``."""
        self.window_bytes = window_bytes
        if window_bytes == 0:
            self.outstanding_bytes = self.acked_bytes = 0
            self._looked_at_acked_bytes = None

    @property
    def room_bytes(self) -> int:
        """While positive, one more message of any size may be sent."""
        if self.window_bytes == 0:
            return UNLIMITED
        return self.window_bytes - self.outstanding_bytes

    @property
    def is_full(self) -> bool:
        """True if nothing may be sent before the client acknowledges."""
        return self.room_bytes <= 0

    def charge(self, frame_bytes: int) -> None:
        """Count sent bytes."""
        self.outstanding_bytes += frame_bytes
        self.peak_bytes = max(self.peak_bytes, self.outstanding_bytes)

    def acknowledge(self, frame_bytes: int) -> int:
        """Take a DCP_BUFFER_ACK; without meaning while flow control is off.

        Return by how much it is more than what was outstanding: a client that acknowledges twice.
        """
        self.acks += 1
        if not self.window_bytes:
            return 0
        beyond_bytes = max(0, frame_bytes - self.outstanding_bytes)
        self.acked_bytes += frame_bytes
        self.outstanding_bytes = max(0, self.outstanding_bytes - frame_bytes)
        self.over_acked_bytes += beyond_bytes
        return beyond_bytes

    def is_stuck(self, limit_seconds: float, now: float) -> bool:
        """Return whether the window is full and nothing was acknowledged for the limit."""
        if not self.is_full:
            return False
        if self._looked_at_acked_bytes != self.acked_bytes:
            self._looked_at, self._looked_at_acked_bytes = now, self.acked_bytes
        return now - self._looked_at >= limit_seconds
