"""Flow control of one vbucket: frees bytes as its consumers advance, by Aeron's strategies.

    report(receiver, …)    a consumer's streams of the vbucket now
    stream_deferred(receiver)   it asks for what has not come yet
    leave(receiver)        it has nothing to do with it any more
    on_idle(now)           eject silent ones; free the bytes that no counted consumer still needs

A consumer has a *place* in the vbucket's group, or none:

    place       since                              it stands             until
    waiting     a stream was refused: too early    at the end            it gets it, or gives it up
    streaming   a stream was opened                behind what it sent   that stream ends

- A place is kept from waiting to streaming. It ends, too, when the connection does, or its tag
  changes. Whatever comes after that is a *newcomer*, be it the same consumer at once.
- A newcomer counts by Aeron's admission: unless it is more than one window behind who counts. A
  stream that is added to others of a place passes it for itself. The first one always counts: where
  that is farther behind what is freed than a window, it counts only until one comes who is not.
- A place that is silent for too long stays, and counts no more: it is a newcomer when it moves.

A consumer's window, as the strategy sees it, is that of the connection to the cluster: the limit is
one window above what may be freed. One is *far behind* another whose edge is more than a window
below the other's. Without any consumer that speaks all is freed at once: it is on
the relay's disk. Below the group's size nothing is freed, and after a time the vbucket is *held*:
it shall have no stream.

A sign of life is the caller's (``receivers.py``); place and group have that of the newest report.
So all are reported before ``on_idle``, which alone looks at the time: it ejects the consumers that
are silent then, and no others. Time is nanoseconds of any clock that never goes back.
"""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Final

from dcp.protocol.flow_strategy import FlowSpec
from dcp.protocol.receiver_group import ReceiverGroup, StatusMessage
from dcp.relay.byte_positions import BytePositions

_NO_STREAMS: Final[frozenset[Hashable]] = frozenset()


@dataclass(slots=True)
class _Place:
    """A consumer's position in the group, its last sign of life and its streams; none: it waits."""

    tag: int | None
    streams: frozenset[Hashable]
    position: int
    heard_at_ns: int
    is_refused: bool = False


