"""How the nodes of a process come into its cluster: those of the first one just listen.

A node of a cluster that another process began asks to be let in (``joining.py``).
"""

from collections.abc import Callable, Mapping
from typing import Protocol

from dcp.producer.bucket import Bucket
from dcp.producer.cluster_map import NodeAddress
from dcp.producer.server import Node
from dcp.producer.settings import ClusterSettings

MakeNode = Callable[[int, NodeAddress], Node]


class Entrance(Protocol):
    """Opened at every start, closed at every stop of a process; in the loop's thread."""

    @property
    def bucket(self) -> Bucket:
        """What the nodes serve."""

    async def open(
        self, known: Mapping[int, Node], make: MakeNode, map_changed: Callable[[], None]
    ) -> dict[int, Node]:
        """Return the nodes, that listen, by number; ``known`` are those of the last start.

        ``map_changed`` is called later on, whenever the map is another one.

        Raises:
            OSError: a port is taken, or the host is not ours.
            SourceError: we are not let in.
        """

    async def close(self) -> None:
        """End what the entrance began; the nodes leave afterwards."""


class OwnEntrance:
    """Of the process that begins a cluster."""

    def __init__(self, bucket: Bucket) -> None:
        self.bucket = bucket

    async def open(
        self, known: Mapping[int, Node], make: MakeNode, _: Callable[[], None]
    ) -> dict[int, Node]:
        """Listen where the settings say; after a stop the nodes come back on their ports."""
        bucket = self.bucket
        addresses = {number: node.address for number, node in known.items()}
        addresses = addresses or dict(enumerate(addresses_to_take(bucket.settings)))
        nodes = {number: make(number, address) for number, address in addresses.items()}
        try:
            for number, node in nodes.items():
                if bucket.map.is_member(number):
                    node.listen()
                    bucket.dead_nodes.discard(number)
        except BaseException:  # also cancelled: it took too long
            for node in nodes.values():
                await node.kill()
                node.leave_ports()
            raise
        return nodes

    async def close(self) -> None:
        """Do nothing: it began nothing."""


def addresses_to_take(settings: ClusterSettings) -> list[NodeAddress]:
    """Return where the settings want nodes to listen; port 0 is any free one."""
    free = (0,) * settings.nodes
    plain = zip(settings.ports or free, settings.http_ports or free, strict=True)
    if settings.tls is None:
        return [NodeAddress(settings.host, *ports) for ports in plain]
    encrypted = zip(settings.tls_ports or free, settings.https_ports or free, strict=True)
    return [
        NodeAddress(settings.host, *ports, *tls_ports)
        for ports, tls_ports in zip(plain, encrypted, strict=True)
    ]
