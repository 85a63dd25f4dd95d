"""The credits of one receiving task behind its connections: batch, Spark's hand-over, staging.

    account   counts    taken                    released                   when it is full
    batch     bytes     a delivery is taken in   its rows are handed over   it is handed over
    spark     bytes     rows are handed over     Spark has taken them       the rest waits
    batches   batches   Spark is given one       Spark asks for another     none is given
    staging   bytes     a delivery is taken in   the task ends              the task takes no more

Bytes are those on the wire: the credit of a delivery passes from stage to stage with it, and as
Spark takes its rows it is released to the connection, part by part, which acknowledges it to the
node. So a sink that stalls is felt by the producer. One thread works; others may look.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace

from dcp.client.delivery import Delivery
from dcp.client.looks import StageLook
from dcp.errors import LocalProtocolError
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
        self.staging = Credits("staging", target_bytes, 0)
        self._staged = CreditQueue(self.staging)
        self._offered = CreditQueue(self.batches)
        self._waiting: deque[_Held] = deque()
        self._leaving: deque[_Held] = deque()
        self._left = 0

    @property
    def is_holding(self) -> bool:
        """Whether any delivery is here, be it one without bytes."""
        return bool(self._waiting or self._leaving)

    def take_in(self, delivery: Delivery, now: float) -> None:
        """Take a delivery in; its events are not kept."""
        credit = self.batch.take(delivery.frame_bytes, now, delivery.connection_name)
        self._staged.take(delivery.frame_bytes, now)
        self._waiting.append(_Held(replace(delivery, events=()), credit))

    def batch_is_full(self, batch_bytes: int, now: float) -> bool:
        """Whether the batch holds what it may, which follows the windows."""
        for account in (self.batch, self.spark):
            account.set_marks(batch_bytes, 0, now)
        return not self.batch.is_open

    def hand_over(self, now: float) -> int:
        """Pass on what may be on its way to Spark at once; return how many deliveries that are.

        ``offer`` and ``leave`` follow, batch by batch, and then the rest.
        """
        self._left = 0
        while self._waiting:
            held = self._waiting[0]
            credit = held.credit.try_pass(self.spark, now)
            if credit is None:
                break
            held.credit = credit
            self._leaving.append(self._waiting.popleft())
        return len(self._leaving)

    def offer(self, now: float) -> None:
        """Note that Spark is given a batch.

        Raises:
            LocalProtocolError: it has not taken the last one.
        """
        if not self.batches.is_open:
            raise LocalProtocolError("offer: found a batch that Spark has not taken, expected none")
        self._offered.take(1, now)

    def leave(self, deliveries: int | None, now: float) -> Iterator[Delivery]:
        """Note that Spark has taken the last batch, and with it so many deliveries in all.

        Those that leave with it are returned: they are to be released. None: all handed over ones.
        """
        self._offered.settle(now)
        while self._leaving and (deliveries is None or self._left < deliveries):
            held = self._leaving.popleft()
            self._left += 1
            held.credit.release(now)
            yield held.delivery

    def leave_part(self, frame_bytes: int, now: float) -> Delivery:
        """Note that Spark has taken some documents of the oldest delivery; ``leave`` ends it.

        Returns the delivery: the part is to be released.

        Raises:
            LocalProtocolError: they are more than what is left of it.
        """
        held = self._leaving[0]
        held.credit.release_part(frame_bytes, now)
        return held.delivery

    def settle(self, now: float) -> None:
        """Give all back: the task ends, in whatever way."""
        for held in (*self._waiting, *self._leaving):
            held.credit.settle(now)
        self._waiting.clear()
        self._leaving.clear()
        self._offered.settle(now)
        self._staged.settle(now)

    def look(self, now: float) -> tuple[StageLook, ...]:
        """Return how the stages stand."""
        accounts = (self.batch, self.spark, self.batches, self.staging)
        return tuple(StageLook.of(account, now) for account in accounts)
