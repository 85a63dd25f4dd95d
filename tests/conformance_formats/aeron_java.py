"""Differences of Aeron's Java driver from its C driver and from us, to recognise its answers.

- An error frame without the group's tag changes nothing there.
- Its idle pass overwrites a slot with that of the last receiver, also where that one was dropped in
  the same pass. Then the end of the list is cut off, a live receiver with it.
"""

from tests.conformance_formats.aeron_receivers import AeronReceiverGroup


class JavaReceiverGroup(AeronReceiverGroup):
    """A group with both; nothing else differs."""

    __slots__ = ()

    def on_error(self, receiver_id: int, group_tag: int | None) -> None:
        """Pass over errors of those who are not of the group."""
        if self._counts(group_tag):
            super().on_error(receiver_id, group_tag)

    def on_idle(self, limit: int, now_ns: int) -> int:
        """Drop by overwriting, as Java does; the limit is that of those who were seen alive."""
        slots = list(self.receivers)
        answer = super().on_idle(limit, now_ns)
        dropped = {each.receiver_id for each in slots} - self._receivers.keys()
        last = len(slots) - 1
        for index in range(last, -1, -1):
            if slots[index].receiver_id in dropped and index != last:
                slots[index] = slots[last]
                last -= 1
        kept = slots[: len(slots) - len(dropped)]
        for receiver_id in self._receivers:
            self._lowest.forget(receiver_id)
        self._receivers = {each.receiver_id: each for each in kept}
        for each in kept:
            self._lowest.set(each.receiver_id, each.edge)
        return answer
