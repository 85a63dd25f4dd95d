"""Keeps the relay's links to the cluster: one to each node that owns vbuckets.

Cluster maps arrive with each new connection, as pushes, and in refusals. The relay also asks for
one when a stream is refused or a node is lost. While no node answers, it tries the configured
addresses too. A map of another bucket ends all links, because the relay's data belongs to the first
bucket.
"""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Iterable
from contextlib import suppress
from typing import Final

from dcp.client.addresses import NodeAddress
from dcp.client.cluster_map import ClusterMap
from dcp.client.connection_names import unique_name
from dcp.client.reactions import ENDINGS, REFUSALS, Reaction, end_reason_name
from dcp.errors import BucketError, DcplakeError, RemoteProtocolError
from dcp.protocol.bootstrap import BootstrapSettings, agent_text
from dcp.protocol.connection import ConsumerConnection
from dcp.protocol.events import (
    ClusterConfigReceived,
    Event,
    FailoverLogReceived,
    ManifestReceived,
    Ready,
    SeqnosReceived,
    StreamEnded,
    StreamRefused,
)
from dcp.protocol.liveness import LivenessSettings
from dcp.protocol.refusals import describe_status
from dcp.protocol.window_policies import SharedWindows, WindowPolicy, WindowPolicySettings
from dcp.relay.bucket import NODE, RelayBucket
from dcp.relay.regulator import Regulator
from dcp.relay.settings import FULL_WINDOWS, MIB, RelaySettings
from dcp.relay.upstream_manifest import parse_manifest
from dcp.seeds import AUTO_NETWORK
from dcp.server.replication.passive_connection import PassiveConnection
from dcp.server.replication.passive_stream import OPEN_FLAGS, PassiveStream
from dcp.server.replication.replicator import Replicator
from dcp.server.vbucket.replica import Replica
from dcp.wire.vocabulary import EndReason, HelloFeature, Opcode, Status

_LOGGER = logging.getLogger(__name__)
_LOOK_SECONDS: Final = 1.0
_READ_BYTES: Final = 64 * 1024
"""A small piece, so that consumers get their turns between two reads."""
_LEAVING_SECONDS: Final = 1.0
"""How long the node may take to answer each CLOSE_STREAM before the connection closes."""
_ANSWER_SECONDS: Final = 0.005


class UpstreamLink(Replicator):
    """The link to one node of the cluster.

    The relay authenticates as a normal consumer, and asks for everything except prepares, which
    only nodes of the cluster may have.
    """

    def __init__(
        self,
        address: NodeAddress,
        settings: RelaySettings,
        name: str,
        bucket: RelayBucket,
        windows: SharedWindows,
        upstream: "Upstream",
    ) -> None:
        """``name`` is the relay's connection name, which must be unique."""
        connect_seconds = settings.connection.connect_timeout_seconds
        super().__init__(f"{name} to {address}", bucket, windows, connect_seconds, _READ_BYTES)
        self.address = address
        self._settings = settings
        self._bootstrap = BootstrapSettings(
            settings.bucket,
            name,
            agent=agent_text("dcplake-relay", name),
            open_flags=OPEN_FLAGS,
        )
        self._upstream = upstream
        self._full_seconds = 0.0

    def full_seconds(self, now: float) -> float:
        """Return for how long the windows of all connections were full."""
        connection = self.connection
        window_seconds = 0.0 if connection is None else connection.window.full_seconds(now)
        return self._full_seconds + window_seconds

    async def leave(self) -> None:
        """Close all streams, and wait a moment until the node has answered each CLOSE_STREAM."""
        with self._bucket.lock:
            self.follow({})
        with suppress(TimeoutError):
            async with asyncio.timeout(_LEAVING_SECONDS):
                while self.connection is not None and self.connection.protocol.awaits_closed:
                    await asyncio.sleep(_ANSWER_SECONDS)

    # --- requests; their answers are events

    def ask_for_map(self) -> None:
        if (protocol := self._free_for(Opcode.GET_CLUSTER_CONFIG)) is not None:
            protocol.request_cluster_config()
            self.write()

    def ask_for_manifest(self) -> None:
        """Request it even if an answer is under way, which may be older than the reason to ask."""
        if self.connection is not None and self.is_ready:
            self.connection.protocol.request_manifest()
            self.write()

    def ask_for_seqnos(self) -> None:
        """Request the high seqnos of the node's active vbuckets."""
        if (protocol := self._free_for(Opcode.GET_ALL_VB_SEQNOS)) is not None:
            protocol.request_seqnos()
            self.write()

    def ask_for_failover_log(self, vbucket: int) -> None:
        if (protocol := self._free_for(Opcode.DCP_GET_FAILOVER_LOG, vbucket)) is not None:
            protocol.request_failover_log(vbucket)
            self.write()

    def _free_for(self, opcode: Opcode, vbucket: int = 0) -> ConsumerConnection | None:
        """Return the protocol, if it is ready and awaits no such answer."""
        if self.connection is None or not self.is_ready:
            return None
        protocol = self.connection.protocol
        return None if protocol.awaits(opcode, vbucket) else protocol

    # --- events of the connection

    async def _open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        host, port, tls = self.address.host, self.address.port, self._settings.tls
        # Read the certificates again: the operator may have replaced them.
        context = None if tls is None else tls.client_context()
        return await asyncio.open_connection(host, port, ssl=context)

    def _new_connection(self, nonce: str, now: float, window_bytes: int) -> PassiveConnection:
        return PassiveConnection(
            self._bootstrap,
            self._settings.credentials,
            nonce,
            now,
            window_bytes,
            LivenessSettings(),
            self._bucket.writes.make_room,
        )

    def _arrived(self, connection: PassiveConnection) -> None:
        self._upstream.arrived(self, connection)

    def _lost(self, connection: PassiveConnection) -> None:
        self._full_seconds += connection.window.full_seconds(asyncio.get_running_loop().time())
        self._upstream.lost(self)

    def _note_trouble(self, trouble: str, level: int) -> None:
        with self._bucket.lock:
            self._upstream.unreachable()
        super()._note_trouble(trouble, level)