class VbucketFlowControl:
    """The receiver group of one vbucket, and the bytes that it holds."""

    __slots__ = (
        "_hold_ns",
        "_incomplete_since_ns",
        "_limit",
        "_places",
        "_waiting",
        "_window_bytes",
        "group",
        "is_held",
        "newcomers_refused",
        "positions",
    )

    def __init__(self, spec: FlowSpec, window_bytes: int, hold_ns: int) -> None:
        self.positions = BytePositions(window_bytes)
        self.group = ReceiverGroup(spec)
        self.is_held = not self.group.has_required
        """True if there shall be no stream; until the group is complete for the first time."""
        self.newcomers_refused = 0
        self._window_bytes = window_bytes
        self._hold_ns = hold_ns
        self._limit = window_bytes
        self._places: dict[int, _Place] = {}
        self._waiting: set[int] = set()
        self._incomplete_since_ns: int | None = None

    @property
    def receivers(self) -> frozenset[int]:
        """The consumers that have a place, counted or not."""
        return frozenset(self._places.keys() | self._waiting)

    @property
    def gating_receiver(self) -> int | None:
        """The consumer that is waited for; None if no byte is held for one."""
        gating = self.group.gating_receiver
        return None if gating is None or not self.positions.held_bytes else gating.receiver_id

    def stream_deferred(self, receiver: int) -> None:
        """Give a place to a consumer whose stream cannot be served yet."""
        self._waiting.add(receiver)

    def stream_wait_ended(self, receiver: int) -> None:
        """Note that a consumer got its stream, or gave it up."""
        self._waiting.discard(receiver)

    def is_waiting(self, receiver: int) -> bool:
        """Return whether a consumer was refused a stream and got none since."""
        return receiver in self._waiting

    def report(
        self,
        receiver: int,
        streams: Mapping[Hashable, int],
        tag: int | None,
        heard_at_ns: int,
        now_ns: int,
    ) -> None:
        """Take the positions of a consumer's streams (none: waiting), and its last sign of life."""
        place = self._places.get(receiver)
        if place is not None and _is_over(place, streams, tag):
            self._end(receiver)
            place = None
        if self.is_silent(heard_at_ns, now_ns):
            return
        counted = streams if len(streams) <= 1 else self._counted(place, streams)
        position = min(counted.values(), default=self.positions.received_bytes)
        if place is None:
            place = _Place(tag, _NO_STREAMS, position, heard_at_ns)
            self._places[receiver] = place
        else:
            place.heard_at_ns = heard_at_ns
            is_same = place.position == position and place.streams == counted.keys()
            if is_same and self._is_told(receiver, tag, heard_at_ns):
                return
        place.streams = frozenset(counted)
        place.position = position
        self._make_way(receiver, place)
        refusals = self.group.refusals
        self._say(StatusMessage(receiver, position, self._window_bytes, tag), heard_at_ns)
        was_refused, place.is_refused = place.is_refused, self.group.refusals != refusals
        self.newcomers_refused += place.is_refused and not was_refused

    def _is_told(self, receiver: int, tag: int | None, heard_at_ns: int) -> bool:
        """Return whether the consumer has not moved, so that only its sign of life is news."""
        if self.group.heard(receiver, heard_at_ns) or not self.group.is_tracking:
            return True
        return self.group.receiver_count > 0 and not self.group.counts(tag)

    def _counted(
        self, place: _Place | None, streams: Mapping[Hashable, int]
    ) -> dict[Hashable, int]:
        """Return the streams that a consumer's position is computed from: not those far behind."""
        before = _NO_STREAMS if place is None else place.streams
        gating = self.group.gating_receiver
        if gating is None or (place is not None and not before):
            return dict(streams)
        found = {
            each: at
            for each, at in streams.items()
            if each in before or not self._is_far_behind(self._edge(at), gating.edge)
        }
        return found or dict(streams)

    def _edge(self, position: int) -> int:
        return position + self._window_bytes

    def _is_far_behind(self, edge: int, other_edge: int) -> bool:
        return edge < other_edge - self._window_bytes

    def _make_way(self, receiver: int, place: _Place) -> None:
        """Stop counting consumers that were alone in the group and are far behind this one."""
        gating, freed_bytes = self.group.gating_receiver, self.positions.freed_bytes
        if gating is None or gating.edge >= freed_bytes or self.group.tracks(receiver):
            return
        if not self.group.counts(place.tag):
            return
        edge = self._edge(min(freed_bytes, place.position))
        for each in self.group.receivers:
            if self._is_far_behind(each.edge, edge):
                self.group.drop(each.receiver_id)

    def leave(self, receiver: int) -> None:
        """End a consumer's place."""
        self._waiting.discard(receiver)
        if receiver in self._places:
            self._end(receiver)

    def _end(self, receiver: int) -> None:
        del self._places[receiver]
        self.group.drop(receiver)

    def _say(self, message: StatusMessage, now_ns: int) -> None:
        self._limit = self.group.on_status_message(message, self._limit, now_ns)

    def on_idle(self, now_ns: int) -> int:
        """Eject silent consumers; free what may be freed, and return its bytes."""
        self._limit = self.group.on_idle(self._limit, now_ns)
        if not self.group.has_required:
            self._note_incomplete(now_ns)
            return 0
        self._incomplete_since_ns, self.is_held = None, False
        if self.group.receiver_count or self._has_audience(now_ns):
            return self.positions.free_to(self._limit - self._window_bytes)
        return self.free_all()

    def _note_incomplete(self, now_ns: int) -> None:
        since_ns = self._incomplete_since_ns
        if since_ns is None:
            since_ns = self._incomplete_since_ns = now_ns
        self.is_held |= now_ns - since_ns >= self._hold_ns

    def _has_audience(self, now_ns: int) -> bool:
        return any(not self.is_silent(each.heard_at_ns, now_ns) for each in self._places.values())

    def is_silent(self, heard_at_ns: int, now_ns: int) -> bool:
        """Return whether the last sign of life is older than the receivers' timeout."""
        return heard_at_ns + self.group.spec.receiver_timeout_ns < now_ns

    def is_due(self, now_ns: int) -> bool:
        """Return whether time alone changes something: the hold is over."""
        since_ns = self._incomplete_since_ns
        return since_ns is not None and not self.is_held and now_ns - since_ns >= self._hold_ns

    def free_all(self) -> int:
        """Free all received bytes (stream over, or no consumer); return how many."""
        return self.positions.free_to(self.positions.received_bytes)


def _is_over(place: _Place, streams: Mapping[Hashable, int], tag: int | None) -> bool:
    """Return whether a consumer's streams are another place than the one that it had."""
    had_streams = bool(place.streams)
    return place.tag != tag or (had_streams and place.streams.isdisjoint(streams))
