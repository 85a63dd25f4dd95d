"""Regulates how much the cluster may send: reports consumers to each vbucket's flow control.

``due_vbuckets.py`` selects the vbuckets to look at. Other connections have their turns during a
pass: with many consumers it takes long, and the next one is delayed in proportion.

``vbucket_flow_control.py`` decides which consumers have a place in a vbucket's group. A consumer's
position is that of its stream that is farthest behind. A consumer waiting for new data is placed at
the end, or relay and consumer would wait for each other. Each report is as old as the consumer's
last sign of life, and one that is older than the receivers' timeout is none: so ejections do not
depend on how often a vbucket is looked at, and a silent consumer is silent in all its vbuckets at
once (except those whose own windows are full). Consumers' signs of life are noted at each tick, and
until the next one no time passes for their flow control: a pass between two ticks cannot take a
silence that it has not looked at.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Collection, Hashable, Iterable
from time import monotonic_ns
from typing import Final, Protocol

from dcp.printable import number_ranges
from dcp.protocol.flow_strategy import FlowSpec
from dcp.protocol.receiver_group import Ejection
from dcp.relay.due_vbuckets import DueVbuckets
from dcp.relay.receivers import Receivers
from dcp.relay.relay_bucket import RelayBucket
from dcp.relay.stuck_consumers import StuckConsumers
from dcp.relay.vbucket_flow_control import VbucketFlowControl
from dcp.server.bucket.dcp_connection import DcpConnection
from dcp.server.node.accepted_connection import AcceptedConnection
from dcp.wire.vocabulary import Status

_LOG = logging.getLogger(__name__)
TICK_SECONDS: Final = 0.1
_GATHER_SECONDS: Final = 0.005
"""A pass waits so long, so that it serves many events together."""
_REST: Final = 2
"""Pause after a pass, as a multiple of its duration."""
_TURN_SECONDS: Final = 0.005
_HALT_SECONDS: Final = 1.0
"""A process that wakes so much too late was stopped: it has not heard its consumers meanwhile."""
_FEW_NAMES: Final = 64
"""Keeps the names of this many departed consumers for the log."""


class UpstreamCredit(Protocol):
    """The upstream side of the regulator, which acknowledges bytes to the cluster."""

    def free(self, vbucket: int, frame_bytes: int) -> None:
        """Let so many more of a vbucket's bytes be acknowledged, as soon as the disk keeps up."""

    def release(self) -> None:
        """Let those be acknowledged that waited for the disk."""

    def reconcile(self) -> None:
        """Have the streams that are wanted."""


