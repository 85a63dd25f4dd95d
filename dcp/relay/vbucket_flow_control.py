"""Flow control of one vbucket: its consumers consume bytes, by Aeron's strategies.

    report(consumer, ...)       the present streams of a consumer
    stream_deferred(consumer)   the consumer requested items that have not come yet
    leave(consumer)             the consumer has left the vbucket
    on_idle(now)                ejects silent consumers; consumes bytes that none needs

A consumer is a *member* of the vbucket's group, or not:

    member      begins when                     position                 ends when
    waiting     its stream request is deferred  the end                  the request ends
    streaming   a stream opens                  behind what was sent     that stream ends

- Membership stays when waiting becomes streaming. It also ends when the connection ends or its tag
  changes. Whoever comes afterwards is a *newcomer*, even if it is the same consumer.
- Aeron's admission decides if a newcomer counts: it must not be more than one window behind those
  that count. The first newcomer always counts. If it is more than a window behind the consumed
  bytes, it counts only until somebody closer comes.
- If a member has streams already, a further stream that is far behind does not count for its
  position.
- A member that is silent for too long stays, but does not count. It is a newcomer when it moves
  again. Aeron's *receivers* are the members that count.

The strategy sees the window of the connection to the cluster as every consumer's window: the limit
is one window above the consumed bytes. A consumer is *far behind* another if its edge is more than
one window below the other's. If no consumer shows life, all bytes count as consumed: they are on
the relay's disk. Below the group's minimum size none does, and after a time the vbucket has
no stream (``lacks_receivers``).

The caller supplies signs of life (``receivers.py``). It must report all consumers before
``on_idle``, the only method that looks at the time. Times are nanoseconds of any monotonic clock.
"""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Final

from dcp.protocol.flow_strategy import FlowSpec
from dcp.protocol.receiver_group import ReceiverGroup, StatusMessage
from dcp.relay.byte_positions import BytePositions

_NO_STREAMS: Final[frozenset[Hashable]] = frozenset()


@dataclass(slots=True)
class _Member:
    """A consumer in the group, whether it counts or not."""

    tag: int | None
    streams: frozenset[Hashable]
    """Its streams that count; empty while it waits for one."""
    position: int
    heard_at_ns: int
    is_refused: bool = False
    """True if the group did not admit the last report."""


