"""Starts and stops a bucket and its nodes: common to a producer cluster and a relay.

start   companion.opening   nodes.open    companion.opened   works begin
stop    companion.ending    works end     nodes.close        the data folder is given up
"""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from types import TracebackType
from typing import Protocol, Self

from dcp.errors import LocalProtocolError, SetupError
from dcp.server.bucket.compactor import Compactor
from dcp.server.node.cluster_nodes import ClusterNodes
from dcp.server.node.wait_watch import WaitWatch
from dcp.server.replication.background import ended, keep_running


class Companion(Protocol):
    """The tasks beside the nodes, by which a cluster and a relay differ. Called in the loop."""

    async def opening(self) -> None:
        """Begin what must be there before clients can connect."""

    def opened(self) -> None:
        """Begin what needs the nodes, which listen now."""

    async def ending(self) -> None:
        """End all of it, also where the nodes could not be opened."""


class Serving:
    """Use as a context manager, or ``start`` and ``stop``; all methods are for any thread."""

    def __init__(self, nodes: ClusterNodes, companion: Companion) -> None:
        self.nodes = nodes
        self.bucket = nodes.bucket
        self.settings = nodes.bucket.settings
        self._companion = companion
        self._works: list[asyncio.Task[None]] = []
        self.compactor = Compactor(
            self.bucket.table.all,
            self.bucket.lock,
            self.settings.stale_removal_seconds,
            self.settings.clock,
        )

    def start(self) -> None:
        """Listen on all ports; returns when clients can connect.

        Raises:
            SetupError: a port cannot be opened.
            SourceError: it took too long.
            LocalProtocolError: it runs, or it ran and gave up its data folder.
        """
        if self.nodes.loop.is_running:
            raise LocalProtocolError("producer cluster: start() of one that runs already")
        if self.bucket.is_closed:
            raise LocalProtocolError(
                "producer cluster: start() of one that has given up its data folder; make another"
            )
        try:
            self.nodes.loop.start(self._open)
        except BaseException as error:
            self.bucket.close()
            if isinstance(error, OSError):
                raise SetupError(
                    f"producer cluster: cannot listen: {error.strerror or error}"
                ) from error
            raise

    def stop(self) -> None:
        """Close all connections and ports, and the data folder; harmless when not running.

        Clients get what they were sent before, and the answers that they are owed: whole frames,
        and then the end of the connection (servers announce no STREAM_END either, kv_engine
        ``dcp/active_stream.cc``). Who does not read is cut off after ``last_words_seconds``.

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
        """Close all connections to ``node``, or to all nodes.

        Raises:
            ValueError: no such node.
        """
        self.nodes.drop_connections(node)

    # --- where it listens

    @property
    def seeds(self) -> list[str]:
        """``host:port`` of every node."""
        return [address.at(address.kv) for address in self.bucket.map.addresses]

    @property
    def http_seeds(self) -> list[str]:
        """``host:port`` of every node's HTTP endpoints."""
        return [address.at(address.mgmt) for address in self.bucket.map.addresses]

    @property
    def tls_seeds(self) -> list[str]:
        """``host:port`` of every node's TLS port; empty without ``ClusterSettings.tls``."""
        return [a.at(a.kv_tls) for a in self.bucket.map.addresses if a.kv_tls is not None]

    @property
    def https_seeds(self) -> list[str]:
        """``host:port`` of every node's HTTPS port; empty without ``ClusterSettings.tls``."""
        return [a.at(a.mgmt_tls) for a in self.bucket.map.addresses if a.mgmt_tls is not None]

    # --- in the loop

    async def _open(self) -> None:
        try:
            await self._companion.opening()
            await self.nodes.open()
            self._companion.opened()
        except BaseException:  # also cancelled: it took too long
            await self._companion.ending()
            raise
        self._begin_works()

    def _begin_works(self) -> None:
        bucket, call_soon = self.bucket, self.nodes.loop.call_soon
        works: dict[str, Callable[[], Awaitable[None]]] = {
            "watch of connections": self.nodes.watch_connections,
            "watch of durable writes": WaitWatch(bucket.sync_writes, bucket.lock, call_soon).run,
            "watch of waits for the disk": WaitWatch(
                bucket.persistence_waits, bucket.lock, call_soon
            ).run,
            "compactor": self.compactor.run,
        }
        if self.settings.expiry_pager_seconds > 0:
            interval_seconds = self.settings.expiry_pager_seconds
            works["expiry pager"] = partial(self._page_expiries, interval_seconds)
        if bucket.writes.flusher is not None:
            works["flusher"] = bucket.writes.flusher.run
        for name, work in works.items():
            self._works.append(asyncio.ensure_future(keep_running(name, work)))

    async def _page_expiries(self, interval_seconds: float) -> None:
        while True:
            await asyncio.sleep(interval_seconds)
            with self.bucket.lock:
                self.bucket.expire_due(self.bucket.now())

    async def _close(self) -> None:
        await self._companion.ending()
        for task in self._works:
            task.cancel()
        await ended("background of the producer", *self._works)
        self._works.clear()
        await self.nodes.close()
