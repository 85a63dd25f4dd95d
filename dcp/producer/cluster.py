"""A cluster of producer nodes in a thread of its own, and what tests do with it.

All methods may be called from any thread. Nodes are indexes from 0 (people and the orders of
``admin_commands.py`` count from 1). Writes take effect at once and reach the streams soon
after; writes under ``with cluster.batch():`` reach a caught-up stream as one snapshot.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from threading import Event, Thread, get_ident
from types import TracebackType
from typing import Any, Final, Self

from dcp.errors import LocalProtocolError, SourceError
from dcp.producer import forks
from dcp.producer.bucket import Bucket
from dcp.producer.counters import CountersSnapshot
from dcp.producer.documents import Document
from dcp.producer.failover import VbucketFacts
from dcp.producer.faults import Corruption, Faults
from dcp.producer.preload import PreloadedSegment, PreloadSettings, ids_by_vbucket
from dcp.producer.server import Node
from dcp.producer.settings import ClusterSettings
from dcp.types import FailoverLog
from dcp.wire.vocabulary import EndReason, Status, VbucketState

_WAIT_SECONDS: Final = 30.0


class ProducerCluster:
    """Nodes that serve one bucket. Use as a context manager, or ``start`` and ``stop``."""

    def __init__(self, settings: ClusterSettings | None = None) -> None:
        self.settings = settings or ClusterSettings()
        self.bucket = Bucket(self.settings)
        self._nodes: list[Node] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: Thread | None = None
        self._pager: asyncio.Task[None] | None = None
        self._under_way: set[asyncio.Task[None]] = set()
        self.bucket.administrator = self

    # --- life

    def start(self) -> None:
        """Listen on all ports; returns when clients can connect.

        Raises:
            SourceError: a port cannot be opened.
        """
        if self._thread is not None:
            raise LocalProtocolError("producer cluster: start() of one that runs already")
        started = Event()
        failed: list[BaseException] = []
        self._thread = Thread(
            target=self._run_loop, args=(started, failed), name="dcp-producer", daemon=True
        )
        self._thread.start()
        started.wait(_WAIT_SECONDS)
        if failed:
            self._thread.join(_WAIT_SECONDS)
            self._thread = None
            raise SourceError(f"producer cluster: cannot listen: {failed[0]}") from failed[0]

    def stop(self) -> None:
        """Close all connections and ports; harmless when not running."""
        if self._thread is None or self._loop is None:
            return
        with suppress(TimeoutError):
            self._call(self._shut_down())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_WAIT_SECONDS)
        self._thread = None
        self._loop = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    @property
    def seeds(self) -> list[str]:
        """``host:port`` of every node."""
        return [
            f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
            for host, port in self.bucket.map.addresses
        ]

    # --- documents

    def set(
        self,
        key: bytes,
        value: bytes,
        expiry: int = 0,
        flags: int = 0,
        *,
        datatype: int = 0,
    ) -> Document:
        """Store a document, as KV SET does; JSON is recognised by itself."""
        with self.bucket.lock:
            version = self.bucket.write(
                key,
                lambda documents: documents.set(
                    key, value, self.bucket.now(), flags=flags, expiry=expiry, datatype=datatype
                ),
            )
            return Document.of(version)

    def delete(self, key: bytes) -> Document:
        """Delete a document; raises DocumentError when there is none. Returns the tombstone."""
        with self.bucket.lock:
            now = self.bucket.now()
            return Document.of(self.bucket.write(key, lambda documents: documents.delete(key, now)))

    def touch(self, key: bytes, expiry: int) -> Document:
        """Give a document a new expiry."""
        with self.bucket.lock:
            now = self.bucket.now()
            return Document.of(
                self.bucket.write(key, lambda documents: documents.touch(key, expiry, now))
            )

    def get(self, key: bytes) -> Document:
        """Return a document; raises DocumentError when there is none."""
        with self.bucket.lock:
            now = self.bucket.now()
            return Document.of(self.bucket.write(key, lambda documents: documents.get(key, now)))

    def expire_due(self, now: float | None = None) -> int:
        """Expire all documents that are due at ``now`` (default: the clock); return how many."""
        with self.bucket.lock:
            return self.bucket.expire_due(self.bucket.now() if now is None else now)

    @contextmanager
    def batch(self) -> Iterator[None]:
        """Hold back all streams: what is written inside reaches them together."""
        with self.bucket.lock:
            yield

    def preload(self, count: int, value_bytes: int, prefix: bytes = b"doc:", seed: int = 0) -> None:
        """Fill an empty bucket with ``count`` JSON documents of ``value_bytes``, in bulk."""
        settings = PreloadSettings(count, value_bytes, prefix, seed)
        with self.bucket.lock:
            for vbucket, ids in enumerate(ids_by_vbucket(settings, len(self.bucket.vbuckets))):
                if not len(ids):
                    continue
                state = self.bucket.vbuckets[vbucket]
                first_cas = state.documents.clock.next(self.bucket.now())
                state.preload(
                    PreloadedSegment(
                        vbucket,
                        ids,
                        settings,
                        first_seqno=state.history.base_seqno + 1,
                        first_cas=first_cas,
                    )
                )
                state.documents.clock.raise_floor(first_cas + (len(ids) << 16))
                self.bucket.changed(vbucket)

    def start_vbucket_at(self, vbucket: int, seqno: int = 0, cas: int = 0) -> None:
        """Let an empty vbucket's seqnos and CAS values begin beyond these (for tests of u64)."""
        with self.bucket.lock:
            state = self.bucket.vbuckets[vbucket]
            state.history.start_at(seqno)
            state.documents.clock.raise_floor(cas)

    # --- what it holds

    def state_at(
        self, vbucket: int, seqno: int, vb_uuid: int | None = None
    ) -> dict[bytes, Document]:
        """Return what the vbucket held at ``seqno``, deleted documents left out.

        ``vb_uuid`` names the branch, None is the current one. Any branch that there ever was is
        known, also after its entry left the failover log; up to where a branch was cut off its
        parent it holds what the parent held. Beyond the end of a branch: what it held there.

        Raises:
            ValueError: there never was such a branch.
            LocalProtocolError: another branch than the current one, and none are recorded
                (``ClusterSettings.record_branches``).
        """
        with self.bucket.lock:
            found = self.bucket.vbuckets[vbucket]
            if found.record is not None:
                return found.record.state_at(seqno, vb_uuid)
            if vb_uuid not in (None, found.failover_log.current_uuid):
                raise LocalProtocolError(
                    f"vbucket {vbucket}: branch {vb_uuid:#x} is not the current one, and this "
                    "cluster records no others"
                )
            return {v.key: Document.of(v) for v in found.history.live_at(seqno)}

    def branches(self, vbucket: int) -> tuple[int, ...]:
        """Return the uuids of all branches that a vbucket ever had, oldest first.

        Without ``ClusterSettings.record_branches``: of those in its failover log.
        """
        with self.bucket.lock:
            found = self.bucket.vbuckets[vbucket]
            if found.record is not None:
                return found.record.vb_uuids
            return tuple(entry.vb_uuid for entry in reversed(found.failover_log.entries))

    def persisted_seqno(self, vbucket: int) -> int:
        """Return the newest seqno of a vbucket that is on disk."""
        with self.bucket.lock:
            return self.bucket.vbuckets[vbucket].history.persisted_seqno

    def purge_seqno(self, vbucket: int) -> int:
        """Return the highest seqno of a purged tombstone, 0 where none was purged."""
        with self.bucket.lock:
            return self.bucket.vbuckets[vbucket].history.purge_seqno

    def replica_seqno(self, vbucket: int) -> int:
        """Return the newest seqno that a vbucket's replica holds: where a failover would cut."""
        with self.bucket.lock:
            return self.bucket.vbuckets[vbucket].replica_seqno

    def high_seqno(self, vbucket: int) -> int:
        """Return the newest seqno of a vbucket."""
        with self.bucket.lock:
            return self.bucket.vbuckets[vbucket].history.high_seqno

    def failover_log(self, vbucket: int) -> FailoverLog:
        """Return the branches of a vbucket, newest first."""
        with self.bucket.lock:
            return self.bucket.vbuckets[vbucket].failover_log

    def vbucket_of(self, key: bytes) -> int:
        """Return the vbucket that holds ``key``."""
        return self.bucket.vbucket_of(key).id

    def vbucket_owner(self, vbucket: int) -> int:
        """Return the node that holds a vbucket."""
        with self.bucket.lock:
            owner = self.bucket.map.owner(vbucket)
        if owner is None:
            raise ValueError(f"vbucket {vbucket}: found none of that number")
        return owner

    def counters(self) -> CountersSnapshot:
        """Return all counters at one instant."""
        with self.bucket.lock:
            return self.bucket.counters.snapshot()

    # --- the cluster changes

    def move_vbucket(self, vbucket: int, node: int) -> None:
        """Hand a vbucket over to another node: streams end (state changed), a new map is pushed."""
        with self.bucket.lock:
            self.bucket.map.move(vbucket, node)
            for connection in list(self.bucket.dcp_connections.values()):
                connection.end_stream(vbucket, EndReason.STATE_CHANGED, announce=True)
        self._call_soon(self._push_map)

    def failover(self, node: int) -> None:
        """Let ``node`` be gone and promote its vbuckets' replicas on the next living node.

        What the replicas had not is lost, each vbucket begins a new branch, connections to the
        node close, its streams with them, and the others are pushed the new map.

        Raises:
            ValueError: no such node, or no other that lives.
        """

        def act(gone: Node | None) -> None:
            forks.fail_over(self.bucket, node)
            self.bucket.dead_nodes.add(node)
            if gone is not None:
                gone.fall_silent()

        self._on_node(node, act)

    def crash_restart(self, node: int, lost_seqnos: int | None = None) -> None:
        """Let ``node`` crash and come back: its vbuckets lose what was not on disk.

        ``lost_seqnos`` loses so many of each vbucket's newest seqnos instead, whatever was called
        persisted. Each of its vbuckets begins a new branch, even where nothing was lost.

        Raises:
            ValueError: no such node, or one that was failed over.
        """

        def act(gone: Node | None) -> None:
            forks.crash(self.bucket, node, lost_seqnos)
            if gone is not None:
                gone.fall_silent()

        self._on_node(node, act)
        self.restore_node(node)

    def pause_replication(self) -> None:
        """Let all replicas stand still at what they hold now."""
        with self.bucket.lock:
            for vbucket in self.bucket.vbuckets:
                vbucket.pause_replication()

    def resume_replication(self) -> None:
        """Let all replicas follow again, as far behind as the settings say."""
        with self.bucket.lock:
            for vbucket in self.bucket.vbuckets:
                vbucket.resume_replication()

    def set_vbucket_state(self, vbucket: int, state: VbucketState) -> None:
        """Change a vbucket's state: its streams end, and becoming active begins a branch."""
        with self.bucket.lock:
            forks.set_state(self.bucket, vbucket, state)

    def purge_tombstones(self, vbucket: int, up_to_seqno: int | None = None) -> int:
        """Purge the tombstones on disk up to a seqno (None: all), never the newest item.

        Streams are no longer shown them; one that stands below ends (rollback). Returns how many.
        """
        with self.bucket.lock:
            return forks.purge_tombstones(self.bucket, vbucket, up_to_seqno)

    def set_up_vbucket(self, vbucket: int, facts: VbucketFacts) -> None:
        """Replace a vbucket by an empty one of which ``facts`` are true (for tests of decisions).

        It holds no document, and its history begins after ``facts.high_seqno``.
        """
        with self.bucket.lock:
            forks.set_up(self.bucket, vbucket, facts)

    def drop_connections(self, node: int | None = None) -> None:
        """Close all connections to ``node``, or to all nodes."""
        for one in self._nodes if node is None else [self._nodes[node]]:
            self._call(one.drop_connections())

    def kill_node(self, node: int) -> None:
        """Close a node's port and connections."""
        self._call(self._nodes[node].leave() if self._is_in_loop else self._nodes[node].kill())
        with self.bucket.lock:
            self.bucket.dead_nodes.add(node)

    def refuse_node(self, node: int) -> None:
        """Close a node's port only."""
        self._call(self._nodes[node].refuse())

    def hang_node(self, node: int) -> None:
        """Let a node stop reading and answering, with everything open."""
        self._call(_now(self._nodes[node].hang))

    def restore_node(self, node: int) -> None:
        """Undo ``kill_node``, ``refuse_node`` or ``hang_node``, on the same port.

        A node that was failed over joins the cluster again and owns nothing until ``move_vbucket``.
        """
        if self._is_in_loop:
            self._nodes[node].restore()
        elif self._loop is not None:
            self._call(_now(self._nodes[node].restore))
        with self.bucket.lock:
            self.bucket.dead_nodes.discard(node)
            if not self.bucket.map.is_member(node):
                self.bucket.map.join(node)
                self._call_soon(self._push_map)

    def snapshot_cut_after(self, items: int) -> None:
        """End a connection inside a snapshot, once ``items`` more items went out."""
        with self.bucket.lock:
            self.faults.cut_snapshot_after(items)

    def refuse_stream(self, vbucket: int, status: Status, times: int = 1) -> None:
        """Answer the next stream requests for ``vbucket`` with ``status``."""
        with self.bucket.lock:
            self.faults.refuse_stream(vbucket, status, times)

    def corrupt(self, corruption: Corruption) -> None:
        """Corrupt the next item's frame."""
        with self.bucket.lock:
            self.faults.corrupt_next_item(corruption)

    @property
    def faults(self) -> Faults:
        """The orders that were not carried out yet; hold ``batch()`` while looking."""
        return self.bucket.faults

    # --- the loop

    def _on_node(self, node: int, act: Callable[[Node | None], None]) -> None:
        """Do ``act`` at an instant at which no connection sends anything; the node is then gone."""
        if self._loop is None:
            with self.bucket.lock:
                act(None)
        elif self._is_in_loop:
            self._act_on(node, act)
            self._call(self._leave(node))
        else:
            self._call(self._end_node(node, act))

    async def _end_node(self, node: int, act: Callable[[Node | None], None]) -> None:
        with self.bucket.lock:
            self._act_on(node, act)
        await self._nodes[node].kill()
        self._push_map()

    async def _leave(self, node: int) -> None:
        await self._nodes[node].leave()
        self._push_map()

    def _act_on(self, node: int, act: Callable[[Node | None], None]) -> None:
        act(self._nodes[node] if 0 <= node < len(self._nodes) else None)

    @property
    def _is_in_loop(self) -> bool:
        """Whether our caller is a connection (an order over the protocol)."""
        return self._thread is not None and get_ident() == self._thread.ident

    def _run_loop(self, started: Event, failed: list[BaseException]) -> None:
        loop = asyncio.new_event_loop()
        asyncio.set_event_loop(loop)
        try:
            loop.run_until_complete(self._open_nodes())
            self._loop = loop
            self.bucket.on_change = self._changes_are_waiting
        except OSError as error:
            failed.append(error)
            started.set()
            loop.close()
            return
        started.set()
        loop.run_forever()
        self.bucket.on_change = lambda: None
        loop.close()

    async def _open_nodes(self) -> None:
        settings = self.settings
        known = self._nodes  # after a stop the nodes come back on their ports
        ports = [node.port for node in known] or list(settings.ports) or [0] * settings.nodes
        self._nodes = [Node(self.bucket, i, settings.host, port) for i, port in enumerate(ports)]
        try:
            for node in self._nodes:
                if self.bucket.map.is_member(node.node):
                    node.listen()
                    self.bucket.dead_nodes.discard(node.node)
        except OSError:
            for node in self._nodes:
                await node.kill()
            raise
        self.bucket.map.set_addresses([(node.host, node.port) for node in self._nodes])
        if settings.expiry_pager_seconds > 0:
            self._pager = asyncio.ensure_future(self._page_expiries(settings.expiry_pager_seconds))

    async def _shut_down(self) -> None:
        if self._pager is not None:
            self._pager.cancel()
            await asyncio.gather(self._pager, return_exceptions=True)
        await asyncio.gather(*self._under_way, return_exceptions=True)
        for node in self._nodes:
            await node.kill()

    async def _page_expiries(self, interval_seconds: float) -> None:
        while True:
            await asyncio.sleep(interval_seconds)
            self.expire_due()

    def _changes_are_waiting(self) -> None:
        self._call_soon(self._spread_changes)

    def _spread_changes(self) -> None:
        with self.bucket.lock:
            changed = self.bucket.collect_changes()
            for node in self._nodes:
                node.vbuckets_changed(changed)

    def _push_map(self) -> None:
        with self.bucket.lock:
            for node in self._nodes:
                node.push_map()

    def _call_soon(self, function: Callable[[], None]) -> None:
        if self._loop is not None:
            self._loop.call_soon_threadsafe(function)

    def _call(self, work: Coroutine[Any, Any, None]) -> None:
        if self._loop is None:
            work.close()
            raise LocalProtocolError("producer cluster: it does not run")
        if self._is_in_loop:  # cannot wait for itself
            task = self._loop.create_task(work)
            self._under_way.add(task)
            task.add_done_callback(self._under_way.discard)
            return
        asyncio.run_coroutine_threadsafe(work, self._loop).result(_WAIT_SECONDS)


async def _now(action: Callable[[], None]) -> None:
    action()