class VbucketFlowControl:
    """The receiver group of one vbucket, and the bytes that they have not consumed."""

    __slots__ = (
        "_hold_ns",
        "_incomplete_since_ns",
        "_limit",
        "_members",
        "_waiting",
        "_window_bytes",
        "group",
        "lacks_receivers",
        "newcomers_refused",
        "positions",
    )

    def __init__(self, spec: FlowSpec, window_bytes: int, hold_ns: int) -> None:
        self.positions = BytePositions(window_bytes)
        self.group = ReceiverGroup(spec)
        self.lacks_receivers = not self.group.has_required
        """True if the vbucket must have no stream, at first because the group is incomplete."""
        self.newcomers_refused = 0
        self._window_bytes = window_bytes
        self._hold_ns = hold_ns
        self._limit = window_bytes
        self._members: dict[int, _Member] = {}
        self._waiting: set[int] = set()
        self._incomplete_since_ns: int | None = None

    @property
    def members(self) -> frozenset[int]:
        """All members, whether they count or not."""
        return frozenset(self._members.keys() | self._waiting)

    @property
    def slowest_receiver(self) -> int | None:
        """The consumer that the vbucket waits for; None if all bytes are consumed."""
        slowest = self.group.slowest_receiver
        if slowest is None or not self.positions.unconsumed_bytes:
            return None
        return slowest.receiver_id

    def stream_deferred(self, consumer: int) -> None:
        self._waiting.add(consumer)

    def stream_wait_ended(self, consumer: int) -> None:
        self._waiting.discard(consumer)

    def is_waiting(self, consumer: int) -> bool:
        return consumer in self._waiting

    def report(
        self,
        consumer: int,
        streams: Mapping[Hashable, int],
        tag: int | None,
        heard_at_ns: int,
        now_ns: int,
    ) -> None:
        """Take the positions of a consumer's streams, and its last sign of life.

        Without streams the consumer waits for one.
        """
        member = self._members.get(consumer)
        if member is not None and _is_over(member, streams, tag):
            self._end(consumer)
            member = None
        if self.is_silent(heard_at_ns, now_ns):
            return
        counted = streams if len(streams) <= 1 else self._counted(member, streams)
        position = min(counted.values(), default=self.positions.received_bytes)
        if member is None:
            member = _Member(tag, _NO_STREAMS, position, heard_at_ns)
            self._members[consumer] = member
        else:
            member.heard_at_ns = heard_at_ns
            is_same = member.position == position and member.streams == counted.keys()
            # A short cut for the usual case, an unchanged report: it only updates the sign of life.
            if is_same and self._needs_no_report(consumer, tag, heard_at_ns):
                return
        member.streams = frozenset(counted)
        member.position = position
        self._drop_far_behind(consumer, member)
        refusals = self.group.refusals
        self._send_status(StatusMessage(consumer, position, self._window_bytes, tag), heard_at_ns)
        was_refused, member.is_refused = member.is_refused, self.group.refusals != refusals
        self.newcomers_refused += member.is_refused and not was_refused

    def _needs_no_report(self, consumer: int, tag: int | None, heard_at_ns: int) -> bool:
        """Update an unmoved consumer's sign of life; return False if the group needs a report."""
        if self.group.heard(consumer, heard_at_ns) or not self.group.is_tracking:
            return True
        return self.group.receiver_count > 0 and not self.group.counts(tag)

    def _counted(
        self, member: _Member | None, streams: Mapping[Hashable, int]
    ) -> dict[Hashable, int]:
        """Return the streams that count for the position: all but new ones far behind."""
        before = _NO_STREAMS if member is None else member.streams
        slowest = self.group.slowest_receiver
        if slowest is None or (member is not None and not before):
            return dict(streams)
        found = {
            each: at
            for each, at in streams.items()
            if each in before or not self._is_far_behind(self._edge(at), slowest.edge)
        }
        return found or dict(streams)

    def _edge(self, position: int) -> int:
        return position + self._window_bytes

    def _is_far_behind(self, edge: int, other_edge: int) -> bool:
        return edge < other_edge - self._window_bytes

    def _drop_far_behind(self, consumer: int, member: _Member) -> None:
        slowest, consumed_bytes = self.group.slowest_receiver, self.positions.consumed_bytes
        if slowest is None or slowest.edge >= consumed_bytes or self.group.tracks(consumer):
            return
        if not self.group.counts(member.tag):
            return
        # Somebody far behind counts only while nobody closer is there.
        edge = self._edge(min(consumed_bytes, member.position))
        for each in self.group.receivers:
            if self._is_far_behind(each.edge, edge):
                self.group.drop(each.receiver_id)

    def leave(self, consumer: int) -> None:
        self._waiting.discard(consumer)
        if consumer in self._members:
            self._end(consumer)

    def _end(self, consumer: int) -> None:
        del self._members[consumer]
        self.group.drop(consumer)

    def _send_status(self, message: StatusMessage, now_ns: int) -> None:
        self._limit = self.group.on_status_message(message, self._limit, now_ns)

    def on_idle(self, now_ns: int) -> int:
        """Eject silent consumers; return how many more bytes are consumed."""
        self._limit = self.group.on_idle(self._limit, now_ns)
        if not self.group.has_required:
            self._note_incomplete(now_ns)
            return 0
        self._incomplete_since_ns, self.lacks_receivers = None, False
        if self.group.receiver_count or self._has_audience(now_ns):
            # The limit is one window above the slowest consumer that counts.
            return self.positions.consume_to(self._limit - self._window_bytes)
        return self.consume_all()

    def _note_incomplete(self, now_ns: int) -> None:
        since_ns = self._incomplete_since_ns
        if since_ns is None:
            since_ns = self._incomplete_since_ns = now_ns
        self.lacks_receivers |= now_ns - since_ns >= self._hold_ns

    def _has_audience(self, now_ns: int) -> bool:
        return any(not self.is_silent(each.heard_at_ns, now_ns) for each in self._members.values())

    def is_silent(self, heard_at_ns: int, now_ns: int) -> bool:
        """Return True if the last sign of life is older than the receivers' timeout."""
        return heard_at_ns + self.group.spec.receiver_timeout_ns < now_ns

    def is_due(self, now_ns: int) -> bool:
        """Return True if time alone changes something: its streams must end now."""
        since_ns = self._incomplete_since_ns
        return (
            since_ns is not None and not self.lacks_receivers and now_ns - since_ns >= self._hold_ns
        )

    def consume_all(self) -> int:
        """Count all received bytes as consumed; return how many."""
        return self.positions.consume_to(self.positions.received_bytes)


def _is_over(member: _Member, streams: Mapping[Hashable, int], tag: int | None) -> bool:
    """Return True if the consumer's present streams or tag make a new member."""
    had_streams = bool(member.streams)
    return member.tag != tag or (had_streams and member.streams.isdisjoint(streams))
