"""Flow control from the consumer's side: which bytes occupy the window, and when to give them back.

The producer may have ``window_bytes`` outstanding. It looks only at what is outstanding, never at
the size of the next message, so it overshoots by one message of any size (20 MiB documents pass a
1 MiB window).

- *Charged* is the whole frame, header included, of every message that the producer sends on its
  own: all requests (magics 0x80 and 0x08) but NOOP, known or not, also for streams that we closed.
  Answers and cluster map pushes cost nothing.
- *Released* are bytes that the application has passed on. They are about memory, not durability.
- *Acknowledged* are released bytes that a BUFFER_ACK has told the producer about. One leaves when
  released bytes exceed 20 % of the window, or when there are any and the last ack is more than
  5 s ago, whichever comes first. So acks are few, and a slow trickle is never kept from the
  producer.

An ack carries everything released so far. Window 0 means that flow control is off: nothing is
acknowledged. Source: kv_engine ``docs/dcp/documentation/flow-control.md``,
``engines/ep/src/dcp/flow-control.cc`` (both comparisons are strict there and here).

The window may change while the connection lives. A CONTROL tells the producer, before any ack, one
message at a time; the ack's threshold is that of the new window at once. What is charged stays so:

    from     to       the account
    window   window   unchanged
    window   0        forgotten, as the producer forgets it: nothing of it is acknowledged any more
    0        window   all that was charged meanwhile counts: producers go on counting while it is
                      off, ignore acks, and begin with that debt when it is on again

So always: ``unacked_bytes == charged_total - acked_total - forgotten_total``. Call ``resized`` with
0 at the CONTROL's answer: what comes behind that answer is what the producer counts anew.
"""

from dataclasses import dataclass, replace
from math import inf, nextafter

from dcp.errors import LocalProtocolError
from dcp.types import U16_MAX, U32_MAX, require_unsigned


@dataclass(frozen=True, slots=True)
class FlowSettings:
    """The window and the two ack thresholds; ``stream_window_bytes`` is each stream's, 0 for none.

    ``prepare_extra_bytes``: what the producer charges for a prepare beyond its length: kv_engine 2.
    """

    window_bytes: int = 10 * 1024 * 1024
    ack_fraction: float = 0.2
    ack_seconds: float = 5.0
    stream_window_bytes: int = 0
    prepare_extra_bytes: int = 0

    @property
    def of_stream(self) -> "FlowSettings":
        """The same for the window of one stream."""
        return FlowSettings(self.stream_window_bytes, self.ack_fraction, self.ack_seconds)

    def __post_init__(self) -> None:
        """Reject what the producer cannot be told, and acks that could never leave."""
        require_unsigned("window_bytes", self.window_bytes, U32_MAX)
        require_unsigned("stream_window_bytes", self.stream_window_bytes, U32_MAX)
        require_unsigned("prepare_extra_bytes", self.prepare_extra_bytes, U16_MAX)
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
    forgotten_total: int = 0
    forgotten_held_bytes: int = 0
    """What the application holds of the forgotten: its release earns nothing."""

    @property
    def is_on(self) -> bool:
        """Whether the producer was given a window."""
        return self.settings.window_bytes > 0

    @property
    def unacked_bytes(self) -> int:
        """What the producer counts as outstanding, as far as we know."""
        return self.held_bytes + self.released_bytes

    @property
    def is_full(self) -> bool:
        """Whether the producer may send nothing more before we acknowledge."""
        return self.is_on and self.unacked_bytes >= self.settings.window_bytes

    def charge(self, frame_bytes: int) -> "ReceiveWindow":
        """Account for received frames."""
        return replace(
            self,
            held_bytes=self.held_bytes + frame_bytes,
            charged_total=self.charged_total + frame_bytes,
        )

    def release(self, frame_bytes: int) -> "ReceiveWindow":
        """Account for bytes that the application has passed on; the forgotten ones first.

        Raises:
            LocalProtocolError: more than it holds: bytes were released twice.
        """
        most_bytes = self.held_bytes + self.forgotten_held_bytes
        if not 0 <= frame_bytes <= most_bytes:
            raise LocalProtocolError(
                f"release: found {frame_bytes} bytes, expected 0 to {most_bytes} "
                "(what was charged and not released yet)"
            )
        forgotten_bytes = min(frame_bytes, self.forgotten_held_bytes)
        return replace(
            self,
            forgotten_held_bytes=self.forgotten_held_bytes - forgotten_bytes,
            held_bytes=self.held_bytes - (frame_bytes - forgotten_bytes),
            released_bytes=self.released_bytes + (frame_bytes - forgotten_bytes),
        )

    def resized(self, window_bytes: int) -> "ReceiveWindow":
        """Return the account with another window; ``window_resize.py`` tells the producer.

        Raises:
            ValueError: the size is none that a producer can be told.
        """
        if window_bytes == self.settings.window_bytes:
            return self
        settings = replace(self.settings, window_bytes=window_bytes)
        after = replace(self, settings=settings)
        if window_bytes:
            return after
        return replace(
            after,
            held_bytes=0,
            released_bytes=0,
            forgotten_total=self.forgotten_total + self.unacked_bytes,
            forgotten_held_bytes=self.forgotten_held_bytes + self.held_bytes,
        )

    def acknowledge(self, now: float) -> tuple["ReceiveWindow", int]:
        """Return the account after the ack due at ``now``, and its bytes (0: none is due)."""
        if not self._is_due(now):
            return self, 0
        acked_bytes = min(self.released_bytes, U32_MAX)
        after = replace(
            self,
            released_bytes=self.released_bytes - acked_bytes,
            acked_total=self.acked_total + acked_bytes,
            acks=self.acks + 1,
            last_ack_at=now,
        )
        return after, acked_bytes

    @property
    def deadline(self) -> float | None:
        """When an ack falls due by time, None while there is nothing to acknowledge."""
        if not self.is_on or self.released_bytes == 0:
            return None
        return nextafter(self.last_ack_at + self.settings.ack_seconds, inf)

    def _is_due(self, now: float) -> bool:
        deadline = self.deadline
        if deadline is None:
            return False
        threshold_bytes = int(self.settings.window_bytes * self.settings.ack_fraction)
        return self.released_bytes > threshold_bytes or now >= deadline
