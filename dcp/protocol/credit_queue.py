"""Credits of a stream of bytes: taken in any pieces at one end, released in any others.

A socket gives pieces that are no messages, and an acknowledgement covers many messages at once: who
holds which credit does not matter there, only how much is held. The oldest credits go first, part
by part, so that a large message earns credit while its parts leave.
"""

from collections import deque

from dcp.errors import LocalProtocolError
from dcp.protocol.credits import Credit, Credits


class CreditQueue:
    """All credits that one place holds of one account, the oldest first."""

    def __init__(self, account: Credits) -> None:
        """Begin with none."""
        self.account = account
        self._held: deque[Credit] = deque()
        self._amount = 0

    @property
    def amount(self) -> int:
        """What is held here."""
        return self._amount

    def take(self, amount: int, now: float) -> None:
        """Take a credit for what is here already."""
        if amount:
            self._held.append(self.account.take(amount, now))
            self._amount += amount

    def release(self, amount: int, now: float) -> None:
        """Give back ``amount``, the oldest first.

        Raises:
            LocalProtocolError: it is more than is held here.
        """
        if not 0 <= amount <= self._amount:
            raise LocalProtocolError(
                f"{self.account.name}: found a release of {amount}, expected 0 to {self._amount} "
                "(what is held)"
            )
        self._amount -= amount
        while amount:
            oldest = self._held[0]
            part = min(amount, oldest.amount)
            amount -= part
            if part < oldest.amount:
                oldest.release_part(part, now)
            else:
                self._held.popleft().release(now)

    def settle(self, now: float) -> None:
        """Give back all: the way out."""
        self.release(self._amount, now)
