"""Flow control on the consumer's side: the only counters of received bytes.

A connection has a window, and each stream may have one too. A byte passes the six counters of a
window from top to bottom; each of them only grows:

    counter        counts the bytes that                            moved by the thread that
    received       came and occupy the window                       reads
    delivered      are in deliveries, from the queue on             reads
    taken          the application took out of the queue            works
    given          were given to the sink as rows                   works
    released       the application is done with                     works
    acknowledged   were acknowledged, or forgotten (``forget``)     reads

The producer counts ``received - acknowledged`` as outstanding. The application holds ``received -
released``, the sink ``given - released``. Rules: kv_engine
``docs/dcp/documentation/flow-control.md``, ``engines/ep/src/dcp/flow-control.cc``.
"""

from collections import deque
from collections.abc import Collection, Container, Iterable
from math import inf, nextafter

import numpy as np
from numpy.typing import NDArray

from dcp.errors import LocalProtocolError
from dcp.protocol.window_policies import FlowSettings
from dcp.types import U32_MAX

CONNECTION = 0
"""The opaque of acknowledgements for the window of the whole connection."""


class Window:
    """The counters of one window. Size 0: the window is off, and nothing is acknowledged."""

    __slots__ = (
        "_full",
        "_most_bytes",
        "acknowledged",
        "acks",
        "delivered",
        "given",
        "is_over",
        "last_ack_at",
        "opaque",
        "overshoot_bytes",
        "received",
        "released",
        "size_bytes",
        "taken",
    )

    def __init__(self, opaque: int, size_bytes: int, now: float) -> None:
        """``opaque`` is the stream's, or `CONNECTION`."""
        self.opaque = opaque
        self.size_bytes = size_bytes
        # One thread moves each counter, so other threads may read it at any time.
        self.received = self.delivered = 0
        self.taken = self.given = self.released = 0
        self.acknowledged = self.acks = 0
        self.last_ack_at = now
        self.overshoot_bytes = 0
        """The most outstanding bytes beyond the size that the producer had at that time."""
        self.is_over = False
        """True if its stream has ended: then nothing is acknowledged."""
        self._most_bytes = size_bytes
        self._full: tuple[float, float | None] = (0.0, None)
        """Seconds full until the last change, and when it became full. One tuple: other threads
        read both."""

    @property
    def unreleased_bytes(self) -> int:
        return self.received - self.released

    @property
    def unacked_bytes(self) -> int:
        """The outstanding bytes, as the producer should count them."""
        return self.received - self.acknowledged

    @property
    def is_full(self) -> bool:
        return 0 < self.size_bytes <= self.unacked_bytes

    def full_seconds(self, now: float) -> float:
        seconds, since = self._full
        return seconds + (0.0 if since is None else max(0.0, now - since))

    # --- the thread that reads

    def receive(self, frame_bytes: int, now: float) -> None:
        self.received += frame_bytes
        if self.size_bytes:
            # The producer checks only the outstanding bytes, never the size of the next message. So
            # it exceeds a window by up to one message, which may have 20 MiB.
            self.overshoot_bytes = max(self.overshoot_bytes, self.unacked_bytes - self._most_bytes)
        self._note_fullness(now)

    def deliver(self) -> int:
        """Move the bytes received since the last call into the queue; return their number."""
        frame_bytes = self.received - self.delivered
        self.delivered = self.received
        return frame_bytes

    def acknowledge(self, settings: FlowSettings, now: float) -> int:
        if now < self.due_at(settings):
            return 0
        # BUFFER_ACK has 32 bits.
        acked_bytes = min(self.released - self.acknowledged, U32_MAX)
        self.acknowledged += acked_bytes
        self.acks += 1
        self.last_ack_at = now
        self._note_fullness(now)
        return acked_bytes

    def due_at(self, settings: FlowSettings) -> float:
        """Return when the next acknowledgement is due; -inf for now.

        It is inf if all released bytes are acknowledged, the window is off or its stream has ended.
        """
        ackable_bytes = self.released - self.acknowledged
        if ackable_bytes <= 0 or not self.size_bytes or self.is_over:
            return inf
        # An acknowledgement carries all released bytes. It is due when they exceed the fraction of
        # the window, or when ``ack_seconds`` have passed since the last one. As in kv_engine both
        # comparisons are strict.
        if ackable_bytes > int(self.size_bytes * settings.ack_fraction):
            return -inf
        return nextafter(self.last_ack_at + settings.ack_seconds, inf)

    def forget(self) -> None:
        """Forget the outstanding bytes, as a producer does when it accepts size 0.

        If the application holds N bytes then, the next N bytes that it releases stay
        unacknowledged.
        """
        self.acknowledged = self.received

    def resize(self, size_bytes: int, most_bytes: int, now: float) -> None:
        """Change the size; the producer may have up to ``most_bytes`` until it answers."""
        self.size_bytes = size_bytes
        self._most_bytes = most_bytes
        self._note_fullness(now)

    def _note_fullness(self, now: float) -> None:
        seconds, since = self._full
        if self.is_full and since is None:
            self._full = seconds, now
        elif not self.is_full and since is not None:
            self._full = seconds + max(0.0, now - since), None

    # --- the thread that works

    def take(self, frame_bytes: int) -> None:
        """Count a delivery as taken out of the queue.

        Raises LocalProtocolError for more bytes than were delivered.
        """
        most = self.delivered - self.taken
        if not 0 <= frame_bytes <= most:
            raise _beyond("take", frame_bytes, most, "delivered and not taken")
        self.taken += frame_bytes

    def give(self, frame_bytes: int) -> None:
        """Count a delivery's rows as given to the sink.

        Raises LocalProtocolError for more bytes than were taken.
        """
        most = self.taken - self.given
        if not 0 <= frame_bytes <= most:
            raise _beyond("give", frame_bytes, most, "taken and not given")
        self.given += frame_bytes

    def release(self, frame_bytes: int) -> None:
        """Count a delivery's bytes as released.

        Raises LocalProtocolError for more than ``unreleased_bytes``: some were released twice.
        """
        unreleased_bytes = self.received - self.released
        if not 0 <= frame_bytes <= unreleased_bytes:
            raise _beyond("release", frame_bytes, unreleased_bytes, "received and not released")
        self.released += frame_bytes


