"""The taking of vbuckets that the cluster's first process orders: one move at a time."""

import asyncio
from collections.abc import Callable

from dcp.errors import SourceError
from dcp.producer.background import log_failure
from dcp.producer.bucket import Bucket
from dcp.producer.move_orders import MoveOrder, MoveReport
from dcp.producer.rebalance import Move


class Taking:
    """The moves to nodes of this process. Methods run in the loop's thread, under the lock."""

    def __init__(
        self,
        bucket: Bucket,
        awake: Callable[[int], asyncio.Event],
        map_changed: Callable[[], None],
    ) -> None:
        self._bucket = bucket
        self._awake = awake
        self._map_changed = map_changed
        self._order: MoveOrder | None = None
        self._taken: list[int] = []
        self._error = ""
        self._task: asyncio.Task[None] | None = None
        self._turn = asyncio.Lock()

    def begin(self, order: MoveOrder) -> None:
        """Begin a move, if it was not begun; an older one is given up."""
        if self._order is not None and self._order.number == order.number:
            return
        self.leave()
        self._order, self._taken, self._error = order, [], ""
        self._task = asyncio.get_running_loop().create_task(self._run(order, self._taken))
        self._task.add_done_callback(log_failure("taking vbuckets over"))

    async def _run(self, order: MoveOrder, taken: list[int]) -> None:
        async with self._turn:  # an older one leaves its copies first
            move = Move(
                self._bucket,
                order.source,
                order.target,
                order.vbuckets,
                taken.extend,
                self._map_changed,
            )
            try:
                await move.run(self._awake(order.target))
            except SourceError as error:
                self._error = str(error)
            except Exception as error:
                self._error = repr(error)
                raise

    def leave(self) -> None:
        """Give up what did not arrive."""
        if self._task is not None:
            self._task.cancel()

    def report(self) -> MoveReport:
        """Return how far the last move is."""
        if self._order is None or self._task is None:
            return MoveReport()
        return MoveReport(self._order.number, tuple(self._taken), self._task.done(), self._error)

    async def stop(self) -> None:
        """Give up, and wait until that is done."""
        self.leave()
        if self._task is not None:
            await asyncio.wait((self._task,))  # it says itself where it fails
