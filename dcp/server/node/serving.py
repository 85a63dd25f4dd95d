"""Starts and stops a bucket and its nodes, for a producer's cluster and a relay.

start   _opening   nodes.open    _opened       works begin
stop    _ending    works end     nodes.close   bucket.close

A cluster and a relay override ``_opening``, ``_opened`` and ``_ending``.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from types import TracebackType
from typing import Self

from dcp.errors import LocalProtocolError, SetupError
from dcp.server.bucket.compactor import keep_compacting
from dcp.server.node.cluster_nodes import ClusterNodes
from dcp.server.node.wait_watch import watch_waits
from dcp.server.replication.background import ended, keep_running

Work = Callable[[], Awaitable[None]]


class Serving:
    """A running bucket: use it as a context manager, or call ``start`` and ``stop``."""

    def __init__(self, nodes: ClusterNodes) -> None:
        self.nodes = nodes
        self.bucket = nodes.bucket
        self.settings = nodes.bucket.settings
        self._name = self.settings.subject.strip()
        self._works: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Listen on all ports; return when clients can connect.

        Raises:
            SetupError: a port cannot be opened.
            SourceError: it took too long.
            LocalProtocolError: it runs already, or has given up its data folder.
        """
        if self.nodes.loop.is_running:
            raise LocalProtocolError(f"{self._name}: start() of one that runs already")
        if self.bucket.is_closed:
            raise LocalProtocolError(
                f"{self._name}: start() of one that has given up its data folder; make another"
            )
        try:
            self.nodes.loop.start(self._open)
        except BaseException as error:
            self.bucket.close()
            if isinstance(error, OSError):
                raise SetupError(
                    f"{self._name}: cannot listen: {error.strerror or error}"
                ) from error
            raise

    def stop(self) -> None:
        """Close connections, ports and data folder; does nothing if not running.

        Clients receive the waiting answers as whole frames, then the end of the connection. Servers
        send no STREAM_END either (kv_engine ``dcp/active_stream.cc``). A client that does not read
        is cut off after ``last_words_seconds``.

        Raises:
            OSError: the data folder cannot be written.
        """
        self.nodes.loop.stop(self._close)
        with self.bucket.lock:
            self.bucket.close()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def drop_connections(self, node: int | None = None) -> None:
        """Close all connections to ``node``, or with None to all nodes.

        Raises:
            ValueError: no such node.
        """
        self.nodes.drop_connections(node)

    # --- where it listens

    @property
    def seeds(self) -> list[str]:
        return [address.at(address.kv) for address in self.bucket.map.addresses]

    @property
    def http_seeds(self) -> list[str]:
        return [address.at(address.mgmt) for address in self.bucket.map.addresses]

    @property
    def tls_seeds(self) -> list[str]:
        return [a.at(a.kv_tls) for a in self.bucket.map.addresses if a.kv_tls is not None]

    @property
    def https_seeds(self) -> list[str]:
        return [a.at(a.mgmt_tls) for a in self.bucket.map.addresses if a.mgmt_tls is not None]

    # --- in the loop

    async def _opening(self) -> None:
        """Start the tasks that must run before clients can connect."""

    def _opened(self) -> Mapping[str, Work]:
        """Return the tasks that need listening nodes, by their names in the log."""
        return {}

    async def _ending(self) -> None:
        """End all tasks, even if the nodes could not open."""

    async def _open(self) -> None:
        try:
            await self._opening()
            await self.nodes.open()
            others = self._opened()
        except BaseException:  # a start that took too long is cancelled
            await self._ending()
            raise
        self._begin_works(others)

    def _begin_works(self, others: Mapping[str, Work]) -> None:
        bucket, settings = self.bucket, self.settings
        works: dict[str, Work] = {
            "watch of connections": self.nodes.watch_connections,
            "watch of waits for the disk": partial(
                watch_waits, bucket.persistence_waits, bucket.lock, self.nodes.loop.call_soon
            ),
            "compactor": partial(
                keep_compacting,
                bucket.table.all,
                bucket.lock,
                settings.stale_removal_seconds,
                settings.clock,
            ),
            **others,
        }
        if bucket.writes.flusher is not None:
            works["flusher"] = bucket.writes.flusher.run
        for name, work in works.items():
            self._works.append(asyncio.ensure_future(keep_running(name, work)))

    async def _close(self) -> None:
        await self._ending()
        for task in self._works:
            task.cancel()
        await ended(f"background of the {self._name}", *self._works)
        self._works.clear()
        await self.nodes.close()
