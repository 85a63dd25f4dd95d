"""Promotes a replica to the vbucket: a failover on a new branch, a takeover on the same one.

Call these functions under the bucket's lock. The vbucket then holds what the replica held.
"""

from collections.abc import Callable, Iterable, Mapping

from dcp.producer.bucket import ProducerBucket
from dcp.producer.parallel_writes import flush_together, save_together
from dcp.server.model.state_changes import ORDERED, StateEvent
from dcp.server.vbucket.replica import Replica
from dcp.wire.vocabulary import VbucketState


def promotion_of(state: VbucketState) -> StateEvent:
    """Return the event for a replica that replaces a vbucket which was in ``state``.

    The replica of an active vbucket becomes active on a new branch; any other state stays.
    """
    return StateEvent.PROMOTED if state is VbucketState.ACTIVE else ORDERED[state]


def prepare(
    bucket: ProducerBucket, heirs: Mapping[int, int], event_of: Callable[[int], StateEvent]
) -> None:
    """Write the replicas to disk in their future state; ``promote`` or ``undo`` follows.

    A replica is cut to its last complete snapshot, unless it has taken over. ``heirs`` maps
    vbuckets to nodes, ``event_of`` a vbucket to its event.

    Raises:
        OSError: the disk cannot be written; nothing has changed.
    """
    found = [bucket.replicas.at(node, vbucket) for vbucket, node in heirs.items()]
    replicas = [replica for replica in found if replica is not None and not replica.is_prepared]
    events = [event_of(replica.vbucket.id) for replica in replicas]
    for replica, event in zip(replicas, events, strict=True):
        if event is not StateEvent.TAKEN_OVER:
            # Items of an incomplete snapshot must not become part of the vbucket.
            replica.drop_part()
        replica.vbucket.prepare_to_replace(bucket.vbuckets[replica.vbucket.id])
    # All replicas in parallel: the lock is held for as long as this takes.
    flush_together([replica.vbucket.data for replica in replicas])
    try:
        for replica, event in zip(replicas, events, strict=True):
            replica.prepare(event)
        save_together([replica.vbucket.data for replica in replicas])
    except BaseException:
        _undo(replicas)
        raise


def undo(bucket: ProducerBucket, heirs: Mapping[int, int]) -> None:
    """Turn prepared replicas of these nodes into ordinary replicas again."""
    found = [bucket.replicas.at(node, vbucket) for vbucket, node in heirs.items()]
    _undo([replica for replica in found if replica is not None])


def _undo(replicas: Iterable[Replica]) -> None:
    for replica in replicas:
        replica.undo_preparation()


def promote(bucket: ProducerBucket, vbucket: int, node: int, event: StateEvent) -> None:
    """Let a node's replica replace the vbucket; prepares it first if necessary."""
    prepare(bucket, {vbucket: node}, lambda _: event)
    replica = bucket.replicas.take(node, vbucket)
    replica.vbucket.documents.rewind()
    bucket.table.put_in_place(vbucket, replica.vbucket)
    bucket.follow_change(replica.vbucket, node)
    bucket.table.replicas_moved.notify_all()


def take_over(bucket: ProducerBucket, vbuckets: Iterable[int], node: int) -> None:
    """Let a node's replicas become active vbuckets after takeover streams; saves the map once.

    Raises:
        OSError: the data folder cannot be written; nothing has changed.
    """
    heirs = dict.fromkeys(vbuckets, node)
    prepare(bucket, heirs, lambda _: StateEvent.TAKEN_OVER)
    try:
        with bucket.promoting_replicas(heirs):
            for vbucket in heirs:
                bucket.map.move(vbucket, node)
    except BaseException:
        undo(bucket, heirs)
        raise
    for vbucket in heirs:
        promote(bucket, vbucket, node, StateEvent.TAKEN_OVER)
