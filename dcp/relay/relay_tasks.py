"""Runs the links that fill a relay's bucket, the flow-control regulator and the statistics log."""

import asyncio
import logging
from contextlib import suppress
from typing import Final

from dcp.relay.relay_bucket import RelayBucket
from dcp.relay.relay_figures import RelayFigures
from dcp.relay.relay_settings import RelaySettings
from dcp.relay.relay_statistics import relay_figures
from dcp.relay.upstream import Upstream
from dcp.server.node.serving import Work
from dcp.server.replication.background import keep_running

_LOG = logging.getLogger(__name__)
_INFORMED_SECONDS: Final = 10.0
"""Clients cannot connect for so long at most, while failover logs and high seqnos are unknown."""
_LOG_SECONDS: Final = 60.0
_FIRST_LOG_SECONDS: Final = 2.0


class RelayTasks:
    """The ``Companion`` of a relay's node."""

    def __init__(self, bucket: RelayBucket, settings: RelaySettings) -> None:
        self._bucket = bucket
        self._settings = settings
        self._tasks: list[asyncio.Task[None]] = []
        self.upstream = Upstream(bucket, settings)

    async def opening(self) -> None:
        """Connect; return when failover logs and high seqnos are known, or after 10 seconds."""
        with self._bucket.lock:
            self.upstream.start()
        self._tasks.append(asyncio.ensure_future(keep_running("upstream", self.upstream.run)))
        with suppress(TimeoutError):
            async with asyncio.timeout(_INFORMED_SECONDS):
                await self.upstream.is_informed.wait()

    def opened(self) -> dict[str, Work]:
        return {"regulator": self.upstream.regulator.run, "relay watch": self._watch}

    async def ending(self) -> None:
        await self.upstream.stop()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()

    async def _watch(self) -> None:
        await asyncio.sleep(_FIRST_LOG_SECONDS)
        while True:
            self._log_figures()
            await asyncio.sleep(_LOG_SECONDS)

    def _log_figures(self) -> None:
        found = self.figures()
        _LOG.info(
            "%d consumers, %d streams, %d of them from disk; %d ejections; %d bytes held",
            found.consumers,
            found.streams,
            found.streams_from_disk,
            found.ejections,
            found.held_bytes,
        )
        if found.disk_trouble:
            text = "%s; %d bytes wait for the disk"
            _LOG.warning(text, found.disk_trouble, found.disk_waiting_bytes)
        for link in found.upstream:
            if link.waits_for:
                _LOG.info("%s: waits for consumer %s", link.node, link.waits_for)
        for group in found.groups:
            if group.members < group.required:
                _LOG.info("%s", group)

    def figures(self) -> RelayFigures:
        with self._bucket.lock:
            return relay_figures(self._bucket, self.upstream, self._settings)
