"""Connects to one node of the cluster with asyncio: reads, writes, and reconnects.

It hands received data to its listener under the bucket's lock, at most 64 KiB at a time.
"""

import asyncio
import logging
import secrets
import ssl
from collections.abc import Mapping, Sequence
from contextlib import suppress
from threading import RLock
from time import monotonic
from typing import Final, Protocol

from dcp.client.addresses import NodeAddress
from dcp.errors import AuthenticationError, BucketError, DcplakeError, NodeUnavailableError
from dcp.protocol.window_policies import SharedWindows
from dcp.relay.relay_settings import RelaySettings
from dcp.relay.upstream_connection import ReceivedBytes, UpstreamConnection
from dcp.server.replication.background import FIRST_WAIT_SECONDS, LONGEST_WAIT_SECONDS
from dcp.server.replication.reading import read_until
from dcp.server.vbucket.replica import Replica
from dcp.wire.framing import FrameSplitter

_LOGGER = logging.getLogger(__name__)
_READ_BYTES: Final = 64 * 1024
"""A small piece, so that consumers get their turns between two reads."""
_LOOK_SECONDS: Final = 0.5
"""Timers run at least this often, because other tasks may set one to an earlier time."""
_REFUSED_WAIT_SECONDS: Final = 10.0
"""Wait before another attempt after the node refused the password or the bucket."""
_LEAVING_SECONDS: Final = 1.0
"""How long the node may take to answer each CLOSE_STREAM before the connection closes."""
_ANSWER_SECONDS: Final = 0.005
_NONCE_BYTES: Final = 24


class LinkListener(Protocol):
    """The receiver of a link's data; the bucket's lock is held."""

    def arrived(self, link: "UpstreamLink", arrived: Sequence[ReceivedBytes]) -> None:
        """Take received items and other messages of the connection."""

    def lost(self, link: "UpstreamLink") -> None:
        """The link's connection is over, with all its streams."""

    def unreachable(self, link: "UpstreamLink") -> None:
        """The link cannot connect to its node now."""

    def may_open(self) -> bool: ...


