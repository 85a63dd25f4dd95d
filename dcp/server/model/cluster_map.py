"""The cluster map as the producer serves it, and its JSON for clients.

The JSON is Couchbase's terse bucket configuration, with the fields that the Java client and
gocbcore read.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from dcp.server.model.bucket_type import BucketType

ABSENT: Final = -1
"""In a map's row: a replica that has no node."""
EPOCH: Final = 1
_CAPABILITIES: Final = ("collections", "durableWrite", "cccp", "dcp", "nodesExt", "xattr")


def replicas_behind(owner: int, members: Sequence[bool], count: int) -> list[int]:
    """Return the nodes of ``count`` replicas: the members after the owner, by number, as in a ring.

    ``ABSENT`` fills the row if there are too few members.
    """
    nodes = len(members)
    ring = ((owner + step) % nodes for step in range(1, nodes))
    found = [node for node in ring if members[node]][:count]
    return found + [ABSENT] * (count - len(found))


@dataclass(frozen=True, slots=True)
class NodePorts:
    """A node's address and ports; ``mgmt`` is HTTP.

    Clients tell nodes apart by their manager ports, so each node has its own.
    """

    host: str = "127.0.0.1"
    kv: int = 0
    mgmt: int = 0
    kv_tls: int | None = None
    mgmt_tls: int | None = None
    external_host: str = ""
    """The node's name for clients outside its network; empty: none."""

    def at(self, port: int | None) -> str:
        return f"[{self.host}]:{port}" if ":" in self.host else f"{self.host}:{port}"

    def services(self) -> dict[str, int]:
        """Return the ports under their names in the map's JSON."""
        named = {
            "mgmt": self.mgmt,
            "mgmtSSL": self.mgmt_tls,
            "kv": self.kv,
            "kvSSL": self.kv_tls,
        }
        return {name: port for name, port in named.items() if port is not None}


