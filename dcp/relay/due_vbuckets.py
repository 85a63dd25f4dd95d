"""Selects the vbuckets for the regulator's next pass.

    event                                            vbuckets
    items came or were sent, streams came or went    that one (``touch``)
    tick                                             those with unconsumed bytes, or ``is_due``
    a silent consumer moves again                    those where it streams or waits
    a consumer leaves, falls silent, moves again     all, if groups have a minimum size
    or gets another tag

A vbucket without events costs nothing. Call it with the bucket's lock held.
"""

import asyncio
from collections.abc import Iterable, Iterator, Sequence

from dcp.relay.receivers import Receivers
from dcp.relay.vbucket_flow_control import VbucketFlowControl
from dcp.server.bucket.dcp_connection import DcpConnection


class DueVbuckets:
    def __init__(self, flow_controls: Sequence[VbucketFlowControl], receivers: Receivers) -> None:
        self.wanted = asyncio.Event()
        """Set if a vbucket has changed since the last pass."""
        self._flow_controls = flow_controls
        self._receivers = receivers
        self._touched: set[int] = set()
        self._states: dict[int, tuple[int | None, bool]] = {}

    def touch(self, vbucket: int) -> None:
        """Schedule a vbucket, and start a pass soon."""
        self._touched.add(vbucket)
        self.wanted.set()

    def look_again(self, vbucket: int) -> None:
        """Schedule a vbucket for the next pass, but start none."""
        self._touched.add(vbucket)

    def take_changed(self) -> list[int]:
        found = sorted(self._touched)
        self._touched.clear()
        self.wanted.clear()
        return found

    def take_all_due(
        self,
        consumers: Iterable[DcpConnection],
        moving: Iterable[tuple[DcpConnection, int | None]],
        now_ns: int,
    ) -> list[int]:
        """Return the vbuckets of a tick; ``moving`` comes from ``Receivers.note_progress``."""
        touched = {*self.take_changed(), *self._with_any_of(moving)}
        if self._have_groups_changed(consumers, now_ns):
            return list(range(len(self._flow_controls)))
        return [
            v
            for v, each in enumerate(self._flow_controls)
            if v in touched or each.positions.unconsumed_bytes or each.is_due(now_ns)
        ]

    def _with_any_of(self, moving: Iterable[tuple[DcpConnection, int | None]]) -> Iterator[int]:
        """Yield the vbuckets where consumers that were silent until now must be reported again."""
        for consumer, opaque in moving:
            number = self._receivers.number(consumer)
            for stream in consumer.streams:
                if opaque in (None, stream.opaque):
                    yield stream.vbucket
            yield from (
                v
                for v, flow_control in enumerate(self._flow_controls)
                if flow_control.is_waiting(number)
            )

    def _have_groups_changed(self, consumers: Iterable[DcpConnection], now_ns: int) -> bool:
        """Return True if a consumer left, fell silent, moves again or has another tag."""
        if not self._flow_controls or not self._flow_controls[0].group.spec.group_min_size:
            return False
        before = self._states
        self._states = self._receivers.states(consumers, now_ns)
        return any(self._states.get(number) != state for number, state in before.items())
