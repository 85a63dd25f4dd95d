"""Runs the nodes of a cluster in a thread of their own: start, end, map notifications."""

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from dcp.server.bucket.assembly import Bucket
from dcp.server.commands.session import CommandHandler
from dcp.server.model.cluster_map import NodePorts
from dcp.server.model.listeners import Listeners
from dcp.server.model.server_settings import ServerSettings
from dcp.server.node.loop_thread import LoopThread
from dcp.server.node.server import Node
from dcp.server.node.turns import Turns
from dcp.server.replication.background import ended

_WATCH_SECONDS: Final = 0.5
"""Interval of the search for clients that broke a time limit."""


class ClusterNodes:
    """Nodes, by index from 0, that serve one bucket."""

    def __init__(
        self,
        bucket: Bucket,
        commands: Mapping[int, CommandHandler],
        shown_host: str | None = None,
    ) -> None:
        """``shown_host`` replaces the nodes' host in the cluster map."""
        self.bucket = bucket
        self.loop = LoopThread(bucket.settings.subject.strip())
        self.on_map_changed: Listeners[[]] = Listeners()
        """Called in the loop after clients were sent a new map."""
        self._commands, self._shown_host = commands, shown_host
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
                    self.bucket.map.down_nodes.discard(number)
        except BaseException:
            for node in nodes.values():
                await node.kill()
                node.leave_ports()
            raise
        self._nodes = nodes
        self.tell_addresses()
        self._changes_are_waiting()  # changes that came before the start

    def _node(self, number: int, address: NodePorts) -> Node:
        return Node(self.bucket, number, address, self._turns, self._commands)

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
        tls_port = None if self.bucket.tls is None else 0
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

    def drop_connections(self, node: int | None) -> None:
        """Close all connections to ``node``, or with None to all nodes.

        Raises:
            ValueError: no such node.
        """
        if node is not None:
            self.bucket.map.require_node(node)
        for one in self._nodes.values() if node is None else [self._nodes[node]]:
            self.loop.call(one.drop_connections())

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


def _addresses_to_take(settings: ServerSettings) -> list[NodePorts]:
    kv, mgmt, kv_tls, mgmt_tls = settings.first_ports
    return [
        NodePorts(
            settings.host,
            kv and kv + node,
            mgmt and mgmt + node,
            kv_tls and kv_tls + node,
            mgmt_tls and mgmt_tls + node,
        )
        for node in range(settings.nodes)
    ]
