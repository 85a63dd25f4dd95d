"""Who belongs to a cluster, of this process and of others, and how vbuckets and copies get there.

Runs beside the nodes (``Companion``): connections to other processes, feeds of the replicas, and
the rebalance that is under way all follow the map from here.
"""

import asyncio
import logging
from collections.abc import Coroutine
from functools import partial
from typing import Any

from dcp.errors import LocalProtocolError, SourceError
from dcp.producer.cluster_map import NodeAddress
from dcp.producer.cluster_nodes import ClusterNodes
from dcp.producer.cluster_state import ClusterState, Invitation
from dcp.producer.loop_thread import now
from dcp.producer.member_links import MemberLinks
from dcp.producer.rebalance_orders import RebalanceOrders
from dcp.producer.replication import Replication
from dcp.producer.stream_ends import end_streams
from dcp.producer.vbucket import Vbucket

_LOG = logging.getLogger(__name__)


class ClusterMembers:
    """The members of one bucket's cluster; all but what says so is for any thread."""

    def __init__(self, nodes: ClusterNodes) -> None:
        self._nodes, self._loop, self._bucket = nodes, nodes.loop, nodes.bucket
        nodes.on_map_changed = self._map_changed
        self._links = MemberLinks(self._bucket, nodes.push_map)
        self._replication = Replication(self._bucket, self._awake)
        self._rebalances = RebalanceOrders(
            self._bucket, self._awake, self._links, nodes.push_map, nodes.leave
        )

    def _awake(self, node: int) -> asyncio.Event:
        return self._nodes.at(node).awake

    # --- beside the nodes, in the loop

    async def opening(self) -> None:
        """Do nothing yet."""

    def opened(self) -> None:
        """Find the other processes, and feed the copies."""
        bucket = self._bucket
        for node in range(bucket.map.node_count):
            if not (bucket.led_by or bucket.is_local(node)):
                self._links.add(node)
        self._replication.start()
        self.follow_map()
        if bucket.flusher is not None:
            bucket.flusher.on_written = self._written
        bucket.collections.on_change = lambda: self._loop.call_soon(self._links.wake)

    async def ending(self) -> None:
        """Give up a rebalance, and end all connections to other nodes."""
        await self._rebalances.stop()
        await self._links.stop()
        await self._replication.stop()

    def _written(self, vbucket: Vbucket) -> None:
        self._bucket.stored(vbucket)
        self._loop.call_soon(partial(self._stored, vbucket))

    def _stored(self, vbucket: Vbucket) -> None:
        with self._bucket.lock:
            self._replication.stored(vbucket)

    def _map_changed(self) -> None:
        self._links.wake()
        self.follow_map()

    def follow_map(self) -> None:
        """Let copies be where the map has them, and be fed by those that own them. In the loop."""
        with self._bucket.lock:
            for node, vbucket in self._bucket.copies.follow(self._bucket.map):
                end_streams(self._bucket, vbucket, node)
            self._save_copies()
            self._replication.reconcile()
            self._bucket.copies_moved.notify_all()

    def _save_copies(self) -> None:
        """Have on disk which logs are whose copies; those of others are lost in a power loss."""
        try:
            self._bucket.save()
        except OSError as error:
            _LOG.warning("copies: it cannot be saved which there are: %s", error)

    # --- nodes of this process

    def add_node(self) -> int:
        """Start a node on free ports; see ``ProducerCluster``, also for what is below."""
        self._bucket.require_first("add node")
        if self._loop.is_inside:
            return self._nodes.add()
        added: list[int] = []
        self._loop.call(now(lambda: added.append(self._nodes.add())))
        return added[0]

    def kill_node(self, node: int) -> None:
        """Let a node be dead; it stays a member."""
        self._nodes.kill(node)
        with self._bucket.lock:
            self._bucket.dead_nodes.add(node)
        self._loop.call_soon(self.follow_map)

    def restore_node(self, node: int) -> None:
        """Let a node live again, and be a member again where it was failed over."""
        self._bucket.map.require_node(node)
        if self._bucket.is_local(node):
            self._nodes.restore(node)
        elif not self.is_heard(node):
            raise ValueError(
                f"restore {self._bucket.map.name_of(node)}: it is in another process, which does "
                "not answer; begin one that joins at that address"
            )
        try:
            self._take_in(node)
        except OSError:
            self._nodes.take_down(node)
            raise
        self._loop.call_soon(self.follow_map)

    def _take_in(self, node: int) -> None:
        with self._bucket.lock:
            self._nodes.tell_addresses()
            if self._bucket.map.is_member(node):
                self._bucket.dead_nodes.discard(node)
                return
            self._bucket.require_first("restore")
            with self._bucket.changing_map():
                self._bucket.map.join(node)
            self._bucket.dead_nodes.discard(node)
            self._bucket.copies.follow(self._bucket.map)
            self._save_copies()
            self._loop.call_soon(self._nodes.push_map)

    # --- nodes of other processes

    def _require_room(self) -> None:
        self._bucket.require_first("join")
        if self._bucket.settings.data_folder is not None:
            raise ValueError(
                "join: found a cluster that keeps its bucket in a data folder, expected one in "
                "memory: other processes have no part of the folder"
            )

    def invitation(self) -> Invitation:
        """Return what a process must know that wants to be a node of this cluster.

        Raises:
            ValueError: another process decides about it, or it is kept in a data folder.
        """
        self._require_room()
        return Invitation(self._links.state(), self._bucket.node_credentials.password)

    def join(self, address: NodeAddress) -> tuple[int, ClusterState]:
        """Take in a node of another process that listens there; it owns nothing yet.

        One that was here before, at the same host and port, has the number that it had. To be
        called in the loop. Returns the node, and the cluster with it.

        Raises:
            ValueError: as ``invitation``; the node is in this process, or the map still says that
                it owns vbuckets, which it has no more.
        """
        self._require_room()
        with self._bucket.lock:
            cluster_map = self._bucket.map
            node = cluster_map.find(address)
            if node is None:
                node = cluster_map.add(address)
            elif self._bucket.is_local(node):
                raise ValueError(f"join: {cluster_map.name_of(node)} is in the first process")
            elif owned := len(cluster_map.vbuckets_of(node)):
                raise ValueError(
                    f"join: {cluster_map.name_of(node)} still owns {owned} vbuckets, which were "
                    "lost with its process; fail it over first"
                )
            else:
                cluster_map.join_again(node, address)
            self._bucket.dead_nodes.discard(node)
        self._links.add(node)
        self._loop.call_soon(self._nodes.push_map)
        return node, self._links.state()

    def is_heard(self, node: int) -> bool:
        """Whether a node of another process answers; ``bucket.copies_moved`` tells of changes."""
        return self._links.is_alive(node)

    def wait_until_told(self, timeout_seconds: float = 10.0) -> None:
        """Return when all other processes that live know the cluster as it is now.

        Raises:
            TimeoutError: they did not answer.
            LocalProtocolError: the cluster does not run.
        """
        self._require_running()
        told = self._loop.begin(self._links.told())
        try:
            told.result(timeout_seconds)
        except TimeoutError:
            told.cancel()
            raise TimeoutError(f"other processes: not told in {timeout_seconds} seconds") from None

    def _require_running(self) -> None:
        if not self._loop.is_running:
            raise LocalProtocolError("producer cluster: it does not run")

    # --- vbuckets

    @property
    def rebalance_state(self) -> str:
        """``none``, ``running``, or ``failed:`` and why, of the last one."""
        return self._rebalances.state

    def rebalance(self, remove: int | None, timeout_seconds: float) -> None:
        """Let all members own evenly many vbuckets, and place the copies anew."""
        self._require_running()
        self._bucket.require_first("rebalance")
        if self._loop.is_inside:
            timeout_seconds = self._bucket.settings.rebalance_timeout_seconds
            self._loop.call(_say_if_it_fails(self._rebalances.begin(remove, timeout_seconds)))
            return
        work = self._rebalances.begin(remove, timeout_seconds)
        self._loop.begin(work).result()

    def give_up_rebalance(self, why: str) -> None:
        """Let the one that runs, if any, be over soon; see ``wait_for_rebalance``."""
        self._rebalances.give_up(why)

    def wait_for_rebalance(self) -> None:
        """Return when one that was given up is over; at once for who cannot wait."""
        if self._loop.is_running and not self._loop.is_inside:
            self._loop.call(self._rebalances.over())


async def _say_if_it_fails(work: Coroutine[Any, Any, None]) -> None:
    try:
        await work
    except (SourceError, OSError) as error:  # TimeoutError is one
        _LOG.warning("%s", error)
