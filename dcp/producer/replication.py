"""Replication between nodes: one replicator for each pair of active node and target."""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Collection
from typing import Final

from dcp.errors import SourceError
from dcp.producer.bucket import ProducerBucket
from dcp.producer.replica_progress import REPLICATION, connection_name
from dcp.protocol.bootstrap import BootstrapSettings, control_step
from dcp.protocol.events import StreamRefused
from dcp.protocol.liveness import LivenessSettings
from dcp.protocol.refusals import describe_status
from dcp.server.bucket.assembly import Bucket
from dcp.server.replication.passive_connection import PassiveConnection
from dcp.server.replication.passive_stream import OPEN_FLAGS, PassiveStream
from dcp.server.replication.replicator import Replicator
from dcp.server.vbucket.replica import Replica
from dcp.server.vbucket.vbucket_states import Vbucket
from dcp.wire.vocabulary import EndReason, HelloFeature

_LIVENESS: Final = LivenessSettings()
_READ_BYTES: Final = 256 * 1024
_FEATURES: Final = (
    HelloFeature.XATTR,
    HelloFeature.XERROR,
    HelloFeature.SELECT_BUCKET,
    HelloFeature.JSON,
    HelloFeature.SNAPPY,
    HelloFeature.COLLECTIONS,
)
# A replica must hold exactly what the active holds, so only ``change_streams`` may be refused.
_CONTROLS: Final = (
    control_step("enable_expiry_opcode", "true", is_optional=False),
    control_step("enable_sync_writes", "true", is_optional=False),
    control_step("max_marker_version", "2.2", is_optional=False),
    control_step("send_stream_end_on_client_close_stream", "true", is_optional=False),
    control_step("change_streams", "true"),
)


class NodeReplicator(Replicator):
    """The replication from one node of a cluster to another.

    It signs in by SCRAM as the cluster's own user, and asks for prepares and aborts too. All
    received bytes count as consumed.
    """

    # A node that was killed or left is no trouble.
    _lost_level = logging.INFO

    def __init__(
        self,
        bucket: Bucket,
        active_node: int,
        target: int,
        awake: asyncio.Event,
        purpose: str = REPLICATION,
        liveness: LivenessSettings = _LIVENESS,
        on_touched: Callable[[Collection[PassiveStream]], None] = lambda _: None,
    ) -> None:
        """Clearing ``awake`` makes the receiving node hang.

        ``on_touched`` gets the streams that received something, under the lock.
        """
        super().__init__(
            connection_name(active_node, target, bucket.name, purpose),
            bucket,
            bucket.replicas.windows,
            liveness.bootstrap_timeout_seconds,
            _READ_BYTES,
        )
        self.active_node = active_node
        self.target = target
        self._on_touched = on_touched
        self._awake = awake
        self._liveness = liveness

    async def _open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        address = self._bucket.map.addresses[self.active_node]
        return await asyncio.open_connection(address.host, address.kv)

    def _new_connection(self, nonce: str, now: float, window_bytes: int) -> PassiveConnection:
        return PassiveConnection(
            replication_bootstrap(self._bucket.name, self.name),
            self._bucket.users.node_credentials,
            nonce,
            now,
            window_bytes,
            self._liveness,
        )

    async def _read(self, reader: asyncio.StreamReader, until: float) -> bytes | None:
        data = await super()._read(reader, until)
        if not self._awake.is_set():
            await self._awake.wait()
            # A node that hung has not read; the peer's silence proves nothing.
            if self.connection is not None:
                self.connection.protocol.excuse_silence(asyncio.get_running_loop().time())
        return data

    def _arrived(self, connection: PassiveConnection) -> None:
        touched = connection.touched.values()
        for stream in touched:
            self._publish(stream)
        for event in connection.events:
            # A refused takeover fails its rebalance; other streams are asked for again.
            if isinstance(event, StreamRefused) and event.vbucket in self._takes_over:
                raise SourceError(
                    f"takeover of vbucket {event.vbucket}: found {describe_status(event.status)}, "
                    "expected a stream"
                )
        self._on_touched(touched)
        for stream in touched:
            connection.acknowledge_prepares(stream)
            connection.consumed(stream.take_bytes())

    def _publish(self, stream: PassiveStream) -> None:
        """Publish a stream's received items on the node; the caller holds the lock."""
        if stream.take_rollback():
            reason = EndReason.ROLLBACK
            self._bucket.dcp_connections.end_streams(stream.vbucket, self.target, reason=reason)
        self._bucket.writes.received(self.target, stream.vbucket)
        self._bucket.table.replicas_moved.notify_all()

    def acknowledge_stored(self, vbucket: Vbucket) -> None:
        """Acknowledge a replica's items that are on disk; the caller holds the lock."""
        replica = self._replicas.get(vbucket.id)
        if self.connection is None or replica is None or replica.vbucket is not vbucket:
            return
        stream = self.connection.streams.by_vbucket.get(vbucket.id)
        if stream is not None and stream.replica is replica:
            self.connection.acknowledge_prepares(stream)
        self.write()


def replication_bootstrap(bucket: str, name: str) -> BootstrapSettings:
    """Return how a connection between nodes begins; ``name`` is its own."""
    return BootstrapSettings(
        bucket,
        name,
        agent="dcplake-replication",
        features=_FEATURES,
        open_flags=OPEN_FLAGS,
        controls=(control_step("consumer_name", name, is_optional=False), *_CONTROLS),
    )


class Replication:
    """All replicators of a cluster. Methods run in the loop's thread."""

    def __init__(self, bucket: ProducerBucket, awake: Callable[[int], asyncio.Event]) -> None:
        """``awake`` returns the event that is cleared while a node hangs."""
        self._bucket = bucket
        self._awake = awake
        self._replicators: dict[tuple[int, int], NodeReplicator] = {}
        self._runs = False

    def start(self) -> None:
        """Let ``reconcile`` start replicators."""
        self._runs = True

    def reconcile(self) -> None:
        """Start and end replicators to match map and running nodes; the caller holds the lock."""
        wanted = self._wanted() if self._runs else {}
        for pair in [pair for pair in self._replicators if pair not in wanted]:
            replicator = self._replicators.pop(pair)
            replicator.follow({})
            replicator.cancel()
        for pair, replicas in wanted.items():
            if pair not in self._replicators:
                replicator = NodeReplicator(self._bucket, *pair, self._awake(pair[1]))
                replicator.start()
                self._replicators[pair] = replicator
            self._replicators[pair].follow(replicas)

    def _wanted(self) -> dict[tuple[int, int], dict[int, Replica]]:
        """Return the replicas to fill: by (active node, target), then by vbucket."""
        bucket = self._bucket
        found: defaultdict[tuple[int, int], dict[int, Replica]] = defaultdict(dict)
        if bucket.replica_progress.is_paused:
            return found
        for vbucket, active_node in enumerate(bucket.map.owners):
            for target, replica in bucket.replicas.of(vbucket):
                if not {active_node, target} & bucket.map.down_nodes and not replica.is_taking_over:
                    found[active_node, target][vbucket] = replica
        return found

    def stored(self, vbucket: Vbucket) -> None:
        """Note that a vbucket or replica was written to disk; the caller holds the lock."""
        for replicator in self._replicators.values():
            replicator.acknowledge_stored(vbucket)

    async def stop(self) -> None:
        self._runs = False
        replicators = list(self._replicators.values())
        self._replicators.clear()
        await asyncio.gather(*(replicator.stop() for replicator in replicators))
