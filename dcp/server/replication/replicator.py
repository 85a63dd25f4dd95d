"""Fills replicas from one node with asyncio: connects, reads, writes, and reconnects."""

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from contextlib import suppress
from secrets import token_urlsafe
from time import monotonic
from typing import ClassVar, Final

from dcp.errors import AuthenticationError, BucketError, DcplakeError
from dcp.protocol.window_policies import SharedWindows
from dcp.server.bucket.assembly import Bucket
from dcp.server.replication.background import (
    FIRST_WAIT_SECONDS,
    LONGEST_WAIT_SECONDS,
    ended,
    keep_running,
)
from dcp.server.replication.passive_connection import PassiveConnection
from dcp.server.vbucket.replica import Replica
from dcp.wire.framing import FrameBlock, FrameSplitter

_LOGGER = logging.getLogger(__name__)
_REFUSED_WAIT_SECONDS: Final = 10.0
"""Wait before another attempt after the node refused the password or the bucket."""
_LOOK_SECONDS: Final = 0.5
"""Timers run at least this often, because other tasks may set one to an earlier time."""
_ROOM_SECONDS: Final = 0.1
"""The interval between checks for room, while consumed bytes wait for the disk."""
_CLOSE_SECONDS: Final = 1.0
"""Wait for a node to close its end; a hung node never does. Then the connection is aborted."""
_NONCE_BYTES: Final = 24


