"""What the first process of a cluster tells the others: the map, the members, the manifest, whole.

A state has a number that grows with every change; it goes over the wire as JSON. Whoever has one
needs none of those before it.
"""

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Self, cast

from dcp.errors import RemoteProtocolError
from dcp.producer.bucket_type import BucketType
from dcp.producer.cluster_map import NodeAddress
from dcp.producer.manifest import Manifest
from dcp.producer.manifest_table import ManifestTable
from dcp.producer.resume_rules import Rules
from dcp.protocol.credentials import Secret
from dcp.wire.json_tree import json_tree

if TYPE_CHECKING:
    from dcp.producer.bucket import Bucket


@dataclass(frozen=True, slots=True)
class ClusterState:
    """A cluster as its first process has it; nodes are indexes.

    ``home`` are the nodes of the first process, ``dead`` those that do not answer it, ``moving``
    the vbuckets that a rebalance moves now, ``rows`` the nodes of each vbucket's copies.
    """

    number: int
    bucket_uuid: str
    bucket_type: BucketType
    rules: Rules
    rev: int
    addresses: tuple[NodeAddress, ...]
    members: tuple[bool, ...]
    owners: tuple[int, ...]
    rows: tuple[tuple[int, ...], ...]
    manifest: Manifest
    is_paused: bool
    home: frozenset[int]
    dead: frozenset[int]
    moving: frozenset[int]

    @classmethod
    def of(cls, bucket: "Bucket", number: int) -> Self:
        """Return what a bucket has now; its lock is held."""
        found = bucket.map
        return cls(
            number,
            found.bucket_uuid,
            found.bucket_type,
            bucket.settings.rules,
            found.rev,
            tuple(found.addresses),
            tuple(found.members),
            tuple(found.owners),
            tuple(tuple(row) for row in found.rows),
            bucket.manifest,
            bucket.replicas.is_paused,
            frozenset(bucket.local_nodes),
            frozenset(bucket.dead_nodes),
            bucket.moving,
        )

    @property
    def replica_count(self) -> int:
        """How many copies of each vbucket there should be."""
        return len(self.rows[0])

    @property
    def first_address(self) -> str:
        """``host:port`` of a node of the first process, one that lives if there is any."""
        node = min(self.home - self.dead, default=min(self.home))
        address = self.addresses[node]
        return address.at(address.kv)

    def tree(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        table = ManifestTable()
        table.add(self.manifest)
        return {
            "number": self.number,
            "uuid": self.bucket_uuid,
            "type": self.bucket_type.value,
            "rules": self.rules,
            "rev": self.rev,
            "addresses": [asdict(address) for address in self.addresses],
            "members": self.members,
            "owners": self.owners,
            "rows": self.rows,
            "manifests": table.rows,
            "paused": self.is_paused,
            "home": sorted(self.home),
            "dead": sorted(self.dead),
            "moving": sorted(self.moving),
        }

    def encode(self) -> bytes:
        """Return the JSON."""
        return json.dumps(self.tree(), separators=(",", ":")).encode()

    @classmethod
    def of_tree(cls, tree: Any) -> Self:
        """Return what ``tree`` made of it.

        Raises:
            RemoteProtocolError: it is malformed.
        """
        try:
            rows = tree["manifests"]
            return cls(
                tree["number"],
                tree["uuid"],
                BucketType(tree["type"]),
                cast("Rules", tree["rules"]),
                tree["rev"],
                tuple(NodeAddress(**address) for address in tree["addresses"]),
                tuple(tree["members"]),
                tuple(tree["owners"]),
                tuple(tuple(row) for row in tree["rows"]),
                ManifestTable(rows)[len(rows)],
                tree["paused"],
                frozenset(tree["home"]),
                frozenset(tree["dead"]),
                frozenset(tree["moving"]),
            )
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise RemoteProtocolError(f"state of the cluster: malformed: {error!r}") from error

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Return what ``encode`` made of it.

        Raises:
            RemoteProtocolError: it is malformed.
        """
        try:
            tree = json_tree(data)
        except ValueError as error:
            raise RemoteProtocolError(f"state of the cluster: malformed: {error}") from error
        return cls.of_tree(tree)


@dataclass(frozen=True, slots=True)
class Invitation:
    """What a process needs to be a part of a cluster: its state, and how nodes sign in."""

    state: ClusterState
    password: Secret

    def encode(self) -> bytes:
        """Return the JSON; it has the password."""
        tree = {"state": self.state.tree(), "password": self.password.reveal()}
        return json.dumps(tree, separators=(",", ":")).encode()

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Return what ``encode`` made of it.

        Raises:
            RemoteProtocolError: it is malformed; the message does not tell what was found.
        """
        try:
            tree = json_tree(data)
            return cls(ClusterState.of_tree(tree["state"]), Secret(str(tree["password"])))
        except (ValueError, KeyError, TypeError):
            raise RemoteProtocolError("invitation to a cluster: malformed") from None
