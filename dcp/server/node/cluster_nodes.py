"""Runs the nodes of a cluster in a thread of their own: start, faults, map notifications."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

from dcp.server.bucket.bucket_assembly import Bucket
from dcp.server.commands.session import CommandHandler
from dcp.server.model.cluster_map import NodePorts
from dcp.server.model.cluster_settings import ClusterSettings
from dcp.server.model.listeners import Listeners
from dcp.server.node.loop_thread import LoopThread, now
from dcp.server.node.server import Node
from dcp.server.node.turns import Turns
from dcp.server.replication.background import ended

_WATCH_SECONDS: Final = 0.5
"""Interval of the search for clients that broke a time limit."""


class ClusterNodes:
    """Nodes, by index from 0, that serve one bucket.

    Calls from other threads return when the work is done. An order over one of the node's own
    connections cannot wait: its work runs after the answer is sent.
    """

    def __init__(
        self,
        bucket: Bucket,
        commands: Mapping[int, CommandHandler],
        shown_host: str | None = None,
    ) -> None:
        """``shown_host`` replaces the nodes' host in the cluster map."""
        self.bucket = bucket
        self.loop = LoopThread("producer cluster")
        self.on_map_changed: Listeners[[]] = Listeners()
        """Called in the loop after clients were sent a new map."""
        self._commands, self._shown_host = commands, shown_host
        settings = self.bucket.settings
        self._tls = settings.tls.context() if settings.tls else None
        self._nodes: dict[int, Node] = {}
        self._turns = Turns()
        bucket.changes.listeners.add(self._changes_are_waiting)

    def at(self, node: int) -> Node:
        return self._nodes[node]

    # --- life

    async def open(self) -> None:
        """Listen on the ports of the settings; after a stop, on the same ports again.

        Raises:
            OSError: a port is taken, or the host is not ours.
        """
        self._turns = Turns()  # turns belong to one loop
        addresses = {number: node.address for number, node in self._nodes.items()}
        addresses = addresses or dict(enumerate(_addresses_to_take(self.bucket.settings)))
        nodes = {number: self._node(number, address) for number, address in addresses.items()}
        try:
            for number, node in nodes.items():
                if self.bucket.map.is_member(number):
                    node.listen()
                    self.bucket.map.dead_nodes.discard(number)
        except BaseException:
            for node in nodes.values():
                await node.kill()
                node.leave_ports()
            raise
        self._nodes = nodes
        self.tell_addresses()
        self._changes_are_waiting()  # changes that came before the start

    def _node(self, number: int, address: NodePorts) -> Node:
        return Node(self.bucket, number, address, self._tls, self._turns, self._commands)

    def tell_addresses(self) -> None:
        """Write the nodes' real ports to the map: port 0 is known only after listening."""
        found = list(self.bucket.map.addresses)
        for number, node in self._nodes.items():
            found[number] = self._shown_address(node)
        self.bucket.map.set_addresses(found)

    def _shown_address(self, node: Node) -> NodePorts:
        address = replace(node.address, external_host=self.bucket.settings.external_host)
        return address if self._shown_host is None else replace(address, host=self._shown_host)

    def add(self) -> int:
        """Start a node on free ports, add it to the map, and return it; only in the loop.

        Raises:
            OSError: no port is free, or the data folder cannot be written; no node was added.
        """
        tls_port = None if self._tls is None else 0
        address = NodePorts(self.bucket.settings.host, 0, 0, tls_port, tls_port)
        added = self.bucket.map.node_count
        node = self._node(added, address)
        node.listen()
        try:
            with self.bucket.lock, self.bucket.changing_map():
                self.bucket.map.add(self._shown_address(node))
        except BaseException:
            node.close_ports()
            node.leave_ports()
            raise
        self._nodes[added] = node
        self.loop.call_soon(self.push_map)
        return added

    async def close(self) -> None:
        """Close all connections, after their last answers, and all ports."""
        # An order over one of the connections may still be under way.
        await self.loop.drained()
        leaving = [asyncio.ensure_future(node.leave()) for node in self._nodes.values()]
        try:
            await ended("end of a node", *leaving)
        finally:
            for node in self._nodes.values():
                node.leave_ports()

    # --- faults

    def drop_connections(self, node: int | None) -> None:
        """Close all connections to ``node``, or with None to all nodes.

        Raises:
            ValueError: no such node. All methods below raise it, too.
        """
        if node is not None:
            self.bucket.map.require_node(node)
        for one in self._nodes.values() if node is None else [self._nodes[node]]:
            self.loop.call(one.drop_connections())

    def kill(self, node: int) -> None:
        """Close a node's ports and connections.

        Raises:
            ValueError: no such node; or the order came over the last living node, and nobody could
                restore it.
        """
        self.bucket.map.require_node(node)
        if self.loop.is_inside and not self._nodes.keys() - self.bucket.map.dead_nodes - {node}:
            raise ValueError(
                f"kill {self.bucket.map.name_of(node)}: found no other living node, expected one "
                "to take the order to restore it"
            )
        self._end(node)

    def _end(self, node: int) -> None:
        gone = self._nodes[node]
        self.loop.call(gone.leave() if self.loop.is_inside else gone.kill())

    def refuse(self, node: int) -> None:
        """Close a node's ports; its connections go on."""
        self.bucket.map.require_node(node)
        self.loop.call(now(self._nodes[node].close_ports))

    def hang(self, node: int) -> None:
        """Let a node stop reading and answering, with everything open."""
        self.bucket.map.require_node(node)
        self.loop.call(now(self._nodes[node].hang))

    def restore(self, node: int) -> None:
        """Undo any fault of a node, on the same ports."""
        if self.loop.is_inside:
            self._nodes[node].restore()
        elif self.loop.is_running:
            self.loop.call(now(self._nodes[node].restore))

    def take_down(self, node: int) -> None:
        """End a node whose restoration failed."""
        if self.loop.is_running:
            self._end(node)

    def end(self, node: int, act: Callable[[Node | None], None]) -> None:
        """Call ``act`` while no connection sends anything, then end the node.

        ``act`` gets None if the nodes do not run.
        """
        self.bucket.map.require_node(node)
        if not self.loop.is_running:
            with self.bucket.lock:
                act(None)
        elif self.loop.is_inside:
            act(self._nodes[node])
            self.loop.call(self.leave(node))
        else:
            self.loop.call(self._act_and_kill(node, act))

    async def _act_and_kill(self, node: int, act: Callable[[Node | None], None]) -> None:
        with self.bucket.lock:
            act(self._nodes[node])
        await self._nodes[node].kill()
        self.push_map()

    async def leave(self, node: int) -> None:
        await self._nodes[node].leave()
        self.push_map()

    # --- news

    async def watch_connections(self) -> None:
        while True:
            await asyncio.sleep(_WATCH_SECONDS)
            with self.bucket.lock:
                for node in self._nodes.values():
                    node.close_overdue(asyncio.get_running_loop().time())

    def _changes_are_waiting(self) -> None:
        self.loop.call_soon(self._spread_changes)

    def _spread_changes(self) -> None:
        with self.bucket.lock:
            changed = self.bucket.changes.collect()
            for node in self._nodes.values():
                node.vbuckets_changed(changed)

    def push_map(self) -> None:
        """Send the new map to clients and listeners; only in the loop."""
        with self.bucket.lock:
            for node in self._nodes.values():
                node.push_map()
        self.on_map_changed()


def _addresses_to_take(settings: ClusterSettings) -> list[NodePorts]:
    free = (0,) * settings.nodes
    plain = zip(settings.ports or free, settings.http_ports or free, strict=True)
    if settings.tls is None:
        return [NodePorts(settings.host, *ports) for ports in plain]
    encrypted = zip(settings.tls_ports or free, settings.https_ports or free, strict=True)
    return [
        NodePorts(settings.host, *ports, *tls_ports)
        for ports, tls_ports in zip(plain, encrypted, strict=True)
    ]
