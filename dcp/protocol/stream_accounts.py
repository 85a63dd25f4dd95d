"""Windows of single streams from the consumer's side, beside the connection's own.

Each stream that has sent something has a ``ReceiveWindow`` of its own, by its opaque: what it sent
is charged there and to the connection's, released in both, and acknowledged by each for itself, at
its own 20 % or after its own 5 s. An acknowledgement with a stream's opaque is that stream's only;
0 is the connection's (kv_engine ``docs/dcp/documentation/flow-control.md``).

What a stream held is forgotten with the stream, here as at the producer: the application may
release it later, to the connection's window alone.

Sizes may change while streams are there, by a control that the producer answers:

    from     to       said              answered
    window   window   nothing changes   acks are due by the new size
    window   0        no more acks      what was charged is forgotten, as the producer forgets it
    0        window   nothing changes   all that was charged since it was off counts
    never    window   0 first           nothing of before counts, then as above

So the producer counts what comes behind its answer to 0 anew, and so do we: frames behind it must
not be charged before (``inbound.py`` sees to that).

Times of acknowledgements are looked at only when one may be due: a connection has many streams.
"""

from collections.abc import Collection, Container, Mapping
from dataclasses import dataclass, field, replace
from math import inf

import numpy as np
from numpy.typing import NDArray

from dcp.protocol.receive_window import FlowSettings, ReceiveWindow


@dataclass(slots=True)
class StreamAccounts:
    """The accounts of one connection's streams. Nothing is charged where the producer has none.

    ``settings`` are of one stream's window; while there is none, of the last that was.
    ``window_bytes`` is what the producer has, 0 for none. ``is_on``: acks may be sent, as there are
    windows and they are not being switched off. ``uncollected`` are charges since the last
    ``collect``, ``forgotten`` those that the application holds though they count no more.
    ``releasing`` are the streams with released bytes that are not acknowledged yet, of which none
    is due by time before ``look_at``.
    """

    settings: FlowSettings = field(default_factory=lambda: FlowSettings(0))
    is_offered: bool = False
    is_on: bool = False
    window_bytes: int = 0
    accounts: dict[int, ReceiveWindow] = field(default_factory=dict)
    uncollected: dict[int, int] = field(default_factory=dict)
    forgotten: dict[int, int] = field(default_factory=dict)
    releasing: set[int] = field(default_factory=set)
    look_at: float = inf

    def copy(self) -> "StreamAccounts":
        """Return a copy that can be changed without this one noticing."""
        return StreamAccounts(
            self.settings,
            self.is_offered,
            self.is_on,
            self.window_bytes,
            dict(self.accounts),
            dict(self.uncollected),
            dict(self.forgotten),
            set(self.releasing),
            self.look_at,
        )

    def offered(self) -> None:
        """Take it that the producer gives each stream a window, as it was asked for."""
        self.is_offered = True
        self.window_bytes = self.settings.window_bytes
        self.settle(())

    def begin(self) -> None:
        """Charge from here on, without windows yet: the producer has just answered to 0."""
        self.is_offered = True
        self.window_bytes = 0

    def settle(self, asked: Collection[int]) -> None:
        """Enable acks and re-check all streams at the next tick.

        They stay off while a switch to 0 is unanswered.
        """
        self.is_on = self.window_bytes > 0 and 0 not in asked
        self.look_at = -inf

    def resized(self, window_bytes: int) -> None:
        """Take note that the producer has another size from now on; 0: none. Then ``settle``."""
        self.window_bytes = window_bytes
        if window_bytes == 0:
            for opaque, account in self.accounts.items():
                self.forgotten[opaque] = self.forgotten.get(opaque, 0) + account.held_bytes
            self.accounts.clear()
            self.releasing.clear()
            return
        self.settings = replace(self.settings, window_bytes=window_bytes)
        for opaque, account in self.accounts.items():
            self.accounts[opaque] = replace(account, settings=self.settings)

    def charge(
        self,
        opaques: NDArray[np.uint32],
        frame_bytes: NDArray[np.int64],
        streams: Container[int],
        now: float,
    ) -> None:
        """Account for received frames; those of no stream that is under way have no window."""
        if not self.is_offered or not len(opaques):
            return
        named, rows = np.unique(opaques, return_inverse=True)
        sums = np.zeros(len(named), np.int64)
        np.add.at(sums, rows, frame_bytes)
        for opaque, charged in zip(named.tolist(), sums.tolist(), strict=True):
            if opaque in streams:
                account = self.accounts.get(opaque) or ReceiveWindow(self.settings, now)
                self.accounts[opaque] = account.charge(charged)
                self.uncollected[opaque] = self.uncollected.get(opaque, 0) + charged

    def collect(self) -> dict[int, int]:
        """Return what was charged to each stream since the last time; to be released in the end."""
        charges, self.uncollected = self.uncollected, {}
        return charges

    def end(self, opaque: int) -> None:
        """Forget a stream that is over."""
        self.accounts.pop(opaque, None)
        self.forgotten.pop(opaque, None)
        self.releasing.discard(opaque)

    def release(self, released: Mapping[int, int], now: float) -> list[tuple[int, int]]:
        """Account for what the application has passed on; return acks, as (opaque, bytes).

        Raises:
            LocalProtocolError: more than a stream has: bytes were released twice.
        """
        acks: list[tuple[int, int]] = []
        for opaque, frame_bytes in released.items():
            counted_bytes = frame_bytes - self._take_forgotten(opaque, frame_bytes)
            account = self.accounts.get(opaque)
            if account is not None and counted_bytes:
                self.accounts[opaque] = account.release(counted_bytes)
                self.releasing.add(opaque)
                self._acknowledge(opaque, now, acks)
                self._look_for(opaque)
        return acks

    def _take_forgotten(self, opaque: int, frame_bytes: int) -> int:
        """Return how much of released bytes counts no more; the oldest are released first."""
        left_bytes = self.forgotten.get(opaque, 0)
        taken_bytes = min(frame_bytes, left_bytes)
        if taken_bytes:
            self.forgotten[opaque] = left_bytes - taken_bytes
        return taken_bytes

    def acknowledge_by_time(self, now: float) -> list[tuple[int, int]]:
        """Return the acks that are due because nothing was acknowledged for long."""
        if now < self.look_at or not self.is_on:
            return []
        acks: list[tuple[int, int]] = []
        for opaque in sorted(self.releasing):
            self._acknowledge(opaque, now, acks)
        self.look_at = inf
        for opaque in self.releasing:
            self._look_for(opaque)
        return acks

    def _acknowledge(self, opaque: int, now: float, acks: list[tuple[int, int]]) -> None:
        if not self.is_on:
            return
        self.accounts[opaque], acked_bytes = self.accounts[opaque].acknowledge(now)
        if acked_bytes:
            acks.append((opaque, acked_bytes))
        if not self.accounts[opaque].released_bytes:
            self.releasing.discard(opaque)

    def _look_for(self, opaque: int) -> None:
        deadline = self.accounts[opaque].deadline
        if deadline is not None:
            self.look_at = min(self.look_at, deadline)

    @property
    def deadline(self) -> float | None:
        """When to look for an ack that is due by time; None while there is none to come."""
        return self.look_at if self.releasing and self.is_on else None
