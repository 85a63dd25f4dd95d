"""Keeps a consumer's connections: at most one per node, reconnected after a delay.

It also finds the cluster map by asking any connected node. Without one it connects the seeds and
the nodes of the newest map in turn: the bootstrap brings the map.
"""

import logging
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from math import inf

from dcp.client.addresses import NodeAddress
from dcp.client.backoff import Backoff
from dcp.client.buffer_pool import BufferPool
from dcp.client.cluster_map import ClusterMap
from dcp.client.connection import NodeConnection
from dcp.client.connection_names import unique_name
from dcp.client.delivery import DeliveryQueue
from dcp.client.settings import ConnectionSettings
from dcp.client.stats import ConnectionStats
from dcp.errors import BucketError, DcplakeError, NodeUnavailableError
from dcp.protocol.credentials import Credentials
from dcp.protocol.refusals import raise_refusal

_LOGGER = logging.getLogger(__name__)


@dataclass(slots=True)
class NodeLink:
    """One node: its connection, if any, and the time of the next attempt.

    The stream keeper sets ``retry_at`` too.
    """

    address: NodeAddress
    connection: NodeConnection | None = None
    ready_at: float = inf
    retry_at: float = 0.0
    failures: int = 0
    error: DcplakeError | None = None
    """The error that ended the last connection; None once the next one is ready."""

    @property
    def trouble(self) -> str:
        """The same as text; empty without an error."""
        return "" if self.error is None else str(self.error)

    @property
    def is_ready(self) -> bool:
        """True if streams may be opened."""
        return self.connection is not None and self.ready_at < inf


