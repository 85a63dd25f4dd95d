"""Credits of a stream of bytes: taken in any pieces at one end, released in any others.

A socket gives pieces that are no messages, and an acknowledgement covers many messages at once: who
holds which credit does not matter there, only how much is held. So all is one credit that grows and
shrinks, and a large message earns credit while its parts leave.
"""

from dcp.protocol.credits import Credits


class CreditQueue:
    """All that one place holds of one account."""

    def __init__(self, account: Credits) -> None:
        """Begin with none."""
        self.account = account
        self._credit = account.take(0, 0.0, account.name)

    @property
    def amount(self) -> int:
        """What is held here."""
        return self._credit.amount

    def take(self, amount: int, now: float) -> None:
        """Take a credit for what is here already."""
        self._credit.take_more(amount, now)

    def release(self, amount: int, now: float) -> None:
        """Give back ``amount``.

        Raises:
            LocalProtocolError: it is more than is held here.
        """
        self._credit.release_part(amount, now)

    def hold(self, amount: int, now: float) -> None:
        """Take or give back, so that just ``amount`` is held."""
        more = amount - self.amount
        if more > 0:
            self.take(more, now)
        elif more:
            self.release(-more, now)

    def settle(self, now: float) -> None:
        """Give back all: the way out."""
        self.hold(0, now)
