"""Resizes the window of an open connection by DCP_CONTROL, one request at a time."""

from dataclasses import dataclass, replace

from dcp.errors import LocalProtocolError
from dcp.types import U32_MAX, require_unsigned

CONNECTION_WINDOW = "connection_buffer_size"
"""The control that sets the window of the whole connection."""


@dataclass(frozen=True, slots=True)
class WindowResize:
    """The wanted, asked and confirmed size of one connection's window."""

    confirmed_bytes: int
    """The last size that the producer accepted."""
    wanted_bytes: int
    asked_bytes: int | None = None
    """The size in the unanswered CONTROL, if there is one."""

    @property
    def most_bytes(self) -> int:
        """The largest window that the producer may have now."""
        return max(self.confirmed_bytes, self.asked_bytes or 0)

    @property
    def window_bytes(self) -> int:
        """The window that we acknowledge by."""
        # kv_engine's consumer, too, uses a new size as soon as it asks for it. But a change from or
        # to 0 waits for the answer. When the producer switches off, it forgets the bytes
        # outstanding; until it switches on, it ignores acknowledgements.
        if not self.confirmed_bytes or not self.asked_bytes:
            return self.confirmed_bytes
        return self.asked_bytes

    def want(self, window_bytes: int) -> "WindowResize":
        """Set the wanted size; the last one counts.

        Raises ValueError for a size that does not fit into 32 bits.
        """
        require_unsigned("window_bytes", window_bytes, U32_MAX)
        return replace(self, wanted_bytes=window_bytes)

    def ask(self) -> "WindowResize":
        """Return the state with ``asked_bytes`` set, if a request is due."""
        if self.asked_bytes is not None or self.wanted_bytes == self.confirmed_bytes:
            return self
        return replace(self, asked_bytes=self.wanted_bytes)

    def accepted(self) -> "WindowResize":
        return replace(self, confirmed_bytes=self._asked(), asked_bytes=None)

    def refused(self) -> "WindowResize":
        """Take the producer's refusal; a wish for the refused size ends."""
        wanted = self.confirmed_bytes if self.wanted_bytes == self._asked() else self.wanted_bytes
        return replace(self, wanted_bytes=wanted, asked_bytes=None)

    def _asked(self) -> int:
        if self.asked_bytes is None:
            raise LocalProtocolError(f"{CONNECTION_WINDOW}: found an answer, expected none")
        return self.asked_bytes