def _beyond(step: str, found: int, most: int, stage: str) -> LocalProtocolError:
    return LocalProtocolError(
        f"{step}: found {found} bytes, expected 0 to {most} (what was {stage})"
    )


Charge = tuple[Window, int]
"""A number of bytes of a delivery, and the window that they occupy."""


class FlowControl:
    """The windows of a connection and of its streams, by opaque.

    ``stream_window_bytes`` is the current window of each stream; 0: none.
    """

    def __init__(self, settings: FlowSettings, now: float) -> None:
        self.settings = settings
        self.connection = Window(CONNECTION, settings.window_bytes, now)
        self.streams: dict[int, Window] = {}
        self.stream_window_bytes = 0
        self.counts_streams = False
        """True if the producer should be counting the bytes of each stream."""
        self._acknowledges_streams = False
        self._undelivered: list[Window] = []
        self._released_streams: deque[Window] = (
            deque()
        )  # between the two threads: appends are atomic
        self._unacknowledged: dict[int, Window] = {}
        self._look_at = inf
        """When an acknowledgement for a stream may be due."""

    # --- the thread that reads

    def begin(self, now: float) -> None:
        """Start the acknowledgement timer: the connection is up."""
        self.connection.last_ack_at = now

    def receive(self, frame_bytes: int, now: float) -> None:
        self.connection.receive(frame_bytes, now)

    def receive_streams(
        self,
        opaques: NDArray[np.uint32],
        frame_bytes: NDArray[np.int64],
        streams: Container[int],
        now: float,
    ) -> None:
        """Count the same frames in the windows of their streams."""
        if not len(opaques):
            return
        # One sum per stream: a block may hold thousands of frames.
        named, rows = np.unique(opaques, return_inverse=True)
        sums = np.bincount(rows, weights=frame_bytes).astype(np.int64)
        for opaque, charged in zip(named.tolist(), sums.tolist(), strict=True):
            # A closed stream's messages occupy the connection's window only.
            if opaque in streams:
                window = self.streams.get(opaque)
                if window is None:
                    window = Window(opaque, self.stream_window_bytes, now)
                    self.streams[opaque] = window
                window.receive(charged, now)
                self._undelivered.append(window)

    def deliver(self) -> tuple[Charge, ...]:
        """Return the charges of the bytes received since the last call, to be taken and released
        together.
        """
        undelivered, self._undelivered = self._undelivered, []
        charges = [(window, window.deliver()) for window in (self.connection, *undelivered)]
        return tuple(charge for charge in charges if charge[1])

    def acknowledge(self, now: float) -> list[tuple[int, int]]:
        """Acknowledge all that is due; return pairs (opaque, bytes)."""
        acks = []
        if acked_bytes := self.connection.acknowledge(self.settings, now):
            acks.append((CONNECTION, acked_bytes))
        while self._released_streams:
            window = self._released_streams.popleft()
            if not window.is_over:
                self._unacknowledged[window.opaque] = window
                self._acknowledge_stream(window, acks, now)
        if now >= self._look_at:
            self._look_at = inf
            # ``_acknowledge_stream`` removes windows from the dict.
            for window in list(self._unacknowledged.values()):
                self._acknowledge_stream(window, acks, now)
        return acks

    def _acknowledge_stream(self, window: Window, acks: list[tuple[int, int]], now: float) -> None:
        if not self._acknowledges_streams:
            return
        if acked_bytes := window.acknowledge(self.settings, now):
            acks.append((window.opaque, acked_bytes))
        due_at = window.due_at(self.settings)
        if due_at == inf:
            self._unacknowledged.pop(window.opaque, None)
        self._look_at = min(self._look_at, due_at)

    @property
    def deadline(self) -> float:
        """When the next acknowledgement is due; inf if there is nothing to acknowledge."""
        return min(self._look_at, self.connection.due_at(self.settings))

    def end_stream(self, opaque: int) -> None:
        """Forget the window of a stream that is over, as the producer does.

        The bytes that the application still holds occupy only the connection's window then.
        """
        if (window := self.streams.pop(opaque, None)) is not None:
            window.is_over = True
            self._unacknowledged.pop(opaque, None)

    @property
    def full_streams(self) -> int:
        """The number of streams with a full window. Any thread may ask."""
        return sum(window.is_full for window in list(self.streams.values()))

    # --- sizes

    def offer_streams(self, window_bytes: int) -> None:
        """Count by stream from now on, with windows of this size; 0: without windows yet."""
        self.counts_streams = True
        self.stream_window_bytes = window_bytes

    def resize_streams(self, window_bytes: int, now: float) -> None:
        """Set the window that the producer gives to each stream from now on; 0: none."""
        self.stream_window_bytes = window_bytes
        for window in self.streams.values():
            if not window_bytes:
                window.forget()
            window.resize(window_bytes, window_bytes, now)

    def resume_stream_acks(self, asked: Collection[int]) -> None:
        """Acknowledge by stream again, unless a size of 0 is ``asked`` for and unanswered.

        It then looks again at the bytes that were released meanwhile.
        """
        self._acknowledges_streams = self.stream_window_bytes > 0 and 0 not in asked
        self._look_at = -inf if self._acknowledges_streams else inf

    # --- the thread that works

    def release(self, charges: Iterable[Charge]) -> bool:
        """Release a delivery; return whether the reading thread should acknowledge now.

        Raises LocalProtocolError for more than ``unreleased_bytes``: some were released twice.
        """
        for window, frame_bytes in charges:
            window.release(frame_bytes)
            if window.opaque != CONNECTION and not window.is_over:
                # Only the reading thread acknowledges.
                self._released_streams.append(window)
        if self._acknowledges_streams and self._released_streams:
            return True
        return self.connection.due_at(self.settings) == -inf
