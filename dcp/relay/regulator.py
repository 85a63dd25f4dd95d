"""Regulates how much the cluster may send, by reporting consumers to each vbucket's flow control.

``due_vbuckets.py`` selects the vbuckets of a pass. A pass with many consumers takes long, so it
yields to other connections, and the next one waits in proportion.

``vbucket_flow_control.py`` decides which consumers count in a vbucket's group. A consumer stands
where its slowest stream stands. A consumer that waits for new data stands at the end, otherwise
relay and consumer would wait for each other.

Each report carries the consumer's last sign of life; a report older than the receivers' timeout has
no effect. So ejections do not depend on how often a vbucket is looked at, and a silent consumer is
silent in all vbuckets at once. Signs of life are recorded at each tick, and the clock of flow
control stands still in between: a pass cannot see a silence that the tick has not checked.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Collection, Hashable, Iterable
from time import monotonic_ns
from typing import Final, Protocol

from dcp.printable import number_ranges
from dcp.protocol.flow_strategy import FlowSpec
from dcp.relay.bucket import RelayBucket
from dcp.relay.due_vbuckets import DueVbuckets
from dcp.relay.receivers import Receivers
from dcp.relay.stuck_consumers import StuckConsumers
from dcp.relay.vbucket_flow_control import VbucketFlowControl
from dcp.server.bucket.dcp_connection import DcpConnection
from dcp.server.node.accepted_connection import AcceptedConnection

_LOGGER = logging.getLogger(__name__)
TICK_SECONDS: Final = 0.1
_GATHER_SECONDS: Final = 0.005
"""Wait before a pass, so that it serves many events together."""
_REST: Final = 2
"""Pause after a pass, as a multiple of its duration."""
_TURN_SECONDS: Final = 0.005
"""A pass yields to other tasks after this time."""
_HALT_SECONDS: Final = 1.0
"""A loop that wakes so much too late was stopped, and has not seen its consumers."""
_FEW_NAMES: Final = 64
"""Names of departed consumers are forgotten when there are more than so many names, plus two for
each connection."""


class UpstreamCredit(Protocol):
    """The regulator's view of the links, which acknowledge bytes to the cluster."""

    def consumed(self, vbucket: int, frame_bytes: int) -> None:
        """Note that no consumer needs so many more bytes of a vbucket.

        They are released as soon as the disk keeps up.
        """

    def release(self) -> None:
        """Release the consumed bytes that waited for the disk."""

    def reconcile(self) -> None:
        """Open and close streams as ``Regulator.lacks_receivers`` says."""


