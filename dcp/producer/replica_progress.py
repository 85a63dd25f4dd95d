"""Progress of the replicas on other nodes."""

from collections.abc import Iterator, Sequence
from typing import Final

from dcp.producer.writes.sync_writes import NodeProgress
from dcp.server.bucket.dcp_connections import DcpConnections
from dcp.server.bucket.vbucket_table import VbucketTable
from dcp.server.model.cluster_map import ServedClusterMap
from dcp.server.vbucket.replica import Replica
from dcp.wire.vocabulary import VbucketState

REPLICATION: Final = "replication"
TAKEOVER: Final = "replication:takeover"
_PURPOSES: Final = (REPLICATION, TAKEOVER)


def connection_name(active_node: int, target: int, bucket: str, purpose: str = REPLICATION) -> str:
    """Return the DCP connection name with which node ``target`` streams from ``active_node``."""
    return f"{purpose}:node{active_node + 1}->node{target + 1}:{bucket}"


class ReplicaProgress:
    """The replicas that the map names; callers hold the bucket's lock.

    A replica acknowledges the prepares of complete snapshots on its DCP connection, by
    DCP_SEQNO_ACKNOWLEDGED (``acknowledgements.py``). A lost connection loses this; the next
    connection repeats it.
    """

    def __init__(
        self, cluster_map: ServedClusterMap, table: VbucketTable, connections: DcpConnections
    ) -> None:
        self._map, self._table, self._connections = cluster_map, table, connections
        self.is_paused = False
        """True while replicas receive nothing; the replicators obey."""

    def behind(self, vbucket: int) -> Sequence[NodeProgress | None]:
        """Return the progress of each replica in durable writes; None if it has no node."""
        found: list[NodeProgress | None] = []
        for node in self._map.replica_nodes(vbucket):
            seqno = max(self._acknowledged(vbucket, node, purpose) for purpose in _PURPOSES)
            # An acknowledged prepare is on disk if its level asks for that.
            found.append(NodeProgress(seqno, seqno))
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
        """Return the last complete snapshot end of a replica on a running node; 0 without one."""
        running = _running_replicas(self._map, self._table, vbucket)
        return next((replica.complete_seqno for _, replica in running), 0)

    def heirs_of(self, node: int) -> dict[int, int]:
        """Return, for each vbucket of a node, the running node whose replica a failover promotes.

        Raises:
            ValueError: some vbucket has no replica on a running node.
        """
        found: dict[int, int] = {}
        advice = (
            "restore one, or rebalance"
            if self._map.replica_count
            else "serve the bucket with 1 replica or more (--replicas)"
        )
        for vbucket in self._map.vbuckets_of(node):
            replicas = self._map.replica_nodes(vbucket)
            running = [each for each in replicas if each not in self._map.down_nodes]
            if not running:
                raise ValueError(
                    f"failover of {self._map.name_of(node)}: found no running node with a replica "
                    f"of vbucket {vbucket}; {advice}"
                )
            found[vbucket] = running[0]
        return found

    def pause(self) -> None:
        self.is_paused = True

    def resume(self) -> None:
        self.is_paused = False


def lagging_replica(cluster_map: ServedClusterMap, table: VbucketTable) -> str | None:
    """Describe the first replica that differs from its active, both on running nodes; or None."""
    for vbucket, owner in enumerate(cluster_map.owners):
        active = table.vbuckets[vbucket]
        if owner in cluster_map.down_nodes or active.state is not VbucketState.ACTIVE:
            continue
        is_empty = active.data.high_seqno == active.data.base_seqno
        wanted = 0 if is_empty else active.data.high_seqno
        for node, replica in _running_replicas(cluster_map, table, vbucket):
            has_all = replica.high_seqno == wanted == replica.complete_seqno
            if not (has_all and replica.vbucket.failover_log == active.failover_log):
                return (
                    f"the replica of vbucket {vbucket} on {cluster_map.name_of(node)} holds "
                    f"seqno {replica.high_seqno} (complete up to {replica.complete_seqno}), "
                    f"expected {wanted}"
                )
    return None


def _running_replicas(
    cluster_map: ServedClusterMap, table: VbucketTable, vbucket: int
) -> Iterator[tuple[int, Replica]]:
    """Yield running nodes and their replicas; a failover promotes the first."""
    for node in cluster_map.replica_nodes(vbucket):
        replica = table.replicas.at(node, vbucket)
        if replica is not None and node not in cluster_map.down_nodes:
            yield node, replica
