"""Replicas that are a distance behind their actives, without ``ClusterSettings.replicas``.

Such a replica holds the active's data but for the newest batches of writes: as many seqnos as the
settings say, or all since it was paused. It persists what it holds, and is on the next living node.
A failover makes the prefix that it holds the vbucket's data.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from dcp.producer.bucket.bucket_states import follow_change, give_back
from dcp.producer.model.settings import ClusterSettings
from dcp.producer.vbucket.replication_chain import Copy
from dcp.producer.vbucket.vbucket import Vbucket
from dcp.wire.vocabulary import VbucketState

if TYPE_CHECKING:
    from dcp.producer.bucket.bucket import Bucket


class ReplicaDistance:
    """How far one vbucket's replica has come; ``vbucket`` returns the active as it is now."""

    def __init__(self, vbucket: Callable[[], Vbucket], settings: ClusterSettings) -> None:
        self._vbucket = vbucket
        self._lag_seqnos = settings.replica_lag_seqnos
        self._snapshot_seqnos = settings.replica_snapshot_seqnos
        self._paused_at: int | None = None

    @property
    def held_seqno(self) -> int:
        """The newest seqno that the replica holds."""
        if self._paused_at is not None:
            return self._paused_at
        data = self._vbucket().data
        return data.disk.batch_end_at(data.high_seqno - self._lag_seqnos)

    @property
    def snapshot_end(self) -> int:
        """The end of the last snapshot that the replica holds whole."""
        held = self.held_seqno
        return max(self._vbucket().data.base_seqno, held - held % self._snapshot_seqnos)

    @property
    def is_behind(self) -> bool:
        """Whether it lacks something, or will."""
        return self._paused_at is not None or self._lag_seqnos > 0

    def pause(self) -> None:
        """Stand still at what it holds now."""
        self._paused_at = self.held_seqno

    def resume(self) -> None:
        """Follow again."""
        self._paused_at = None

    def branched(self) -> None:
        """Hold nothing that the active lost."""
        if self._paused_at is not None:
            self._paused_at = min(self._paused_at, self._vbucket().data.high_seqno)

    def promote(self) -> None:
        """Let the vbucket go on as the replica: without what that had not, on a new branch."""
        self._vbucket().go_back(self.held_seqno, self.snapshot_end)
        self.branched()


class DistantReplicas:
    """One for each vbucket; see ``Replicas``."""

    def __init__(self, bucket: "Bucket") -> None:
        self._bucket = bucket
        self.is_paused = False
        self._of = [
            ReplicaDistance(partial(bucket.vbuckets.__getitem__, vbucket), bucket.settings)
            for vbucket in range(len(bucket.vbuckets))
        ]

    def behind(self, vbucket: int) -> Sequence[Copy | None]:
        """Return the only replica; a cluster of one node has none.

        Where all other nodes are gone nobody is there to be it; one that is down acknowledges
        nothing.
        """
        bucket = self._bucket
        count, owner = bucket.map.node_count, bucket.map.owner(vbucket)
        if count == 1:
            return ()
        others = [node for node in range(count) if node != owner and bucket.map.is_member(node)]
        if not others:
            return (None,)
        held = 0 if bucket.dead_nodes.issuperset(others) else self.kept_seqno(vbucket)
        return (Copy(held, held),)

    def kept_seqno(self, vbucket: int) -> int:
        """Return what the replica holds."""
        return self._of[vbucket].held_seqno

    def wants_back(self, vbucket: int) -> bool:
        """Whether the replica is behind: its state is gone back to by a failover."""
        return self._of[vbucket].is_behind

    def heirs_of(self, node: int, living: Sequence[int]) -> dict[int, int]:
        """Return the next living node for all."""
        return dict.fromkeys(self._bucket.map.vbuckets_of(node), living[0])

    def prepare(self, _: Mapping[int, int]) -> None:
        """Do nothing: there is no copy."""

    def undo(self, _: Mapping[int, int]) -> None:
        """Do nothing, as ``prepare`` did."""

    def promote(self, vbucket: int, node: int, _: VbucketState) -> None:
        """Cut off what the replica had not; what is not active here stays as it is."""
        give_back(self._bucket, vbucket)
        here = self._bucket.vbuckets[vbucket]
        if here.state is VbucketState.ACTIVE:
            self._of[vbucket].promote()
        follow_change(self._bucket, here, node)

    def pause(self) -> None:
        """Let all stand still at what they hold now."""
        self.is_paused = True
        for distance in self._of:
            distance.pause()

    def resume(self) -> None:
        """Let all follow again, as far behind as the settings say."""
        self.is_paused = False
        for distance in self._of:
            distance.resume()

    def branched(self, vbucket: int) -> None:
        """Hold nothing that the active lost."""
        self._of[vbucket].branched()

    def forget(self, vbucket: int) -> None:
        """Begin anew, not paused."""
        self._of[vbucket].resume()
