"""The bucket's vbuckets by number, and the replicas of vbuckets on other nodes."""

from collections.abc import Callable, Iterable
from functools import partial
from random import Random
from threading import Condition, RLock

from dcp.server.bucket.bucket_storage import BucketStorage
from dcp.server.bucket.flusher import Flusher
from dcp.server.bucket.origin import BucketOrigin
from dcp.server.bucket.replicas import Replicas
from dcp.server.model.cluster_map import ServedClusterMap
from dcp.server.model.failover_log import fresh_uuid
from dcp.server.model.manifest import Manifest
from dcp.server.model.server_settings import ServerSettings
from dcp.server.storage.saved_vbucket import VbucketHome
from dcp.server.vbucket.vbucket_states import Vbucket
from dcp.types import vbucket_of
from dcp.wire.vocabulary import VbucketState


class VbucketTable:
    """Opens, replaces and ends vbuckets and replicas, and knows which a rebalance moves.

    Callers hold the bucket's lock.
    """

    def __init__(
        self,
        settings: ServerSettings,
        random: Random,
        storage: BucketStorage | None,
        cluster_map: ServedClusterMap,
        known_manifest: Callable[[], Manifest],
        origin: BucketOrigin,
        lock: RLock,
    ) -> None:
        """Open the vbuckets and replicas that the map names; ``lock`` is the bucket's.

        ``random`` makes the uuids of branches; ``storage`` is None for a bucket in memory. If a
        vbucket cannot be opened, the data folder is unlocked.

        Raises:
            OSError: a file cannot be read or written.
        """
        self._settings, self._random, self._storage = settings, random, storage
        self._map, self._origin = cluster_map, origin
        self.flusher: Flusher | None = None
        """Writes the vbuckets to the data folder, if there is one."""
        if storage is not None:
            self.flusher = Flusher(
                lock, settings.flush_seconds, settings.checkpoint_quota_bytes, settings.clock
            )
        self._moving: frozenset[int] = frozenset()
        self.replicas_moved = Condition(lock)
        """Notified when a replica received data, or a rebalance or replication took a step."""
        self.vbuckets = self._opened(origin.opened_state)
        for vbucket in self.vbuckets:
            self._limit_waiting_writes(vbucket)
            origin.begin(vbucket)
        quota_bytes = max(1, settings.checkpoint_quota_bytes // settings.nodes)
        own_node = origin.replica_node
        self.replicas = Replicas(
            self._new_replica if own_node is None else lambda _, number: self.vbuckets[number],
            self._drop_replica,
            known_manifest,
            quota_bytes,
        )
        if own_node is None:
            self.replicas.follow(cluster_map)
        else:
            for vbucket in self.vbuckets:
                self.replicas.add(own_node, vbucket.id)
        if storage is not None:
            storage.keep_replicas(self._logged_replicas())

    def _opened(self, state: VbucketState | None) -> list[Vbucket]:
        """Create all vbuckets, or open those of the data folder together with its map.

        Each gets ``state``, or with None the state that was saved.
        """
        storage = self._storage
        numbers = range(self._settings.vbuckets)
        if storage is None:
            return [self._vbucket(number, None, state) for number in numbers]
        try:
            vbuckets = [self._vbucket(number, storage.home(number), state) for number in numbers]
            storage.begin(self._map, vbuckets)
        except BaseException:
            storage.abandon()
            raise
        return vbuckets

    def _new_replica(self, node: int, vbucket: int) -> Vbucket:
        home = None if self._storage is None else self._storage.replica_home(node, vbucket)
        replica = self._vbucket(vbucket, home, VbucketState.REPLICA)
        self._origin.begin(replica)
        return replica

    def _vbucket(
        self, number: int, home: VbucketHome | None, state: VbucketState | None
    ) -> Vbucket:
        return Vbucket(number, self._fresh_uuid, self._settings, home, state)

    def _fresh_uuid(self) -> int:
        return fresh_uuid(self._random.randint)

    def _logged_replicas(self) -> list[tuple[int, int]]:
        """Return node and vbucket of the replicas that have disk logs of their own."""
        return [
            (node, vbucket.id)
            for vbucket in self.vbuckets
            for node, replica in self.replicas.of(vbucket.id)
            if replica.vbucket is not vbucket
        ]

    def _limit_waiting_writes(self, vbucket: Vbucket) -> None:
        if self.flusher is not None:
            vbucket.data.check_room_with(partial(self.flusher.require_room, vbucket))

    def _drop_replica(self, node: int, replica: Vbucket) -> None:
        if self._storage is not None:
            self._storage.drop_replica(node, replica.id)
        self._end(replica)

    def _end(self, vbucket: Vbucket) -> None:
        if self.flusher is not None:
            self.flusher.forget(vbucket)
        vbucket.remove()

    # --- who holds what

    def all(self) -> list[Vbucket]:
        """Return all vbuckets, then the replicas that are no vbuckets of the bucket."""
        replicas = self.replicas.all_vbuckets()
        return [*self.vbuckets, *(each for each in replicas if each is not self.vbuckets[each.id])]

    def of_key(self, key: bytes) -> Vbucket:
        return self.vbuckets[vbucket_of(key, len(self.vbuckets))]

    def numbered(self, vbucket: int) -> Vbucket:
        """Return a vbucket by its number.

        Raises:
            ValueError: no vbucket has that number.
        """
        if not 0 <= vbucket < len(self.vbuckets):
            raise ValueError(
                f"vbucket {vbucket}: found none of that number, "
                f"expected 0 to {len(self.vbuckets) - 1}"
            )
        return self.vbuckets[vbucket]

    def owned(self, vbucket: int, node: int) -> Vbucket | None:
        return self.vbuckets[vbucket] if self._map.owner(vbucket) == node else None

    def at(self, vbucket: int, node: int) -> Vbucket | None:
        """Return the vbucket if ``node`` owns it, or the node's replica of it."""
        replica = self.replicas.at(node, vbucket)
        return self.owned(vbucket, node) if replica is None else replica.vbucket

    def of_node(self, node: int) -> list[Vbucket]:
        found = {vbucket: self.vbuckets[vbucket] for vbucket in self._map.vbuckets_of(node)}
        found |= {
            vbucket: replica.vbucket for vbucket, replica in self.replicas.of_node(node).items()
        }
        return [found[vbucket] for vbucket in sorted(found)]

    def active(self, vbucket: int, node: int) -> Vbucket | None:
        """Return a vbucket if ``node`` owns it and it accepts KV commands."""
        found = self.owned(vbucket, node)
        return found if found is not None and found.shown_state is VbucketState.ACTIVE else None

    # --- a rebalance moves some

    def set_moving(self, vbuckets: Iterable[int]) -> None:
        self._moving = frozenset(vbuckets)
        self.replicas_moved.notify_all()

    def is_moving(self, vbucket: int) -> bool:
        return vbucket in self._moving

    def require_unmoved(self, what: str, vbucket: int) -> None:
        """Raise ValueError if a rebalance moves a vbucket; ``what`` names the refused order."""
        # A moving vbucket is dead here for an instant, on its way to another node. An order in that
        # instant would be lost, or the move would undo it.
        if self.is_moving(vbucket) or self.vbuckets[vbucket].is_handed_over:
            raise ValueError(
                f"{what} of vbucket {vbucket}: found a rebalance that moves it; repeat the order "
                "after the rebalance"
            )

    # --- one takes another's place

    def put_in_place(self, vbucket: int, replica: Vbucket) -> None:
        """Replace a vbucket by a former replica, and end the old one."""
        old, self.vbuckets[vbucket] = self.vbuckets[vbucket], replica
        self._limit_waiting_writes(replica)
        self._end(old)
