"""A cluster of producer nodes that run in a thread of their own."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from time import sleep
from typing import Final

from dcp.errors import LocalProtocolError
from dcp.producer import bucket_states, failover
from dcp.producer.bucket import ProducerBucket
from dcp.producer.cluster_members import ClusterMembers
from dcp.producer.cluster_settings import ClusterSettings
from dcp.producer.commands import producer_commands
from dcp.producer.counters import ProducerCounters
from dcp.producer.faults import Corruption, Faults
from dcp.producer.manifest_changes import (
    CreateCollection,
    CreateScope,
    DropCollection,
    DropScope,
    FlushCollection,
    ManifestChange,
)
from dcp.producer.replica_progress import lagging_replica
from dcp.producer.writes.document_writer import DocumentWriter, checked
from dcp.server.bucket.compactor import compact
from dcp.server.model.manifest import DEFAULT_ID, Manifest
from dcp.server.model.resume_rules import VbucketFacts
from dcp.server.model.versions import Version
from dcp.server.node.cluster_nodes import ClusterNodes
from dcp.server.node.serving import Serving, Work
from dcp.types import FailoverLog
from dcp.wire.vocabulary import Status, VbucketState

_HAND_OVER_SECONDS: Final = 10.0
CollectionName = int | str
"""A collection by its id, or by its path ``scope.collection``."""


class ProducerCluster(Serving):
    """A bucket and the nodes that serve it: documents, collections, failovers, faults.

    Any thread may call any method. Nodes are indexes from 0 here; people and ``admin_commands.py``
    count from 1. Methods with a node or vbucket raise ValueError if there is none.
    """

    bucket: ProducerBucket

    def __init__(self, settings: ClusterSettings | None = None) -> None:
        commands = producer_commands(self)
        bucket = ProducerBucket(settings or ClusterSettings())
        nodes = ClusterNodes(bucket, commands)
        self.members = ClusterMembers(nodes, bucket)
        super().__init__(nodes)

    # --- documents

    def set(
        self,
        key: bytes,
        value: bytes,
        expiry: int = 0,
        flags: int = 0,
        *,
        datatype: int = 0,
        collection: CollectionName = DEFAULT_ID,
    ) -> Version:
        """Store a document, as KV SET does; sets the JSON datatype if the value is JSON."""
        return self._run(
            key,
            collection,
            lambda documents, now, number: documents.store(
                key, checked(value, datatype), now, flags=flags, expiry=expiry, collection=number
            ),
        )

    def delete(self, key: bytes, *, collection: CollectionName = DEFAULT_ID) -> Version:
        """Delete a document and return the tombstone; raise RefusedError if there is none."""
        return self._run(
            key,
            collection,
            lambda documents, now, number: documents.delete(key, now, collection=number),
        )

    def touch(self, key: bytes, expiry: int, *, collection: CollectionName = DEFAULT_ID) -> Version:
        return self._run(
            key,
            collection,
            lambda documents, now, number: documents.touch(key, expiry, now, collection=number),
        )

    def get(self, key: bytes, *, collection: CollectionName = DEFAULT_ID) -> Version:
        """Return a document; raise RefusedError if there is none."""
        return self._run(
            key,
            collection,
            lambda documents, now, number: documents.get(key, now, collection=number),
        )

    def _run(
        self,
        key: bytes,
        collection: CollectionName,
        command: Callable[[DocumentWriter, float, int], Version],
    ) -> Version:
        """Run a KV command on the store of ``key``, with the time and the collection's id."""
        bucket = self.bucket
        with bucket.lock:
            self._wait_for_hand_over(bucket.table.of_key(key).id)
            number = self._collection_id(collection)
            now = bucket.now()
            written = bucket.write(key, lambda documents: command(documents, now, number))
        if not bucket.writes.is_in_batch:
            sleep(0)  # gives the nodes a chance to get the lock
        return written

    def _wait_for_hand_over(self, vbucket: int) -> None:
        """Wait while a rebalance hands over the vbucket, which then takes no writes."""
        # Waiting would release the lock inside a batch, or block the loop that hands over.
        if self.bucket.writes.is_in_batch or self.nodes.loop.is_inside:
            return
        self.bucket.table.replicas_moved.wait_for(
            lambda: not self.bucket.vbuckets[vbucket].is_handed_over, _HAND_OVER_SECONDS
        )

    def _collection_id(self, collection: CollectionName) -> int:
        """Return a collection's id; a path names the current one."""
        if isinstance(collection, int):
            return collection
        return self.bucket.manifest.at(collection).id

    def expire_due(self, now: float | None = None) -> int:
        """Expire documents due at ``now`` (default: the clock); return their number."""
        with self.bucket.lock:
            return self.bucket.expire_due(self.bucket.now() if now is None else now)

    def remove_stale(self, now: float | None = None) -> int:
        """Remove replaced versions and tombstones that are due at ``now`` (default: the clock).

        The cluster does it regularly, too. Return by how many bytes the disk logs shrank.
        """
        with self.bucket.lock:
            vbuckets = self.bucket.table.all()
            before = sum(vbucket.data.disk.size_bytes for vbucket in vbuckets)
            for vbucket in vbuckets:
                compact(vbucket, self.bucket.now() if now is None else now)
            return before - sum(vbucket.data.disk.size_bytes for vbucket in vbuckets)

    @contextmanager
    def batch(self) -> Iterator[None]:
        """Hold back all streams: a caught-up stream gets the writes inside as one snapshot."""
        with self.bucket.lock, self.bucket.writes.batch():
            yield

    def start_vbucket_at(self, vbucket: int, seqno: int = 0, cas: int = 0) -> None:
        """Let an empty vbucket's seqnos and CAS values begin after these: tests need high ones."""
        with self.bucket.lock:
            state = self.bucket.table.numbered(vbucket)
            self.bucket.table.require_unmoved("start", vbucket)
            state.data.start_at(seqno)
            self.bucket.dcp_connections.end_streams(vbucket)
            state.documents.begin_at_base()
            state.documents.clock.raise_floor(cas)
            state.save()

    # --- scopes and collections

    @property
    def manifest(self) -> Manifest:
        with self.bucket.lock:
            return self.bucket.manifest

    def change_manifest(self, *changes: ManifestChange) -> None:
        """Create, drop and flush scopes and collections under one new manifest uid.

        Each active vbucket emits the system events at its next seqnos.

        Raises:
            RefusedError: an impossible change; the methods below raise it too.
        """
        with self.bucket.lock:
            self.bucket.change_manifest(*changes)

    def create_scope(self, name: str) -> int:
        with self.bucket.lock:
            self.bucket.change_manifest(CreateScope(name))
            return self.bucket.manifest.scope(name).id

    def create_collection(self, scope: str, name: str, max_ttl: int | None = None) -> int:
        """Create an empty collection; return its id.

        ``max_ttl`` is the longest life of its documents, in seconds.
        """
        with self.bucket.lock:
            self.bucket.change_manifest(CreateCollection(scope, name, max_ttl))
            return self.bucket.manifest.collection(scope, name).id

    def drop_collection(self, scope: str, name: str) -> None:
        """Drop a collection with its documents; the default collection may go too."""
        self.change_manifest(DropCollection(scope, name))

    def drop_scope(self, name: str) -> None:
        self.change_manifest(DropScope(name))

    def flush_collection(self, scope: str, name: str) -> None:
        """Drop all documents of a collection, which keeps its id."""
        self.change_manifest(FlushCollection(scope, name))

    # --- its state

    def state_at(
        self,
        vbucket: int,
        seqno: int,
        vb_uuid: int | None = None,
        *,
        collection: CollectionName = DEFAULT_ID,
    ) -> dict[bytes, Version]:
        """Return the documents of a collection at ``seqno``, without deleted ones.

        A drop or flush of the collection removes its documents from its seqno on. A path names the
        current collection; an id may name a dropped one. ``vb_uuid`` selects a branch, even one
        that the failover log has lost; None is the current branch. Below its beginning a branch
        shows what its parent held; above its end it shows its last state.

        Raises:
            ValueError: the vbucket never had this branch.
            LocalProtocolError: not the current branch, and the cluster records no others
                (``ClusterSettings.record_branches``).
        """
        with self.bucket.lock:
            found = self.bucket.table.numbered(vbucket)
            record = self.bucket.records.get(found.id)
            if record is None:
                raise LocalProtocolError(f"vbucket {vbucket}: this cluster records no branches")
            return record.state_at(seqno, vb_uuid, self._collection_id(collection))

    def branches(self, vbucket: int) -> tuple[int, ...]:
        """Return the uuids of all branches that a vbucket ever had, oldest first.

        Without ``ClusterSettings.record_branches``: the branches in its failover log.
        """
        with self.bucket.lock:
            found = self.bucket.table.numbered(vbucket)
            record = self.bucket.records.get(found.id)
            if record is not None:
                return record.vb_uuids
            return tuple(entry.vb_uuid for entry in reversed(found.failover_log.entries))

    def persisted_seqno(self, vbucket: int) -> int:
        with self.bucket.lock:
            return self.bucket.table.numbered(vbucket).data.disk.persisted_seqno

    def purge_seqno(self, vbucket: int) -> int:
        """Return the highest seqno of a purged tombstone; 0 if none was purged."""
        with self.bucket.lock:
            return self.bucket.table.numbered(vbucket).data.disk.purge_seqno

    def replica_seqno(self, vbucket: int) -> int:
        """Return the end of the last complete snapshot of the replica that a failover promotes.

        0 if no running node has a replica.
        """
        with self.bucket.lock:
            return self.bucket.replica_progress.kept_seqno(self.bucket.table.numbered(vbucket).id)

    def high_seqno(self, vbucket: int) -> int:
        with self.bucket.lock:
            return self.bucket.table.numbered(vbucket).data.high_seqno

    def failover_log(self, vbucket: int) -> FailoverLog:
        with self.bucket.lock:
            return self.bucket.table.numbered(vbucket).failover_log

    def vbucket_of(self, key: bytes) -> int:
        return self.bucket.table.of_key(key).id

    def vbucket_owner(self, vbucket: int) -> int:
        with self.bucket.lock:
            return self.bucket.map.owners[self.bucket.table.numbered(vbucket).id]

    def counters(self) -> ProducerCounters:
        """Return all counters at one instant."""
        with self.bucket.lock:
            here = [*self.bucket.vbuckets, *self.bucket.replicas.all_vbuckets()]
            return self.bucket.counters.snapshot(sum(each.data.disk.scans_opened for each in here))

    # --- nodes

    def add_node(self) -> int:
        """Start a node on free ports and return it; it owns nothing until ``rebalance``.

        Raises:
            LocalProtocolError: the cluster does not run.
            OSError: the data folder cannot be written; then there is no such node.
        """
        return self.members.add_node()

    def kill_node(self, node: int) -> None:
        """Close a node's port and connections.

        Raises:
            ValueError: an order over the protocol would leave no node to take the order that
                restores it.
        """
        self.members.kill_node(node)

    def refuse_node(self, node: int) -> None:
        """Close a node's port, but keep its connections."""
        self.members.refuse_node(node)

    def hang_node(self, node: int) -> None:
        """Stop a node from reading and answering; port and connections stay open."""
        self.members.hang_node(node)

    def restore_node(self, node: int) -> None:
        """Undo ``kill_node``, ``refuse_node`` or ``hang_node``, on the same port.

        A node that was failed over joins the cluster again. It owns nothing until ``move_vbucket``
        or ``rebalance``, and takes the missing replicas.
        """
        self.members.restore_node(node)

    # --- the cluster changes

    @property
    def rebalance_state(self) -> str:
        """``none``, ``running``, or ``failed:`` with the reason why the last one failed."""
        return self.members.rebalance_state

    def rebalance(self, remove: int | None = None, timeout_seconds: float = 60.0) -> None:
        """Spread the vbuckets evenly over all members except ``remove``, and place the replicas.

        A vbucket moves by a takeover stream into its new node. It begins no branch; its streams end
        (state changed) and clients get a new map. While it moves, it takes no writes: clients get
        NOT_MY_VBUCKET, and methods such as ``set`` wait. ``remove`` leaves the cluster at the end.

        Returns when the owners are right; replicas may still be filling
        (``wait_until_replicated``). An order over the protocol returns at once and has
        ``ClusterSettings.rebalance_timeout_seconds``.

        Raises:
            ValueError: it is impossible now: a member is down, no other node can take the
                vbuckets, a vbucket is not active, or a rebalance runs.
            SourceError: a node was lost or failed over meanwhile. Another call continues from
                there.
            TimeoutError: it took too long and was given up.
            OSError: the data folder cannot be written. Another call continues from there.
            LocalProtocolError: the cluster does not run.
        """
        self.members.rebalance(remove, timeout_seconds)

    def move_vbucket(self, vbucket: int, node: int) -> None:
        """Hand a vbucket to another node: its streams end (state changed), clients get a new map.

        Raises:
            ValueError: a rebalance moves the vbucket.
            OSError: the data folder cannot be written; nothing has changed.
        """
        with self.bucket.lock:
            self.bucket.table.require_unmoved("move", self.bucket.table.numbered(vbucket).id)
            before = self.vbucket_owner(vbucket)
            self.bucket.map.require_node(node)
            with self.bucket.changing_map():
                self.bucket.map.move(vbucket, node)
            self.bucket.sync_writes.recover(vbucket)
            self.bucket.dcp_connections.end_streams(vbucket, before)
            for place, at in self.bucket.replicas.follow(self.bucket.map):
                self.bucket.dcp_connections.end_streams(at, place)
        self.nodes.loop.call_soon(self.nodes.push_map)

    def failover(self, node: int) -> None:
        """Remove ``node`` and promote replicas of its vbuckets (``ClusterSettings.replicas``).

        Each vbucket continues at the next running node with a replica, from the last complete
        snapshot of that replica, on a new branch. Later items are lost, and the other replicas
        follow. Connections to ``node`` close, and the other nodes push a new map. Call it outside
        ``batch()``, as all methods that change nodes: it waits for connections that wait for the
        batch.

        Raises:
            ValueError: no other node runs, or none has a replica of a vbucket.
            OSError: the data folder cannot be written; nothing has changed.
        """

        def act() -> None:
            failover.fail_over(self.bucket, node)
            self.bucket.map.down_nodes.add(node)
            self.members.give_up_rebalance(f"{self.bucket.map.name_of(node)} was failed over")

        self.members.end_node(node, act)
        self.members.wait_for_rebalance()

    def crash_restart(self, node: int, lost_seqnos: int | None = None) -> None:
        """Crash ``node`` and restart it: its vbuckets lose the items that were not on disk.

        ``lost_seqnos`` overrides how many of each vbucket's newest seqnos are lost, even persisted
        ones. Each vbucket of the node begins a new branch, even if it lost nothing.

        Raises:
            ValueError: the node was failed over.
        """
        self.members.end_node(node, lambda: failover.crash(self.bucket, node, lost_seqnos))
        self.restore_node(node)

    def pause_replication(self) -> None:
        """Stop all replicas at their present seqnos; they drop items on their way.

        After ``wait_until_replicated`` a failover then loses exactly the later writes.
        """
        with self.bucket.lock:
            self.bucket.replica_progress.pause()
            self.nodes.loop.call_soon(self.nodes.push_map)

    def resume_replication(self) -> None:
        with self.bucket.lock:
            self.bucket.replica_progress.resume()
            self.nodes.loop.call_soon(self.nodes.push_map)

    def wait_until_replicated(self, timeout_seconds: float = 60.0) -> None:
        """Return when all replicas on running nodes equal their active vbuckets.

        Call it outside ``batch()``. Writes that continue may delay it.

        Raises:
            TimeoutError: a replica lacks something; the message names it.
        """
        with self.bucket.table.replicas_moved:
            self.bucket.table.replicas_moved.wait_for(
                lambda: self._lagging_replica() is None, timeout_seconds
            )
            lagging = self._lagging_replica()
        if lagging is not None:
            raise TimeoutError(f"replication: after {timeout_seconds} seconds {lagging}")

    def _lagging_replica(self) -> str | None:
        return lagging_replica(self.bucket.map, self.bucket.table)

    def set_vbucket_state(self, vbucket: int, state: VbucketState, node: int | None = None) -> None:
        """Change a vbucket's state: its streams end, and a change to active begins a branch.

        ``node`` selects the replica on that node, which cannot become active.

        Raises:
            ValueError: an impossible state, no replica on that node, or a rebalance moves the
                vbucket. The methods below raise it for such a vbucket too.
        """
        with self.bucket.lock:
            self.bucket.table.numbered(vbucket)
            if node is not None:
                self.bucket.map.require_node(node)
            if node is None or node == self.bucket.map.owner(vbucket):
                bucket_states.set_state(self.bucket, vbucket, state)
            else:
                bucket_states.set_state_of_replica(self.bucket, vbucket, node, state)

    def purge_tombstones(self, vbucket: int, up_to_seqno: int | None = None) -> int:
        """Purge tombstones on disk up to a seqno (None: all), never the newest item.

        A stream that stands below a purged tombstone ends with a rollback. Returns their number.
        """
        with self.bucket.lock:
            data = self.bucket.table.numbered(vbucket).data
            return data.persistence.purge(data.high_seqno if up_to_seqno is None else up_to_seqno)

    def set_up_vbucket(
        self, vbucket: int, facts: VbucketFacts, versions: Sequence[Version] = ()
    ) -> None:
        """Replace a vbucket by one with these ``facts``; its streams end.

        It holds ``versions`` unchanged, the last one at ``facts.high_seqno``; without any its
        history begins after the high seqno. Tombstones up to the purge seqno are purged.

        Raises:
            LocalProtocolError: the seqnos do not ascend or end elsewhere, or the cluster has a
                data folder.
        """
        with self.bucket.lock:
            bucket_states.set_up(self.bucket, vbucket, facts, versions)

    def take_versions(self, vbucket: int, versions: Sequence[Version]) -> None:
        """Append versions from another server, unchanged; streams get them together.

        Seqnos may have gaps. System events with a newer manifest change the bucket's manifest.

        Raises:
            LocalProtocolError: a seqno is not above the high seqno.
        """
        with self.bucket.lock:
            found = self.bucket.table.numbered(vbucket)
            self.bucket.table.require_unmoved("versions", vbucket)
            found.take(versions)
            self.bucket.collections.learn(found)
            self.bucket.writes.wrote(vbucket)

    def snapshot_cut_after(self, items: int) -> None:
        """Close a connection inside a snapshot, after ``items`` more items."""
        with self.bucket.lock:
            self.faults.cut_snapshot_after(items)

    def refuse_stream(self, vbucket: int, status: Status, times: int = 1) -> None:
        """Answer the next ``times`` stream requests for ``vbucket`` with ``status``."""
        with self.bucket.lock:
            self.bucket.table.numbered(vbucket)
            self.faults.refuse_stream(vbucket, status, times)

    def corrupt(self, corruption: Corruption) -> None:
        with self.bucket.lock:
            self.faults.corrupt_next_item(corruption)

    @property
    def faults(self) -> Faults:
        """The faults that are still to come; hold ``batch()`` while you read them."""
        return self.bucket.faults

    # --- in the loop

    def _opened(self) -> Mapping[str, Work]:
        return self.members.opened()

    async def _ending(self) -> None:
        await self.members.ending()
