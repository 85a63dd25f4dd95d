"""Progress of the copies on other nodes."""

from collections.abc import Iterator, Sequence
from typing import Final

from dcp.producer.writes.sync_writes import CopyProgress
from dcp.server.bucket.dcp_connections import DcpConnections
from dcp.server.bucket.vbucket_table import VbucketTable
from dcp.server.model.cluster_map import ServedClusterMap
from dcp.server.vbucket.replica_copy import ReplicaCopy
from dcp.wire.vocabulary import VbucketState

REPLICATION: Final = "replication"
TAKEOVER: Final = "replication:takeover"
_PURPOSES: Final = (REPLICATION, TAKEOVER)


def connection_name(source: int, target: int, bucket: str, purpose: str = REPLICATION) -> str:
    """Return the DCP connection name with which node ``target`` streams from node ``source``."""
    return f"{purpose}:node{source + 1}->node{target + 1}:{bucket}"


class Replicas:
    """The copies that the map names; callers hold the bucket's lock.

    A copy acknowledges the prepares of complete snapshots on its DCP connection, by
    DCP_SEQNO_ACKNOWLEDGED (``acknowledgements.py``). A lost connection loses this; the next
    connection repeats it.
    """

    def __init__(
        self, cluster_map: ServedClusterMap, table: VbucketTable, connections: DcpConnections
    ) -> None:
        self._map, self._table, self._connections = cluster_map, table, connections
        self.is_paused = False
        """True while copies receive nothing; the feeds in ``replication.py`` obey."""

    def behind(self, vbucket: int) -> Sequence[CopyProgress | None]:
        """Return the progress of each copy in durable writes; None for a copy that has no node."""
        found: list[CopyProgress | None] = []
        for node in self._map.replicas(vbucket):
            seqno = max(self._acknowledged(vbucket, node, purpose) for purpose in _PURPOSES)
            # An acknowledged prepare is on disk if its level asks for that.
            found.append(CopyProgress(seqno, seqno))
        return found + [None] * (self._map.replica_count - len(found))

    def _acknowledged(self, vbucket: int, node: int, purpose: str) -> int:
        owner = self._map.owner(vbucket)
        if owner is None:
            return 0
        name = connection_name(owner, node, self._map.bucket, purpose)
        connection = self._connections.get((owner, name.encode()))
        # A client can open a connection of the same name.
        if connection is None or not connection.is_internal:
            return 0
        return connection.acknowledged_seqno(vbucket)

    def kept_seqno(self, vbucket: int) -> int:
        """Return the end of a copy's last complete snapshot; 0 without a living copy."""
        copy = next((copy for _, copy in _living_copies(self._map, self._table, vbucket)), None)
        return 0 if copy is None else copy.complete_seqno

    def heirs_of(self, node: int) -> dict[int, int]:
        """Return, for each vbucket of a node, the living node whose copy a failover promotes.

        Raises:
            ValueError: some vbucket has no living copy.
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
        self.is_paused = True

    def resume(self) -> None:
        self.is_paused = False


def lagging_copy(cluster_map: ServedClusterMap, table: VbucketTable) -> str | None:
    """Describe the first living copy that differs from its living active; None if all match."""
    for vbucket, owner in enumerate(cluster_map.owners):
        active = table.vbuckets[vbucket]
        if owner in cluster_map.dead_nodes or active.state is not VbucketState.ACTIVE:
            continue
        is_empty = active.data.high_seqno == active.data.base_seqno
        wanted = 0 if is_empty else active.data.high_seqno
        for node, copy in _living_copies(cluster_map, table, vbucket):
            has_all = copy.high_seqno == wanted == copy.complete_seqno
            if not (has_all and copy.vbucket.failover_log == active.failover_log):
                return (
                    f"the copy of vbucket {vbucket} on {cluster_map.name_of(node)} holds "
                    f"seqno {copy.high_seqno} (complete up to {copy.complete_seqno}), "
                    f"expected {wanted}"
                )
    return None


def _living_copies(
    cluster_map: ServedClusterMap, table: VbucketTable, vbucket: int
) -> Iterator[tuple[int, ReplicaCopy]]:
    """Yield living nodes and their copies; a failover promotes the first."""
    for node in cluster_map.replicas(vbucket):
        copy = table.copies.at(node, vbucket)
        if copy is not None and node not in cluster_map.dead_nodes:
            yield node, copy
