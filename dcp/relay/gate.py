"""How far the cluster may go on with one vbucket: what its consumers have, by Aeron's strategies.

    report(receiver, …)    where a consumer stands; who is stuck says nothing
    leave(receiver)        it has no stream any more
    settle(now)            eject who was silent, and free what nobody is waited for with

A consumer's window, as the strategy sees it, is that of the connection to the cluster: the limit is
one window above what may be freed. Without any consumer that speaks all is freed at once: it is on
the relay's disk. Below the group's size nothing is freed, and after a time the vbucket is *held*:
it shall have no stream. Time is nanoseconds of any clock that never goes back.
"""

from dataclasses import dataclass

from dcp.protocol.flow_spec import FlowSpec, Strategy
from dcp.protocol.receiver_group import ReceiverGroup, StatusMessage
from dcp.relay.positions import Positions


@dataclass(slots=True)
class _Report:
    position: int
    heard_at_ns: int


class Gate:
    """One vbucket's group, and what it holds."""

    __slots__ = (
        "_hold_ns",
        "_incomplete_since_ns",
        "_limit",
        "_refused",
        "_reports",
        "_settled_at_ns",
        "_window_bytes",
        "group",
        "is_held",
        "newcomers_refused",
        "positions",
    )

    def __init__(self, spec: FlowSpec, window_bytes: int, hold_ns: int) -> None:
        self.positions = Positions(window_bytes)
        self.group = ReceiverGroup(spec)
        self.is_held = not self.group.has_required
        """Whether there shall be no stream; until the group is complete for the first time."""
        self.newcomers_refused = 0
        self._window_bytes = window_bytes
        self._hold_ns = hold_ns
        self._limit = window_bytes
        self._reports: dict[int, _Report] = {}
        self._refused: set[int] = set()
        self._incomplete_since_ns: int | None = None
        self._settled_at_ns: int | None = None

    @property
    def receivers(self) -> frozenset[int]:
        """Whoever reported and has not left."""
        return frozenset(self._reports)

    @property
    def gating_receiver(self) -> int | None:
        """Who is waited for; None where nobody is, or nothing."""
        gating = self.group.gating_receiver
        return None if gating is None or not self.positions.held_bytes else gating.receiver_id

    def was_idle(self, now_ns: int) -> bool:
        """Whether nobody looked here for so long that silence means nothing."""
        return self._settled_at_ns is None or self._is_over(self._settled_at_ns, now_ns, 4)

    def would_miss(self, receiver: int) -> bool:
        """Whether silence costs a consumer its place, or ``max`` the knowledge that it is there.

        Who was ejected has none to lose: it comes back by moving.
        """
        is_max = self.group.spec.strategy is Strategy.MAX
        return self.group.tracks(receiver) or (is_max and receiver in self._reports)

    def report(self, receiver: int, position: int, tag: int | None, now_ns: int) -> None:
        """Take where a consumer stands that is not stuck."""
        known = self._reports.get(receiver)
        is_same = known is not None and known.position == position
        if is_same and known is not None and not self._is_over(known.heard_at_ns, now_ns, 4):
            return  # it was said, and not long ago
        self._reports[receiver] = _Report(position, now_ns)
        refusals = self.group.refusals
        self._say(StatusMessage(receiver, position, self._window_bytes, tag), now_ns)
        if self.group.refusals == refusals:
            self._refused.discard(receiver)
        elif receiver not in self._refused:
            self._refused.add(receiver)
            self.newcomers_refused += 1

    def leave(self, receiver: int, tag: int | None, now_ns: int) -> None:
        """Wait for a consumer no more."""
        known = self._reports.pop(receiver, None)
        self._refused.discard(receiver)
        if known is not None:
            message = StatusMessage(receiver, known.position, self._window_bytes, tag, is_eos=True)
            self._say(message, now_ns)

    def _say(self, message: StatusMessage, now_ns: int) -> None:
        self._limit = self.group.on_status_message(message, self._limit, now_ns)

    def settle(self, now_ns: int) -> int:
        """Eject who was silent; free what may be, and return how many bytes that is."""
        self._limit = self.group.on_idle(self._limit, now_ns)
        self._settled_at_ns = now_ns
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
        return any(
            not self._is_over(each.heard_at_ns, now_ns, 1) for each in self._reports.values()
        )

    def _is_over(self, since_ns: int, now_ns: int, part: int) -> bool:
        """Whether more than a part of the receivers' timeout has passed."""
        return since_ns + self.group.spec.receiver_timeout_ns // part < now_ns

    def free_all(self) -> int:
        """Free all that came: the stream is over, or nobody is there; return how many bytes."""
        return self.positions.free_to(self.positions.received_bytes)
