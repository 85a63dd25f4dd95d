"""The producer's side of flow control of one DCP connection.

Source: kv_engine ``dcp/producer.cc``, BufferLog; ``docs/dcp/documentation/flow-control.md``.
"""

from typing import Final

UNLIMITED: Final = 2**62


class SendWindow:
    """Window and outstanding bytes of one connection or stream.

    Each message counts with its whole frame (header, framing extras, extras, key, value as sent);
    NOOPs and answers do not count. A message of any size may be sent while ``room_bytes`` is
    positive, so the window is exceeded by at most one message.

    Window 0 turns flow control off. Messages still count then, but acknowledgements do not: a
    client that turns it on later starts with all of them outstanding.
    """

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
        self.window_bytes = window_bytes
        if window_bytes == 0:
            self.outstanding_bytes = self.acked_bytes = 0
            # kv_engine does not reset this. Here ``acked_bytes`` starts anew and may reach the same
            # number.
            self._looked_at_acked_bytes = None

    @property
    def room_bytes(self) -> int:
        """While positive, one more message of any size may be sent."""
        if self.window_bytes == 0:
            return UNLIMITED
        return self.window_bytes - self.outstanding_bytes

    @property
    def is_full(self) -> bool:
        return self.room_bytes <= 0

    def charge(self, frame_bytes: int) -> None:
        self.outstanding_bytes += frame_bytes
        self.peak_bytes = max(self.peak_bytes, self.outstanding_bytes)

    def acknowledge(self, frame_bytes: int) -> int:
        """Apply a DCP_BUFFER_ACK; return the number of bytes beyond the outstanding ones.

        Such bytes are a client's mistake, usually a second acknowledgement. They are counted and
        ignored.
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
        """Return True if the window is full and nothing was acknowledged for ``limit_seconds``.

        Call it repeatedly: the time runs from the first call that finds the window full. Any
        acknowledgement restarts it, even a small one; a larger window does not (kv_engine since
        7.2.7).
        """
        if not self.is_full:
            return False
        if self._looked_at_acked_bytes != self.acked_bytes:
            self._looked_at, self._looked_at_acked_bytes = now, self.acked_bytes
        return now - self._looked_at >= limit_seconds
