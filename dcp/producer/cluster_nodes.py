"""The nodes of a producer cluster, running in a thread of their own: their life, faults and pushes.

A node is an index from 0. What is done to it from outside waits until it is done; an order that
comes over one of its own connections cannot wait, and lets that connection say its answer first.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from contextlib import suppress
from threading import Event, Thread, get_ident
from types import TracebackType
from typing import Any, Final, Self

from dcp.errors import LocalProtocolError, SourceError
from dcp.producer.bucket import Bucket
from dcp.producer.cluster_map import NodeAddress
from dcp.producer.forks import end_streams
from dcp.producer.rebalance import Rebalance
from dcp.producer.replication import Replication
from dcp.producer.server import Node
from dcp.producer.settings import ClusterSettings
from dcp.producer.wait_watch import WaitWatch

_LOG = logging.getLogger(__name__)
_WAIT_SECONDS: Final = 30.0
_WATCH_SECONDS: Final = 0.5
"""How often to look for clients that were silent for too long."""


class ClusterNodes:
    """Nodes that serve one bucket. Use as a context manager, or ``start`` and ``stop``."""

    def __init__(self, settings: ClusterSettings | None = None) -> None:
        self.settings = settings or ClusterSettings()
        self.bucket = Bucket(self.settings)
        self._tls = self.settings.tls.context() if self.settings.tls else None
        self._nodes: list[Node] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: Thread | None = None
        self._background: list[asyncio.Task[None]] = []
        self._under_way: set[asyncio.Task[None]] = set()
        self._rebalancing: asyncio.Task[None] | None = None
        self.rebalance_state = "none"
        """``none``, ``running``, or ``failed:`` and why, of the last one."""
        self._replication = Replication(self.bucket, lambda node: self._nodes[node].awake)

    # --- life

    def start(self) -> None:
        """Listen on all ports; returns when clients can connect.

        Raises:
            SourceError: a port cannot be opened.
            LocalProtocolError: it runs, or it ran and gave up its data folder.
        """
        if self._thread is not None:
            raise LocalProtocolError("producer cluster: start() of one that runs already")
        if self.bucket.is_closed:
            raise LocalProtocolError(
                "producer cluster: start() of one that has given up its data folder; make another"
            )
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
            self.bucket.close()
            raise SourceError(f"producer cluster: cannot listen: {failed[0]}") from failed[0]

    def stop(self) -> None:
        """Close all connections and ports, and the data folder; harmless when not running.

        Clients get what they were sent before, and the answers that they are owed: whole frames,
        and then the end of the connection (servers announce no STREAM_END either, kv_engine
        ``dcp/active_stream.cc``). Who does not read is cut off after ``last_words_seconds``.

        Raises:
            OSError: the data folder cannot be written.
        """
        if self._thread is not None and self._loop is not None:
            with suppress(TimeoutError):
                self._call(self._shut_down())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(_WAIT_SECONDS)
            self._thread = None
            self._loop = None
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
        """Close all connections to ``node``, or to all nodes."""
        for one in self._nodes if node is None else [self._nodes[node]]:
            self._call(one.drop_connections())

    def kill_node(self, node: int) -> None:
        """Close a node's port and connections."""
        self._call(self._nodes[node].leave() if self._is_in_loop else self._nodes[node].kill())
        with self.bucket.lock:
            self.bucket.dead_nodes.add(node)
        self._call_soon(self._follow_map)

    def refuse_node(self, node: int) -> None:
        """Close a node's port only."""
        self._call(self._nodes[node].refuse())

    def hang_node(self, node: int) -> None:
        """Let a node stop reading and answering, with everything open."""
        self._call(_now(self._nodes[node].hang))

    def restore_node(self, node: int) -> None:
        """Undo ``kill_node``, ``refuse_node`` or ``hang_node``, on the same port.

        A node that was failed over joins the cluster again: it owns nothing until ``move_vbucket``
        and takes the copies that are absent.
        """
        if self._is_in_loop:
            self._nodes[node].restore()
        elif self._loop is not None:
            self._call(_now(self._nodes[node].restore))
        with self.bucket.lock:
            self.bucket.dead_nodes.discard(node)
            if not self.bucket.map.is_member(node):
                self.bucket.map.join(node)
                self.bucket.copies.follow(self.bucket.map)
                self.bucket.save()
                self._call_soon(self._push_map)
        self._call_soon(self._follow_map)

    # --- nodes that come and go

    def add_node(self) -> int:
        """Start a node on free ports and return it; it owns nothing until ``rebalance``.

        Raises:
            ValueError: the bucket is kept in a data folder, which is made for its nodes.
            LocalProtocolError: the cluster does not run.
        """
        if self.settings.data_folder is not None:
            raise ValueError(
                "add node: found a bucket in a data folder, which is made for the nodes it began "
                "with"
            )
        if self._is_in_loop:
            return self._open_node()
        added: list[int] = []
        self._call(_now(lambda: added.append(self._open_node())))
        return added[0]

    def _open_node(self) -> int:
        tls_port = None if self._tls is None else 0
        address = NodeAddress(self.settings.host, 0, 0, tls_port, tls_port)
        node = Node(self.bucket, len(self._nodes), address, self._tls)
        node.listen()
        self._nodes.append(node)
        with self.bucket.lock:
            added = self.bucket.map.add(node.address)
        self._call_soon(self._push_map)
        return added

    def rebalance(self, remove: int | None = None, timeout_seconds: float = 60.0) -> None:
        """Let all members own evenly many vbuckets, and place the copies anew.

        Each vbucket that must move does so by a takeover stream into its new node: no branch
        begins, its streams end (state changed), a new map is pushed. For an instant it takes no
        writes: clients are answered NOT_MY_VBUCKET, ``set`` and the like wait. ``remove`` names a
        node that gives all away and goes. Returns when the owners are right; copies may still be on
        their way (``wait_until_replicated``). An order over the protocol does not wait:
        ``rebalance_state`` tells.

        Raises:
            ValueError: it cannot be done as things are: a data folder, a member that is dead, no
                other node to take what there is, a vbucket that is not active, or one runs already.
            SourceError: a node was lost on the way; another call goes on from there.
            TimeoutError: it took too long, and was given up.
            LocalProtocolError: the cluster does not run.
        """
        if self._loop is None:
            raise LocalProtocolError("producer cluster: it does not run")
        if self._rebalancing is not None:
            raise ValueError("rebalance: found one that runs already")
        work = Rebalance(self.bucket, remove, lambda node: self._nodes[node].awake, self._push_map)
        self.rebalance_state = "running"
        if self._is_in_loop:
            self._call(self._log_failure(self._rebalance(work, remove)))
            return
        future = asyncio.run_coroutine_threadsafe(self._rebalance(work, remove), self._loop)
        try:
            future.result(timeout_seconds)
        except TimeoutError:
            future.cancel()
            raise TimeoutError(f"rebalance: not done after {timeout_seconds} seconds") from None

    async def _rebalance(self, work: Rebalance, remove: int | None) -> None:
        self._rebalancing = asyncio.current_task()
        try:
            await work.run()
            if remove is not None:
                with self.bucket.lock:
                    self.bucket.dead_nodes.add(remove)
                await self._leave(remove)
        except BaseException as error:
            self.rebalance_state = f"failed: {str(error) or type(error).__name__}"
            raise
        else:
            self.rebalance_state = "none"
        finally:
            self._rebalancing = None
            self._push_map()

    async def _log_failure(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except SourceError:
            _LOG.exception("an order over the protocol failed")

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
        known = [node.address for node in self._nodes]  # after a stop they come back on their ports
        addresses = known or _addresses_to_take(settings)
        self._nodes = [
            Node(self.bucket, node, address, self._tls) for node, address in enumerate(addresses)
        ]
        try:
            for node in self._nodes:
                if self.bucket.map.is_member(node.node):
                    node.listen()
                    self.bucket.dead_nodes.discard(node.node)
        except OSError:
            for node in self._nodes:
                await node.kill()
            raise
        self.bucket.map.set_addresses([node.address for node in self._nodes])
        self._follow_map()
        self._background.append(asyncio.ensure_future(self._watch_connections()))
        if settings.expiry_pager_seconds > 0:
            pager = self._page_expiries(settings.expiry_pager_seconds)
            self._background.append(asyncio.ensure_future(pager))
        boards = self.bucket.sync_writes, self.bucket.persistence_waits
        watch = WaitWatch(boards, self.bucket.lock, self._call_soon)
        self._background.append(asyncio.ensure_future(watch.run()))
        self._background.append(asyncio.ensure_future(self.bucket.compactor.run()))
        if self.bucket.flusher is not None:
            self._background.append(asyncio.ensure_future(self.bucket.flusher.run()))

    async def _shut_down(self) -> None:
        for task in self._background:
            task.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)
        self._background.clear()
        if self._rebalancing is not None:
            self._rebalancing.cancel()
            await asyncio.gather(self._rebalancing, return_exceptions=True)
        await self._replication.stop()
        await asyncio.gather(*self._under_way, return_exceptions=True)
        await asyncio.gather(*(node.leave() for node in self._nodes))

    async def _watch_connections(self) -> None:
        while True:
            await asyncio.sleep(_WATCH_SECONDS)
            with self.bucket.lock:
                for node in self._nodes:
                    node.close_overdue(asyncio.get_running_loop().time())

    async def _page_expiries(self, interval_seconds: float) -> None:
        while True:
            await asyncio.sleep(interval_seconds)
            with self.bucket.lock:
                self.bucket.expire_due(self.bucket.now())

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
        self._follow_map()

    def _follow_map(self) -> None:
        """Let copies be where the map has them, and be fed by those that own them."""
        with self.bucket.lock:
            for node, vbucket in self.bucket.copies.follow(self.bucket.map):
                end_streams(self.bucket, vbucket, node)
            self._replication.reconcile()
            self.bucket.copies_moved.notify_all()

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


def _addresses_to_take(settings: ClusterSettings) -> list[NodeAddress]:
    free = (0,) * settings.nodes
    plain = zip(settings.ports or free, settings.http_ports or free, strict=True)
    if settings.tls is None:
        return [NodeAddress(settings.host, *ports) for ports in plain]
    encrypted = zip(settings.tls_ports or free, settings.https_ports or free, strict=True)
    return [
        NodeAddress(settings.host, *ports, *tls_ports)
        for ports, tls_ports in zip(plain, encrypted, strict=True)
    ]


async def _now(action: Callable[[], None]) -> None:
    action()
