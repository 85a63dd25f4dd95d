"""Is anybody there: which receivers were heard lately, and whether a sender is connected.

Apart from the group that decides about the limit (``receiver_group.py``): here every receiver
counts, tag or none, and one that was heard exactly the timeout ago is dead already, while its group
still waits for it. Source: Aeron ``ReceiverLivenessTracker``, ``NetworkPublication``.

    connected = there is a live receiver and the group is complete
                or there are spies, and they count as receivers

Spies are who listens inside the sender's own process.

The product has no senders of that kind: the relay's consumers are connections, whose sockets say
whether they live. Files of Aeron's cases (``tests/conformance.py``) ask for it all the same.
"""


class ReceiverLiveness:
    """The time of each receiver's last status message."""

    __slots__ = ("_heard_at_ns",)

    def __init__(self) -> None:
        self._heard_at_ns: dict[int, int] = {}

    @property
    def has_live_receiver(self) -> bool:
        """True if a receiver was live at the last idle pass."""
        return bool(self._heard_at_ns)

    def on_status_message(self, receiver_id: int, now_ns: int) -> None:
        """Note a sign of life."""
        self._heard_at_ns[receiver_id] = now_ns

    def on_closed(self, receiver_id: int) -> bool:
        """Forget a receiver that said it leaves; return whether it was there."""
        return self._heard_at_ns.pop(receiver_id, None) is not None

    def on_idle(self, timeout_ns: int, now_ns: int) -> None:
        """Forget the receivers that were not heard within the timeout."""
        for receiver_id, heard_at_ns in tuple(self._heard_at_ns.items()):
            if heard_at_ns + timeout_ns <= now_ns:
                del self._heard_at_ns[receiver_id]


def is_acceptable(position: int, sender_position: int, term_bytes: int) -> bool:
    """Return whether a status message is plausible: within half a term of the sender."""
    return abs(position - sender_position) <= term_bytes // 2


def is_connected(
    has_live_receiver: bool, has_required: bool, has_spies: bool, spies_count: bool
) -> bool:
    """Return whether a sender has a receiver to send to."""
    return (has_live_receiver and has_required) or (has_spies and spies_count)
