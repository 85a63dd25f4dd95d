"""The asyncio edge of the relay's connection to one node: connects, reads, writes, reconnects.

What was received is handed to the follower under the bucket's lock, at most 64 KiB at a time.
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
from dcp.server.vbucket.replica_copy import ReplicaCopy
from dcp.wire.framing import FrameSplitter

_LOG = logging.getLogger(__name__)
_READ_BYTES: Final = 64 * 1024
"""Between two reads the consumers have their turns."""
_LOOK_SECONDS: Final = 0.5
"""So often it is looked what is due, as others may have made something due."""
_REFUSED_WAIT_SECONDS: Final = 10.0
"""Until it is tried again with a password or a bucket that was refused."""
_LEAVING_SECONDS: Final = 1.0
"""How long a node may take to end streams before the connection is closed."""
_ANSWER_SECONDS: Final = 0.005
_NONCE_BYTES: Final = 24


class LinkListener(Protocol):
    """The receiver of a link's data; the bucket's lock is held."""

    def arrived(self, link: "UpstreamLink", arrived: Sequence[ReceivedBytes]) -> None:
        """Take received items, and other messages of the connection."""

    def lost(self, link: "UpstreamLink") -> None:
        """Note that its connection is over, with all streams."""

    def unreachable(self, link: "UpstreamLink") -> None:
        """Note that the node cannot be connected now."""

    def may_open(self) -> bool:
        """Return whether streams may be requested."""


class UpstreamLink:
    """The link to one node, over successive connections. Methods run in the loop's thread."""

    def __init__(
        self,
        address: NodeAddress,
        settings: RelaySettings,
        name: str,
        lock: RLock,
        windows: SharedWindows,
        follower: LinkListener,
    ) -> None:
        """``windows`` sizes that of the connection, among those of the other links."""
        self.address = address
        self.name = f"{name} to {address}"
        self.trouble = "not connected yet"
        """The reason why there is no connection; empty while there is one."""
        self.connection: UpstreamConnection | None = None
        self._became_ready = False
        self._full_seconds = 0.0
        self._connection_name = name
        self._settings = settings
        self._lock = lock
        self._follower = follower
        self._windows = windows
        self._copies: Mapping[int, ReplicaCopy] = {}
        self._writer: asyncio.StreamWriter | None = None

    def take_became_ready(self) -> bool:
        """Return whether streams can be asked for, once for each connection."""
        became_ready, self._became_ready = self._became_ready, False
        return became_ready

    @property
    def is_ready(self) -> bool:
        """True if streams can be requested."""
        return self.connection is not None and self.connection.is_ready

    def full_seconds(self, now: float) -> float:
        """Return how long the windows of all connections to the node were full."""
        connection = self.connection
        window_seconds = 0.0 if connection is None else connection.window.full_seconds(now)
        return self._full_seconds + window_seconds

    def _resize_window(self, window_bytes: int) -> None:
        """Change the window as other links come or go; the bucket's lock is held."""
        if self.connection is not None:
            self.connection.resize_window(window_bytes, monotonic())
            self.write()

    def follow(self, copies: Mapping[int, ReplicaCopy]) -> None:
        """Have a stream into exactly these copies; the bucket's lock is held."""
        self._copies = copies
        if self.connection is not None:
            self.connection.follow(copies, monotonic())
            self.write()

    async def leave(self) -> None:
        """End all streams, and wait until the node has ended them, too, but not long.

        It logs a warning for each stream that loses its connection.
        """
        with self._lock:
            self.follow({})
        with suppress(TimeoutError):
            async with asyncio.timeout(_LEAVING_SECONDS):
                while self.connection is not None and self.connection.awaits_closed:
                    await asyncio.sleep(_ANSWER_SECONDS)

    async def run(self) -> None:
        """Receive, and connect again when the connection is lost, until cancelled."""
        wait_seconds = FIRST_WAIT_SECONDS
        while True:
            longest = LONGEST_WAIT_SECONDS
            try:
                if await self._converse():
                    wait_seconds = FIRST_WAIT_SECONDS
                self._say("the connection was closed")
            except (AuthenticationError, BucketError) as error:
                self._say(str(error))
                wait_seconds = longest = _REFUSED_WAIT_SECONDS
            except (DcplakeError, OSError, TimeoutError) as error:
                self._say(str(error) or type(error).__name__)
            await asyncio.sleep(wait_seconds)
            wait_seconds = min(2 * wait_seconds, longest)

    def _say(self, trouble: str) -> None:
        with self._lock:
            self._follower.unreachable(self)
        if trouble != self.trouble:  # once, not with each attempt
            _LOG.warning("%s: %s; connecting again", self.name, trouble)
        self.trouble = trouble

    async def _converse(self) -> bool:
        """Connect and receive until the connection is lost; return whether it ever got ready."""
        loop, address, tls = asyncio.get_running_loop(), self.address, self._settings.tls
        context = None if tls is None else tls.context()  # its files may have been replaced
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
                self._follower.may_open,
            )
        try:
            with self._lock:
                connection.follow(self._copies, loop.time())
            await self._receive(reader, connection)
        finally:
            with self._lock:
                self.connection = None
                self._windows.leave(self._resize_window)
                self._full_seconds += connection.window.full_seconds(loop.time())
                streams = connection.is_ready
                connection.close()
                self._follower.lost(self)
            self._writer.close()
            with suppress(OSError, ssl.SSLError):
                await self._writer.wait_closed()
        return streams

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
                        raise NodeUnavailableError("closed by the node before it was ready")
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
                # What came before is there: consumers hear of it, of rollbacks most of all.
                self._follower.arrived(self, list(connection.arrived.values()))
                raise
            finally:
                self.write()
            if connection.is_ready and not was_ready:
                _LOG.info("%s: connected", self.name)
                self.trouble, self._became_ready = "", True
            self._follower.arrived(self, arrived)
            self.write()

    def write(self) -> None:
        """Send queued requests and acknowledgements, never much."""
        if self.connection is not None and self._writer is not None:
            data = self.connection.output()
            if data:
                self._writer.write(data)
