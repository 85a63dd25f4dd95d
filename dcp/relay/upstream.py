"""Keeps the relay's links to the cluster: one to each node that owns vbuckets.

Cluster maps arrive with each new connection, as pushes, and in refusals. The relay also asks for
one when a stream is refused or a node is lost. While no node answers, it tries the configured
addresses too. A map of another bucket ends all links, because the relay's data belongs to the first
bucket.
"""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Sequence
from time import monotonic
from typing import Final, TypeVar

from dcp.client.addresses import NodeAddress
from dcp.client.cluster_map import ClusterMap
from dcp.client.connection_names import unique_name
from dcp.errors import BucketError, DcplakeError
from dcp.protocol.window_policies import SharedWindows, WindowPolicy, WindowPolicySettings
from dcp.relay.regulator import Regulator
from dcp.relay.relay_bucket import NODE, RelayBucket
from dcp.relay.relay_settings import FULL_WINDOWS, MIB, RelaySettings
from dcp.relay.upstream_connection import ReceivedBytes, UpstreamConnection
from dcp.relay.upstream_link import UpstreamLink
from dcp.relay.upstream_manifest import parse_manifest
from dcp.seeds import AUTO_NETWORK
from dcp.server.replication.background import keep_running
from dcp.server.vbucket.replica import Replica
from dcp.wire.vocabulary import EndReason

_LOGGER = logging.getLogger(__name__)
T = TypeVar("T")
_LOOK_SECONDS: Final = 1.0


class Upstream:
    """All links of a relay. Call its methods in the event loop's thread."""

    def __init__(self, bucket: RelayBucket, settings: RelaySettings) -> None:
        self._bucket = bucket
        self._settings = settings
        self._name = unique_name("dcplake-relay", settings.bucket)
        self._map: ClusterMap | None = None
        self._links: dict[NodeAddress, tuple[UpstreamLink, asyncio.Task[None]]] = {}
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
        tasks = [task for _, task in self._links.values()]
        self._links.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    @property
    def links(self) -> list[UpstreamLink]:
        return [link for link, _ in self._links.values()]

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
            link, task = self._links.pop(address)
            self.lost(link)
            link.follow({})
            task.cancel()
        for address, replicas in wanted.items():
            if address not in self._links:
                self._links[address] = self._new_link(address)
            self._links[address][0].follow(replicas)
        for link in self.links:
            self._take_ended(link)
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

    def _new_link(self, address: NodeAddress) -> tuple[UpstreamLink, asyncio.Task[None]]:
        link = UpstreamLink(
            address, self._settings, self._name, self._bucket.lock, self._windows, self
        )
        return link, asyncio.ensure_future(keep_running(link.name, link.run))

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

    def arrived(self, link: UpstreamLink, arrived: Sequence[ReceivedBytes]) -> None:
        """Publish received items to consumers, and act on the connection's other messages."""
        connection = link.connection
        if connection is None:
            return
        learned = connection.learned
        for each in arrived:
            self._publish(link, connection, each)
        self._take_ended(link)
        if self._bucket.writes.has_room:
            self._release(link)
        self._take_failover_logs(connection)
        self._take_seqnos(connection)
        self._note_informed()
        for manifest in _emptied(learned.manifests):
            self._take_manifest(manifest)
        for config in _emptied(learned.maps):
            self.take_map(config, link.address)
        if link.take_became_ready():
            self.reconcile()
            self._ask_for_seqnos()
        if learned.wants_map:
            learned.wants_map = False
            connection.ask_for_map()

    def _publish(
        self, link: UpstreamLink, connection: UpstreamConnection, each: ReceivedBytes
    ) -> None:
        stream, vbucket = each.stream, each.stream.vbucket
        bucket = self._bucket
        if stream.take_rollback():
            _LOGGER.warning(
                "vbucket %d: rolled back to seqno %d", vbucket, stream.replica.high_seqno
            )
            self.regulator.rolled_back(vbucket)
            bucket.end_streams(vbucket, EndReason.ROLLBACK)
        elif each.begins_branch:
            bucket.end_streams(vbucket)
        bucket.writes.received(NODE, vbucket)
        learned = bucket.vbuckets[vbucket].documents.collections.manifest
        if learned.uid > bucket.manifest.uid:
            bucket.collections.learn(bucket.vbuckets[vbucket])
            # A system event lacks some details of its collection, which the manifest has.
            connection.ask_for_manifest()
        if each.frame_bytes:
            self._charged[vbucket] = link
            self.regulator.received(vbucket, each.frame_bytes)

    def _take_ended(self, link: UpstreamLink) -> None:
        connection = link.connection
        if connection is None:
            return
        for vbucket in _emptied(connection.learned.ended):
            # Another link may have brought the vbucket's bytes meanwhile.
            if self._charged.get(vbucket) is link:
                self.regulator.ended(vbucket)
        link.write()

    def _take_failover_logs(self, connection: UpstreamConnection) -> None:
        for vbucket, failover_log in connection.learned.failover_logs.items():
            self._bucket.take_failover_log(vbucket, failover_log)
        connection.learned.failover_logs.clear()

    def _take_seqnos(self, connection: UpstreamConnection) -> None:
        """Show clients the high seqnos of vbuckets without streams."""
        for vbucket, seqno in connection.learned.seqnos.items():
            # Clients that plan by high seqnos then request streams, and so join the group that the
            # vbucket waits for.
            if vbucket in self._bucket.all_replicas and self.regulator.lacks_receivers(vbucket):
                self._bucket.vbuckets[vbucket].promise(seqno)
                self._promised.add(vbucket)
        connection.learned.seqnos.clear()

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
            if owner in self._links and (connection := self._links[owner][0].connection):
                connection.ask_for_failover_log(vbucket)
                self._links[owner][0].write()

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
            if link.connection is not None and link.address in owners:
                link.connection.ask_for_seqnos()
                link.write()

    def _ask_for_maps(self) -> None:
        for link in self.links:
            if link.connection is not None:
                link.connection.ask_for_map()
                link.write()

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

    def unreachable(self, _: UpstreamLink) -> None:
        """Ask all nodes and the configured addresses where the node's vbuckets are now."""
        self._ask_for_maps()
        self.reconcile()

    def may_open(self) -> bool:
        """Return False while received items wait for the disk: no streams may be requested."""
        return self._bucket.writes.make_room()

    # --- requests of the regulator

    def consumed(self, vbucket: int, frame_bytes: int) -> None:
        """Note that bytes of a vbucket are consumed, if their connection still exists.

        They are released as soon as the disk keeps up.
        """
        link = self._charged.get(vbucket)
        if link is not None and link.connection is not None:
            link.connection.consumed(frame_bytes)
            if self._bucket.writes.has_room:
                self._release(link)

    def release(self) -> None:
        """Release the consumed bytes that waited for the disk only."""
        for link in self.links:
            self._release(link)

    def _release(self, link: UpstreamLink) -> None:
        if link.connection is not None and link.connection.awaiting_disk_bytes:
            link.connection.release(monotonic())
            link.write()


def _emptied(found: list[T]) -> list[T]:
    """Return a copy of the list, and clear it."""
    taken = found[:]
    found.clear()
    return taken
