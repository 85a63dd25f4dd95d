"""Windows of single streams from the consumer's side, beside the connection's own.

Each stream that has sent something has a ``ReceiveWindow`` of its own, by its opaque: what it sent
is charged there and to the connection's, released in both, and acknowledged by each for itself, at
its own 20 % or after its own 5 s. An acknowledgement with a stream's opaque is that stream's only;
0 is the connection's (kv_engine ``docs/dcp/documentation/flow-control.md``).

What a stream held is forgotten with the stream, here as at the producer: the application may
release it later, to the connection's window alone.

Times of acknowledgements are looked at only when one may be due: a connection has many streams.
"""

from collections.abc import Container, Mapping
from dataclasses import dataclass, field
from math import inf

import numpy as np
from numpy.typing import NDArray

from dcp.protocol.flow_control import FlowSettings, ReceiveWindow


@dataclass(slots=True)
class StreamAccounts:
    """The accounts of one connection's streams. Without ``is_on`` nothing is charged.

    ``settings`` are of one stream's window. ``uncollected`` are charges since the last ``collect``.
    ``releasing`` are the streams with released bytes that are not acknowledged yet, of which none
    is due by time before ``look_at``.
    """

    settings: FlowSettings = field(default_factory=lambda: FlowSettings(0))
    is_on: bool = False
    accounts: dict[int, ReceiveWindow] = field(default_factory=dict)
    uncollected: dict[int, int] = field(default_factory=dict)
    releasing: set[int] = field(default_factory=set)
    look_at: float = inf

    def copy(self) -> "StreamAccounts":
        """Return a copy that can be changed without this one noticing."""
        return StreamAccounts(
            self.settings,
            self.is_on,
            dict(self.accounts),
            dict(self.uncollected),
            set(self.releasing),
            self.look_at,
        )

    def charge(
        self,
        opaques: NDArray[np.uint32],
        frame_bytes: NDArray[np.int64],
        streams: Container[int],
        now: float,
    ) -> None:
        """Account for received frames; those of no stream that is under way have no window."""
        if not self.is_on or not len(opaques):
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
        self.releasing.discard(opaque)

    def release(self, released: Mapping[int, int], now: float) -> list[tuple[int, int]]:
        """Account for what the application has passed on; return acks, as (opaque, bytes).

        Raises:
            LocalProtocolError: more than a stream has: bytes were released twice.
        """
        acks: list[tuple[int, int]] = []
        for opaque, frame_bytes in released.items():
            account = self.accounts.get(opaque)
            if account is not None and frame_bytes:
                self.accounts[opaque] = account.release(frame_bytes)
                self.releasing.add(opaque)
                self._acknowledge(opaque, now, acks)
                self._look_for(opaque)
        return acks

    def acknowledge_by_time(self, now: float) -> list[tuple[int, int]]:
        """Return the acks that are due because nothing was acknowledged for long."""
        if now < self.look_at:
            return []
        acks: list[tuple[int, int]] = []
        for opaque in sorted(self.releasing):
            self._acknowledge(opaque, now, acks)
        self.look_at = inf
        for opaque in self.releasing:
            self._look_for(opaque)
        return acks

    def _acknowledge(self, opaque: int, now: float, acks: list[tuple[int, int]]) -> None:
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
        return self.look_at if self.releasing else None
