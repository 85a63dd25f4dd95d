"""Moves vbuckets to the nodes that should own them, by takeover streams.

Source: kv_engine ``engines/ep/src/dcp/active_stream.cc`` (takeoverSendPhase),
``passive_stream.cc``.
"""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Collection, Sequence

from dcp.errors import DcplakeError, SourceError
from dcp.producer.bucket import ProducerBucket
from dcp.producer.bucket_states import change_state, give_back, leave
from dcp.producer.promotion import take_over
from dcp.producer.replica_progress import TAKEOVER
from dcp.producer.replication import NodeReplicator
from dcp.server.model.state_changes import StateEvent
from dcp.server.replication.passive_stream import PassiveStream
from dcp.server.vbucket.replica import Replica
from dcp.wire.vocabulary import VbucketState

_LOGGER = logging.getLogger(__name__)


async def rebalance(
    bucket: ProducerBucket,
    members: Sequence[int],
    awake: Callable[[int], asyncio.Event],
    map_changed: Callable[[], None],
) -> None:
    """Move vbuckets until ``members`` own even shares, then place the replicas.

    Call it in the loop's thread, without the lock. ``map_changed`` is called in the loop when
    replicas or owners change.

    Raises:
        SourceError: a node was lost; vbuckets that have moved stay at their new owners.
    """
    with bucket.lock:
        owners = bucket.map.owners
        wanted = even_owners(owners, members)
    pairs: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
    for vbucket, (active_node, target) in enumerate(zip(owners, wanted, strict=True)):
        if active_node != target:
            pairs[active_node, target].append(vbucket)
    try:
        with bucket.lock:
            # Meanwhile other orders for these vbuckets are refused.
            bucket.table.set_moving(v for found in pairs.values() for v in found)
        for (active_node, target), vbuckets in pairs.items():
            await Move(bucket, active_node, target, vbuckets, map_changed).run(awake(target))
    finally:
        with bucket.lock:
            bucket.table.set_moving(())
            for vbucket in range(len(owners)):
                # A vbucket that was handed over but did not arrive becomes active again on its
                # old node.
                give_back(bucket, vbucket)
            bucket.table.replicas_moved.notify_all()
        map_changed()
    with bucket.lock, bucket.changing_map():
        bucket.map.place(members)
    map_changed()


