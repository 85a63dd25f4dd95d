"""Runs what a relay does beside its node: its links to the cluster, its regulator and its log."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from threading import RLock
from typing import Final

from dcp.relay.relay_figures import RelayFigures
from dcp.relay.relay_statistics import log_figures
from dcp.relay.upstream import Upstream
from dcp.server.node.serving import Work
from dcp.server.replication.background import keep_running

_INFORMED_SECONDS: Final = 10.0
"""Clients cannot connect for so long at most, while failover logs and high seqnos are unknown."""
_LOG_SECONDS: Final = 60.0
_FIRST_LOG_SECONDS: Final = 2.0


class RelayTasks:
    """The ``Companion`` of a relay's node; ``lock`` is the bucket's."""

    def __init__(
        self,
        upstream: Upstream,
        lock: RLock,
        figures: Callable[[], RelayFigures],
    ) -> None:
        self._upstream = upstream
        self._lock = lock
        self._figures = figures
        self._following: asyncio.Task[None] | None = None

    async def opening(self) -> None:
        """Connect; return when failover logs and high seqnos are known, or after 10 seconds."""
        with self._lock:
            self._upstream.start()
        self._following = asyncio.ensure_future(keep_running("upstream", self._upstream.run))
        with suppress(TimeoutError):
            async with asyncio.timeout(_INFORMED_SECONDS):
                await self._upstream.is_informed.wait()

    def opened(self) -> dict[str, Work]:
        return {"regulator": self._upstream.regulator.run, "relay watch": self._watch}

    async def ending(self) -> None:
        await self._upstream.stop()
        if self._following is not None:
            self._following.cancel()
            await asyncio.gather(self._following, return_exceptions=True)

    async def _watch(self) -> None:
        await asyncio.sleep(_FIRST_LOG_SECONDS)
        while True:
            log_figures(self._figures())
            await asyncio.sleep(_LOG_SECONDS)
