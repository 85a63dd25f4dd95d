"""A node's listening ports, and the tasks of its connections."""

import asyncio
import logging
import socket
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial

from dcp.server.bucket.assembly import Bucket
from dcp.server.commands.session import CommandHandler, Session
from dcp.server.model.cluster_map import NodePorts
from dcp.server.node.accepted_connection import AcceptedConnection
from dcp.server.node.channels import Channel, PlainChannel, TlsChannel
from dcp.server.node.http_connection import HttpConnection
from dcp.server.node.listener import Listener
from dcp.server.node.turns import Turns

_LOGGER = logging.getLogger(__name__)
ChannelOf = Callable[[socket.socket], Channel]
RunChannel = Callable[[Channel], None]


class Node:
    """One node of the cluster, with ports of its own; methods run in the loop's thread."""

    def __init__(
        self,
        bucket: Bucket,
        node: int,
        address: NodePorts,
        turns: Turns,
        commands: Mapping[int, CommandHandler],
    ) -> None:
        """``address`` has TLS ports if the bucket has ``tls``; all nodes of the loop share
        ``turns``.
        """
        self.node = node
        self._commands = commands
        self._host = address.host
        self._bucket = bucket
        self._turns = turns
        self._clients: dict[asyncio.Task[None], AcceptedConnection] = {}
        self._http_clients: dict[asyncio.Task[None], HttpConnection] = {}
        self.awake = asyncio.Event()
        """While it is cleared, the node hangs: all stays open, and nobody reads or answers."""
        self.awake.set()
        session, http = self._run_session, self._run_http
        self._kv = self._listener("port", address.kv, PlainChannel, session)
        self._mgmt = self._listener("http_port", address.mgmt, PlainChannel, http)
        self._listeners = [self._kv, self._mgmt]
        self._kv_tls = self._mgmt_tls = None
        if bucket.tls is not None:
            encrypted = partial(TlsChannel, context=bucket.tls)
            self._kv_tls = self._listener("tls_port", address.kv_tls or 0, encrypted, session)
            self._mgmt_tls = self._listener("https_port", address.mgmt_tls or 0, encrypted, http)
            self._listeners += [self._kv_tls, self._mgmt_tls]

    @property
    def address(self) -> NodePorts:
        """The node's address, or its last one before it was killed."""
        return NodePorts(
            self._host,
            self._kv.port,
            self._mgmt.port,
            self._kv_tls.port if self._kv_tls else None,
            self._mgmt_tls.port if self._mgmt_tls else None,
        )

    @property
    def clients(self) -> Collection[AcceptedConnection]:
        """Connections of the memcached protocol, without HTTP."""
        return self._clients.values()

    def listen(self) -> None:
        """Open the ports and accept clients; port 0 becomes a free port the first time.

        Raises:
            OSError: a port is taken, or the host is not ours.
        """
        for listener in self._listeners:
            listener.open()

    def _listener(
        self, setting: str, port: int, channel_of: ChannelOf, run: RunChannel
    ) -> Listener:
        def serve(sock: socket.socket) -> None:
            if len(self._clients) + len(self._http_clients) < self._bucket.settings.max_connections:
                run(channel_of(sock))
            else:
                self._bucket.counters.connections_refused += 1
                sock.close()

        return Listener(self._host, port, serve, self._bucket.settings.option_words(setting))

    def _run_session(self, channel: Channel) -> None:
        with self._bucket.lock:
            now = asyncio.get_running_loop().time()
            session = Session(self._bucket, self.node, self._commands, now)
        connection = AcceptedConnection(self._bucket, session, channel, self.awake, self._turns)
        self._clients[self._start(connection)] = connection
        self._bucket.clients.connected()

    def _run_http(self, channel: Channel) -> None:
        connection = HttpConnection(self._bucket, self.node, channel, self.awake)
        self._http_clients[self._start(connection)] = connection

    def _start(self, client: AcceptedConnection | HttpConnection) -> asyncio.Task[None]:
        task = asyncio.ensure_future(client.run())
        task.add_done_callback(self._client_done)
        return task

    def _client_done(self, task: asyncio.Task[None]) -> None:
        client = self._clients.pop(task, None) or self._http_clients.pop(task)
        if isinstance(client, AcceptedConnection):
            self._bucket.clients.disconnected()
        client.close()
        if not task.cancelled() and task.exception() is not None:
            _LOGGER.error("connection to node %d failed", self.node, exc_info=task.exception())

    def close_overdue(self, now: float) -> None:
        if self.awake.is_set():
            for client in self._clients.values():
                client.close_if_overdue(now)

    def vbuckets_changed(self, vbuckets: set[int]) -> None:
        for client in self._clients.values():
            if client.session.vbuckets_changed(vbuckets):
                client.wake()

    def push_map(self) -> None:
        for client in self._clients.values():
            client.session.map_notifier.due()
            client.wake()
        for http_client in self._http_clients.values():
            http_client.map_changed()

    async def drop_connections(self) -> None:
        """Close all connections at once; unsent bytes are lost."""
        await self._end([*self._clients, *self._http_clients])

    async def _end(self, connections: Sequence[asyncio.Task[None]]) -> None:
        for task in connections:
            task.cancel()
        await asyncio.gather(*connections, return_exceptions=True)

    def close_ports(self) -> None:
        """Accept no new connections; open ones go on, and the ports stay this node's."""
        for listener in self._listeners:
            listener.close()

    def leave_ports(self) -> None:
        for listener in self._listeners:
            listener.leave()

    def fall_silent(self) -> None:
        """Stop reading and streaming; the lock is held, and ``kill`` or ``leave`` must follow."""
        for client in self._clients.values():
            client.session.close()

    async def leave(self) -> None:
        """Close ports and connections like ``kill``, but send the waiting answers first."""
        with self._bucket.lock:
            self.fall_silent()
        self.close_ports()
        # The lists are copies: ``listen`` meanwhile can let new clients in, which stay.
        clients, others = list(self._clients), list(self._http_clients)
        # A hanging node sends nothing, so there are no last answers to wait for.
        if clients and self.awake.is_set():
            await asyncio.wait(clients, timeout=self._bucket.settings.last_words_seconds)
        await self._end([*clients, *others])

    async def kill(self) -> None:
        self.close_ports()
        await self.drop_connections()