class Move:
    """The takeover of vbuckets by one node from another. Methods run in the loop's thread.

    It has one connection, with a takeover stream per vbucket that fills a replica on the target.
    The stream first sets the replica pending, then active: then the replica becomes the vbucket,
    with all its branches. After a failure every vbucket is active on exactly one node.
    """

    def __init__(
        self,
        bucket: ProducerBucket,
        active_node: int,
        target: int,
        vbuckets: Sequence[int],
        map_changed: Callable[[], None],
    ) -> None:
        """``map_changed`` is called when other replicas have to be filled."""
        self._bucket, self._active_node, self._target = bucket, active_node, target
        self._map_changed = map_changed
        self._is_over = asyncio.Event()
        with bucket.lock:
            self._left: dict[int, Replica] = {
                vbucket: bucket.replicas.add(target, vbucket) for vbucket in vbuckets
            }
            for replica in self._left.values():
                replica.take_over(is_taking_over=True)

    async def run(self, awake: asyncio.Event) -> None:
        """Raises SourceError if a vbucket did not arrive."""
        self._map_changed()  # ends the replication into these replicas
        replicator = NodeReplicator(
            self._bucket, self._active_node, self._target, awake, TAKEOVER, on_touched=self._touched
        )
        with self._bucket.lock:
            replicator.follow(dict(self._left), takes_over=self._left)
        talk = asyncio.ensure_future(replicator.converse())
        over = asyncio.ensure_future(self._is_over.wait())
        try:
            await asyncio.wait((talk, over), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (talk, over):
                task.cancel()
            # The replicator must have ended: it would fill replicas that are given up.
            outcome, _ = await asyncio.gather(talk, over, return_exceptions=True)
            failed = self._give_up()
        cause = outcome if isinstance(outcome, Exception) else None
        if cause is not None and not (failed and isinstance(cause, DcplakeError)):
            _LOGGER.error("%s failed", replicator.name, exc_info=cause)
        if failed:
            text = repr(cause) if cause else "the connection was lost, or the stream ended"
            name = self._bucket.map.name_of(self._target)
            raise SourceError(
                f"rebalance: {len(failed)} vbuckets, the first is {failed[0]}, did not get to "
                f"{name}: {text}"
            ) from cause

    def _touched(self, streams: Collection[PassiveStream]) -> None:
        """Follow the states that takeover streams have set; the caller holds the lock."""
        arrived: list[int] = []
        for stream in streams:
            if stream.state == VbucketState.PENDING:
                pending = stream.replica.vbucket
                if pending.state is not VbucketState.PENDING:
                    change_state(self._bucket, pending, StateEvent.TOLD_PENDING, self._target)
            elif stream.state == VbucketState.ACTIVE:
                stream.replica.fill_from(None)  # an active vbucket takes no items from a stream
                if self._may_move(stream.vbucket):
                    arrived.append(stream.vbucket)
                else:
                    self._is_over.set()
        if arrived:
            # All vbuckets of a block together, with one save of the map.
            take_over(self._bucket, arrived, self._target)
            asyncio.get_running_loop().call_soon(self._map_changed)
        for vbucket in arrived:
            del self._left[vbucket]
        ended = {each.vbucket for each in streams if each.is_over}
        if ended & self._left.keys() or not self._left:
            self._is_over.set()

    def _may_move(self, vbucket: int) -> bool:
        """Return whether the vbucket may still move: no other order has changed owner or target."""
        bucket, target = self._bucket, self._target
        is_there = bucket.map.is_member(target) and target not in bucket.map.down_nodes
        return is_there and bucket.map.owner(vbucket) == self._active_node

    def _give_up(self) -> list[int]:
        with self._bucket.lock:
            for replica in self._left.values():
                leave(self._bucket, replica, self._target)
            self._bucket.table.replicas_moved.notify_all()
            return list(self._left)


def checked_members(bucket: ProducerBucket, remove: int | None) -> list[int]:
    """Return the nodes that shall own vbuckets: all members except ``remove``.

    Raises:
        ValueError: a member is down, ``remove`` is no member or the last one, or a vbucket is
            not active.
    """
    members = [node for node in range(bucket.map.node_count) if bucket.map.is_member(node)]
    if remove is not None and remove not in members:
        raise ValueError(f"rebalance: found node {remove + 1} to remove, expected a member")
    for node in members:
        if node in bucket.map.down_nodes:
            raise ValueError(
                f"rebalance: {bucket.map.name_of(node)} does not answer; "
                "restore it, or fail it over first"
            )
    for vbucket in bucket.vbuckets:
        if vbucket.state is not VbucketState.ACTIVE:
            raise ValueError(
                f"rebalance: found vbucket {vbucket.id} {vbucket.state.name}, expected ACTIVE"
            )
    left = [node for node in members if node != remove]
    if not left:
        raise ValueError("rebalance: found no other node to take what the last one holds")
    return left


def even_owners(owners: Sequence[int], nodes: Sequence[int]) -> list[int]:
    """Return an owner among ``nodes`` for each vbucket: even shares, with as few moves as possible.

    Raises:
        ValueError: there are no nodes.
    """
    if not nodes:
        raise ValueError("owners of vbuckets: found no nodes, expected one or more")
    least, more = divmod(len(owners), len(nodes))
    owned = {node: list(owners).count(node) for node in nodes}
    # Nodes that own the most get the larger shares: that saves moves.
    ranked = sorted(nodes, key=lambda node: (-owned[node], node))
    share = {node: least + (index < more) for index, node in enumerate(ranked)}
    kept = dict.fromkeys(nodes, 0)
    found: list[int | None] = []
    for owner in owners:
        stays = owner in kept and kept[owner] < share[owner]
        found.append(owner if stays else None)
        if stays:
            kept[owner] += 1
    takers = iter([node for node in nodes for _ in range(share[node] - kept[node])])
    return [next(takers) if owner is None else owner for owner in found]
