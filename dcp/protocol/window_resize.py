"""Resizes the window of a live connection: by DCP_CONTROL, one request at a time.

    wanted    what the application asked for last
    asked     what the CONTROL under way says, None while none is
    told      what the producer has: the last size that it accepted

    wanted != told, none under way   CONTROL leaves: asked = wanted
    accepted                         told = asked
    refused                          all stays at told; the application hears of it

The window takes a new size when the CONTROL leaves, as kv_engine's consumer does: a smaller one
lowers the threshold of acks at once, and bytes released before may be due by it. A larger one that
is refused is taken back. Switching off and on (from and to 0) waits for the answer: what the
producer sent before it is off, it forgets; until it is on, it ignores acks.
"""

from dataclasses import dataclass, replace

from dcp.errors import LocalProtocolError
from dcp.types import U32_MAX, require_unsigned

CONNECTION_WINDOW = "connection_buffer_size"
"""The control that tells the producer the window of the whole connection."""


@dataclass(frozen=True, slots=True)
class WindowResize:
    """The wanted, asked and confirmed size of one connection's window."""

    confirmed_bytes: int
    wanted_bytes: int
    asked_bytes: int | None = None

    @property
    def most_bytes(self) -> int:
        """The largest window that the producer may have now."""
        return max(self.confirmed_bytes, self.asked_bytes or 0)

    @property
    def window_bytes(self) -> int:
        """The window that we keep to: the one asked for, but to and from 0 only when answered."""
        if not self.confirmed_bytes or not self.asked_bytes:
            return self.confirmed_bytes
        return self.asked_bytes

    def want(self, window_bytes: int) -> "WindowResize":
        """Set the wanted size; the last one counts.

        Raises:
            ValueError: no size that a producer can be told.
        """
        require_unsigned("window_bytes", window_bytes, U32_MAX)
        return replace(self, wanted_bytes=window_bytes)

    def ask(self) -> "WindowResize":
        """Return the state with ``asked_bytes`` set to the size to ask for now, if one is due."""
        if self.asked_bytes is not None or self.wanted_bytes == self.confirmed_bytes:
            return self
        return replace(self, asked_bytes=self.wanted_bytes)

    def accepted(self) -> "WindowResize":
        """Take the good answer to the CONTROL under way."""
        return replace(self, confirmed_bytes=self._asked(), asked_bytes=None)

    def refused(self) -> "WindowResize":
        """Take the refusal of the CONTROL under way: a wish for the same is given up."""
        wanted = self.confirmed_bytes if self.wanted_bytes == self._asked() else self.wanted_bytes
        return replace(self, wanted_bytes=wanted, asked_bytes=None)

    def _asked(self) -> int:
        if self.asked_bytes is None:
            raise LocalProtocolError(f"{CONNECTION_WINDOW}: found an answer, expected none")
        return self.asked_bytes