class Regulator:
    """The flow control of all vbuckets. Its methods run in the loop, under the bucket's lock."""

    def __init__(
        self,
        bucket: RelayBucket,
        spec: FlowSpec,
        window_bytes: int,
        hold_seconds: float,
        ack_seconds: float,
        source: UpstreamCredit,
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
            flow_control.positions.begin_again(vbucket.data.high_seqno)
        self._clients: Callable[[], Collection[AcceptedConnection]] = lambda: ()
        self._bucket = bucket
        self._source = source
        self._now_ns = now_ns
        self._tick_ns = now_ns()
        self._due = DueVbuckets(self.flow_controls, self.receivers)
        self.waits_for_disk = False
        """True if nothing is freed because too much is not on disk yet."""
        bucket.origin.on_sent.add(self._due.touch)

    def follow(self, clients: Callable[[], Collection[AcceptedConnection]]) -> None:
        """Know whose connections there are: those that ``clients`` returns."""
        self._clients = clients

    # --- what the links tell

    def received(self, vbucket: int, frame_bytes: int) -> None:
        """Note bytes of a stream; the bucket has stored the items in them."""
        high_seqno = self._bucket.vbuckets[vbucket].data.high_seqno
        self.flow_controls[vbucket].positions.receive(high_seqno, frame_bytes)
        self._due.touch(vbucket)

    def ended(self, vbucket: int) -> None:
        """Note that the stream is over: its bytes are freed."""
        self._free(vbucket, self.flow_controls[vbucket].free_all())
        self._due.touch(vbucket)  # the disk may still be

    def rolled_back(self, vbucket: int) -> None:
        """Note that seqnos begin again lower."""
        self.ended(vbucket)
        high_seqno = self._bucket.vbuckets[vbucket].data.high_seqno
        self.flow_controls[vbucket].positions.begin_again(high_seqno)

    def holds(self, vbucket: int) -> bool:
        """Return whether a vbucket shall have no stream now."""
        return self.flow_controls[vbucket].is_held

    def _free(self, vbucket: int, frame_bytes: int) -> None:
        if frame_bytes:
            self._source.free(vbucket, frame_bytes)

    # --- what consumers do

    def stream_deferred(self, consumer: DcpConnection, vbucket: int) -> None:
        """Note a consumer whose stream cannot be served yet, until it has it."""
        self.flow_controls[vbucket].stream_deferred(self.receivers.number(consumer))
        self._due.touch(vbucket)

    def stream_wait_ended(self, consumer: DcpConnection, vbucket: int) -> None:
        """Note that a consumer got the stream that it waited for, or gave it up."""
        self.flow_controls[vbucket].stream_wait_ended(self.receivers.number(consumer))
        self._due.touch(vbucket)

    def set_tag(self, consumer: DcpConnection, value: bytes) -> Status:
        """Let a consumer belong to the group with a tag; EINVAL for what is none."""
        status = self.receivers.set_tag(consumer, value)
        number = self.receivers.number(consumer)
        for vbucket, flow_control in enumerate(self.flow_controls):
            if number in flow_control.receivers:
                self._due.touch(vbucket)
        return status

    # --- passes

    async def run(self) -> None:
        """Run passes until cancelled."""
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
        """Hold no silence against anybody where we come much later than we were due.

        Return for how long we were halted, 0 if we were not.
        """
        away_seconds = asyncio.get_running_loop().time() - due_at
        if away_seconds < _HALT_SECONDS:
            return 0.0
        with self._bucket.lock:
            self.receivers.was_away(int(away_seconds * 1e9))
        return away_seconds

    async def regulate(self, *, is_tick: bool) -> float:
        """Run one pass: over changed vbuckets, and on a tick over all that time can change.

        Return how many seconds that took, without those in which all of us was halted.
        """
        loop = asyncio.get_running_loop()
        began, halted_seconds = loop.time(), 0.0
        with self._bucket.lock:
            due = self._tick() if is_tick else self._due.take_changed()
            self._note_disk(has_room=self._bucket.writes.make_room())
        held_before = {v for v in due if self.flow_controls[v].is_held}
        left = deque(due)
        while left:
            until = loop.time() + _TURN_SECONDS
            with self._bucket.lock:
                while left and loop.time() < until:
                    self._look_at(left.popleft())
            await asyncio.sleep(0)
            halted_seconds += self._excuse_halt(until)
        with self._bucket.lock:
            if is_tick:
                self.stuck.tell(self.receivers.names)
            self._forget_who_is_gone()
            self._follow_holds(held_before, due)
            if not self.waits_for_disk:
                self._source.release()
        return loop.time() - began - halted_seconds

    def _tick(self) -> list[int]:
        """Note which consumers have moved; return the vbuckets to look at."""
        self._tick_ns = self._now_ns()
        moving = self.receivers.note_progress(self._clients(), self._tick_ns)
        consumers = self._bucket.dcp_connections.values()
        return self._due.take_all_due(consumers, moving, self._tick_ns)

    def _look_at(self, vbucket: int) -> None:
        flow_control, now_ns = self.flow_controls[vbucket], self._tick_ns
        tracked = {each.receiver_id for each in flow_control.group.receivers}
        ejected = flow_control.group.ejections[Ejection.TIMEOUT]
        present = self._report_all(flow_control, vbucket, now_ns)
        if self.waits_for_disk:
            self._due.look_again(vbucket)  # what the disk has not got must not be followed by more
            return
        freed_bytes = flow_control.on_idle(now_ns)
        if flow_control.group.ejections[Ejection.TIMEOUT] != ejected:
            for number in (tracked & present) - {
                each.receiver_id for each in flow_control.group.receivers
            }:
                self.stuck.ejected(number, vbucket)
        self._free(vbucket, freed_bytes)

    def _report_all(self, flow_control: VbucketFlowControl, vbucket: int, now_ns: int) -> set[int]:
        """Report a vbucket's consumers to its flow control; return their numbers."""
        leaving = set(flow_control.receivers)
        present = set()
        for consumer in self._bucket.dcp_connections.values():
            number = self.receivers.number(consumer)
            streams, heard_at_ns = self._standings(consumer, vbucket, now_ns)
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

    def _standings(
        self, consumer: DcpConnection, vbucket: int, now_ns: int
    ) -> tuple[dict[Hashable, int], int]:
        """Return the positions of a consumer's streams, and its last sign of life there."""
        positions = self.flow_controls[vbucket].positions
        heard_at_ns, found = now_ns, dict[Hashable, int]()
        for stream in consumer.streams.of({vbucket}):
            if not stream.is_sending:
                continue
            heard_at_ns = min(heard_at_ns, self.receivers.heard_at_ns(consumer, stream, now_ns))
            at = positions.received_bytes
            if consumer.ready.has(stream) or vbucket in self._bucket.changes:
                at = min(at, positions.position_of(stream.sent_seqno))
            found[stream] = at
        return found, heard_at_ns

    # --- what is told

    def _note_disk(self, *, has_room: bool) -> None:
        """Log once each when the cluster begins, or ceases, to wait for the disk."""
        if has_room == self.waits_for_disk:  # the state has changed since the last line
            self.waits_for_disk = not has_room
            if has_room:
                _LOG.warning("the relay's disk is back; acknowledgements to the cluster go on")
            else:
                _LOG.warning(
                    "the relay's disk is unavailable; acknowledgements to the cluster are paused"
                )

    def _forget_who_is_gone(self) -> None:
        if len(self.receivers.names) > _FEW_NAMES + 2 * len(self._bucket.dcp_connections):
            self.receivers.forget_others(
                {n for flow_control in self.flow_controls for n in flow_control.receivers}
            )
            self.stuck.keep(self.receivers.names)

    def _follow_holds(self, held_before: set[int], looked_at: Iterable[int]) -> None:
        held = {v for v in looked_at if self.flow_controls[v].is_held}
        for vbuckets, what in (
            (held - held_before, "is not complete, their streams are closed"),
            (held_before - held, "is complete, their streams are opened"),
        ):
            if vbuckets:
                _LOG.info("vbuckets %s: the group %s", number_ranges(vbuckets), what)
        if held != held_before:
            self._source.reconcile()


def rest_seconds(took_seconds: float) -> float:
    """Return how long after a tick's pass, which took so long, the next tick comes."""
    return max(TICK_SECONDS, _REST * took_seconds)
