"""Adds and removes nodes of a cluster, lets them fail, and keeps replicators and rebalances in step
with its map.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from dcp.errors import LocalProtocolError, SourceError
from dcp.producer.bucket import ProducerBucket
from dcp.producer.rebalance_orders import RebalanceOrders
from dcp.producer.replication import Replication
from dcp.server.node.cluster_nodes import ClusterNodes
from dcp.server.node.loop_thread import now
from dcp.server.node.serving import Work
from dcp.server.node.wait_watch import watch_waits
from dcp.server.vbucket.vbucket_states import Vbucket

_LOGGER = logging.getLogger(__name__)


class ClusterMembers:
    """The members of one bucket's cluster. ``ProducerCluster`` documents the orders.

    The loop calls ``opened``, ``ending`` and ``follow_map``; any thread may call the rest. Calls
    from other threads return when the work is done. An order over one of a node's own connections
    cannot wait: its work runs after the answer is sent.
    """

    def __init__(self, nodes: ClusterNodes, bucket: ProducerBucket) -> None:
        self._nodes, self._loop, self._bucket = nodes, nodes.loop, bucket
        self._replication = Replication(self._bucket, self._awake)
        self._rebalances = RebalanceOrders(self._bucket, self._awake, nodes.push_map, self._leave)
        nodes.on_map_changed.add(self.follow_map)
        if self._bucket.writes.flusher is not None:
            self._bucket.writes.flusher.on_written.add(self._written)

    def _awake(self, node: int) -> asyncio.Event:
        return self._nodes.at(node).awake

    # --- beside the nodes, in the loop

    def opened(self) -> dict[str, Work]:
        self._replication.start()
        self.follow_map()
        bucket = self._bucket
        watch = partial(watch_waits, bucket.sync_writes, bucket.lock, self._loop.call_soon)
        works: dict[str, Work] = {"watch of durable writes": watch}
        if bucket.settings.expiry_pager_seconds > 0:
            works["expiry pager"] = self._page_expiries
        return works

    async def _page_expiries(self) -> None:
        while True:
            await asyncio.sleep(self._bucket.settings.expiry_pager_seconds)
            with self._bucket.lock:
                self._bucket.expire_due(self._bucket.now())

    async def ending(self) -> None:
        await self._rebalances.stop()
        await self._replication.stop()

    def _written(self, vbucket: Vbucket) -> None:
        # Any thread may write to disk and call this.
        self._loop.call_soon(partial(self._stored, vbucket))

    def _stored(self, vbucket: Vbucket) -> None:
        with self._bucket.lock:
            self._replication.stored(vbucket)

    def follow_map(self) -> None:
        with self._bucket.lock:
            for node, vbucket in self._bucket.replicas.follow(self._bucket.map):
                self._bucket.dcp_connections.end_streams(vbucket, node)
            self._save_replicas()
            self._replication.reconcile()
            self._bucket.table.replicas_moved.notify_all()

    def _save_replicas(self) -> None:
        """Save the list of replicas: after a power loss only listed replicas keep their logs."""
        try:
            self._bucket.save()
        except OSError as error:
            _LOGGER.warning("replicas: the list of replicas cannot be saved: %s", error)

    # --- nodes

    def add_node(self) -> int:
        if self._loop.is_inside:
            return self._nodes.add()
        added: list[int] = []
        self._loop.call(now(lambda: added.append(self._nodes.add())))
        return added[0]

    def kill_node(self, node: int) -> None:
        """Mark a node as down; it stays a member."""
        members = self._bucket.map
        members.require_node(node)
        if self._loop.is_inside and set(range(members.node_count)) - members.down_nodes <= {node}:
            raise ValueError(
                f"kill {members.name_of(node)}: found no other running node, expected one to take "
                "the order to restore it"
            )
        self._end(node)
        with self._bucket.lock:
            members.down_nodes.add(node)
        self._loop.call_soon(self.follow_map)

    def _end(self, node: int) -> None:
        gone = self._nodes.at(node)
        self._loop.call(gone.leave() if self._loop.is_inside else gone.kill())

    def refuse_node(self, node: int) -> None:
        self._bucket.map.require_node(node)
        self._loop.call(now(self._nodes.at(node).close_ports))

    def hang_node(self, node: int) -> None:
        self._bucket.map.require_node(node)
        self._loop.call(now(self._nodes.at(node).awake.clear))

    def restore_node(self, node: int) -> None:
        self._bucket.map.require_node(node)
        if self._loop.is_inside:
            self._work_again(node)
        elif self._loop.is_running:
            self._loop.call(now(partial(self._work_again, node)))
        try:
            self._take_in(node)
        except OSError:
            # The map could not be saved, so the node is no member.
            if self._loop.is_running:
                self._end(node)
            raise
        self._loop.call_soon(self.follow_map)

    def _work_again(self, node: int) -> None:
        restored = self._nodes.at(node)
        restored.awake.set()
        restored.listen()

    def _take_in(self, node: int) -> None:
        with self._bucket.lock:
            self._nodes.tell_addresses()
            if self._bucket.map.is_member(node):
                self._bucket.map.down_nodes.discard(node)
                return
            with self._bucket.changing_map():
                self._bucket.map.join(node)
            self._bucket.map.down_nodes.discard(node)
            self._bucket.replicas.follow(self._bucket.map)
            self._save_replicas()
            self._loop.call_soon(self._nodes.push_map)

    def end_node(self, node: int, act: Callable[[], None]) -> None:
        """Call ``act`` while the node's connections send nothing, then end the node, if it runs."""
        self._bucket.map.require_node(node)
        if not self._loop.is_running:
            with self._bucket.lock:
                act()
        elif self._loop.is_inside:
            act()
            self._nodes.at(node).fall_silent()
            self._loop.call(self._leave(node))
        else:
            self._loop.call(self._act_and_kill(node, act))

    async def _act_and_kill(self, node: int, act: Callable[[], None]) -> None:
        gone = self._nodes.at(node)
        with self._bucket.lock:
            act()
            gone.fall_silent()
        await gone.kill()
        self._nodes.push_map()

    async def _leave(self, node: int) -> None:
        await self._nodes.at(node).leave()
        self._nodes.push_map()

    # --- vbuckets

    @property
    def rebalance_state(self) -> str:
        return self._rebalances.state

    def rebalance(self, remove: int | None, timeout_seconds: float) -> None:
        if not self._loop.is_running:
            raise LocalProtocolError("producer: it does not run")
        if self._loop.is_inside:
            # An order over the protocol runs in the loop, and must not block it.
            timeout_seconds = self._bucket.settings.rebalance_timeout_seconds
            self._loop.call(_log_failure(self._rebalances.begin(remove, timeout_seconds)))
            return
        work = self._rebalances.begin(remove, timeout_seconds)
        self._loop.begin(work).result()

    def give_up_rebalance(self, why: str) -> None:
        """End the running rebalance, if any, soon; see ``wait_for_rebalance``."""
        self._rebalances.give_up(why)

    def wait_for_rebalance(self) -> None:
        """Return when no rebalance runs; at once in the loop, which must not wait."""
        if self._loop.is_running and not self._loop.is_inside:
            self._loop.call(self._rebalances.over())


async def _log_failure(work: Coroutine[Any, Any, None]) -> None:
    try:
        await work
    except (SourceError, OSError) as error:  # TimeoutError is one
        _LOGGER.warning("%s", error)