class ServedClusterMap:
    """Owners and replicas of vbuckets; a node's id is its index in the list of addresses.

    A node that was failed over keeps its id, but leaves the JSON until it joins again. The map
    names ``replica_count`` replicas of each vbucket, some of them perhaps ``ABSENT``. Its version
    (``EPOCH``, ``rev``) grows with every change.
    """

    def __init__(
        self,
        bucket: str,
        bucket_uuid: str,
        nodes: int,
        vbuckets: int,
        replica_count: int = 0,
        bucket_type: BucketType = BucketType.COUCHBASE,
        cluster_uuid: str = "",
    ) -> None:
        self.bucket = bucket
        self.bucket_uuid = bucket_uuid
        self.cluster_uuid = cluster_uuid
        self.bucket_type = bucket_type
        self.rev = 1
        # Each node owns one run of consecutive vbuckets, of even size.
        self._owners = [vbucket * nodes // vbuckets for vbucket in range(vbuckets)]
        self._addresses = [NodePorts()] * nodes
        self._members = [True] * nodes
        self.down_nodes: set[int] = set()
        """Nodes that do not run; clients do not see this."""
        self.replica_count = replica_count
        self._replicas = self._placed()
        self._json: dict[int, bytes] = {}

    @property
    def node_count(self) -> int:
        return len(self._addresses)

    @property
    def addresses(self) -> Sequence[NodePorts]:
        return self._addresses

    @property
    def owners(self) -> Sequence[int]:
        return tuple(self._owners)

    @property
    def members(self) -> Sequence[bool]:
        return tuple(self._members)

    @property
    def rows(self) -> Sequence[Sequence[int]]:
        return tuple(tuple(row) for row in self._replicas)

    @contextmanager
    def changing(self) -> Iterator[None]:
        """Restore the map if the block raises."""
        before = self._addresses, self._members, self._owners, self._replicas, self.rev
        self._addresses, self._members = list(self._addresses), list(self._members)
        self._owners, self._replicas = list(self._owners), [list(row) for row in self._replicas]
        try:
            yield
        except BaseException:
            self._addresses, self._members, self._owners, self._replicas, self.rev = before
            self._json.clear()
            raise

    def reopen(
        self,
        owners: Sequence[int],
        members: Sequence[bool],
        rows: Sequence[Sequence[int]],
        rev: int,
    ) -> None:
        """Restore a saved map in a new revision; place replicas anew if their number changed."""
        self._owners, self._members, self.rev = list(owners), list(members), rev
        self._replicas = [list(row) for row in rows]
        if any(len(row) != self.replica_count for row in rows):
            self._replicas = self._placed()
        self._json.clear()

    def owner(self, vbucket: int) -> int | None:
        return self._owners[vbucket] if 0 <= vbucket < len(self._owners) else None

    def vbuckets_of(self, node: int) -> list[int]:
        return [vbucket for vbucket, owner in enumerate(self._owners) if owner == node]

    def replica_nodes(self, vbucket: int) -> list[int]:
        """Return the nodes that hold a replica of ``vbucket``; a failover promotes the first."""
        return [node for node in self._replicas[vbucket] if node != ABSENT]

    def is_member(self, node: int) -> bool:
        return self._members[node]

    def require_node(self, node: int) -> None:
        if not 0 <= node < self.node_count:
            raise ValueError(f"node index {node}: found none, expected 0 to {self.node_count - 1}")

    def name_of(self, node: int) -> str:
        """Return a node's name for messages: its number, from 1, and its address."""
        address = self._addresses[node]
        return f"node {node + 1} of {self.node_count} ({address.host}:{address.kv})"

    def set_addresses(self, addresses: Sequence[NodePorts]) -> None:
        """Set the nodes' addresses once they listen; the revision stays."""
        self._addresses = list(addresses)
        self._json.clear()

    def move(self, vbucket: int, node: int) -> None:
        """Give ``vbucket`` to ``node``, in a new revision.

        Raises ValueError if the node is no member of the cluster.
        """
        if not 0 <= node < self.node_count:
            raise ValueError(f"move vbucket {vbucket}: found node {node} of {self.node_count}")
        if not self._members[node]:
            raise ValueError(
                f"move vbucket {vbucket}: {self.name_of(node)} is no member of the cluster"
            )
        before, self._owners[vbucket] = self._owners[vbucket], node
        # If the new owner held a replica, the old owner holds it from now on.
        row = self._replicas[vbucket]
        self._replicas[vbucket] = [before if each == node else each for each in row]
        self._changed()

    def fail_over(self, node: int, to: Mapping[int, int]) -> None:
        """Remove ``node`` and give its vbuckets to the nodes in ``to``, in a new revision.

        Replicas that it held, or that become owners, are absent until a node joins.
        """
        for vbucket, owner in to.items():
            self._owners[vbucket] = owner
        for vbucket, owner in enumerate(self._owners):
            left = [each for each in self.replica_nodes(vbucket) if each not in (node, owner)]
            self._replicas[vbucket] = left + [ABSENT] * (self.replica_count - len(left))
        self._members[node] = False
        self._changed()

    def join(self, node: int) -> None:
        """Take ``node`` back, in a new revision; it owns nothing, and holds absent replicas."""
        self._members[node] = True
        for row in self._replicas:
            if ABSENT in row:
                row[row.index(ABSENT)] = node
        self._changed()

    def add(self, address: NodePorts) -> int:
        """Add a new node without vbuckets or replicas, in a new revision; return its id."""
        self._addresses.append(address)
        self._members.append(True)
        self._changed()
        return self.node_count - 1

    def place(self, members: Sequence[int]) -> None:
        """Let exactly ``members`` be members, and place all replicas anew, in a new revision."""
        self._members = [node in members for node in range(self.node_count)]
        self._replicas = self._placed()
        self._changed()

    def _placed(self) -> list[list[int]]:
        return [replicas_behind(o, self._members, self.replica_count) for o in self._owners]

    def _changed(self) -> None:
        self.rev += 1
        self._json.clear()

    def is_known_to(self, epoch: int | None, rev: int | None) -> bool:
        """Return True if a client that holds (epoch, rev) needs no newer map."""
        return epoch is not None and rev is not None and (epoch, rev) >= (EPOCH, self.rev)

    def as_json(self, node: int) -> bytes:
        """Return the map's JSON as ``node`` sends it: it marks the node as ``thisNode``."""
        if node not in self._json:
            self._json[node] = json.dumps(self._tree(node), separators=(",", ":")).encode()
        return self._json[node]

    def without_bucket_as_json(self, node: int) -> bytes:
        """Return the JSON for a client without a bucket: nodes, but no vbuckets."""
        tree = {"rev": self.rev, "revEpoch": EPOCH, "nodesExt": self._extended(node)}
        return json.dumps(tree, separators=(",", ":")).encode()

    @property
    def _member_nodes(self) -> list[int]:
        return [node for node, is_member in enumerate(self._members) if is_member]

    def _extended(self, this_node: int) -> list[dict[str, object]]:
        extended: list[dict[str, object]] = []
        for node in self._member_nodes:
            address = self._addresses[node]
            services = address.services()
            entry: dict[str, object] = {"services": services, "hostname": address.host}
            if address.external_host:
                external = {"hostname": address.external_host, "ports": services}
                entry["alternateAddresses"] = {"external": external}
            extended.append(entry | ({"thisNode": True} if node == this_node else {}))
        return extended

    def _tree(self, this_node: int) -> dict[str, object]:
        members = self._member_nodes
        place = {node: index for index, node in enumerate(members)}
        addresses = [self._addresses[node] for node in members]
        # Servers below 7.6 have no such field.
        cluster = {"clusterUUID": self.cluster_uuid} if self.cluster_uuid else {}
        return {
            **cluster,
            "rev": self.rev,
            "revEpoch": EPOCH,
            "name": self.bucket,
            "bucketType": self.bucket_type.client_name,
            "uuid": self.bucket_uuid,
            "nodeLocator": "vbucket",
            "bucketCapabilities": _CAPABILITIES,
            "nodes": [{"hostname": address.at(address.mgmt)} for address in addresses],
            "nodesExt": self._extended(this_node),
            "vBucketServerMap": {
                "hashAlgorithm": "CRC",
                "numReplicas": self.replica_count,
                "serverList": [address.at(address.kv) for address in addresses],
                "vBucketMap": [
                    [place[owner], *(place.get(node, ABSENT) for node in row)]
                    for owner, row in zip(self._owners, self._replicas, strict=True)
                ],
            },
        }
