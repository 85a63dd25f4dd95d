"""Runs rebalances, one at a time, with a deadline and rules for other orders meanwhile.

    ordered meanwhile     the rebalance
    another rebalance     goes on; the order is refused
    failover              is given up, before anything else that it would move
    kill                  fails if the node gives or takes; else it goes on
    hang                  fails at its deadline if the node gives or takes
    stop of the cluster   is given up

After a failure some vbuckets have moved and the others have not; another rebalance continues.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from dcp.errors import SourceError
from dcp.producer.bucket import ProducerBucket
from dcp.producer.rebalance import checked_members, rebalance


class RebalanceOrders:
    """The running rebalance, and the result of the last one.

    Any thread may call ``begin``; all other methods run in the loop.
    """

    def __init__(
        self,
        bucket: ProducerBucket,
        awake: Callable[[int], asyncio.Event],
        map_changed: Callable[[], None],
        leave: Callable[[int], Awaitable[None]],
    ) -> None:
        """``leave`` stops a node that has given everything away; for the rest see ``rebalance``."""
        self._bucket, self._awake = bucket, awake
        self._map_changed, self._leave = map_changed, leave
        self._task: asyncio.Task[None] | None = None
        self._given_up = ""
        self.state = "none"
        """``none``, ``running``, or ``failed:`` with the reason why the last one failed."""

    def begin(self, remove: int | None, timeout_seconds: float) -> Coroutine[Any, Any, None]:
        """Return a coroutine to run in the loop at once; no other one can begin until it ends.

        The coroutine raises SourceError or TimeoutError.

        Raises:
            ValueError: a rebalance runs, or this one is impossible now.
        """
        with self._bucket.lock:
            if self.state == "running":
                raise ValueError("rebalance: found one that runs already")
            members = checked_members(self._bucket, remove)
            self.state, self._given_up = "running", ""
        return self._run(members, remove, timeout_seconds)

    async def _run(self, members: list[int], remove: int | None, timeout_seconds: float) -> None:
        self._task = asyncio.current_task()
        state = "none"
        try:
            await self._work(members, remove, timeout_seconds)
        except BaseException as error:
            state = f"failed: {str(error) or type(error).__name__}"
            raise
        finally:
            with self._bucket.lock:
                self._task, self.state = None, state
                self._bucket.table.replicas_moved.notify_all()
            self._map_changed()

    async def _work(self, members: list[int], remove: int | None, timeout_seconds: float) -> None:
        deadline = asyncio.timeout(timeout_seconds)
        try:
            async with deadline:
                if self._given_up:  # before this task began
                    raise asyncio.CancelledError
                await rebalance(self._bucket, members, self._awake, self._map_changed)
                if remove is not None:
                    with self._bucket.lock:
                        self._bucket.map.down_nodes.add(remove)
                    await self._leave(remove)
        except TimeoutError:
            # A timeout inside the work is not ours.
            if not deadline.expired():
                raise
            raise TimeoutError(f"rebalance: not done after {timeout_seconds:g} seconds") from None
        except asyncio.CancelledError:
            # ``stop`` has cancelled it, or the loop ends.
            if not self._given_up:
                raise
            raise SourceError(f"rebalance: given up: {self._given_up}") from None

    def give_up(self, why: str) -> None:
        """End the running rebalance, if any, soon; vbuckets that have not moved stay."""
        if self.state == "running" and not self._given_up:
            self._given_up = why
            if self._task is not None:
                self._task.cancel()

    async def over(self) -> None:
        if self._task is not None:
            await asyncio.wait((self._task,))

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await self.over()
