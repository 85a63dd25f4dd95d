"""Selects the vbuckets that the relay's regulator looks at next.

    when                                             which
    something came, was sent, streams came or went   that one (``touch``)
    each tick                                        those that hold something; whose hold is over
    who was silent moves again                       those where it has streams, or waits
    who is there or silent, or its tag, changes      all, where a group has a least size

A vbucket without events is not looked at, and costs nothing. Used under the bucket's lock.
"""

import asyncio
from collections.abc import Iterable, Iterator, Sequence

from dcp.relay.receivers import Receivers
from dcp.relay.vbucket_flow_control import VbucketFlowControl
from dcp.server.bucket.dcp_connection import DcpConnection


class DueVbuckets:
    """The vbuckets that changed, and those with consumers to look at again."""

    def __init__(self, flow_controls: Sequence[VbucketFlowControl], receivers: Receivers) -> None:
        """Begin with none."""
        self.wanted = asyncio.Event()
        """True if any vbucket changed since the last time."""
        self._flow_controls = flow_controls
        self._receivers = receivers
        self._touched: set[int] = set()
        self._states: dict[int, tuple[int | None, bool]] = {}

    def touch(self, vbucket: int) -> None:
        """Schedule a vbucket for the next pass."""
        self._touched.add(vbucket)
        self.wanted.set()

    def look_again(self, vbucket: int) -> None:
        """Schedule a vbucket for the next pass, whenever that is."""
        self._touched.add(vbucket)

    def take_changed(self) -> list[int]:
        """Return the vbuckets that changed, and begin anew."""
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
        """Return what a tick looks at; ``moving`` is what ``Receivers.look`` returned."""
        touched = {*self.take_changed(), *self._with_any_of(moving)}
        if self._have_groups_changed(consumers, now_ns):
            return list(range(len(self._flow_controls)))
        return [
            v
            for v, flow_control in enumerate(self._flow_controls)
            if v in touched or flow_control.positions.held_bytes or flow_control.is_due(now_ns)
        ]

    def _with_any_of(self, moving: Iterable[tuple[DcpConnection, int | None]]) -> Iterator[int]:
        """Yield where consumers that were passed over as silent are to be reported again."""
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
        """Return whether a consumer is gone, silent or has another tag than before."""
        if not self._flow_controls or not self._flow_controls[0].group.spec.group_min_size:
            return False
        before = self._states
        self._states = self._receivers.states(consumers, now_ns)
        return any(self._states.get(number) != state for number, state in before.items())