class Upstream:
    """All links of a relay. Call its methods in the event loop's thread."""

    def __init__(self, bucket: RelayBucket, settings: RelaySettings) -> None:
        self._bucket = bucket
        self._settings = settings
        self._name = unique_name("dcplake-relay", settings.bucket)
        self._map: ClusterMap | None = None
        self._links: dict[NodeAddress, UpstreamLink] = {}
        self._charged: dict[int, UpstreamLink] = {}
        """By vbucket: the link whose connection has brought its unconsumed bytes."""
        self._runs = False
        self.failure: DcplakeError | None = None
        """Why the relay no longer follows the cluster; None while it does."""
        most_bytes = settings.window_bytes
        self._windows = SharedWindows(
            WindowPolicySettings(
                WindowPolicy.AGGRESSIVE,
                size_bytes=min(MIB, most_bytes),
                most_bytes=most_bytes,
                aggressive_percent=100,
            ),
            FULL_WINDOWS * most_bytes,
        )
        self._promised: set[int] = set()
        """Vbuckets without streams whose high seqno clients know."""
        self.is_informed = asyncio.Event()
        """Set when failover logs, and high seqnos of vbuckets without streams, are known."""
        self.regulator = Regulator(
            bucket,
            settings.flow_spec,
            settings.window_bytes,
            settings.hold_seconds,
            settings.consumer_ack_seconds,
            self,
        )
        """Decides when bytes are consumed and which vbuckets have streams."""

    # --- start and stop

    def start(self) -> None:
        """Begin to connect; the bucket's lock is held."""
        self._runs = True
        self.reconcile()
        self._note_informed()

    async def stop(self) -> None:
        self._runs = False
        await asyncio.gather(*(link.leave() for link in self.links))
        links = self.links
        self._links.clear()
        await asyncio.gather(*(link.stop() for link in links))

    @property
    def links(self) -> list[UpstreamLink]:
        return list(self._links.values())

    # --- cluster map and links

    def reconcile(self) -> None:
        """Open and close links and streams as needed; the bucket's lock is held."""
        if not self._runs:
            return
        for vbucket in self._bucket.all_replicas:
            if not self.regulator.lacks_receivers(vbucket):
                # Its stream shows clients the real high seqno.
                self._bucket.vbuckets[vbucket].promise(0)
        wanted = self._wanted()
        for address in [address for address in self._links if address not in wanted]:
            # Settle the old link's bytes first: ``_charged`` can name one link per vbucket.
            link = self._links.pop(address)
            self.lost(link)
            link.follow({})
            link.cancel()
        for address, replicas in wanted.items():
            if address not in self._links:
                self._links[address] = self._new_link(address)
            link = self._links[address]
            for vbucket in link.follow(replicas):
                self._ended(link, vbucket)
        self._ask_for_failover_logs()

    def _wanted(self) -> dict[NodeAddress, dict[int, Replica]]:
        found: defaultdict[NodeAddress, dict[int, Replica]] = defaultdict(dict)
        if self._map is not None:
            for vbucket, replica in self._bucket.all_replicas.items():
                owner = self._map.owner(vbucket)
                if owner is None:
                    continue
                streams = found[owner]
                if not self.regulator.lacks_receivers(vbucket):
                    streams[vbucket] = replica
        # No node can send a map now, so try every known address.
        if not any(link.is_ready for link in self.links):
            known = () if self._map is None else self._map.addresses
            for address in (*self._settings.addresses, *known):
                found.setdefault(address, {})
        return found

    def _new_link(self, address: NodeAddress) -> UpstreamLink:
        link = UpstreamLink(address, self._settings, self._name, self._bucket, self._windows, self)
        link.start()
        return link

    def take_map(self, config: bytes, sender: NodeAddress) -> None:
        """Follow a cluster map, if it is newer; the bucket's lock is held.

        Raises RemoteProtocolError if ``config`` is no map, and BucketError if it is another
        bucket's; the relay then no longer follows the cluster.
        """
        network = AUTO_NETWORK if self._map is None else self._map.network
        is_encrypted = self._settings.tls is not None
        found = ClusterMap.parse(config, sender, tls=is_encrypted, network=network)
        self._require_same(found)
        if found.supersedes(self._map):
            self._map = found
            self.reconcile()

    def _require_same(self, found: ClusterMap) -> None:
        served = self._bucket.settings
        for name, sent, expected in (
            ("bucket", found.bucket, served.bucket),
            ("uuid", found.bucket_uuid, served.bucket_uuid),
            ("number of vbuckets", found.vbucket_count, served.vbuckets),
        ):
            # Old servers send no uuid.
            if sent and expected and sent != expected:
                self.failure = BucketError(
                    f"the cluster's bucket {served.bucket}: {name}: found {sent!r}, expected "
                    f"{expected!r}: another bucket has filled this relay"
                )
                _LOGGER.error("%s", self.failure)
                raise self.failure

    # --- events of links

    def arrived(self, link: UpstreamLink, connection: PassiveConnection) -> None:
        """Publish received items to consumers, and act on other events; the lock is held."""
        for stream in connection.touched.values():
            self._publish(link, stream)
        for event in connection.events:
            self._learn(link, event)
        self._note_informed()

    def _publish(self, link: UpstreamLink, stream: PassiveStream) -> None:
        vbucket, bucket = stream.vbucket, self._bucket
        is_on_other_branch = stream.take_fork()
        if stream.take_rollback():
            _LOGGER.warning(
                "vbucket %d: rolled back to seqno %d", vbucket, stream.replica.high_seqno
            )
            self.regulator.rolled_back(vbucket)
            bucket.end_streams(vbucket, EndReason.ROLLBACK)
        elif is_on_other_branch:
            bucket.end_streams(vbucket)
        bucket.writes.received(NODE, vbucket)
        learned = bucket.vbuckets[vbucket].documents.collections.manifest
        if learned.uid > bucket.manifest.uid:
            bucket.collections.learn(bucket.vbuckets[vbucket])
            # A system event lacks some details of its collection, which the manifest has.
            link.ask_for_manifest()
        if frame_bytes := stream.take_bytes():
            self._charged[vbucket] = link
            self.regulator.received(vbucket, frame_bytes)
        if stream.is_over:
            self._ended(link, vbucket)

    def _ended(self, link: UpstreamLink, vbucket: int) -> None:
        # Another link may have brought the vbucket's bytes meanwhile.
        if self._charged.get(vbucket) is link:
            self.regulator.ended(vbucket)

    def _learn(self, link: UpstreamLink, event: Event) -> None:
        match event:
            case Ready():
                if HelloFeature.COLLECTIONS in event.features:
                    link.ask_for_manifest()
                if event.cluster_config:
                    self.take_map(event.cluster_config, link.address)
                self.reconcile()
                self._ask_for_seqnos()
            case ClusterConfigReceived():
                self.take_map(event.config, link.address)
            case ManifestReceived():
                if event.manifest is not None:
                    self._take_manifest(event.manifest)
            case SeqnosReceived():
                self._take_seqnos(event.seqnos)
            case FailoverLogReceived():
                self._take_failover_log(link, event)
            case StreamEnded():
                reaction = ENDINGS.get(event.reason, Reaction.RETRY)
                _react(link, event.vbucket, reaction, f"ended: {end_reason_name(event.reason)}")
            case StreamRefused():
                reaction = REFUSALS.get(event.status, Reaction.RETRY)
                why = f"was refused with {describe_status(event.status)}"
                _react(link, event.vbucket, reaction, why)

    def _take_failover_log(self, link: UpstreamLink, event: FailoverLogReceived) -> None:
        if event.failover_log is not None:
            self._bucket.take_failover_log(event.vbucket, event.failover_log)
        # The node refused, so another node may have the vbucket now.
        elif not event.fault:
            link.ask_for_map()
        elif event.status == Status.SUCCESS:
            raise RemoteProtocolError(f"vbucket {event.vbucket}: {event.fault}")

    def _take_seqnos(self, seqnos: Iterable[tuple[int, int]]) -> None:
        """Show clients the high seqnos of vbuckets without streams."""
        for vbucket, seqno in seqnos:
            # Clients that plan by high seqnos then request streams, and so join the group that the
            # vbucket waits for.
            if vbucket in self._bucket.all_replicas and self.regulator.lacks_receivers(vbucket):
                self._bucket.vbuckets[vbucket].promise(seqno)
                self._promised.add(vbucket)

    def _note_informed(self) -> None:
        if self.is_informed.is_set() or self._unknown():
            return
        lacks = self.regulator.lacks_receivers
        if all(v in self._promised for v in self._bucket.all_replicas if lacks(v)):
            self.is_informed.set()

    def _unknown(self) -> list[int]:
        return [v for v in self._bucket.all_replicas if not self._bucket.is_known(v)]

    def _ask_for_failover_logs(self) -> None:
        for vbucket in self._unknown():
            owner = None if self._map is None else self._map.owner(vbucket)
            if owner in self._links:
                self._links[owner].ask_for_failover_log(vbucket)

    async def run(self) -> None:
        """Once a second, ask for what no stream carries, until cancelled."""
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            with self._bucket.lock:
                self._ask_for_failover_logs()
                self._ask_for_seqnos()
                if self._map is None or None in map(self._map.owner, self._bucket.all_replicas):
                    self._ask_for_maps()

    def _ask_for_seqnos(self) -> None:
        """Ask for the high seqnos of vbuckets whose group is incomplete: they have no stream."""
        if self._map is None:
            return
        lacks = self.regulator.lacks_receivers
        owners = {self._map.owner(v) for v in self._bucket.all_replicas if lacks(v)}
        for link in self.links:
            if link.address in owners:
                link.ask_for_seqnos()

    def _ask_for_maps(self) -> None:
        for link in self.links:
            link.ask_for_map()

    def _take_manifest(self, data: bytes) -> None:
        try:
            self._bucket.take_manifest(parse_manifest(data))
        except OSError as error:
            _LOGGER.warning("cannot save the collections manifest: %s", error)

    def lost(self, link: UpstreamLink) -> None:
        for vbucket, charged in list(self._charged.items()):
            if charged is link:
                del self._charged[vbucket]
                self.regulator.ended(vbucket)

    def unreachable(self) -> None:
        """Ask all nodes and the configured addresses where a lost node's vbuckets are now."""
        self._ask_for_maps()
        self.reconcile()

    # --- requests of the regulator

    def consumed(self, vbucket: int, frame_bytes: int) -> None:
        """Note that bytes of a vbucket are consumed, if their connection still exists.

        They are released as soon as the disk keeps up.
        """
        link = self._charged.get(vbucket)
        if link is not None and link.connection is not None:
            link.connection.consumed(frame_bytes)
            if self._bucket.writes.has_room:
                link.release()

    def release(self) -> None:
        """Release the consumed bytes that waited for the disk only."""
        for link in self.links:
            link.release()


def _react(link: UpstreamLink, vbucket: int, reaction: Reaction, why: str) -> None:
    if reaction is Reaction.FAIL_BUCKET:
        raise BucketError(f"vbucket {vbucket}: its stream {why}")
    if reaction is Reaction.REROUTE:
        link.ask_for_map()
