"""Flow control from the consumer's side: which bytes occupy the window, and when to give them back.

The producer may have ``window_bytes`` outstanding. It looks only at what is outstanding, never at
the size of the next message, so it overshoots by one message of any size (20 MiB documents pass a
1 MiB window).

- *Charged* is the whole frame, header included, of every message that the producer sends on its
  own: all requests (magics 0x80 and 0x08) but NOOP, known or not, also for streams that we closed.
  Answers and cluster map pushes cost nothing.
- *Released* are bytes that the application has passed on. They are about memory, not durability.
- *Acknowledged* are released bytes that a BUFFER_ACK has told the producer about. One leaves when
  released bytes exceed 20 % of the window, or when any are older than 5 s since the last ack,
  whichever comes first. So acks are few, and a slow trickle is never kept from the producer.

An ack carries everything released so far. Window 0 means that flow control is off: nothing is
charged, nothing acknowledged. Source: kv_engine ``docs/dcp/documentation/flow-control.md``,
``engines/ep/src/dcp/flow-control.cc`` (both comparisons are strict there and here).
"""

from dataclasses import dataclass, replace
from math import inf, nextafter

from dcp.errors import LocalProtocolError
from dcp.types import U32_MAX, require_unsigned


@dataclass(frozen=True, slots=True)
class FlowSettings:
    """The window and the two ack thresholds."""

    window_bytes: int = 10 * 1024 * 1024
    ack_fraction: float = 0.2
    ack_seconds: float = 5.0

    def __post_init__(self) -> None:
        """Reject what the producer cannot be told, and acks that could never leave."""
        require_unsigned("window_bytes", self.window_bytes, U32_MAX)
        if not 0 <= self.ack_fraction < 1:
            raise ValueError(f"ack_fraction: found {self.ack_fraction}, expected 0 <= x < 1")
        if not 0 < self.ack_seconds < inf:
            raise ValueError(f"ack_seconds: found {self.ack_seconds}, expected more than 0")


@dataclass(frozen=True, slots=True)
class ReceiveWindow:
    """The account of one connection: bytes that the application holds, and released ones."""

    settings: FlowSettings
    last_ack_at: float
    held_bytes: int = 0
    released_bytes: int = 0
    charged_total: int = 0
    acked_total: int = 0
    acks: int = 0

    @property
    def is_on(self) -> bool:
        """Whether the producer was given a window."""
        return self.settings.window_bytes > 0

    @property
    def unacked_bytes(self) -> int:
        """What the producer counts as outstanding, as far as we know."""
        return self.held_bytes + self.released_bytes

    def charge(self, frame_bytes: int) -> "ReceiveWindow":
        """Account for received frames."""
        if not self.is_on:
            return replace(self, charged_total=self.charged_total + frame_bytes)
        return replace(
            self,
            held_bytes=self.held_bytes + frame_bytes,
            charged_total=self.charged_total + frame_bytes,
        )

    def release(self, frame_bytes: int) -> "ReceiveWindow":
        """Account for bytes that the application has passed on.

        Raises:
            LocalProtocolError: more than it holds: bytes were released twice.
        """
        if frame_bytes < 0 or (self.is_on and frame_bytes > self.held_bytes):
            raise LocalProtocolError(
                f"release: found {frame_bytes} bytes, expected 0 to {self.held_bytes} "
                "(what was charged and not released yet)"
            )
        if not self.is_on:
            return self
        return replace(
            self,
            held_bytes=self.held_bytes - frame_bytes,
            released_bytes=self.released_bytes + frame_bytes,
        )

    def acknowledge(self, now: float) -> tuple["ReceiveWindow", int]:
        """Return the account after the ack due at ``now``, and its bytes (0: none is due)."""
        if not self._is_due(now):
            return self, 0
        acked_bytes = min(self.released_bytes, U32_MAX)
        after = replace(
            self,
            released_bytes=self.released_bytes - acked_bytes,
            last_ack_at=now,
            acked_total=self.acked_total + acked_bytes,
            acks=self.acks + 1,
        )
        return after, acked_bytes

    @property
    def deadline(self) -> float | None:
        """When an ack falls due by time, None while there is nothing to acknowledge."""
        if self.released_bytes == 0:
            return None
        return nextafter(self.last_ack_at + self.settings.ack_seconds, inf)

    def _is_due(self, now: float) -> bool:
        if self.released_bytes == 0:
            return False
        threshold_bytes = int(self.settings.window_bytes * self.settings.ack_fraction)
        deadline = self.deadline
        return self.released_bytes > threshold_bytes or (deadline is not None and now >= deadline)
