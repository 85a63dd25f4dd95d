"""A move of vbuckets to a node of another process: that process takes them, this one draws the map.

The other process runs the takeover streams (``taking.py``). Each vbucket that arrived waits there,
shown to nobody, until the map has it there. So it is active in one place at any instant: where a
process is lost on the way, the vbucket stays with whom the map names. One that does not come to an
end with it is waited for no longer than for any answer: what it has then is not its own.
"""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from dcp.errors import DcplakeError, SourceError
from dcp.producer.bucket import Bucket
from dcp.producer.member_commands import LEAVE, TAKE, TAKEN
from dcp.producer.member_links import MemberLink
from dcp.producer.move_orders import MoveOrder, MoveReport
from dcp.producer.ownership import follow_owners, may_move

_LOG = logging.getLogger(__name__)
_ASK_AGAIN_SECONDS: Final = 0.02


class RemoteMove:
    """What a node of another process takes over. Methods run in the loop's thread."""

    def __init__(
        self,
        bucket: Bucket,
        link: MemberLink,
        source: int,
        vbuckets: tuple[int, ...],
        map_changed: Callable[[], None],
    ) -> None:
        self._bucket, self._link = bucket, link
        self._map_changed = map_changed
        self._order = MoveOrder(next(bucket.move_numbers), source, link.node, vbuckets)
        self._left = set(vbuckets)

    async def run(self) -> None:
        """Return when all vbuckets are where they should be.

        Raises:
            SourceError: some did not get there; the map does not have them there.
        """
        error = ""
        try:
            await self._link.order(TAKE, self._order.encode())
            while self._left:
                report = await self._ask()
                if report.is_over:
                    error = report.error
                    break
                await asyncio.sleep(_ASK_AGAIN_SECONDS)
        except (OSError, DcplakeError) as lost:
            error = str(lost) or type(lost).__name__
        finally:
            with suppress(OSError, DcplakeError):  # who does not answer has nothing
                await self._link.order(LEAVE)
                await self._end()
        if self._left:
            raise SourceError(
                f"rebalance: {len(self._left)} vbuckets, the first is {min(self._left)}, did not "
                f"get to {self._bucket.map.name_of(self._link.node)}: "
                f"{error or 'the process begins anew'}"
            )

    async def _end(self) -> None:
        """Return when the other process takes no more, or has not said so for too long."""
        timeout_seconds = self._bucket.settings.member_timeout_seconds
        deadline = asyncio.timeout(timeout_seconds)
        try:
            async with deadline:
                while not (await self._ask()).is_over:
                    await asyncio.sleep(_ASK_AGAIN_SECONDS)
        except TimeoutError:
            if not deadline.expired():
                raise
            _LOG.warning(
                "rebalance: %s still takes vbuckets %g seconds after it was told to leave them",
                self._bucket.map.name_of(self._link.node),
                timeout_seconds,
            )

    async def _ask(self) -> MoveReport:
        """Ask how far it is, and have in the map what arrived."""
        report = MoveReport.decode(await self._link.question(TAKEN))
        if report.number != self._order.number:
            return MoveReport()
        source, target = self._order.source, self._link.node
        with self._bucket.lock:
            arrived = {
                vbucket
                for vbucket in self._left.intersection(report.taken)
                if may_move(self._bucket, vbucket, source, target)
            }
            if arrived:
                before = list(self._bucket.map.owners)
                for vbucket in sorted(arrived):
                    self._bucket.map.move(vbucket, target)
                follow_owners(self._bucket, before)
                self._bucket.copies_moved.notify_all()
        if arrived:
            self._left -= arrived
            self._map_changed()
        return report