class Regulator:
    """The flow control of all vbuckets; call it in the event loop with the bucket's lock held."""

    def __init__(
        self,
        bucket: RelayBucket,
        spec: FlowSpec,
        window_bytes: int,
        hold_seconds: float,
        ack_seconds: float,
        upstream: UpstreamCredit,
        now_ns: Callable[[], int] = monotonic_ns,
    ) -> None:
        self.spec = spec
        self.receivers = Receivers(int(ack_seconds * 1e9), spec.receiver_timeout_ns)
        self.stuck = StuckConsumers()
        hold_ns = int(hold_seconds * 1e9)
        self.flow_controls = [
            VbucketFlowControl(spec, window_bytes, hold_ns) for _ in bucket.vbuckets
        ]
        for flow_control, vbucket in zip(self.flow_controls, bucket.vbuckets, strict=True):
            # Items of an earlier process are on disk, so positions begin behind them.
            flow_control.positions.begin_again(vbucket.data.high_seqno)
        self._clients: Callable[[], Collection[AcceptedConnection]] = lambda: ()
        self._bucket = bucket
        self._upstream = upstream
        self._now_ns = now_ns
        self._tick_ns = now_ns()
        self._due = DueVbuckets(self.flow_controls, self.receivers)
        self.waits_for_disk = False
        """True while no byte counts as consumed, because too much is not on disk yet."""
        bucket.origin.on_stream_moved.add(self._due.touch)

    def follow(self, clients: Callable[[], Collection[AcceptedConnection]]) -> None:
        self._clients = clients

    # --- events of links

    def received(self, vbucket: int, frame_bytes: int) -> None:
        """Count bytes of a stream; the bucket has their items already."""
        high_seqno = self._bucket.vbuckets[vbucket].data.high_seqno
        self.flow_controls[vbucket].positions.receive(high_seqno, frame_bytes)
        self._due.touch(vbucket)

    def ended(self, vbucket: int) -> None:
        """Count all bytes of a stream that is over as consumed."""
        self._consumed(vbucket, self.flow_controls[vbucket].consume_all())
        self._due.touch(vbucket)

    def rolled_back(self, vbucket: int) -> None:
        """Start again at the vbucket's high seqno, which is lower now."""
        self.ended(vbucket)
        high_seqno = self._bucket.vbuckets[vbucket].data.high_seqno
        self.flow_controls[vbucket].positions.begin_again(high_seqno)

    def lacks_receivers(self, vbucket: int) -> bool:
        """Return True if the vbucket must not have a stream now."""
        return self.flow_controls[vbucket].lacks_receivers

    def _consumed(self, vbucket: int, frame_bytes: int) -> None:
        if frame_bytes:
            self._upstream.consumed(vbucket, frame_bytes)

    # --- events of consumers

    def stream_deferred(self, consumer: DcpConnection, vbucket: int) -> None:
        """Record that a consumer requested a stream that the relay cannot serve yet."""
        self.flow_controls[vbucket].stream_deferred(self.receivers.number(consumer))
        self._due.touch(vbucket)

    def stream_wait_ended(self, consumer: DcpConnection, vbucket: int) -> None:
        """Record that a consumer got its deferred stream, or gave it up."""
        self.flow_controls[vbucket].stream_wait_ended(self.receivers.number(consumer))
        self._due.touch(vbucket)

    def set_tag(self, consumer: DcpConnection, value: bytes) -> bool:
        """Put a consumer into the group with this tag; return False if the value is no tag."""
        is_tag = self.receivers.set_tag(consumer, value)
        number = self.receivers.number(consumer)
        for vbucket, flow_control in enumerate(self.flow_controls):
            if number in flow_control.members:
                self._due.touch(vbucket)
        return is_tag

    # --- passes

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        tick_at = loop.time()
        while True:
            is_tick = loop.time() >= tick_at
            took_seconds = await self.regulate(is_tick=is_tick)
            if is_tick:
                tick_at = loop.time() + rest_seconds(took_seconds)
            rests_until = loop.time() + max(_GATHER_SECONDS, _REST * took_seconds)
            await asyncio.sleep(rests_until - loop.time())
            try:
                async with asyncio.timeout(max(0.0, tick_at - loop.time())):
                    await self._due.wanted.wait()
            except TimeoutError:
                pass
            self._excuse_halt(max(rests_until, tick_at))

    def _excuse_halt(self, due_at: float) -> float:
        """If the loop is much too late, do not count the delay as silence of any consumer.

        Return the delay in seconds, or 0.
        """
        away_seconds = asyncio.get_running_loop().time() - due_at
        if away_seconds < _HALT_SECONDS:
            return 0.0
        with self._bucket.lock:
            self.receivers.was_away(int(away_seconds * 1e9))
        return away_seconds

    async def regulate(self, *, is_tick: bool) -> float:
        """Run one pass: over changed vbuckets, on a tick also over those that time can change.

        Return its duration in seconds, without halts of the process.
        """
        loop = asyncio.get_running_loop()
        began, halted_seconds = loop.time(), 0.0
        with self._bucket.lock:
            due = self._tick() if is_tick else self._due.take_changed()
            self._note_disk(has_room=self._bucket.writes.make_room())
        lacked_before = {v for v in due if self.flow_controls[v].lacks_receivers}
        left = deque(due)
        while left:
            until = loop.time() + _TURN_SECONDS
            with self._bucket.lock:
                while left and loop.time() < until:
                    self._look_at(left.popleft())
            # Let other connections have their turn.
            await asyncio.sleep(0)
            halted_seconds += self._excuse_halt(until)
        with self._bucket.lock:
            if is_tick:
                self.stuck.tell(self.receivers.names)
            self._forget_who_is_gone()
            self._follow_groups(lacked_before, due)
            if not self.waits_for_disk:
                self._upstream.release()
        return loop.time() - began - halted_seconds

    def _tick(self) -> list[int]:
        self._tick_ns = self._now_ns()
        moving = self.receivers.note_progress(self._clients(), self._tick_ns)
        consumers = self._bucket.dcp_connections.values()
        return self._due.take_all_due(consumers, moving, self._tick_ns)

    def _look_at(self, vbucket: int) -> None:
        flow_control, now_ns = self.flow_controls[vbucket], self._tick_ns
        tracked = {each.receiver_id for each in flow_control.group.receivers}
        timeouts = flow_control.group.timeouts
        present = self._report_all(flow_control, vbucket, now_ns)
        if self.waits_for_disk:
            # Nothing is consumed while the disk is behind, or even more would wait for it.
            self._due.look_again(vbucket)
            return
        consumed_bytes = flow_control.on_idle(now_ns)
        if flow_control.group.timeouts != timeouts:
            for number in (tracked & present) - {
                each.receiver_id for each in flow_control.group.receivers
            }:
                self.stuck.ejected(number, vbucket)
        self._consumed(vbucket, consumed_bytes)

    def _report_all(self, flow_control: VbucketFlowControl, vbucket: int, now_ns: int) -> set[int]:
        """Report a vbucket's consumers to its flow control; return their numbers."""
        leaving = set(flow_control.members)
        present = set()
        for consumer in self._bucket.dcp_connections.values():
            number = self.receivers.number(consumer)
            streams, heard_at_ns = self._stream_positions(consumer, vbucket, now_ns)
            if not streams:
                if not flow_control.is_waiting(number):
                    continue
                heard_at_ns = self.receivers.connection_heard_at_ns(consumer, now_ns)
            present.add(number)
            flow_control.report(number, streams, self.receivers.tag(consumer), heard_at_ns, now_ns)
            if not flow_control.is_silent(heard_at_ns, now_ns) and flow_control.group.tracks(
                number
            ):
                self.stuck.is_over(number, vbucket)
        for number in leaving - present:
            flow_control.leave(number)
            self.stuck.is_over(number, vbucket)
        return present

    def _stream_positions(
        self, consumer: DcpConnection, vbucket: int, now_ns: int
    ) -> tuple[dict[Hashable, int], int]:
        positions = self.flow_controls[vbucket].positions
        heard_at_ns, found = now_ns, dict[Hashable, int]()
        for stream in consumer.streams.of({vbucket}):
            if not stream.is_sending:
                continue
            heard_at_ns = min(heard_at_ns, self.receivers.heard_at_ns(consumer, stream, now_ns))
            at = positions.received_bytes
            # A stream that has sent everything stands at the end, whatever the last seqno it sent.
            if consumer.ready.has(stream) or vbucket in self._bucket.changes:
                at = min(at, positions.position_of(stream.sent_seqno))
            found[stream] = at
        return found, heard_at_ns

    # --- logs and upstream streams

    def _note_disk(self, *, has_room: bool) -> None:
        # Log each change of the state once.
        if has_room == self.waits_for_disk:
            self.waits_for_disk = not has_room
            if has_room:
                _LOGGER.warning(
                    "the relay's disk is available again; acknowledgements to the cluster continue"
                )
            else:
                _LOGGER.warning(
                    "the relay's disk is unavailable; acknowledgements to the cluster are paused"
                )

    def _forget_who_is_gone(self) -> None:
        if len(self.receivers.names) > _FEW_NAMES + 2 * len(self._bucket.dcp_connections):
            self.receivers.forget_others(
                {n for flow_control in self.flow_controls for n in flow_control.members}
            )
            self.stuck.keep(self.receivers.names)

    def _follow_groups(self, lacked_before: set[int], looked_at: Iterable[int]) -> None:
        lacks = {v for v in looked_at if self.flow_controls[v].lacks_receivers}
        for vbuckets, what in (
            (lacks - lacked_before, "is incomplete, so the relay closes their streams"),
            (lacked_before - lacks, "is complete, so the relay opens their streams"),
        ):
            if vbuckets:
                _LOGGER.info("vbuckets %s: the group %s", number_ranges(vbuckets), what)
        if lacks != lacked_before:
            self._upstream.reconcile()


def rest_seconds(took_seconds: float) -> float:
    """Return the pause until the next tick, after a pass of so many seconds."""
    return max(TICK_SECONDS, _REST * took_seconds)
