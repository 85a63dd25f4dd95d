"""The credits of one receiving task behind its connections: batch, Spark's hand-over, staging.

    account   counts    taken                    released                   when it is full
    batch     bytes     a delivery is taken in   its rows are handed over   the batch is due
    spark     bytes     rows are handed over     Spark has taken them       we wait
    batches   batches   one is handed over       Spark asks for the next    we wait
    staging   bytes     Spark has taken rows     the task ends              the task ends its part

Bytes are those on the wire: the credit of a delivery passes from stage to stage with it, and when
Spark has taken its rows it is released to the connection, which acknowledges it to the node. So a
sink that stalls is felt by the producer. One thread works; others may look.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace

from dcp.client.delivery import Delivery
from dcp.client.looks import StageLook
from dcp.protocol.credit_queue import CreditQueue
from dcp.protocol.credits import Credit, Credits


@dataclass(slots=True)
class _Held:
    """A delivery without its events: what of them is needed is in the batch."""

    delivery: Delivery
    credit: Credit


class TaskCredits:
    """What of one task's bytes is where."""

    def __init__(self, batch_bytes: int, target_bytes: int) -> None:
        """Begin with nothing."""
        self.batch = Credits("batch", batch_bytes, 0)
        self.spark = Credits("spark", batch_bytes, 0)
        self.batches = Credits("batches", 1, 0)
        self._staging = CreditQueue(Credits("staging", target_bytes, target_bytes - 1))
        self._offered = CreditQueue(self.batches)
        self._held: deque[_Held] = deque()
        self._left = 0

    @property
    def is_holding(self) -> bool:
        """Whether any delivery is here, be it one without bytes."""
        return bool(self._held)

    def take_in(self, delivery: Delivery, now: float) -> None:
        """Take a delivery in; its events are not kept."""
        credit = self.batch.take(delivery.frame_bytes, now, delivery.connection_name)
        self._held.append(_Held(replace(delivery, events=()), credit))

    def batch_is_full(self, batch_bytes: int, now: float) -> bool:
        """Whether the batch holds what it may, which follows the windows."""
        for account in (self.batch, self.spark):
            account.set_marks(batch_bytes, 0, now)
        return not self.batch.is_open

    def hand_over(self, now: float) -> None:
        """Pass all that is here on to Spark; ``offer`` and ``leave`` follow, batch by batch."""
        self._left = 0
        for held in self._held:
            amount, holder = held.credit.amount, held.credit.holder
            held.credit.release(now)
            held.credit = self.spark.take(amount, now, holder)

    def offer(self, now: float) -> None:
        """Note that Spark is given a batch."""
        self._offered.take(1, now)

    def leave(self, deliveries: int | None, now: float) -> Iterator[Delivery]:
        """Note that Spark has taken the last batch, and with it so many deliveries in all.

        Those that leave with it are returned: they are to be released. None: all that are left.
        """
        self._offered.settle(now)
        while self._held and (deliveries is None or self._left < deliveries):
            held = self._held.popleft()
            self._left += 1
            self._staging.take(held.credit.amount, now)
            held.credit.release(now)
            yield held.delivery

    def settle(self, now: float) -> None:
        """Give all back: the task ends, in whatever way."""
        for held in self._held:
            held.credit.settle(now)
        self._held.clear()
        self._offered.settle(now)
        self._staging.settle(now)

    def look(self, now: float) -> tuple[StageLook, ...]:
        """Return how the stages stand."""
        accounts = (self.batch, self.spark, self.batches, self._staging.account)
        return tuple(StageLook.of(account, now) for account in accounts)
