"""A cluster of producer nodes in a thread of its own, and what tests do with it.

All methods may be called from any thread. Nodes are indexes from 0 (people and the orders of
``admin_commands.py`` count from 1). Writes take effect at once and reach the streams soon
after; writes under ``with cluster.batch():`` reach a caught-up stream as one snapshot.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from dcp.errors import LocalProtocolError
from dcp.producer import failover
from dcp.producer.cluster_documents import ClusterDocuments, CollectionName
from dcp.producer.cluster_members import ClusterMembers
from dcp.producer.producer_commands import producer_commands
from dcp.server.bucket import bucket_states
from dcp.server.bucket.bucket import Bucket
from dcp.server.bucket.replicas import lagging_copy
from dcp.server.model.cluster_settings import ClusterSettings
from dcp.server.model.counters import Counters
from dcp.server.model.faults import Corruption, Faults
from dcp.server.model.manifest import DEFAULT_ID, Manifest
from dcp.server.model.manifest_changes import (
    CreateCollection,
    CreateScope,
    DropCollection,
    DropScope,
    FlushCollection,
    ManifestChange,
)
from dcp.server.model.resume_rules import VbucketFacts
from dcp.server.model.versions import Version
from dcp.server.node.cluster_nodes import ClusterNodes
from dcp.server.node.server import Node
from dcp.server.node.serving import Serving
from dcp.server.vbucket.documents import StoredDocument
from dcp.types import FailoverLog
from dcp.wire.vocabulary import Status, VbucketState


class ProducerCluster(Serving):
    """A bucket and the nodes that serve it: documents, what it holds, forks, faults.

    Each method passes on to the part that does it.
    """

    def __init__(self, settings: ClusterSettings | None = None) -> None:
        """Prepare a cluster."""
        commands = producer_commands(self)
        nodes = ClusterNodes(Bucket(settings or ClusterSettings()), commands)
        self.members = ClusterMembers(nodes)
        super().__init__(nodes, self.members)
        self._documents = ClusterDocuments(self.bucket, nodes.loop)

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
    ) -> StoredDocument:
        """Store a document, as KV SET does; JSON is recognised by itself."""
        return self._documents.run(
            key,
            collection,
            lambda documents, now, number: documents.set(
                key, value, now, flags=flags, expiry=expiry, datatype=datatype, collection=number
            ),
        )

    def delete(self, key: bytes, *, collection: CollectionName = DEFAULT_ID) -> StoredDocument:
        """Delete a document; raises DocumentError when there is none. Returns the tombstone."""
        return self._documents.run(
            key,
            collection,
            lambda documents, now, number: documents.delete(key, now, collection=number),
        )

    def touch(
        self, key: bytes, expiry: int, *, collection: CollectionName = DEFAULT_ID
    ) -> StoredDocument:
        """Give a document a new expiry."""
        return self._documents.run(
            key,
            collection,
            lambda documents, now, number: documents.touch(key, expiry, now, collection=number),
        )

    def get(self, key: bytes, *, collection: CollectionName = DEFAULT_ID) -> StoredDocument:
        """Return a document; raises DocumentError when there is none."""
        return self._documents.run(
            key,
            collection,
            lambda documents, now, number: documents.get(key, now, collection=number),
        )

    def expire_due(self, now: float | None = None) -> int:
        """Expire all documents that are due at ``now`` (default: the clock); return how many."""
        with self.bucket.lock:
            return self.bucket.expire_due(self.bucket.now() if now is None else now)

    def remove_stale(self, now: float | None = None) -> int:
        """Remove what is due at ``now`` (default: the clock), as is done by itself now and then.

        Returns how many bytes of replaced versions and purged tombstones there were.
        """
        with self.bucket.lock:
            return self.compactor.run_once(self.bucket.now() if now is None else now)

    @contextmanager
    def batch(self) -> Iterator[None]:
        """Hold back all streams: what is written inside reaches them together."""
        with self.bucket.lock, self.bucket.writes.batch():
            yield

    def start_vbucket_at(self, vbucket: int, seqno: int = 0, cas: int = 0) -> None:
        """Let an empty vbucket's seqnos and CAS values begin beyond these (for tests of u64)."""
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
        """The scopes and collections that there are."""
        with self.bucket.lock:
            return self.bucket.manifest

    def change_manifest(self, *changes: ManifestChange) -> None:
        """Create, drop and flush scopes and collections, several under one new manifest uid.

        Every active vbucket emits the system events at its next seqnos.

        Raises:
            ManifestError: a change that cannot be made (this and the methods below).
        """
        with self.bucket.lock:
            self.bucket.change_manifest(*changes)

    def create_scope(self, name: str) -> int:
        """Create an empty scope; return its id."""
        with self.bucket.lock:
            self.bucket.change_manifest(CreateScope(name))
            return self.bucket.manifest.scope(name).id

    def create_collection(self, scope: str, name: str, max_ttl: int | None = None) -> int:
        """Create an empty collection, perhaps with the longest life of a document in seconds.

        Returns its id.
        """
        with self.bucket.lock:
            self.bucket.change_manifest(CreateCollection(scope, name, max_ttl))
            return self.bucket.manifest.collection(scope, name).id

    def drop_collection(self, scope: str, name: str) -> None:
        """Drop a collection with its documents; the default collection may go, too."""
        self.change_manifest(DropCollection(scope, name))

    def drop_scope(self, name: str) -> None:
        """Drop a scope with its collections."""
        self.change_manifest(DropScope(name))

    def flush_collection(self, scope: str, name: str) -> None:
        """Drop all documents of a collection; it begins anew under its id."""
        self.change_manifest(FlushCollection(scope, name))

    # --- what it holds

    def state_at(
        self,
        vbucket: int,
        seqno: int,
        vb_uuid: int | None = None,
        *,
        collection: CollectionName = DEFAULT_ID,
    ) -> dict[bytes, StoredDocument]:
        """Return what the vbucket held of a collection at ``seqno``, deleted documents left out.

        Documents of a collection that was dropped or flushed are gone from that event on. A path
        means the collection that has it now, an id any that ever was.

        ``vb_uuid`` names the branch, None is the current one. Any branch that there ever was is
        known, also after its entry left the failover log; up to where a branch was cut off its
        parent it holds what the parent held. Beyond the end of a branch: what it held there.

        Raises:
            ValueError: there never was such a branch.
            LocalProtocolError: another branch than the current one, and none are recorded
                (``ClusterSettings.record_branches``).
        """
        with self.bucket.lock:
            found = self.bucket.table.numbered(vbucket)
            if found.record is None:
                raise LocalProtocolError(f"vbucket {vbucket}: this cluster records no branches")
            return found.record.state_at(seqno, vb_uuid, self._documents.collection_id(collection))

    def branches(self, vbucket: int) -> tuple[int, ...]:
        """Return the uuids of all branches that a vbucket ever had, oldest first.

        Without ``ClusterSettings.record_branches``: of those in its failover log.
        """
        with self.bucket.lock:
            found = self.bucket.table.numbered(vbucket)
            if found.record is not None:
                return found.record.vb_uuids
            return tuple(entry.vb_uuid for entry in reversed(found.failover_log.entries))

    def persisted_seqno(self, vbucket: int) -> int:
        """Return the newest seqno of a vbucket that is on disk."""
        with self.bucket.lock:
            return self.bucket.table.numbered(vbucket).data.disk.persisted_seqno

    def purge_seqno(self, vbucket: int) -> int:
        """Return the highest seqno of a purged tombstone, 0 where none was purged."""
        with self.bucket.lock:
            return self.bucket.table.numbered(vbucket).data.disk.purge_seqno

    def replica_seqno(self, vbucket: int) -> int:
        """Return the newest seqno that the copy to be promoted holds whole; 0 where none lives."""
        with self.bucket.lock:
            return self.bucket.replicas.kept_seqno(self.bucket.table.numbered(vbucket).id)

    def high_seqno(self, vbucket: int) -> int:
        """Return the newest seqno of a vbucket."""
        with self.bucket.lock:
            return self.bucket.table.numbered(vbucket).data.high_seqno

    def failover_log(self, vbucket: int) -> FailoverLog:
        """Return the branches of a vbucket, newest first."""
        with self.bucket.lock:
            return self.bucket.table.numbered(vbucket).failover_log

    def vbucket_of(self, key: bytes) -> int:
        """Return the vbucket that holds ``key``."""
        return self.bucket.table.of_key(key).id

    def vbucket_owner(self, vbucket: int) -> int:
        """Return the node that holds a vbucket."""
        with self.bucket.lock:
            return self.bucket.map.owners[self.bucket.table.numbered(vbucket).id]

    def counters(self) -> Counters:
        """Return all counters at one instant."""
        with self.bucket.lock:
            here = [*self.bucket.vbuckets, *self.bucket.copies.all_vbuckets()]
            return self.bucket.counters.snapshot(sum(each.data.disk.scans_opened for each in here))

    # --- nodes

    def add_node(self) -> int:
        """Start a node on free ports and return it; it owns nothing until ``rebalance``.

        Raises:
            LocalProtocolError: the cluster does not run.
            OSError: the data folder cannot be written; there is no such node.
        """
        return self.members.add_node()

    def kill_node(self, node: int) -> None:
        """Close a node's port and connections.

        Raises:
            ValueError: no such node (this and all below); or it was ordered over the protocol, and
                no other node would be left to take the order to restore it.
        """
        self.members.kill_node(node)

    def refuse_node(self, node: int) -> None:
        """Close a node's port only."""
        self.nodes.refuse(node)

    def hang_node(self, node: int) -> None:
        """Let a node stop reading and answering, with everything open."""
        self.nodes.hang(node)

    def restore_node(self, node: int) -> None:
        """Undo ``kill_node``, ``refuse_node`` or ``hang_node``, on the same port.

        A node that was failed over joins the cluster again: it owns nothing until ``move_vbucket``
        and takes the copies that are absent.
        """
        self.members.restore_node(node)

    # --- the cluster changes

    @property
    def rebalance_state(self) -> str:
        """``none``, ``running``, or ``failed:`` and why, of the last one."""
        return self.members.rebalance_state

    def rebalance(self, remove: int | None = None, timeout_seconds: float = 60.0) -> None:
        """Let all members own evenly many vbuckets, and place the copies anew.

        Each vbucket that must move does so by a takeover stream into its new node: no branch
        begins, its streams end (state changed), a new map is pushed. For an instant it takes no
        writes: clients are answered NOT_MY_VBUCKET, ``set`` and the like wait. ``remove`` names a
        node that gives all away and goes. Returns when the owners are right; copies may still be on
        their way (``wait_until_replicated``). An order over the protocol does not wait:
        ``rebalance_state`` tells, and ``ClusterSettings.rebalance_timeout_seconds`` is its time.
        ``rebalance_orders.py`` says what becomes of it when something else is ordered meanwhile.

        Raises:
            ValueError: it cannot be done as things are: a member that is dead, no other node to
                take what there is, a vbucket that is not active, or one runs already.
            SourceError: a node was lost or failed over meanwhile; another call goes on from there.
            TimeoutError: it took too long, and was given up.
            OSError: the data folder cannot be written; another call goes on from there, too.
            LocalProtocolError: the cluster does not run.
        """
        self.members.rebalance(remove, timeout_seconds)

    def move_vbucket(self, vbucket: int, node: int) -> None:
        """Hand a vbucket over to another node: streams end (state changed), a new map is pushed.

        Raises:
            ValueError: no such vbucket or node, or a rebalance moves it.
            OSError: the data folder cannot be written; nothing has changed.
        """
        with self.bucket.lock:
            self.bucket.table.require_unmoved("move", self.bucket.table.numbered(vbucket).id)
            before = self.vbucket_owner(vbucket)
            self.bucket.map.require_node(node)
            with self.bucket.changing_map():
                self.bucket.map.move(vbucket, node)
            self.bucket.table.numbered(vbucket).recover_sync_writes()
            self.bucket.sync_writes.watch(vbucket)
            self.bucket.dcp_connections.end_streams(vbucket, before)
            for place, at in self.bucket.copies.follow(self.bucket.map):
                self.bucket.dcp_connections.end_streams(at, place)
        self.nodes.loop.call_soon(self.nodes.push_map)

    def failover(self, node: int) -> None:
        """Let ``node`` be gone and promote copies of its vbuckets (``ClusterSettings.replicas``).

        Each vbucket goes on at the next living node that has a copy, from the last whole snapshot
        that this copy has; the other copies follow it. What it had not is lost, each vbucket begins
        a new branch, connections to the node close, its streams with them, and the others are
        pushed the new map. Not inside ``batch()``: it waits for connections that wait for the batch
        (as all that is done to nodes).

        Raises:
            ValueError: no such node, no other that lives, or none with a copy of a vbucket.
            OSError: the data folder cannot be written; nothing has changed.
        """

        def act(gone: Node | None) -> None:
            failover.fail_over(self.bucket, node)
            self.bucket.map.dead_nodes.add(node)
            self.members.give_up_rebalance(f"{self.bucket.map.name_of(node)} was failed over")
            if gone is not None:
                gone.fall_silent()

        self.nodes.end(node, act)
        self.members.wait_for_rebalance()

    def crash_restart(self, node: int, lost_seqnos: int | None = None) -> None:
        """Let ``node`` crash and come back: its vbuckets lose what was not on disk.

        ``lost_seqnos`` loses so many of each vbucket's newest seqnos instead, whatever was called
        persisted. Each of its vbuckets begins a new branch, even where nothing was lost.

        Raises:
            ValueError: no such node, or one that was failed over.
        """

        def act(gone: Node | None) -> None:
            failover.crash(self.bucket, node, lost_seqnos)
            if gone is not None:
                gone.fall_silent()

        self.nodes.end(node, act)
        self.restore_node(node)

    def pause_replication(self) -> None:
        """Let all copies stand still at what they hold now; what is under way to them is lost.

        After ``wait_until_replicated`` a failover loses exactly what is written from now on.
        """
        with self.bucket.lock:
            self.bucket.replicas.pause()
            self.nodes.loop.call_soon(self.nodes.push_map)

    def resume_replication(self) -> None:
        """Let all copies follow again."""
        with self.bucket.lock:
            self.bucket.replicas.resume()
            self.nodes.loop.call_soon(self.nodes.push_map)

    def wait_until_replicated(self, timeout_seconds: float = 60.0) -> None:
        """Return when all copies on living nodes hold what their actives hold at an instant.

        Not inside ``batch()``. Writes that go on meanwhile may keep it waiting.

        Raises:
            TimeoutError: they did not get there; the message names one that lacks something.
        """
        with self.bucket.table.copies_moved:
            self.bucket.table.copies_moved.wait_for(
                lambda: self._lagging_copy() is None, timeout_seconds
            )
            lagging = self._lagging_copy()
        if lagging is not None:
            raise TimeoutError(f"replication: after {timeout_seconds} seconds {lagging}")

    def _lagging_copy(self) -> str | None:
        return lagging_copy(self.bucket.map, self.bucket.table)

    def set_vbucket_state(self, vbucket: int, state: VbucketState, node: int | None = None) -> None:
        """Change a vbucket's state: its streams end, and becoming active begins a branch.

        With ``node`` that of this node's copy, which may be anything but active.

        Raises:
            ValueError: not a state that it can be in, no copy on that node, or a rebalance
                moves it (this, and all below that name a vbucket).
        """
        with self.bucket.lock:
            self.bucket.table.numbered(vbucket)
            if node is not None:
                self.bucket.map.require_node(node)
            if node is None or node == self.bucket.map.owner(vbucket):
                bucket_states.set_state(self.bucket, vbucket, state)
            else:
                bucket_states.set_state_of_copy(self.bucket, vbucket, node, state)

    def purge_tombstones(self, vbucket: int, up_to_seqno: int | None = None) -> int:
        """Purge the tombstones on disk up to a seqno (None: all), never the newest item.

        Streams are no longer shown them; one that stands below ends (rollback). Returns how many.
        """
        with self.bucket.lock:
            data = self.bucket.table.numbered(vbucket).data
            return data.persistence.purge(data.high_seqno if up_to_seqno is None else up_to_seqno)

    def set_up_vbucket(
        self, vbucket: int, facts: VbucketFacts, versions: Sequence[Version] = ()
    ) -> None:
        """Replace a vbucket by one of which ``facts`` are true; its streams end.

        It holds ``versions`` as they are, the last of them at ``facts.high_seqno``; without any it
        is empty and its history begins after the high seqno. Tombstones up to the purge seqno are
        purged.

        Raises:
            LocalProtocolError: seqnos that do not ascend or end elsewhere; a vbucket in a data
                folder.
        """
        with self.bucket.lock:
            bucket_states.set_up(self.bucket, vbucket, facts, versions)

    def take_versions(self, vbucket: int, versions: Sequence[Version]) -> None:
        """Append versions that another server made, as they are; streams hear of them together.

        Seqnos may be left out. Their system events change the manifest, for the bucket where theirs
        is newer than its own.

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
        """End a connection inside a snapshot, once ``items`` more items went out."""
        with self.bucket.lock:
            self.faults.cut_snapshot_after(items)

    def refuse_stream(self, vbucket: int, status: Status, times: int = 1) -> None:
        """Answer the next stream requests for ``vbucket`` with ``status``."""
        with self.bucket.lock:
            self.bucket.table.numbered(vbucket)
            self.faults.refuse_stream(vbucket, status, times)

    def corrupt(self, corruption: Corruption) -> None:
        """Corrupt the next item's frame."""
        with self.bucket.lock:
            self.faults.corrupt_next_item(corruption)

    @property
    def faults(self) -> Faults:
        """The orders that were not carried out yet; hold ``batch()`` while looking."""
        return self.bucket.dcp_connections.shared.faults