class UpstreamLink:
    """The link to one node, over successive connections. Call it in the event loop's thread."""

    def __init__(
        self,
        address: NodeAddress,
        settings: RelaySettings,
        name: str,
        lock: RLock,
        windows: SharedWindows,
        listener: LinkListener,
    ) -> None:
        """``windows`` shares one memory limit among the windows of all links."""
        self.address = address
        self.name = f"{name} to {address}"
        self.trouble = "not connected yet"
        """Why there is no connection; empty while there is one."""
        self.connection: UpstreamConnection | None = None
        self._became_ready = False
        self._full_seconds = 0.0
        self._connection_name = name
        self._settings = settings
        self._lock = lock
        self._listener = listener
        self._windows = windows
        self._replicas: Mapping[int, Replica] = {}
        self._writer: asyncio.StreamWriter | None = None

    def take_became_ready(self) -> bool:
        """Return True once for each connection that has become ready."""
        became_ready, self._became_ready = self._became_ready, False
        return became_ready

    @property
    def is_ready(self) -> bool:
        return self.connection is not None and self.connection.is_ready

    def full_seconds(self, now: float) -> float:
        connection = self.connection
        window_seconds = 0.0 if connection is None else connection.window.full_seconds(now)
        return self._full_seconds + window_seconds

    def _resize_window(self, window_bytes: int) -> None:
        if self.connection is not None:
            self.connection.resize_window(window_bytes, monotonic())
            self.write()

    def follow(self, replicas: Mapping[int, Replica]) -> None:
        """Have streams into exactly these replicas; the bucket's lock is held."""
        self._replicas = replicas
        if self.connection is not None:
            self.connection.follow(replicas, monotonic())
            self.write()

    async def leave(self) -> None:
        """Close all streams, and wait a moment until the node has answered each CLOSE_STREAM."""
        with self._lock:
            self.follow({})
        with suppress(TimeoutError):
            async with asyncio.timeout(_LEAVING_SECONDS):
                while self.connection is not None and self.connection.awaits_closed:
                    await asyncio.sleep(_ANSWER_SECONDS)

    async def run(self) -> None:
        wait_seconds = FIRST_WAIT_SECONDS
        while True:
            longest = LONGEST_WAIT_SECONDS
            try:
                if await self._run_once():
                    wait_seconds = FIRST_WAIT_SECONDS
                self._note_trouble("the connection was closed")
            except (AuthenticationError, BucketError) as error:
                self._note_trouble(str(error))
                # An operator must act, and frequent attempts would only fill the logs.
                wait_seconds = longest = _REFUSED_WAIT_SECONDS
            except (DcplakeError, OSError, TimeoutError) as error:
                self._note_trouble(str(error) or type(error).__name__)
            await asyncio.sleep(wait_seconds)
            wait_seconds = min(2 * wait_seconds, longest)

    def _note_trouble(self, trouble: str) -> None:
        with self._lock:
            self._listener.unreachable(self)
        # Log a reason once, not with each attempt.
        if trouble != self.trouble:
            _LOGGER.warning("%s: %s; connecting again", self.name, trouble)
        self.trouble = trouble

    async def _run_once(self) -> bool:
        """Connect and receive until the connection is lost; return True if it became ready."""
        loop, address, tls = asyncio.get_running_loop(), self.address, self._settings.tls
        # Read the certificates again: the operator may have replaced them.
        context = None if tls is None else tls.client_context()
        async with asyncio.timeout(self._settings.connection.connect_timeout_seconds):
            reader, self._writer = await asyncio.open_connection(
                address.host, address.port, ssl=context
            )
        with self._lock:
            nonce = secrets.token_urlsafe(_NONCE_BYTES)
            self.connection = connection = UpstreamConnection(
                self._settings,
                self._connection_name,
                nonce,
                loop.time(),
                self._windows.join(self._resize_window),
                self._listener.may_open,
            )
        try:
            with self._lock:
                connection.follow(self._replicas, loop.time())
            await self._receive(reader, connection)
        finally:
            with self._lock:
                self.connection = None
                self._windows.leave(self._resize_window)
                self._full_seconds += connection.window.full_seconds(loop.time())
                became_ready = connection.is_ready
                connection.close()
                self._listener.lost(self)
            self._writer.close()
            with suppress(OSError, ssl.SSLError):
                await self._writer.wait_closed()
        return became_ready

    async def _receive(self, reader: asyncio.StreamReader, connection: UpstreamConnection) -> None:
        splitter = FrameSplitter()
        loop = asyncio.get_running_loop()
        while True:
            self.write()
            look_at = min(connection.deadline, loop.time() + _LOOK_SECONDS)
            data = await read_until(reader, _READ_BYTES, look_at)
            now = loop.time()
            if data is not None:
                if not data:
                    if not connection.is_ready:
                        raise NodeUnavailableError(
                            "the node closed the connection before it was ready"
                        )
                    return
                self._take(connection, splitter, data, now)
            with self._lock:
                connection.tick(now)

    def _take(
        self, connection: UpstreamConnection, splitter: FrameSplitter, data: bytes, now: float
    ) -> None:
        block = splitter.feed(data)
        with self._lock:
            was_ready = connection.is_ready
            try:
                arrived = connection.feed(block, now)
            except BaseException:
                # The events before the error have changed the replicas, so consumers must get them.
                # A rollback above all.
                self._listener.arrived(self, list(connection.arrived.values()))
                raise
            finally:
                self.write()
            if connection.is_ready and not was_ready:
                _LOGGER.info("%s: connected", self.name)
                self.trouble, self._became_ready = "", True
            self._listener.arrived(self, arrived)
            self.write()

    def write(self) -> None:
        if self.connection is not None and self._writer is not None:
            data = self.connection.output()
            if data:
                # No drain is needed: this side never sends much.
                self._writer.write(data)
