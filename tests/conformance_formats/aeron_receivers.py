"""Receiver groups with the steps of Aeron's datagrams, which the product has no use for.

- *Setup*: while a receiver of the group joins, the limit stays where it was when the setup went
  out: until a newcomer is admitted, or one timeout has passed. The first receiver needs no setup.
- *Error*: the receiver is dropped in the next idle pass, if no status message comes before. It goes
  by its id alone, tag or none, as in Aeron's C driver: one that failed would hold the group until
  its timeout. Java's driver ignores an error without the group's tag.
- *Retransmit*: it ends with the term, and covers so many windows of a receiver at most.

Files of Aeron's cases (``tests/conformance.py``) ask for them: other steps depend on them.
"""

from typing import Final

from dcp.protocol.flow_strategy import FlowSpec
from dcp.protocol.lowest_edge import LowestEdge
from dcp.protocol.receiver_group import ReceiverGroup, StatusMessage

_RECEIVER_WINDOW_BYTES: Final = 128 * 1024
"""What a retransmit is reckoned with: Aeron's initial receiver window."""


class _CappedEdge(LowestEdge):
    """The lowest edge, or what a setup holds the limit at."""

    __slots__ = ("cap",)

    def __init__(self) -> None:
        super().__init__()
        self.cap: int | None = None

    @property
    def edge(self) -> int | None:
        """The lower of both; None where there is neither."""
        return min((each for each in (self.cap, super().edge) if each is not None), default=None)


class AeronReceiverGroup(ReceiverGroup):
    """A group that takes these steps, too."""

    __slots__ = ("_asked_for_setup", "_setup_sent_at_ns")

    _lowest: _CappedEdge

    def __init__(self, spec: FlowSpec) -> None:
        super().__init__(spec)
        self._lowest = _CappedEdge()
        self._asked_for_setup = False
        self._setup_sent_at_ns = 0

    def on_status_message(self, message: StatusMessage, limit: int, now_ns: int) -> int:
        """Take a status message; a newcomer that is admitted ends the setup."""
        self._end_setup_in_time(now_ns)
        was_tracked = self.tracks(message.receiver_id)
        limit = super().on_status_message(message, limit, now_ns)
        if self.tracks(message.receiver_id) and not was_tracked:
            self._lowest.cap = None
        return limit

    def on_idle(self, limit: int, now_ns: int) -> int:
        """Eject receivers that are due."""
        self._end_setup_in_time(now_ns)
        return super().on_idle(limit, now_ns)

    def _end_setup_in_time(self, now_ns: int) -> None:
        if self._is_over(self._setup_sent_at_ns, now_ns):
            self._lowest.cap = None

    def on_setup_trigger(self, group_tag: int | None) -> None:
        """Take a status message that asks for a setup."""
        self._asked_for_setup |= self.counts(group_tag)

    def on_setup_sent(self, limit: int, now_ns: int) -> int:
        """Note that a setup went out; return the limit, as it was."""
        if self._asked_for_setup and self._receivers:
            self._lowest.cap, self._setup_sent_at_ns = limit, now_ns
        self._asked_for_setup = False
        return limit

    def on_error(self, receiver_id: int, group_tag: int | None) -> None:
        """Take a receiver's error; that of others changes nothing."""
        del group_tag
        if receiver_id in self._receivers:
            self._receivers[receiver_id].has_ended = True

    def retransmit_bytes(self, term_offset: int, asked_bytes: int, term_bytes: int) -> int:
        """Return how much of a retransmit is sent."""
        window_bytes = min(_RECEIVER_WINDOW_BYTES, term_bytes // 2)
        most_bytes = window_bytes * self.spec.retransmit_multiple
        return min(asked_bytes, term_bytes - term_offset, most_bytes)
