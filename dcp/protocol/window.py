"""Flow control from the consumer's side: the only counters of received bytes.

A connection has a window, and where the producer offers it each stream has one beside it. A
``Window`` is six counters that only grow. A byte passes them from top to bottom:

    counter        counts the bytes that                            moved by the thread that
    received       came and occupy the window                       reads
    delivered      are in deliveries, from the queue on             reads
    taken          the application took out of the queue            works
    given          were given to the sink as rows                   works
    released       the application is done with                     works
    acknowledged   were acknowledged, or forgotten (see below)      reads

All else is the difference of two counters, computed on demand: the application holds ``received -
released``, the queue ``received - taken``, the rows that are gathered ``taken - given``, the sink
``given - released``; the producer counts ``received - acknowledged`` as outstanding. Each counter
is moved by one thread at a time, so others may read it whenever they like. (``delivered`` is no
stage, but where the next delivery begins.)

The rules, from kv_engine ``docs/dcp/documentation/flow-control.md`` and
``engines/ep/src/dcp/flow-control.cc``:

- A frame costs its whole length, header included. All requests of the producer count (magics 0x80
  and 0x08) but NOOP, known or not, also those of streams that we closed; answers and pushed cluster
  maps are free.
- The producer looks only at what is outstanding, never at the size of the next message: it
  overshoots by one message of any size (documents of 20 MiB pass a window of 1 MiB).
- An acknowledgement carries all that was released. It leaves when that is more than 20 % of the
  window, or when there is any and the last one left more than 5 s ago. Both comparisons are strict
  there and here.

A CONTROL announces another size of the window while data flows (`window_resize`). The count of
received bytes goes on. The size 0 switches flow control off: when the producer answers, it forgets
the outstanding bytes, and so does the client (`Window.forget`). When flow control is switched on
again, all bytes that the producer sent meanwhile are outstanding.
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
"""The opaque of acknowledgements of the whole connection's window."""


