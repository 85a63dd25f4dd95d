"""The data nodes that a lake remembers: its drivers ask them if no seed answers.

A node with another bucket is ignored: the address may belong to another cluster.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from dcp.client.cluster_map import ClusterMap
from dcp.client.settings import ConnectionSettings
from dcp.errors import DcplakeError, NodeUnavailableError
from dcp.lake.store.lake_store import LakeStore
from dcp.lake.tables.lake_tables import LakeIdentity, LakeTables, find_lake
from dcp.seeds import AUTO_NETWORK, ConnectionString


@dataclass(frozen=True, slots=True)
class RememberedNodes:
    """The nodes of a lake's bucket, from the newest map that a driver of the lake saw."""

    connection_string: str
    """It names the network and the encryption of the addresses."""
    identity: LakeIdentity

    @classmethod
    def of(cls, lake: LakeTables) -> "RememberedNodes | None":
        return cls(lake.nodes, lake.identity) if lake.nodes else None

    def connection_settings(self, settings: ConnectionSettings) -> ConnectionSettings | None:
        """Return settings that connect to them; None if ``settings`` want other addresses."""
        parsed = ConnectionString.parse([self.connection_string])
        is_same_kind = parsed.tls == (settings.tls is not None)
        if not is_same_kind or settings.network not in (AUTO_NETWORK, parsed.network):
            return None
        return replace(settings, network=parsed.network)

    def require_same_bucket(self, found: ClusterMap) -> None:
        """Refuse the answer of a node of another cluster.

        Raises:
            NodeUnavailableError: the node has another bucket.
        """
        theirs = self.identity.in_cluster(found)
        if difference := self.identity.difference(theirs):
            raise NodeUnavailableError(
                f"{self.connection_string}, which the lake remembers: found {difference} "
                f"{getattr(theirs, difference)!r}, expected {getattr(self.identity, difference)!r}"
            )


def remembered_nodes(store: LakeStore, bucket: str) -> Callable[[], RememberedNodes | None]:
    """Return a function that reads the nodes that the lake of a store remembers.

    The function returns None if the lake cannot be read. It raises LakeError if the lake holds
    another bucket.
    """

    def read() -> RememberedNodes | None:
        try:
            lake = find_lake(store)
        except DcplakeError:  # whoever opens the lake tells
            return None
        if lake is None:
            return None
        lake.identity.require_same(replace(lake.identity, bucket=bucket), str(store.location))
        return RememberedNodes.of(lake)

    return read


def remembered_text(found: ClusterMap, *, tls: bool) -> str:
    if not found.addresses:
        return ""
    nodes = ",".join(map(str, sorted(set(found.addresses))))
    return f"couchbase{'s' if tls else ''}://{nodes}?network={found.network}"
