"""Replicas that are a distance behind their actives, without ``ClusterSettings.replicas``.

Such a replica holds the active's data but for the newest batches of writes: as many seqnos as the
settings say, or all since it was paused. It persists what it holds, and is on the next living node.
A failover makes the prefix that it holds the vbucket's data.
"""

from collections.abc import Sequence

from dcp.producer.bucket.vbucket_table import VbucketTable
from dcp.producer.model.cluster_map import ServedClusterMap
from dcp.producer.model.cluster_settings import ClusterSettings
from dcp.producer.vbucket.replication_chain import CopyProgress
from dcp.producer.vbucket.vbucket import Vbucket
from dcp.producer.vbucket.vbucket_data import VbucketData


class ReplicaDistance:
    """The position of one vbucket's replica; the active is given as it is now."""

    def __init__(self, settings: ClusterSettings) -> None:
        self._lag_seqnos = settings.replica_lag_seqnos
        self._snapshot_seqnos = settings.replica_snapshot_seqnos
        self._paused_at: int | None = None

    def held_seqno(self, data: VbucketData) -> int:
        """Return the newest seqno that the replica holds."""
        if self._paused_at is not None:
            return self._paused_at
        return data.disk.batch_end_at(data.high_seqno - self._lag_seqnos)

    def snapshot_end(self, data: VbucketData) -> int:
        """Return the end of the last snapshot that the replica holds whole."""
        held = self.held_seqno(data)
        return max(data.base_seqno, held - held % self._snapshot_seqnos)

    @property
    def is_behind(self) -> bool:
        """True while it lacks something, or will: its state may be gone back to, and must stay."""
        return self._paused_at is not None or self._lag_seqnos > 0

    def pause(self, data: VbucketData) -> None:
        """Stand still at what it holds now."""
        self._paused_at = self.held_seqno(data)

    def resume(self) -> None:
        """Follow again."""
        self._paused_at = None

    def branched(self, data: VbucketData) -> None:
        """Hold nothing that the active lost.

        Another node that took the vbucket over may have received the state where this stood as a
        part of one snapshot, of which older versions are missing: then all that it has is held.
        """
        if self._paused_at is not None:
            held = min(self._paused_at, data.high_seqno)
            is_here = data.disk.batch_end_at(held) == held
            self._paused_at = held if is_here else data.high_seqno

    def promote(self, active: Vbucket) -> None:
        """Let the vbucket go on as the replica: without what that had not, on a new branch."""
        active.go_back(self.held_seqno(active.data), self.snapshot_end(active.data))
        self.branched(active.data)


class DistantReplicas:
    """One for each vbucket; see ``Replicas``."""

    def __init__(
        self,
        cluster_map: ServedClusterMap,
        table: VbucketTable,
        distances: Sequence[ReplicaDistance],
    ) -> None:
        """``distances`` are those of the vbuckets, in their order."""
        self._map, self._table, self._distances = cluster_map, table, distances
        self.is_paused = False

    def behind(self, vbucket: int) -> Sequence[CopyProgress | None]:
        """Return the only replica; a cluster of one node has none.

        Where all other nodes are gone nobody is there to be it; one that is down acknowledges
        nothing.
        """
        count, owner = self._map.node_count, self._map.owner(vbucket)
        if count == 1:
            return ()
        others = [node for node in range(count) if node != owner and self._map.is_member(node)]
        if not others:
            return (None,)
        held = 0 if self._map.dead_nodes.issuperset(others) else self.kept_seqno(vbucket)
        return (CopyProgress(held, held),)

    def kept_seqno(self, vbucket: int) -> int:
        """Return what the replica holds."""
        return self._distances[vbucket].held_seqno(self._table.vbuckets[vbucket].data)

    def heirs_of(self, node: int, living: Sequence[int]) -> dict[int, int]:
        """Return the next living node for all."""
        return dict.fromkeys(self._map.vbuckets_of(node), living[0])

    def copy_at(self, _: int, __: int) -> None:
        """Return none: a copy that is there is one that a takeover fills."""

    def cut(self, vbucket: int) -> None:
        """Cut off what the replica had not."""
        self._distances[vbucket].promote(self._table.vbuckets[vbucket])

    def pause(self) -> None:
        """Let all stand still at what they hold now."""
        self.is_paused = True
        for distance, vbucket in zip(self._distances, self._table.vbuckets, strict=True):
            distance.pause(vbucket.data)

    def resume(self) -> None:
        """Let all follow again, as far behind as the settings say."""
        self.is_paused = False
        for distance in self._distances:
            distance.resume()

    def branched(self, vbucket: int) -> None:
        """Hold nothing that the active lost."""
        self._distances[vbucket].branched(self._table.vbuckets[vbucket].data)

    def forget(self, vbucket: int) -> None:
        """Begin anew, not paused."""
        self._distances[vbucket].resume()