class Window:
    """The counters of one window. ``size_bytes`` 0: it is off, and nothing is acknowledged."""

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
        """Begin with nothing; ``opaque`` is the stream's, or `CONNECTION`."""
        self.opaque = opaque
        self.size_bytes = size_bytes
        self.received = self.delivered = 0
        self.taken = self.given = self.released = 0
        self.acknowledged = self.acks = 0
        self.last_ack_at = now
        self.overshoot_bytes = 0
        """The most that was outstanding beyond the size that the producer had then."""
        self.is_over = False
        """True if its stream has ended: nothing is acknowledged any more."""
        self._most_bytes = size_bytes
        self._full: tuple[float, float | None] = (0.0, None)
        """For how long it was full before, and since when it is now: read by others at once."""

    @property
    def held_bytes(self) -> int:
        """The bytes that the application holds."""
        return self.received - self.released

    @property
    def unacked_bytes(self) -> int:
        """The bytes that the producer counts as outstanding, as far as we know."""
        return self.received - self.acknowledged

    @property
    def is_full(self) -> bool:
        """True if the producer may send nothing more before we acknowledge."""
        return 0 < self.size_bytes <= self.unacked_bytes

    def full_seconds(self, now: float) -> float:
        """Return how long the window was full, in all."""
        seconds, since = self._full
        return seconds + (0.0 if since is None else max(0.0, now - since))

    # --- the thread that reads

    def receive(self, frame_bytes: int, now: float) -> None:
        """Count received bytes."""
        self.received += frame_bytes
        if self.size_bytes:
            self.overshoot_bytes = max(self.overshoot_bytes, self.unacked_bytes - self._most_bytes)
        self._note_fullness(now)

    def deliver(self) -> int:
        """Move the bytes received since the last call into the queue; return their number."""
        frame_bytes = self.received - self.delivered
        self.delivered = self.received
        return frame_bytes

    def acknowledge(self, settings: FlowSettings, now: float) -> int:
        """Acknowledge what is due; return the number of bytes."""
        if now < self.due_at(settings):
            return 0
        acked_bytes = min(self.released - self.acknowledged, U32_MAX)
        self.acknowledged += acked_bytes
        self.acks += 1
        self.last_ack_at = now
        self._note_fullness(now)
        return acked_bytes

    def due_at(self, settings: FlowSettings) -> float:
        """Return when an acknowledgement is due: -inf if enough is released, inf if nothing is."""
        releasable_bytes = self.released - self.acknowledged
        if releasable_bytes <= 0 or not self.size_bytes or self.is_over:
            return inf
        if releasable_bytes > int(self.size_bytes * settings.ack_fraction):
            return -inf
        return nextafter(self.last_ack_at + settings.ack_seconds, inf)

    def forget(self) -> None:
        """Forget the outstanding bytes, as the producer does when it is told 0.

        If the application holds N bytes, the next N bytes that it releases are not acknowledged,
        whichever deliveries they belong to.
        """
        self.acknowledged = self.received

    def resize(self, size_bytes: int, most_bytes: int, now: float) -> None:
        """Take another size; the producer may have up to ``most_bytes`` now."""
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

        Raises:
            LocalProtocolError: so much was not delivered.
        """
        most = self.delivered - self.taken
        if not 0 <= frame_bytes <= most:
            raise _beyond("take", frame_bytes, most, "delivered and not taken")
        self.taken += frame_bytes

    def give(self, frame_bytes: int) -> None:
        """Count its rows as given to the sink.

        Raises:
            LocalProtocolError: so much was not taken.
        """
        most = self.taken - self.given
        if not 0 <= frame_bytes <= most:
            raise _beyond("give", frame_bytes, most, "taken and not given")
        self.given += frame_bytes

    def release(self, frame_bytes: int) -> None:
        """Count its bytes as released.

        Raises:
            LocalProtocolError: it is more than is held: bytes were released twice.
        """
        held_bytes = self.received - self.released
        if not 0 <= frame_bytes <= held_bytes:
            raise _beyond("release", frame_bytes, held_bytes, "received and not released")
        self.released += frame_bytes


def _beyond(step: str, found: int, most: int, stage: str) -> LocalProtocolError:
    return LocalProtocolError(
        f"{step}: found {found} bytes, expected 0 to {most} (what was {stage})"
    )


Charge = tuple[Window, int]
"""Bytes of a delivery, and the window that they occupy."""


class FlowControl:
    """The windows of one connection: its own, and those of its streams by opaque.

    ``stream_window_bytes`` is what each stream has now, 0 for none. Where windows are offered later
    than the connection is ready, 0 is asked for first: the producer counted what it had sent to
    streams and we did not, and with 0 it forgets that. So frames behind that answer must not be
    received before it (`inbound`).
    """

    def __init__(self, settings: FlowSettings, now: float) -> None:
        """Begin with nothing received; windows of streams come when they are ``offered``."""
        self.settings = settings
        self.connection = Window(CONNECTION, settings.window_bytes, now)
        self.streams: dict[int, Window] = {}
        self.stream_window_bytes = 0
        self.counts_streams = False
        """True if the producer counts what it sends to each stream, as far as we know."""
        self._acknowledges_streams = False
        self._undelivered: list[Window] = []
        self._released_streams: deque[Window] = (
            deque()
        )  # between the two threads; appends are atomic
        self._unacknowledged: dict[int, Window] = {}
        self._look_at = inf

    # --- the thread that reads

    def begin(self, now: float) -> None:
        """Start the acknowledgement timer: the connection is up."""
        self.connection.last_ack_at = now

    def receive(self, frame_bytes: int, now: float) -> None:
        """Count what came on the connection."""
        self.connection.receive(frame_bytes, now)

    def receive_streams(
        self,
        opaques: NDArray[np.uint32],
        frame_bytes: NDArray[np.int64],
        streams: Container[int],
        now: float,
    ) -> None:
        """Count the same frames by stream; those of no stream under way have no window."""
        if not len(opaques):
            return
        named, rows = np.unique(opaques, return_inverse=True)
        sums = np.bincount(rows, weights=frame_bytes).astype(np.int64)
        for opaque, charged in zip(named.tolist(), sums.tolist(), strict=True):
            if opaque in streams:
                window = self.streams.get(opaque)
                if window is None:
                    window = Window(opaque, self.stream_window_bytes, now)
                    self.streams[opaque] = window
                window.receive(charged, now)
                self._undelivered.append(window)

    def deliver(self) -> tuple[Charge, ...]:
        """Return the bytes received since the last call, to be taken and released together."""
        undelivered, self._undelivered = self._undelivered, []
        charges = [(window, window.deliver()) for window in (self.connection, *undelivered)]
        return tuple(charge for charge in charges if charge[1])

    def acknowledge(self, now: float) -> list[tuple[int, int]]:
        """Acknowledge all that is due; return it as (opaque, bytes)."""
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
        """The time of the next acknowledgement; inf while nothing is released."""
        return min(self._look_at, self.connection.due_at(self.settings))

    def end_stream(self, opaque: int) -> None:
        """Forget a stream that is over, as the producer does.

        What the application holds of it is the connection's alone from now on.
        """
        if (window := self.streams.pop(opaque, None)) is not None:
            window.is_over = True
            self._unacknowledged.pop(opaque, None)

    @property
    def full_streams(self) -> int:
        """The number of streams that cannot continue before we acknowledge; from any thread."""
        return sum(window.is_full for window in list(self.streams.values()))

    # --- sizes

    def offer_streams(self, window_bytes: int) -> None:
        """Count by stream from here on, with this size; 0: without windows yet."""
        self.counts_streams = True
        self.stream_window_bytes = window_bytes

    def resize_streams(self, window_bytes: int, now: float) -> None:
        """Take the size that the producer gives to each stream from now on; 0: none."""
        self.stream_window_bytes = window_bytes
        for window in self.streams.values():
            if not window_bytes:
                window.forget()
            window.resize(window_bytes, window_bytes, now)

    def resume_stream_acks(self, asked: Collection[int]) -> None:
        """Acknowledge by stream again, but not while a size of 0 is ``asked`` for and unanswered.

        What was released meanwhile is looked at once more then.
        """
        self._acknowledges_streams = self.stream_window_bytes > 0 and 0 not in asked
        self._look_at = -inf if self._acknowledges_streams else inf

    # --- the thread that works

    def release(self, charges: Iterable[Charge]) -> bool:
        """Release a delivery; return whether the reading thread should acknowledge now.

        Raises:
            LocalProtocolError: it is more than is held: bytes were released twice.
        """
        for window, frame_bytes in charges:
            window.release(frame_bytes)
            if window.opaque != CONNECTION and not window.is_over:
                self._released_streams.append(window)
        if self._acknowledges_streams and self._released_streams:
            return True
        return self.connection.due_at(self.settings) == -inf
