"""Promotes a copy to the vbucket: a failover on a new branch, a takeover on the same one.

Call these functions under the bucket's lock. The vbucket then holds what the copy held.
"""

from collections.abc import Callable, Iterable, Mapping

from dcp.producer.parallel_writes import flush_together, save_together
from dcp.producer.producer_bucket import ProducerBucket
from dcp.server.model.state_changes import ORDERED, StateEvent
from dcp.server.vbucket.replica_copy import ReplicaCopy
from dcp.wire.vocabulary import VbucketState


def promotion_of(state: VbucketState) -> StateEvent:
    """Return the event for a copy that replaces a vbucket which was in ``state``.

    The copy of an active vbucket becomes active on a new branch; any other state stays.
    """
    return StateEvent.PROMOTED if state is VbucketState.ACTIVE else ORDERED[state]


def prepare(
    bucket: ProducerBucket, heirs: Mapping[int, int], event_of: Callable[[int], StateEvent]
) -> None:
    """Write the copies to disk in their future state; ``promote`` or ``undo`` follows.

    A copy is cut to its last complete snapshot, unless it has taken over. ``heirs`` maps vbuckets
    to nodes, ``event_of`` a vbucket to its event.

    Raises:
        OSError: the disk cannot be written; nothing has changed.
    """
    found = [bucket.copies.at(node, vbucket) for vbucket, node in heirs.items()]
    copies = [copy for copy in found if copy is not None and not copy.is_prepared]
    events = [event_of(copy.vbucket.id) for copy in copies]
    for copy, event in zip(copies, events, strict=True):
        if event is not StateEvent.TAKEN_OVER:
            # Items of an incomplete snapshot must not become part of the vbucket.
            copy.drop_part()
        copy.vbucket.prepare_to_replace(bucket.vbuckets[copy.vbucket.id])
    # All copies in parallel: the lock is held for as long as this takes.
    flush_together([copy.vbucket.data for copy in copies])
    try:
        for copy, event in zip(copies, events, strict=True):
            copy.prepare(event)
        save_together([copy.vbucket.data for copy in copies])
    except BaseException:
        _undo(copies)
        raise


def undo(bucket: ProducerBucket, heirs: Mapping[int, int]) -> None:
    """Turn prepared copies of these nodes into ordinary copies again."""
    found = [bucket.copies.at(node, vbucket) for vbucket, node in heirs.items()]
    _undo([copy for copy in found if copy is not None])


def _undo(copies: Iterable[ReplicaCopy]) -> None:
    for copy in copies:
        copy.undo_preparation()


def promote(bucket: ProducerBucket, vbucket: int, node: int, event: StateEvent) -> None:
    """Let a node's copy replace the vbucket; prepares it first if necessary."""
    prepare(bucket, {vbucket: node}, lambda _: event)
    copy = bucket.copies.take(node, vbucket)
    copy.vbucket.documents.rewind()
    bucket.table.put_in_place(vbucket, copy.vbucket)
    bucket.follow_change(copy.vbucket, node)
    bucket.table.copies_moved.notify_all()


def take_over(bucket: ProducerBucket, vbuckets: Iterable[int], node: int) -> None:
    """Let a node's copies become active vbuckets after takeover streams; saves the map once.

    Raises:
        OSError: the data folder cannot be written; nothing has changed.
    """
    heirs = dict.fromkeys(vbuckets, node)
    prepare(bucket, heirs, lambda _: StateEvent.TAKEN_OVER)
    try:
        with bucket.promoting_copies(heirs):
            for vbucket in heirs:
                bucket.map.move(vbucket, node)
    except BaseException:
        undo(bucket, heirs)
        raise
    for vbucket in heirs:
        promote(bucket, vbucket, node, StateEvent.TAKEN_OVER)
