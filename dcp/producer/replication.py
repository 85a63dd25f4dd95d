"""Replication between nodes on asyncio: one task for each pair of source and target node."""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from secrets import token_urlsafe
from time import monotonic
from typing import Final

from dcp.errors import DcplakeError, NodeUnavailableError
from dcp.producer.producer_bucket import ProducerBucket
from dcp.producer.replica_progress import REPLICATION, connection_name
from dcp.producer.replication_connection import ReplicationConnection
from dcp.protocol.liveness import LivenessSettings
from dcp.server.replication.background import (
    FIRST_WAIT_SECONDS,
    LONGEST_WAIT_SECONDS,
    ended,
    keep_running,
)
from dcp.server.replication.passive_stream import PassiveStream
from dcp.server.replication.reading import read_until
from dcp.server.vbucket.replica import Replica
from dcp.server.vbucket.vbucket_states import Vbucket
from dcp.wire.framing import FrameSplitter
from dcp.wire.vocabulary import EndReason

_LOGGER = logging.getLogger(__name__)
_LIVENESS: Final = LivenessSettings()
_READ_BYTES: Final = 256 * 1024
_NONCE_BYTES: Final = 18
_ROOM_SECONDS: Final = 0.1
"""The interval between checks for room, while received bytes are not released."""


class Replicator:
    """The replication from one node to another (ns_server: ``dcp_replicator.erl``).

    Methods run in the loop's thread. Received items reach the replica under the bucket's lock, at
    most 256 KiB at a time. While too many items wait for the disk, the replicator releases no
    bytes: the active's window then stops it, but both sides answer NOOPs.
    """

    def __init__(
        self,
        bucket: ProducerBucket,
        source: int,
        target: int,
        awake: asyncio.Event,
        purpose: str = REPLICATION,
        liveness: LivenessSettings = _LIVENESS,
        on_touched: Callable[[Sequence[PassiveStream]], None] = lambda _: None,
    ) -> None:
        """Clearing ``awake`` makes the receiving node hang.

        ``on_touched`` gets the streams that received something, under the lock.
        """
        self.source = source
        self.target = target
        self.name = connection_name(source, target, bucket.name, purpose)
        self._on_touched = on_touched
        self._bucket = bucket
        self._awake = awake
        self._liveness = liveness
        self._replicas: Mapping[int, Replica] = {}
        self._takes_over: frozenset[int] = frozenset()
        self._connection: ReplicationConnection | None = None
        self._windows = bucket.replicas.windows
        self._writer: asyncio.StreamWriter | None = None

    def follow(self, replicas: Mapping[int, Replica], takes_over: Iterable[int] = ()) -> None:
        """Fill exactly these replicas; the caller holds the bucket's lock."""
        self._replicas, self._takes_over = replicas, frozenset(takes_over)
        if self._connection is not None:
            now = monotonic()
            self._connection.follow(self._replicas, now, self._takes_over)
            self._write(self._connection)

    async def run(self) -> None:
        """Receive, and reconnect when the connection is lost, until cancelled."""
        wait_seconds = FIRST_WAIT_SECONDS
        while True:
            try:
                # After a connection that worked, the next wait is short again.
                if await self.converse():
                    wait_seconds = FIRST_WAIT_SECONDS
            except (DcplakeError, OSError) as error:
                _LOGGER.warning("%s: %s: connecting again", self.name, error)
            await asyncio.sleep(wait_seconds)
            wait_seconds = min(2 * wait_seconds, LONGEST_WAIT_SECONDS)

    async def converse(self) -> bool:
        """Connect and receive until the connection is lost; return whether it ever was ready.

        Raises:
            SourceError: the peer refuses us.
            NodeUnavailableError: the peer is silent for too long.
            RemoteProtocolError: a message fits no stream.
            FrameError: the peer sent a malformed frame.
            OSError: the disk cannot be written. A lost connection raises nothing.
        """
        address = self._bucket.map.addresses[self.source]
        try:
            async with asyncio.timeout(self._liveness.bootstrap_timeout_seconds):
                reader, self._writer = await asyncio.open_connection(address.host, address.kv)
        # TimeoutError is an OSError too.
        except OSError:
            return False
        loop, lock = asyncio.get_running_loop(), self._bucket.lock
        with lock:
            connection = self._connection = ReplicationConnection(
                self._bucket.name,
                self.name,
                self._bucket.users.node_credentials,
                token_urlsafe(_NONCE_BYTES),
                loop.time(),
                self._windows.join(self._resize_window),
                self._liveness,
            )
        try:
            with lock:
                connection.follow(self._replicas, loop.time(), self._takes_over)
            await self._receive(reader, connection)
        except NodeUnavailableError:
            self._writer.transport.abort()  # a silent peer would not read the rest
            raise
        finally:
            with lock:
                self._windows.leave(self._resize_window)
                self._connection = None
                connection.close()
            self._writer.close()
            with suppress(OSError):
                await self._writer.wait_closed()
        return connection.is_ready

    async def _receive(
        self, reader: asyncio.StreamReader, connection: ReplicationConnection
    ) -> None:
        splitter = FrameSplitter()
        loop = asyncio.get_running_loop()
        while True:
            self._write(connection)
            look_at = connection.deadline
            if connection.unreleased_bytes:
                look_at = min(look_at, loop.time() + _ROOM_SECONDS)
            try:
                data = await read_until(reader, _READ_BYTES, look_at)
            except OSError:
                return  # the connection is lost
            if not self._awake.is_set():
                await self._awake.wait()
                # A node that hung has not read; the peer's silence proves nothing.
                connection.slept(loop.time())
            if data is None:
                with self._bucket.lock:
                    connection.tick(loop.time())
                    if connection.unreleased_bytes:
                        self._release(connection)
                continue
            if not data:
                return
            block = splitter.feed(data)
            with self._bucket.lock:
                try:
                    touched = connection.feed(block, loop.time())
                # Frames before the bad one have reached the replicas.
                except DcplakeError:
                    for stream in connection.streams.by_vbucket.values():
                        self._bucket.writes.received(self.target, stream.vbucket)
                    raise
                finally:
                    self._write(connection)
                for stream in touched:
                    self._publish(stream)
                self._on_touched(touched)
                for stream in touched:
                    connection.acknowledge_prepares(stream)
                self._release(connection)
                connection.tick(loop.time())

    def _resize_window(self, window_bytes: int) -> None:
        """Change the window when connections come or go; the caller holds the lock."""
        if self._connection is not None:
            self._connection.resize_window(window_bytes, monotonic())
            self._write(self._connection)

    def _release(self, connection: ReplicationConnection) -> None:
        """Release received bytes to the peer, if there is room; the caller holds the lock."""
        if self._bucket.writes.make_room():
            connection.release(monotonic())

    def acknowledge_stored(self, vbucket: Vbucket) -> None:
        """Acknowledge a replica's items that are on disk; the caller holds the lock."""
        replica = self._replicas.get(vbucket.id)
        if self._connection is None or replica is None or replica.vbucket is not vbucket:
            return
        stream = self._connection.streams.by_vbucket.get(vbucket.id)
        if stream is not None and stream.replica is replica:
            self._connection.acknowledge_prepares(stream)
        self._write(self._connection)

    def _publish(self, stream: PassiveStream) -> None:
        """Publish a stream's received items on the node; the caller holds the lock."""
        if stream.take_rollback():
            reason = EndReason.ROLLBACK
            self._bucket.dcp_connections.end_streams(stream.vbucket, self.target, reason=reason)
        self._bucket.writes.received(self.target, stream.vbucket)
        self._bucket.table.replicas_moved.notify_all()

    def _write(self, connection: ReplicationConnection) -> None:
        data = connection.output()
        if data and self._writer is not None:
            self._writer.write(data)  # only requests and acknowledgements: needs no drain


