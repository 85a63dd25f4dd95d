"""Knows how far the copies on other nodes are (``ClusterSettings.replicas``, ``copy_table.py``).

For durable writes a copy is as far as it said on its connection that it holds prepares:
DCP_SEQNO_ACKNOWLEDGED, which it sends for whole snapshots (``acknowledgements.py``). A connection
that is lost takes its word along; the next one says it again.
"""

from collections.abc import Sequence
from typing import Final

from dcp.server.bucket.dcp_connections import DcpConnections
from dcp.server.bucket.vbucket_table import VbucketTable
from dcp.server.model.cluster_map import ServedClusterMap
from dcp.server.vbucket.replication_chain import (
    REPLICATION,
    TAKEOVER,
    CopyProgress,
    connection_name,
)
from dcp.wire.vocabulary import VbucketState

_PURPOSES: Final = (REPLICATION, TAKEOVER)


class Replicas:
    """The copies that the map names; used under the bucket's lock."""

    def __init__(
        self, cluster_map: ServedClusterMap, table: VbucketTable, connections: DcpConnections
    ) -> None:
        self._map, self._table, self._connections = cluster_map, table, connections
        self.is_paused = False
        """True if copies stay at what they hold; feeds follow it: ``replication.py``."""

    def behind(self, vbucket: int) -> Sequence[CopyProgress | None]:
        """Return what the copies acknowledged of durable writes; None is one without a node."""
        found: list[CopyProgress | None] = []
        for node in self._map.replicas(vbucket):
            seqno = max(self._acknowledged(vbucket, node, purpose) for purpose in _PURPOSES)
            found.append(CopyProgress(seqno, seqno))  # it says so only of what is where it must be
        return found + [None] * (self._map.replica_count - len(found))

    def _acknowledged(self, vbucket: int, node: int, purpose: str) -> int:
        owner = self._map.owner(vbucket)
        if owner is None:
            return 0
        name = connection_name(owner, node, self._map.bucket, purpose)
        connection = self._connections.get((owner, name.encode()))
        if connection is None or not connection.is_internal:  # anybody may take the name
            return 0
        return connection.acknowledged(vbucket)

    def kept_seqno(self, vbucket: int) -> int:
        """Return what the copy that would be promoted holds whole; 0 where none lives here."""
        copy = next((copy for _, copy in self._table.living_copies(vbucket)), None)
        return 0 if copy is None else copy.consistent_seqno

    def heirs_of(self, node: int) -> dict[int, int]:
        """Return the next living nodes that have a copy of what the node holds, by vbucket.

        Raises:
            ValueError: none has one of some vbucket.
        """
        found: dict[int, int] = {}
        advice = (
            "restore one, or rebalance"
            if self._map.replica_count
            else "serve the bucket with 1 replica or more (--replicas)"
        )
        for vbucket in self._map.vbuckets_of(node):
            copies = self._map.replicas(vbucket)
            living = [each for each in copies if each not in self._map.dead_nodes]
            if not living:
                raise ValueError(
                    f"failover of {self._map.name_of(node)}: found no living node with a copy of "
                    f"vbucket {vbucket}; {advice}"
                )
            found[vbucket] = living[0]
        return found

    def pause(self) -> None:
        """Let feeds end; copies stay at what they hold."""
        self.is_paused = True

    def resume(self) -> None:
        """Let feeds begin again."""
        self.is_paused = False


def lagging_copy(cluster_map: ServedClusterMap, table: VbucketTable) -> str | None:
    """Say which copy on a living node lacks what its active, on a living node, holds; or None."""
    for vbucket, owner in enumerate(cluster_map.owners):
        active = table.vbuckets[vbucket]
        if owner in cluster_map.dead_nodes or active.state is not VbucketState.ACTIVE:
            continue
        is_empty = active.data.high_seqno == active.data.base_seqno
        wanted = 0 if is_empty else active.data.high_seqno
        for node, copy in table.living_copies(vbucket):
            has_all = copy.high_seqno == wanted == copy.consistent_seqno
            if not (has_all and copy.vbucket.failover_log == active.failover_log):
                return (
                    f"the copy of vbucket {vbucket} on {cluster_map.name_of(node)} holds seqno "
                    f"{copy.high_seqno} (whole up to {copy.consistent_seqno}), expected {wanted}"
                )
    return None
