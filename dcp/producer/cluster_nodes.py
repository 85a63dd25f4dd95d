"""The nodes of a producer cluster, running in a thread of their own: their life, faults and pushes.

A node is an index from 0. What is done to it from outside waits until it is done; an order that
comes over one of its own connections cannot wait, and lets that connection say its answer first.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from types import TracebackType
from typing import Final, Self

from dcp.errors import LocalProtocolError, SourceError
from dcp.producer.background import ended, keep_running
from dcp.producer.bucket import Bucket
from dcp.producer.cluster_map import NodeAddress
from dcp.producer.entrance import Entrance, OwnEntrance
from dcp.producer.loop_thread import LoopThread, now
from dcp.producer.member_links import MemberLinks
from dcp.producer.replication import Replication
from dcp.producer.server import Node
from dcp.producer.settings import ClusterSettings
from dcp.producer.stream_ends import end_streams
from dcp.producer.turns import Turns
from dcp.producer.vbucket import Vbucket
from dcp.producer.wait_watch import WaitWatch

_LOG = logging.getLogger(__name__)
_WATCH_SECONDS: Final = 0.5
"""How often to look for clients that were silent for too long."""


class ClusterNodes:
    """Nodes that serve one bucket. Use as a context manager, or ``start`` and ``stop``."""

    def __init__(
        self, settings: ClusterSettings | None = None, entrance: Entrance | None = None
    ) -> None:
        self.settings = settings or ClusterSettings()
        self._entrance = entrance or OwnEntrance(Bucket(self.settings))
        self.bucket = self._entrance.bucket
        self._tls = self.settings.tls.context() if self.settings.tls else None
        self._nodes: dict[int, Node] = {}
        self._turns = Turns()
        self._loop = LoopThread("producer cluster")
        self._background: list[asyncio.Task[None]] = []
        self._links = MemberLinks(self.bucket, self._push_map)
        self._replication = Replication(self.bucket, lambda node: self._nodes[node].awake)

    # --- life

    def start(self) -> None:
        """Listen on all ports; returns when clients can connect.

        Raises:
            SourceError: a port cannot be opened, or the cluster's first process refuses us.
            LocalProtocolError: it runs, or it ran and gave up its data folder.
        """
        if self._loop.is_running:
            raise LocalProtocolError("producer cluster: start() of one that runs already")
        if self.bucket.is_closed:
            raise LocalProtocolError(
                "producer cluster: start() of one that has given up its data folder; make another"
            )
        try:
            self._loop.start(self._open_nodes)
        except BaseException as error:
            self.bucket.close()
            if isinstance(error, OSError):
                raise SourceError(f"producer cluster: cannot listen: {error}") from error
            raise

    def stop(self) -> None:
        """Close all connections and ports, and the data folder; harmless when not running.

        Clients get what they were sent before, and the answers that they are owed: whole frames,
        and then the end of the connection (servers announce no STREAM_END either, kv_engine
        ``dcp/active_stream.cc``). Who does not read is cut off after ``last_words_seconds``.

        Raises:
            OSError: the data folder cannot be written.
        """
        self._loop.stop(self._shut_down)
        self.bucket.on_change = self.bucket.collections.on_change = lambda: None
        with self.bucket.lock:
            self.bucket.close()

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
        return [address.at(address.kv) for address in self.bucket.map.addresses]

    @property
    def http_seeds(self) -> list[str]:
        """``host:port`` of every node's HTTP endpoints."""
        return [address.at(address.mgmt) for address in self.bucket.map.addresses]

    @property
    def tls_seeds(self) -> list[str]:
        """``host:port`` of every node's TLS port; empty without ``ClusterSettings.tls``."""
        return [a.at(a.kv_tls) for a in self.bucket.map.addresses if a.kv_tls is not None]

    @property
    def https_seeds(self) -> list[str]:
        """``host:port`` of every node's HTTPS port; empty without ``ClusterSettings.tls``."""
        return [a.at(a.mgmt_tls) for a in self.bucket.map.addresses if a.mgmt_tls is not None]

    # --- faults of nodes

    def drop_connections(self, node: int | None = None) -> None:
        """Close all connections to ``node``, or to all nodes of this process.

        Raises:
            ValueError: no such node, or it is in another process (this and all below).
        """
        if node is not None:
            self.bucket.require_local("drop connections of", node)
        for one in self._nodes.values() if node is None else [self._nodes[node]]:
            self._loop.call(one.drop_connections())

    def kill_node(self, node: int) -> None:
        """Close a node's port and connections.

        Raises:
            ValueError: as above; or it was ordered over the protocol, and no other node would be
                left to take the order to restore it.
        """
        self.bucket.require_local("kill", node)
        if self._loop.is_inside and not self.bucket.local_nodes - self.bucket.dead_nodes - {node}:
            raise ValueError(
                f"kill {self.bucket.map.name_of(node)}: found no other living node of this "
                "process, expected one to take the order to restore it"
            )
        self._loop.call(
            self._nodes[node].leave() if self._loop.is_inside else self._nodes[node].kill()
        )
        with self.bucket.lock:
            self.bucket.dead_nodes.add(node)
        self._loop.call_soon(self._follow_map)

    def refuse_node(self, node: int) -> None:
        """Close a node's port only."""
        self.bucket.require_local("refuse", node)
        self._loop.call(self._nodes[node].refuse())

    def hang_node(self, node: int) -> None:
        """Let a node stop reading and answering, with everything open."""
        self.bucket.require_local("hang", node)
        self._loop.call(now(self._nodes[node].hang))

    def restore_node(self, node: int) -> None:
        """Undo ``kill_node``, ``refuse_node`` or ``hang_node``, on the same port.

        A node that was failed over joins the cluster again: it owns nothing until ``move_vbucket``
        and takes the copies that are absent.
        """
        self.bucket.map.require_node(node)
        if self.bucket.is_local(node):
            self._restore_here(node)
        else:
            self._require_answer(node)
        try:
            self._take_in(node)
        except OSError:
            self._take_down(node)
            raise
        self._loop.call_soon(self._follow_map)

    def _take_in(self, node: int) -> None:
        with self.bucket.lock:
            self._tell_addresses()
            if self.bucket.map.is_member(node):
                self.bucket.dead_nodes.discard(node)
                return
            self.bucket.require_first("restore")
            with self.bucket.changing_map():
                self.bucket.map.join(node)
            self.bucket.dead_nodes.discard(node)
            self.bucket.copies.follow(self.bucket.map)
            self._save_copies()
            self._loop.call_soon(self._push_map)

    def _take_down(self, node: int) -> None:
        """Let a node be gone again that could not be taken in."""
        if node in self._nodes and self._loop.is_running:
            gone = self._nodes[node]
            self._loop.call(gone.leave() if self._loop.is_inside else gone.kill())

    def _restore_here(self, node: int) -> None:
        if self._loop.is_inside:
            self._nodes[node].restore()
        elif self._loop.is_running:
            self._loop.call(now(self._nodes[node].restore))

    def _require_answer(self, node: int) -> None:
        if not self._links.is_alive(node):
            raise ValueError(
                f"restore {self.bucket.map.name_of(node)}: it is in another process, which does "
                "not answer; begin one that joins at that address"
            )

    # --- the loop

    def _on_node(self, node: int, act: Callable[[Node | None], None]) -> None:
        """Do ``act`` at an instant at which no connection sends anything; the node is then gone."""
        if not self._loop.is_running:
            with self.bucket.lock:
                act(None)
        elif self._loop.is_inside:
            self._act_on(node, act)
            self._loop.call(self._leave(node))
        else:
            self._loop.call(self._end_node(node, act))

    async def _end_node(self, node: int, act: Callable[[Node | None], None]) -> None:
        with self.bucket.lock:
            self._act_on(node, act)
        if node in self._nodes:
            await self._nodes[node].kill()
        self._push_map()

    async def _leave(self, node: int) -> None:
        if node in self._nodes:
            await self._nodes[node].leave()
        self._push_map()

    def _act_on(self, node: int, act: Callable[[Node | None], None]) -> None:
        act(self._nodes.get(node))

    async def _open_nodes(self) -> None:
        settings = self.settings
        self._turns = Turns()  # those of an earlier loop are over
        self._nodes = await self._entrance.open(self._nodes, self._node, self._push_map)
        self._tell_addresses()
        for node in range(self.bucket.map.node_count):
            if not (self.bucket.led_by or self.bucket.is_local(node)):
                self._links.add(node)
        self._replication.start()
        self._follow_map()
        bucket = self.bucket
        writes = WaitWatch(bucket.sync_writes, bucket.lock, self._loop.call_soon)
        waits = WaitWatch(bucket.persistence_waits, bucket.lock, self._loop.call_soon)
        works: dict[str, Callable[[], Awaitable[None]]] = {
            "watch of connections": self._watch_connections,
            "watch of durable writes": writes.run,
            "watch of waits for the disk": waits.run,
            "compactor": bucket.compactor.run,
        }
        if settings.expiry_pager_seconds > 0:
            works["expiry pager"] = partial(self._page_expiries, settings.expiry_pager_seconds)
        if bucket.flusher is not None:
            bucket.flusher.on_written = self._written
            works["flusher"] = bucket.flusher.run
        for name, work in works.items():
            self._background.append(asyncio.ensure_future(keep_running(name, work)))
        bucket.on_change = self._changes_are_waiting
        bucket.collections.on_change = lambda: self._loop.call_soon(self._links.wake)
        self._changes_are_waiting()  # those that there were before

    def _written(self, vbucket: Vbucket) -> None:
        self.bucket.stored(vbucket)
        self._loop.call_soon(partial(self._stored, vbucket))

    def _stored(self, vbucket: Vbucket) -> None:
        with self.bucket.lock:
            self._replication.stored(vbucket)

    def _node(self, number: int, address: NodeAddress) -> Node:
        return Node(self.bucket, number, address, self._tls, self._turns)

    def _tell_addresses(self) -> None:
        """Let the map know the ports that were taken: of some nodes only now."""
        found = list(self.bucket.map.addresses)
        for number, node in self._nodes.items():
            found[number] = node.address
        self.bucket.map.set_addresses(found)

    async def _shut_down(self) -> None:
        await self._entrance.close()
        for task in self._background:
            task.cancel()
        await ended("background of the producer", *self._background)
        self._background.clear()
        await self._links.stop()
        await self._replication.stop()
        await self._loop.settled()
        leaving = [asyncio.ensure_future(node.leave()) for node in self._nodes.values()]
        await ended("end of a node", *leaving)

    async def _watch_connections(self) -> None:
        while True:
            await asyncio.sleep(_WATCH_SECONDS)
            with self.bucket.lock:
                for node in self._nodes.values():
                    node.close_overdue(asyncio.get_running_loop().time())

    async def _page_expiries(self, interval_seconds: float) -> None:
        while True:
            await asyncio.sleep(interval_seconds)
            with self.bucket.lock:
                self.bucket.expire_due(self.bucket.now())

    def _changes_are_waiting(self) -> None:
        self._loop.call_soon(self._spread_changes)

    def _spread_changes(self) -> None:
        with self.bucket.lock:
            changed = self.bucket.collect_changes()
            for node in self._nodes.values():
                node.vbuckets_changed(changed)

    def _push_map(self) -> None:
        with self.bucket.lock:
            for node in self._nodes.values():
                node.push_map()
        self._links.wake()
        self._follow_map()

    def _follow_map(self) -> None:
        """Let copies be where the map has them, and be fed by those that own them."""
        with self.bucket.lock:
            for node, vbucket in self.bucket.copies.follow(self.bucket.map):
                end_streams(self.bucket, vbucket, node)
            self._save_copies()
            self._replication.reconcile()
            self.bucket.copies_moved.notify_all()

    def _save_copies(self) -> None:
        """Have on disk which logs are whose copies; those of others are lost in a power loss."""
        try:
            self.bucket.save()
        except OSError as error:
            _LOG.warning("copies: it cannot be saved which there are: %s", error)