class Replication:
    """All replicators of a cluster. Methods run in the loop's thread."""

    def __init__(self, bucket: ProducerBucket, awake: Callable[[int], asyncio.Event]) -> None:
        """``awake`` returns the event that is cleared while a node hangs."""
        self._bucket = bucket
        self._awake = awake
        self._replicators: dict[tuple[int, int], tuple[Replicator, asyncio.Task[None]]] = {}
        self._runs = False

    def start(self) -> None:
        """Let ``reconcile`` start replicators."""
        self._runs = True

    def reconcile(self) -> None:
        """Start and end replicators to match map and living nodes; the caller holds the lock."""
        wanted = self._wanted() if self._runs else {}
        for pair in [pair for pair in self._replicators if pair not in wanted]:
            replicator, task = self._replicators.pop(pair)
            replicator.follow({})
            task.cancel()
        for pair, replicas in wanted.items():
            if pair not in self._replicators:
                replicator = Replicator(self._bucket, *pair, self._awake(pair[1]))
                task = asyncio.ensure_future(keep_running(replicator.name, replicator.run))
                self._replicators[pair] = replicator, task
            self._replicators[pair][0].follow(replicas)

    def _wanted(self) -> dict[tuple[int, int], dict[int, Replica]]:
        """Return the replicas to fill: by (source, target), then by vbucket."""
        bucket = self._bucket
        found: defaultdict[tuple[int, int], dict[int, Replica]] = defaultdict(dict)
        if bucket.replica_progress.is_paused:
            return found
        for vbucket, source in enumerate(bucket.map.owners):
            for target, replica in bucket.replicas.of(vbucket):
                if not {source, target} & bucket.map.dead_nodes and not replica.is_taking_over:
                    found[source, target][vbucket] = replica
        return found

    def stored(self, vbucket: Vbucket) -> None:
        """Note that a vbucket or replica was written to disk; the caller holds the lock."""
        for replicator, _ in self._replicators.values():
            replicator.acknowledge_stored(vbucket)

    async def stop(self) -> None:
        self._runs = False
        tasks = [task for _, task in self._replicators.values()]
        self._replicators.clear()
        for task in tasks:
            task.cancel()
        await ended("replicators", *tasks)
