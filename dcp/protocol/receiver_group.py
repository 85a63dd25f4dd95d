"""Limits a sender by the receivers of what it sends: Aeron's flow-control strategies.

A receiver says with its status messages which position it has consumed, and how large its window
is; position and window make its *edge*. A strategy computes the sender's limit from them.

    strategy       receivers tracked   limit on a status message   limit on idle
    unicast, max   none                max(limit, edge)            unchanged
    min            all                 max(limit, smallest edge)   smallest edge
    tagged         with the tag        as min, of the group        as min

- *Admission*: a newcomer is tracked unless it is more than one of its own windows behind the
  smallest edge, or says that it ends. One that is refused neither holds nor hurries the others.
- A tracked receiver's edge is that of its newest status message, also where that goes backwards.
- Below ``group_min_size`` the limit stays as it is, whatever comes; without any receiver (only with
  size 0) every status message drives it, as with ``max``.
- *Ejection*: the idle pass drops receivers that are silent for more than the timeout (exactly the
  timeout is not more) or that said they end. The limit may then move either way: it can be lower
  than what the sender has sent, which only stops it.

Limits are positions in bytes, times nanoseconds of any clock that never goes back. Source: Aeron
``AbstractMinMulticastFlowControl`` (Java), ``aeron_min_flow_control.c`` (C). Where Java's loses a
live receiver when two others leave in one pass, C's is right.

The relay uses status messages, the idle pass, and two steps of its own: ``heard`` (a status message
that says nothing else) and ``drop`` (an EOS that is carried out at once). Aeron's setups, error
frames and retransmits are not here: a consumer of the relay that fails is a connection that closes;
one that joins is held by admission, and what it lacks is on the relay's disk.
"""

from collections import Counter
from dataclasses import dataclass
from enum import Enum
from typing import Final

from dcp.protocol.flow_strategy import FlowSpec, FlowStrategy
from dcp.protocol.lowest_edge import LowestEdge

_TRACKING: Final = {
    FlowStrategy.UNICAST: False,
    FlowStrategy.MAX: False,
    FlowStrategy.MIN: True,
    FlowStrategy.TAGGED: True,
}


class Ejection(Enum):
    """The reason why a receiver is no longer tracked."""

    TIMEOUT = "timeout"
    EOS = "eos"


@dataclass(frozen=True, slots=True)
class StatusMessage:
    """A receiver's status message; ``group_tag`` is None without a tag."""

    receiver_id: int
    position: int
    window_bytes: int
    group_tag: int | None = None
    is_eos: bool = False

    @property
    def edge(self) -> int:
        """The position that the receiver has room up to."""
        return self.position + self.window_bytes


@dataclass(slots=True)
class Receiver:
    """A receiver that is tracked; ``leaves_for`` None: it is live."""

    receiver_id: int
    position: int
    edge: int
    heard_at_ns: int
    leaves_for: Ejection | None = None


class ReceiverGroup:
    """The receivers of one stream, and the strategy that computes the limit from them."""

    __slots__ = (
        "_lowest",
        "_receivers",
        "ejections",
        "refusals",
        "spec",
    )

    def __init__(self, spec: FlowSpec) -> None:
        self.spec = spec
        self.ejections: Counter[Ejection] = Counter()
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
        """The number of tracked receivers."""
        return len(self._receivers)

    def tracks(self, receiver_id: int) -> bool:
        """Return whether a receiver is tracked."""
        return receiver_id in self._receivers

    @property
    def is_tracking(self) -> bool:
        """True if the strategy tracks receivers."""
        return _TRACKING[self.spec.strategy]

    def counts(self, group_tag: int | None) -> bool:
        """Return whether a receiver with this tag may be tracked."""
        return self.is_tracking and self._counts(group_tag)

    def heard(self, receiver_id: int, now_ns: int) -> bool:
        """Note a sign of life of a receiver that has not moved; return if it is tracked."""
        tracked = self._receivers.get(receiver_id)
        if tracked is None:
            return False
        tracked.heard_at_ns = now_ns
        return True

    def drop(self, receiver_id: int) -> None:
        """Stop tracking a receiver that has ended; the limit follows on the idle pass."""
        if self._receivers.pop(receiver_id, None) is not None:
            self._lowest.forget(receiver_id)
            self.ejections[Ejection.EOS] += 1

    @property
    def has_required(self) -> bool:
        """True if the group is complete."""
        return not self.is_tracking or len(self._receivers) >= self.spec.group_min_size

    @property
    def gating_receiver(self) -> Receiver | None:
        """The receiver with the smallest edge (of several the first), None when nobody gates."""
        found = self._lowest.receiver_id
        return None if found is None else self._receivers[found]

    def on_status_message(self, message: StatusMessage, limit: int, now_ns: int) -> int:
        """Take a status message; return the new limit, never lower than ``limit``."""
        if not self.is_tracking:
            return max(limit, message.edge)
        counts = self._counts(message.group_tag)
        tracked = self._receivers.get(message.receiver_id) if counts else None
        if tracked is not None:
            tracked.leaves_for = Ejection.EOS if message.is_eos else None
            tracked.position = max(tracked.position, message.position)
            tracked.edge, tracked.heard_at_ns = message.edge, now_ns
            self._lowest.set(message.receiver_id, message.edge)
        smallest = self._lowest.edge
        if tracked is None and counts and not message.is_eos:
            smallest = self._admit(message, smallest, now_ns)
        if not self.has_required:
            return limit
        if smallest is None or not self._receivers:
            return max(limit, message.edge)
        return max(limit, smallest)

    def on_idle(self, limit: int, now_ns: int) -> int:
        """Eject receivers that are due; return the smallest edge, even if lower than ``limit``."""
        if not self.is_tracking:
            return limit
        for each in self.receivers:
            if why := self._ejected_for(each, now_ns):
                del self._receivers[each.receiver_id]
                self._lowest.forget(each.receiver_id)
                self.ejections[why] += 1
        smallest = self._lowest.edge
        if smallest is None or not self._receivers or not self.has_required:
            return limit
        return smallest

    def _counts(self, group_tag: int | None) -> bool:
        return self.spec.strategy is not FlowStrategy.TAGGED or (
            group_tag is not None and group_tag == self.spec.group_tag
        )

    def _ejected_for(self, receiver: Receiver, now_ns: int) -> Ejection | None:
        if receiver.leaves_for is None and self._is_over(receiver.heard_at_ns, now_ns):
            return Ejection.TIMEOUT
        return receiver.leaves_for

    def _admit(self, message: StatusMessage, smallest: int | None, now_ns: int) -> int | None:
        """Track a newcomer if it may be; return the smallest edge with it."""
        if self._receivers and smallest is not None and _is_behind(message, smallest):
            self.refusals += 1
            return smallest
        self._receivers[message.receiver_id] = Receiver(
            message.receiver_id, message.position, message.edge, now_ns
        )
        self._lowest.set(message.receiver_id, message.edge)
        return message.edge if smallest is None else min(smallest, message.edge)

    def _is_over(self, since_ns: int, now_ns: int) -> bool:
        return since_ns + self.spec.receiver_timeout_ns < now_ns


def _is_behind(newcomer: StatusMessage, smallest: int) -> bool:
    """Return whether a newcomer is more than one of its own windows behind the smallest edge."""
    return newcomer.edge < smallest - newcomer.window_bytes