class NodeLinks:
    """All connections of one consumer. Only the application's thread uses it."""

    def __init__(
        self,
        seeds: Sequence[NodeAddress],
        settings: ConnectionSettings,
        credentials: Credentials,
        name_prefix: str,
        queue: DeliveryQueue,
        backoff: Backoff,
    ) -> None:
        unique_name(
            name_prefix, settings.bucket
        )  # a bad prefix must fail here, not at the first connection
        self._seeds = tuple(seeds)
        self._settings = settings
        self._credentials = credentials
        self._name_prefix = name_prefix
        self._queue = queue
        self.buffers = BufferPool(settings.read_buffer_bytes)
        self._backoff = backoff
        self._links: dict[NodeAddress, NodeLink] = {}
        self._next_seed = 0
        self._map_due_at = inf
        self._map_asked_at = -inf
        self._closed = False
        self.map: ClusterMap | None = None

    # --- connections -----------------------------------------------------------------------

    def link(self, address: NodeAddress) -> NodeLink:
        """Return the link to a node. A new one is not connected."""
        return self._links.setdefault(address, NodeLink(address))

    def connect(self, address: NodeAddress, now: float) -> NodeLink:
        """Return the link to a node; begin to connect if an attempt is due."""
        link = self.link(address)
        if link.connection is None and now >= link.retry_at:
            name = unique_name(self._name_prefix, self._settings.bucket)
            link.connection = NodeConnection(
                address,
                self._settings,
                self._credentials,
                name,
                queue=self._queue,
                buffers=self.buffers,
            )
            link.ready_at = inf
            link.connection.start()
            if self._closed:  # by another thread, which may not have seen this connection
                link.connection.stop()
        return link

    def by_name(self, connection_name: str) -> NodeLink | None:
        """Return the link whose present connection has this name."""
        for link in self._links.values():
            if link.connection is not None and link.connection.name == connection_name:
                return link
        return None

    def ended(self, link: NodeLink, error: DcplakeError | None, now: float) -> None:
        """Note that a link's connection ended; delay the next attempt.

        Repeated equal failures are logged as one warning.
        """
        if now - link.ready_at >= self._backoff.cap_seconds:
            link.failures = 0
        link.connection = None
        told, link.error = link.trouble, error or NodeUnavailableError("closed")
        link.ready_at = inf
        link.retry_at = now + self._backoff.delay_seconds(link.failures)
        link.failures += 1
        _LOGGER.log(
            logging.DEBUG if link.trouble == told else logging.WARNING,
            "connection to %s ended (%s), next attempt in %.2f s",
            link.address,
            error,
            link.retry_at - now,
        )

    def refuse_if_all_failed(self, nodes: Collection[NodeAddress]) -> None:
        """Raise the first refusal once each of ``nodes`` and each seed has failed.

        Raises:
            AuthenticationError: user or password refused.
            BucketError: no such bucket, or no access to it.
        """
        failures: list[DcplakeError] = []
        for node in dict.fromkeys((*nodes, *self._seeds)):
            link = self._links.get(node)
            if link is None or link.error is None:
                return  # not asked yet
            failures.append(link.error)
        raise_refusal(failures)

    def stats(self, now: float) -> list[ConnectionStats]:
        """Return the statistics of each connection, or why there is none; from any thread."""
        all_stats = []
        for link in list(self._links.values()):
            connection = link.connection
            if connection is None:
                all_stats.append(ConnectionStats(link.address, error=link.trouble))
            else:
                stats = connection.stats(now)
                all_stats.append(stats if stats.is_ready else replace(stats, error=link.trouble))
        return all_stats

    def close(self) -> None:
        """Close all connections, from any thread. All of them get the order before any is waited
        for.
        """
        self._closed = True
        connections = self._connections()
        for connection in connections:
            connection.stop()
        for connection in connections:
            connection.close()

    # --- windows ---------------------------------------------------------------------------

    def resize(self, window_bytes: int) -> None:
        """Give all present and future connections another window; 0 for none.

        Raises:
            ConfigError: the settings of connections do not allow this size.
        """
        self._settings = replace(self._settings, window_bytes=window_bytes)
        for connection in self._connections():
            connection.resize_window(window_bytes)

    def resize_streams(self, window_bytes: int) -> None:
        """Give all present and future streams another window; 0 for none.

        Raises:
            ConfigError: the protocol does not allow this size.
        """
        self._settings = replace(self._settings, stream_window_bytes=window_bytes)
        for connection in self._connections():
            connection.change_stream_window(window_bytes)

    def _connections(self) -> list[NodeConnection]:
        return [each.connection for each in list(self._links.values()) if each.connection]

    # --- the cluster map -------------------------------------------------------------------

    def want_map(self, now: float) -> None:
        """Ask for a newer map soon. Requests are at least the first retry delay apart."""
        earliest = self._map_asked_at + self._backoff.first_seconds
        self._map_due_at = min(self._map_due_at, max(now, earliest))

    def adopt(self, config: bytes, sender: NodeAddress) -> bool:
        """Adopt a received map if it is newer; return whether it was.

        The network stays: a node that leaves the cluster sends a map without its own address.

        Raises:
            RemoteProtocolError: it is no valid map.
            ConfigError: no node has an address in the network.
            BucketError: the bucket was created again under the same name.
        """
        network = self._settings.network if self.map is None else self.map.network
        tls = self._settings.tls is not None
        found = ClusterMap.parse(config, sender, tls=tls, network=network)
        expected = self._settings.bucket_uuid
        if expected and found.bucket_uuid and found.bucket_uuid != expected:
            raise BucketError(
                f"{sender}: found bucket {self._settings.bucket!r} with uuid "
                f"{found.bucket_uuid!r}, expected {expected!r}: it was created again "
                "meanwhile, and nothing of it was read"
            )
        if not found.supersedes(self.map):
            return False
        changed = self.map is None or found != self.map
        self.map = found
        return changed

    def refresh_map(self, now: float) -> None:
        """Send the due request for the map, if any."""
        if now < self._map_due_at:
            return
        self._map_due_at = inf
        self._map_asked_at = now
        for link in self._links.values():
            if link.is_ready and link.connection is not None:
                try:
                    link.connection.request_cluster_config()
                except DcplakeError:
                    continue  # just ended: its last entry will say so
                return
        known = () if self.map is None else self.map.addresses
        places = tuple(dict.fromkeys((*self._seeds, *known)))
        seed = places[self._next_seed % len(places)]
        self._next_seed += 1
        if self.connect(seed, now).connection is None:
            self._map_due_at = now + self._backoff.delay_seconds(self._next_seed)

    @property
    def due_at(self) -> float:
        """When ``refresh_map`` will have a request to send."""
        return self._map_due_at
