"""How far the cluster may go on with one vbucket: what its consumers have, by Aeron's strategies.

    report(receiver, …)    where a consumer stands, and when it last gave a sign of life
    came_early(receiver)   it asks for what has not come yet: it stands at the end until it gets it
    leave(receiver)        it has no stream any more
    settle(now)            eject who was silent, and free what nobody is waited for with

A consumer's window, as the strategy sees it, is that of the connection to the cluster: the limit is
one window above what may be freed. Without any consumer that speaks all is freed at once: it is on
the relay's disk. Below the group's size nothing is freed, and after a time the vbucket is *held*:
it shall have no stream. Time is nanoseconds of any clock that never goes back.
"""

from dataclasses import dataclass
from typing import Final

from dcp.protocol.flow_spec import FlowSpec
from dcp.protocol.receiver_group import ReceiverGroup, StatusMessage
from dcp.relay.positions import Positions

_TOLD_PER_TIMEOUT: Final = 4


@dataclass(frozen=True, slots=True)
class _Report:
    position: int
    heard_at_ns: int


@dataclass(frozen=True, slots=True)
class _Early:
    tag: int | None
    asked_at_ns: int


class Gate:
    """One vbucket's group, and what it holds."""

    __slots__ = (
        "_early",
        "_hold_ns",
        "_incomplete_since_ns",
        "_limit",
        "_refused",
        "_reports",
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
        self._early: dict[int, _Early] = {}
        self._refused: set[int] = set()
        self._incomplete_since_ns: int | None = None

    @property
    def receivers(self) -> frozenset[int]:
        """Whoever reported and has not left, but for those who came too early."""
        return frozenset(self._reports.keys() - self._early.keys())

    @property
    def gating_receiver(self) -> int | None:
        """Who is waited for; None where nobody is, or nothing."""
        gating = self.group.gating_receiver
        return None if gating is None or not self.positions.held_bytes else gating.receiver_id

    def report(self, receiver: int, position: int, tag: int | None, heard_at_ns: int) -> None:
        """Take where a consumer stands, and when it last gave a sign of life."""
        self._early.pop(receiver, None)
        self._take(receiver, position, tag, heard_at_ns)

    def _take(self, receiver: int, position: int, tag: int | None, heard_at_ns: int) -> None:
        known = self._reports.get(receiver)
        if (
            known is not None
            and known.position == position
            and not self._is_news(known.heard_at_ns, heard_at_ns)
        ):
            return
        self._reports[receiver] = _Report(position, heard_at_ns)
        refusals = self.group.refusals
        self._say(StatusMessage(receiver, position, self._window_bytes, tag), heard_at_ns)
        if self.group.refusals == refusals:
            self._refused.discard(receiver)
        elif receiver not in self._refused:
            self._refused.add(receiver)
            self.newcomers_refused += 1

    def came_early(self, receiver: int, tag: int | None, now_ns: int) -> None:
        """Count a consumer as there, for a timeout, that waits for what has not come yet."""
        self._early[receiver] = _Early(tag, now_ns)

    def _follow_early(self, now_ns: int) -> None:
        """Let those stand at the end, wherever it is: they wait for us, not we for them."""
        for receiver, early in list(self._early.items()):
            if self.is_silent(early.asked_at_ns, now_ns):
                del self._early[receiver]
                self.leave(receiver, early.tag, now_ns)
            else:
                self._take(receiver, self.positions.received_bytes, early.tag, early.asked_at_ns)

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
        self._follow_early(now_ns)
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
        return any(not self.is_silent(each.heard_at_ns, now_ns) for each in self._reports.values())

    def is_silent(self, heard_at_ns: int, now_ns: int) -> bool:
        """Whether who was heard then is silent for longer than the receivers' timeout."""
        return heard_at_ns + self.group.spec.receiver_timeout_ns < now_ns

    def is_due(self, now_ns: int) -> bool:
        """Whether time alone changes something: the hold is over, or one was early too long ago."""
        since_ns = self._incomplete_since_ns
        if since_ns is not None and not self.is_held and now_ns - since_ns >= self._hold_ns:
            return True
        return any(self.is_silent(each.asked_at_ns, now_ns) for each in self._early.values())

    def _is_news(self, before_ns: int, heard_at_ns: int) -> bool:
        """Whether a sign of life is much newer than another: not each one need be told."""
        return before_ns + self.group.spec.receiver_timeout_ns // _TOLD_PER_TIMEOUT < heard_at_ns

    def free_all(self) -> int:
        """Free all that came: the stream is over, or nobody is there; return how many bytes."""
        return self.positions.free_to(self.positions.received_bytes)
