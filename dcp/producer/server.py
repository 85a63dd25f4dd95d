"""The asyncio edge: one listening socket per node, and the tasks of its connections.

A node can be made to fail: ``kill`` closes port and connections, ``refuse`` only the port, ``hang``
leaves both open and does nothing, ``restore`` undoes any of them on the same port.
"""

import asyncio
import logging
import socket

from dcp.producer.bucket import Bucket
from dcp.producer.commands import COMMANDS
from dcp.producer.connection import ClientConnection
from dcp.producer.session import Session

_LOG = logging.getLogger(__name__)
_BACKLOG = 128
_ACCEPT_AGAIN_SECONDS = 0.1
_LAST_WORDS_SECONDS = 1.0


class Node:
    """One node of the cluster, listening on a port of its own. Methods run in the loop's thread."""

    def __init__(self, bucket: Bucket, node: int, host: str, port: int) -> None:
        self.node = node
        self.host = host
        self.port = port
        self._bucket = bucket
        self._listener: socket.socket | None = None
        self._clients: dict[asyncio.Task[None], ClientConnection] = {}
        self._awake = asyncio.Event()
        self._awake.set()

    @property
    def sessions(self) -> list[Session]:
        """The sessions of all open connections."""
        return [client.session for client in self._clients.values()]

    def listen(self) -> None:
        """Open the port (a free one the first time, if 0 was asked for) and accept clients.

        Raises:
            OSError: the port is taken or the host is not ours.
        """
        family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
        listener = socket.socket(family, socket.SOCK_STREAM)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((self.host, self.port))
            listener.listen(_BACKLOG)
            listener.setblocking(False)
        except OSError:
            listener.close()
            raise
        self.port = listener.getsockname()[1]
        self._listener = listener
        self._accept_from(listener)

    def _accept_from(self, listener: socket.socket) -> None:
        """Watch the port. (A task that waits in ``sock_accept`` loses a client when cancelled.)."""
        if self._listener is listener:
            asyncio.get_running_loop().add_reader(listener, self._accept, listener)

    def _accept(self, listener: socket.socket) -> None:
        """Take the clients that wait."""
        loop = asyncio.get_running_loop()
        for _ in range(_BACKLOG):
            try:
                client, _address = listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError:  # out of descriptors: others may close meanwhile
                loop.remove_reader(listener)
                loop.call_later(_ACCEPT_AGAIN_SECONDS, self._accept_from, listener)
                return
            client.setblocking(False)
            with self._bucket.lock:
                session = Session(self._bucket, self.node, COMMANDS)
            connection = ClientConnection(self._bucket, session, client, self._awake)
            task = asyncio.ensure_future(connection.run())
            self._clients[task] = connection
            task.add_done_callback(self._client_done)

    def _client_done(self, task: asyncio.Task[None]) -> None:
        self._clients.pop(task).close()
        if not task.cancelled() and task.exception() is not None:
            _LOG.error("connection to node %d failed", self.node, exc_info=task.exception())

    def vbuckets_changed(self, vbuckets: set[int]) -> None:
        """Wake the connections that stream any of these vbuckets; the lock is held."""
        for client in self._clients.values():
            if client.session.vbuckets_changed(vbuckets):
                client.wake()

    def push_map(self) -> None:
        """Send the new cluster map to the clients that asked for it; the lock is held."""
        for client in self._clients.values():
            client.session.push_map()
            client.wake()

    async def drop_connections(self) -> None:
        """Close all connections at once; what was not sent is lost."""
        tasks = list(self._clients)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def refuse(self) -> None:
        """Accept no new connections; open ones go on."""
        if self._listener is not None:
            asyncio.get_running_loop().remove_reader(self._listener)
            self._listener.close()
            self._listener = None

    def fall_silent(self) -> None:
        """Read and stream nothing more; the lock is held, ``kill`` or ``leave`` must follow."""
        for client in self._clients.values():
            client.session.close()

    async def leave(self) -> None:
        """Be gone as with ``kill``, but let the connections say the answers they owe."""
        with self._bucket.lock:
            self.fall_silent()
        await self.refuse()
        if self._clients:
            await asyncio.wait(self._clients, timeout=_LAST_WORDS_SECONDS)
        await self.drop_connections()

    async def kill(self) -> None:
        """Be gone: no port, no connections."""
        await self.refuse()
        await self.drop_connections()

    def hang(self) -> None:
        """Keep port and connections open, read and answer nothing."""
        self._awake.clear()

    def restore(self) -> None:
        """Be well again, on the same port."""
        self._awake.set()
        if self._listener is None:
            self.listen()
