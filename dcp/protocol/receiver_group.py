"""Limits a sender by its receivers' status messages, with Aeron's flow-control strategies.

A receiver's *edge* is the position that it has consumed plus its window. Limits are positions in
bytes; times are nanoseconds of one monotonic clock.

    strategy   receivers tracked   limit on a status message   limit on idle
    max        none                max(limit, edge)            unchanged
    min        all                 max(limit, smallest edge)   smallest edge
    tagged     with the tag        as min, of the group        as min

Source: Aeron ``AbstractMinMulticastFlowControl`` (Java), ``aeron_min_flow_control.c`` (C). If two
receivers leave in one pass, Java may lose one that stays; this module does as C does.
"""

from dataclasses import dataclass

from dcp.protocol.flow_strategy import GROUP_STRATEGIES, FlowSpec, FlowStrategy
from dcp.protocol.lowest_edge import LowestEdge


@dataclass(frozen=True, slots=True)
class StatusMessage:
    receiver_id: int
    position: int
    """The receiver has consumed the bytes before it."""
    window_bytes: int
    group_tag: int | None = None
    is_eos: bool = False
    """The receiver says that it ends."""

    @property
    def edge(self) -> int:
        """The receiver has room up to this position."""
        return self.position + self.window_bytes


@dataclass(slots=True)
class Receiver:
    """A tracked receiver."""

    receiver_id: int
    edge: int
    heard_at_ns: int
    has_ended: bool = False


class ReceiverGroup:
    """The receivers of one stream, and the strategy that computes the limit from them."""

    __slots__ = (
        "_lowest",
        "_receivers",
        "refusals",
        "spec",
        "timeouts",
    )

    def __init__(self, spec: FlowSpec) -> None:
        self.spec = spec
        self.timeouts = 0
        """How often a silent receiver was ejected."""
        self.refusals = 0
        """Status messages of newcomers too far behind to be admitted."""
        self._receivers: dict[int, Receiver] = {}
        self._lowest = LowestEdge()

    @property
    def receivers(self) -> tuple[Receiver, ...]:
        """The tracked receivers, in the order of their admission."""
        return tuple(self._receivers.values())

    @property
    def receiver_count(self) -> int:
        return len(self._receivers)

    def tracks(self, receiver_id: int) -> bool:
        return receiver_id in self._receivers

    @property
    def is_tracking(self) -> bool:
        return self.spec.strategy in GROUP_STRATEGIES

    def counts(self, group_tag: int | None) -> bool:
        """Return whether the strategy may track a receiver with this tag."""
        return self.is_tracking and self._counts(group_tag)

    def heard(self, receiver_id: int, now_ns: int) -> bool:
        """Note a sign of life of a receiver that has not moved; return whether it is tracked."""
        tracked = self._receivers.get(receiver_id)
        if tracked is None:
            return False
        tracked.heard_at_ns = now_ns
        return True

    def drop(self, receiver_id: int) -> None:
        """Stop tracking a receiver, if it is tracked; the next idle pass moves the limit."""
        if self._receivers.pop(receiver_id, None) is not None:
            self._lowest.forget(receiver_id)

    @property
    def has_required(self) -> bool:
        return not self.is_tracking or len(self._receivers) >= self.spec.group_min_size

    @property
    def slowest_receiver(self) -> Receiver | None:
        """The receiver with the smallest edge, of several the first; None if the group is empty."""
        found = self._lowest.receiver_id
        return None if found is None else self._receivers[found]

    def on_status_message(self, message: StatusMessage, limit: int, now_ns: int) -> int:
        """Return the new limit, never lower than ``limit``."""
        if not self.is_tracking:
            return max(limit, message.edge)
        counts = self._counts(message.group_tag)
        tracked = self._receivers.get(message.receiver_id) if counts else None
        if tracked is not None:
            # A later message without EOS keeps the receiver.
            tracked.has_ended = message.is_eos
            # An edge may go back, for instance when the window shrinks.
            tracked.edge, tracked.heard_at_ns = message.edge, now_ns
            self._lowest.set(message.receiver_id, message.edge)
        smallest = self._lowest.edge
        if tracked is None and counts and not message.is_eos:
            smallest = self._admit(message, smallest, now_ns)
        # Below its minimum size a group leaves the limit unchanged. A group of minimum size 0
        # without receivers follows every status message, as ``max`` does.
        if not self.has_required:
            return limit
        if smallest is None or not self._receivers:
            return max(limit, message.edge)
        return max(limit, smallest)

    def on_idle(self, limit: int, now_ns: int) -> int:
        """Eject receivers that are silent or have ended; return the new limit.

        The limit may be lower than ``limit``, and than what the sender has sent: this only stops
        it.
        """
        if not self.is_tracking:
            return limit
        for each in self.receivers:
            is_silent = self._is_over(each.heard_at_ns, now_ns)
            if each.has_ended or is_silent:
                self.drop(each.receiver_id)
                if not each.has_ended:
                    self.timeouts += 1
        smallest = self._lowest.edge
        if smallest is None or not self._receivers or not self.has_required:
            return limit
        return smallest

    def _counts(self, group_tag: int | None) -> bool:
        return self.spec.strategy is not FlowStrategy.TAGGED or (
            group_tag is not None and group_tag == self.spec.group_tag
        )

    def _admit(self, message: StatusMessage, smallest: int | None, now_ns: int) -> int | None:
        """Track a newcomer unless it is too far behind; return the smallest edge then."""
        # A newcomer far behind would hold up all others.
        if self._receivers and smallest is not None and _is_behind(message, smallest):
            self.refusals += 1
            return smallest
        self._receivers[message.receiver_id] = Receiver(message.receiver_id, message.edge, now_ns)
        self._lowest.set(message.receiver_id, message.edge)
        return message.edge if smallest is None else min(smallest, message.edge)

    def _is_over(self, since_ns: int, now_ns: int) -> bool:
        # As in Aeron a silence of exactly the timeout is not over.
        return since_ns + self.spec.receiver_timeout_ns < now_ns


def _is_behind(newcomer: StatusMessage, smallest: int) -> bool:
    """Return whether a newcomer is more than one of its own windows behind the smallest edge."""
    return newcomer.edge < smallest - newcomer.window_bytes