class Replicator(ABC):
    """Fills replicas from one node, over successive connections.

    ns_server has ``dcp_replicator.erl``. Call it in the event loop's thread. Received items reach
    the replicas under the bucket's lock, one read at a time. While too many items wait for the
    disk, no bytes are released: the window then stops the node, but both sides answer NOOPs.
    """

    _lost_level: ClassVar[int] = logging.WARNING
    """The level of the log line about a connection that is lost, or cannot be made."""

    def __init__(
        self,
        name: str,
        bucket: Bucket,
        windows: SharedWindows,
        connect_seconds: float,
        read_bytes: int,
    ) -> None:
        """``windows`` shares one memory limit among the windows of all replicators."""
        self.name = name
        self.connection: PassiveConnection | None = None
        self.trouble = "not connected yet"
        """Why there is no connection; empty while there is one."""
        self._bucket = bucket
        self._windows = windows
        self._connect_seconds, self._read_bytes = connect_seconds, read_bytes
        self._replicas: Mapping[int, Replica] = {}
        self._takes_over: frozenset[int] = frozenset()
        self._writer: asyncio.StreamWriter | None = None
        self._task: asyncio.Task[None] | None = None

    # --- what differs

    @abstractmethod
    async def _open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connect to the node; raise OSError if that fails."""

    @abstractmethod
    def _new_connection(self, nonce: str, now: float, window_bytes: int) -> PassiveConnection: ...

    @abstractmethod
    def _arrived(self, connection: PassiveConnection) -> None:
        """Publish the streams that were touched, and act on the events; the lock is held."""

    def _lost(self, connection: PassiveConnection) -> None:  # noqa: B027  (a relay alone acts)
        """Act on the end of a connection, with all its streams; the lock is held."""

    # --- start and stop

    def start(self) -> None:
        self._task = asyncio.ensure_future(keep_running(self.name, self.run))

    def cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def stop(self) -> None:
        self.cancel()
        if self._task is not None:
            await ended(self.name, self._task)

    # --- streams

    @property
    def is_ready(self) -> bool:
        return self.connection is not None and self.connection.protocol.is_ready

    def follow(self, replicas: Mapping[int, Replica], takes_over: Iterable[int] = ()) -> list[int]:
        """Fill exactly these replicas; return the vbuckets whose streams are over.

        Those in ``takes_over`` are filled by takeover streams. The bucket's lock is held.
        """
        self._replicas, self._takes_over = replicas, frozenset(takes_over)
        if self.connection is None:
            return []
        streams = self.connection.streams
        unwanted = streams.follow(self._replicas, monotonic(), self._takes_over)
        self.write()
        return [stream.vbucket for stream in unwanted]

    # --- connections

    async def run(self) -> None:
        """Receive, and reconnect when the connection is lost, until cancelled."""
        wait_seconds = FIRST_WAIT_SECONDS
        while True:
            longest, level = LONGEST_WAIT_SECONDS, logging.WARNING
            try:
                trouble, level = await self.converse(), self._lost_level
                # After a connection that worked, the next wait is short again.
                if not self.trouble:
                    wait_seconds = FIRST_WAIT_SECONDS
            except (AuthenticationError, BucketError) as error:
                trouble = str(error)
                # An operator must act, and frequent attempts would only fill the logs.
                wait_seconds = longest = _REFUSED_WAIT_SECONDS
            except (DcplakeError, OSError) as error:
                trouble = _text_of(error)
            self._note_trouble(trouble, level)
            await asyncio.sleep(wait_seconds)
            wait_seconds = min(2 * wait_seconds, longest)

    def _note_trouble(self, trouble: str, level: int) -> None:
        # Log a reason once, not with each attempt.
        if trouble != self.trouble:
            _LOGGER.log(level, "%s: %s; connecting again", self.name, trouble)
        self.trouble = trouble

    async def converse(self) -> str:
        """Connect and receive; return how the connection was lost, or why there was none.

        Raises:
            SourceError: the node refuses us, is silent for too long, or not ready in time.
            RemoteProtocolError: a message fits no stream, or is malformed.
            OSError: the disk cannot be written.
        """
        try:
            async with asyncio.timeout(self._connect_seconds):
                reader, self._writer = await self._open()
        # TimeoutError is an OSError too.
        except OSError as error:
            return _text_of(error)
        loop = asyncio.get_running_loop()
        with self._bucket.lock:
            window_bytes = self._windows.join(self._resize_window)
            nonce = token_urlsafe(_NONCE_BYTES)
            connection = self._new_connection(nonce, loop.time(), window_bytes)
            self.connection = connection
        try:
            with self._bucket.lock:
                connection.streams.follow(self._replicas, loop.time(), self._takes_over)
            return await self._receive(reader, connection)
        finally:
            with self._bucket.lock:
                self.connection = None
                self._windows.leave(self._resize_window)
                connection.streams.end()
                self._lost(connection)
            self._writer.close()
            try:
                with suppress(OSError):  # TimeoutError is one, too
                    async with asyncio.timeout(_CLOSE_SECONDS):
                        await self._writer.wait_closed()
            finally:
                self._writer.transport.abort()

    async def _receive(self, reader: asyncio.StreamReader, connection: PassiveConnection) -> str:
        splitter = FrameSplitter()
        loop = asyncio.get_running_loop()
        while True:
            self.write()
            look_seconds = _ROOM_SECONDS if connection.awaiting_disk_bytes else _LOOK_SECONDS
            look_at = min(connection.streams.deadline, loop.time() + look_seconds)
            try:
                data = await self._read(reader, look_at)
            except OSError as error:
                return _text_of(error)
            if data == b"":
                is_ready = connection.protocol.is_ready
                return f"the connection was closed{'' if is_ready else ' before it was ready'}"
            block = None if data is None else splitter.feed(data)
            with self._bucket.lock:
                if block is not None:
                    self._take(connection, block, loop.time())
                connection.streams.tick(loop.time())
                if connection.awaiting_disk_bytes and self._bucket.writes.make_room():
                    self.release()

    async def _read(self, reader: asyncio.StreamReader, until: float) -> bytes | None:
        """Read; return b"" at the end of the stream, and None at the deadline.

        ``until`` is a time of the running loop's clock. Raises OSError if the connection is lost.
        """
        limit = asyncio.timeout_at(until)
        try:
            async with limit:
                return await reader.read(self._read_bytes)
        except TimeoutError:
            # OSError of a socket's own timeout (ETIMEDOUT) is a TimeoutError too.
            if not limit.expired():
                raise
            return None

    def _take(self, connection: PassiveConnection, block: FrameBlock, now: float) -> None:
        was_ready = connection.protocol.is_ready
        try:
            connection.feed(block, now)
            if connection.protocol.is_ready and not was_ready:
                _LOGGER.info("%s: connected", self.name)
                self.trouble = ""
        finally:
            self.write()
            # The frames before a bad one have changed the replicas. A rollback above all.
            self._arrived(connection)

    def _resize_window(self, window_bytes: int) -> None:
        if self.connection is not None:
            self.connection.protocol.resize_window(window_bytes, monotonic())
            self.write()

    def release(self) -> None:
        """Release all consumed bytes, so that the node may send as many again; the lock is held."""
        if self.connection is not None and self.connection.awaiting_disk_bytes:
            self.connection.release(monotonic())
            self.write()

    def write(self) -> None:
        if self.connection is not None and self._writer is not None:
            data = self.connection.protocol.bytes_to_send()
            if data:
                # No drain is needed: this side never sends much.
                self._writer.write(data)


def _text_of(error: Exception) -> str:
    return str(error) or type(error).__name__
