"""The vbucket table: a bucket's vbuckets by number, and copies of those that other nodes own.

They are opened, replaced and ended here, and nowhere else. Used under the bucket's lock.
"""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from threading import Condition, RLock

from dcp.server.bucket.bucket_origin import BucketOrigin
from dcp.server.bucket.copy_table import Copies
from dcp.server.bucket.flusher import Flusher
from dcp.server.bucket.vbucket_maker import VbucketMaker
from dcp.server.model.cluster_map import ServedClusterMap
from dcp.server.model.manifest import Manifest
from dcp.server.vbucket.replica_copy import ReplicaCopy
from dcp.server.vbucket.vbucket import Vbucket
from dcp.types import vbucket_of
from dcp.wire.vocabulary import VbucketState


class VbucketTable:
    """Vbuckets and copies, and which of them a rebalance moves."""

    def __init__(
        self,
        maker: VbucketMaker,
        flusher: Flusher | None,
        cluster_map: ServedClusterMap,
        known_manifest: Callable[[], Manifest],
        origin: BucketOrigin,
        lock: RLock,
    ) -> None:
        """Have what the map says; ``lock`` is the bucket's.

        ``flusher`` is there with a data folder.

        Raises:
            OSError: a file cannot be read or written.
        """
        self._maker, self._flusher, self._map = maker, flusher, cluster_map
        settings = maker.settings
        self._moving: frozenset[int] = frozenset()
        self.copies_moved = Condition(lock)
        """Notified when a copy received something, or may be about to."""
        self.vbuckets: list[Vbucket] = maker.opened(cluster_map, origin.opened_state)
        for vbucket in self.vbuckets:
            self._write_behind(vbucket)
            origin.begin(vbucket)
        quota_bytes = max(1, settings.checkpoint_quota_bytes // settings.nodes)
        own = origin.own_copies(self.vbuckets, known_manifest, quota_bytes)
        self.copies = (
            Copies(maker.copy_of, self._drop_copy, known_manifest, quota_bytes)
            if own is None
            else own
        )
        self.copies.follow(cluster_map)
        maker.keep_copies(self._places_of_copies())

    def _places_of_copies(self) -> list[tuple[int, int]]:
        """Return where there are copies with logs of their own."""
        return [
            (node, vbucket.id)
            for vbucket in self.vbuckets
            for node, copy in self.copies.of(vbucket.id)
            if copy.vbucket is not vbucket
        ]

    def _write_behind(self, vbucket: Vbucket) -> None:
        if self._flusher is not None:
            vbucket.data.write_behind(partial(self._flusher.require_room, vbucket))

    def _drop_copy(self, node: int, copy: Vbucket) -> None:
        self._maker.drop_copy(node, copy.id)
        self._end(copy)

    def _end(self, vbucket: Vbucket) -> None:
        if self._flusher is not None:
            self._flusher.forget(vbucket)
        vbucket.remove()

    # --- who holds what

    def all(self) -> list[Vbucket]:
        """Return all that there is, copies too."""
        return [*self.vbuckets, *self.copies.all_vbuckets()]

    def of_key(self, key: bytes) -> Vbucket:
        """Return the vbucket that holds ``key``."""
        return self.vbuckets[vbucket_of(key, len(self.vbuckets))]

    def numbered(self, vbucket: int) -> Vbucket:
        """Return a vbucket by its number.

        Raises:
            ValueError: there is none of that number.
        """
        if not 0 <= vbucket < len(self.vbuckets):
            raise ValueError(
                f"vbucket {vbucket}: found none of that number, "
                f"expected 0 to {len(self.vbuckets) - 1}"
            )
        return self.vbuckets[vbucket]

    def owned(self, vbucket: int, node: int) -> Vbucket | None:
        """Return a vbucket if ``node`` owns it."""
        return self.vbuckets[vbucket] if self._map.owner(vbucket) == node else None

    def at(self, vbucket: int, node: int) -> Vbucket | None:
        """Return what ``node`` has of a vbucket: the vbucket itself, or its copy."""
        copy = self.copies.at(node, vbucket)
        return self.owned(vbucket, node) if copy is None else copy.vbucket

    def of_node(self, node: int) -> list[Vbucket]:
        """Return all that ``node`` has, copies too, in the order of vbuckets."""
        found = {vbucket: self.vbuckets[vbucket] for vbucket in self._map.vbuckets_of(node)}
        found |= {vbucket: copy.vbucket for vbucket, copy in self.copies.of_node(node).items()}
        return [found[vbucket] for vbucket in sorted(found)]

    def active(self, vbucket: int, node: int) -> Vbucket | None:
        """Return a vbucket if ``node`` owns it and it takes KV commands."""
        found = self.owned(vbucket, node)
        return found if found is not None and found.shown_state is VbucketState.ACTIVE else None

    def living_copies(self, vbucket: int) -> Iterator[tuple[int, ReplicaCopy]]:
        """Yield living nodes that hold a copy, with the copies, the first to be promoted first."""
        for node in self._map.replicas(vbucket):
            copy = self.copies.at(node, vbucket)
            if copy is not None and node not in self._map.dead_nodes:
                yield node, copy

    # --- a rebalance moves some

    def set_moving(self, vbuckets: Iterable[int]) -> None:
        """Know exactly which vbuckets a rebalance moves from now on."""
        self._moving = frozenset(vbuckets)
        self.copies_moved.notify_all()

    def is_moving(self, vbucket: int) -> bool:
        """Return whether a rebalance moves a vbucket now."""
        return vbucket in self._moving

    def require_unmoved(self, what: str, vbucket: int) -> None:
        """Raise ValueError where a rebalance moves a vbucket: an order would be lost, or undone.

        It may be dead here for an instant, with all that it has on its way to another node.
        """
        if self.is_moving(vbucket) or self.vbuckets[vbucket].is_handed_over:
            raise ValueError(
                f"{what} of vbucket {vbucket}: found one that a rebalance moves now; order it when "
                "that is over"
            )

    # --- one takes another's place

    def put_in_place(self, vbucket: int, copy: Vbucket) -> None:
        """Let what was a copy be the vbucket from now on; the one before ends."""
        old, self.vbuckets[vbucket] = self.vbuckets[vbucket], copy
        self._write_behind(copy)
        self._end(old)
