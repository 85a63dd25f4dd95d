from collections.abc import Iterable
from random import Random

from dcp.server.bucket.bucket_storage import BucketStorage
from dcp.server.model.cluster_map import ServedClusterMap
from dcp.server.model.cluster_settings import ClusterSettings
from dcp.server.model.failover_log import fresh_uuid
from dcp.server.vbucket.vbucket_states import Vbucket
from dcp.wire.vocabulary import VbucketState


class VbucketMaker:
    """Creates vbuckets, in memory or from a data folder; needs the bucket's lock."""

    def __init__(
        self,
        settings: ClusterSettings,
        random: Random,
        storage: BucketStorage | None,
    ) -> None:
        """``storage`` is None for a bucket in memory."""
        self.settings = settings
        self._random, self._storage = random, storage

    def opened(
        self, cluster_map: ServedClusterMap, state: VbucketState | None = None
    ) -> list[Vbucket]:
        """Create all vbuckets, or open those of the data folder together with its map.

        Each gets ``state``, or with None the state that was saved.

        Raises:
            OSError: a file cannot be read or written; the folder is unlocked.
        """
        try:
            vbuckets = [self._owned(v, state) for v in range(self.settings.vbuckets)]
            if self._storage is not None:
                self._storage.begin(cluster_map, vbuckets)
        except BaseException:
            if self._storage is not None:
                self._storage.abandon()
            raise
        return vbuckets

    def _owned(self, vbucket: int, state: VbucketState | None) -> Vbucket:
        home = None if self._storage is None else self._storage.home(vbucket)
        return Vbucket(
            vbucket,
            self._fresh_uuid,
            self.settings,
            home,
            state,
        )

    def replica_of(self, node: int, vbucket: int) -> Vbucket:
        home = None if self._storage is None else self._storage.replica_home(node, vbucket)
        return Vbucket(
            vbucket,
            self._fresh_uuid,
            self.settings,
            home,
            VbucketState.REPLICA,
        )

    def _fresh_uuid(self) -> int:
        return fresh_uuid(self._random.randint)

    def drop_replica(self, node: int, vbucket: int) -> None:
        if self._storage is not None:
            self._storage.drop_replica(node, vbucket)

    def keep_replicas(self, kept: Iterable[tuple[int, int]]) -> None:
        """Forget all replicas but these pairs of node and vbucket."""
        if self._storage is not None:
            self._storage.keep_replicas(kept)
