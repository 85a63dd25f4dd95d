"""Promotes a copy to the vbucket: by a failover on a new branch, by a takeover on the same one.

Functions on the bucket, under its lock. What the copy holds is what the vbucket holds from then on;
the record of branches and the floor of CAS values are handed over.
"""

from collections.abc import Callable, Iterable, Mapping

from dcp.producer.parallel_writes import flush_together, save_together
from dcp.server.bucket.bucket import Bucket
from dcp.server.bucket.bucket_states import follow_change
from dcp.server.model.state_changes import ORDERED, StateEvent
from dcp.server.vbucket.replica_copy import ReplicaCopy
from dcp.wire.vocabulary import VbucketState


def promotion_of(state: VbucketState) -> StateEvent:
    """Return what happens to a copy that goes on with a vbucket which was in ``state``.

    It is active on a branch of its own where the vbucket was; any other state stays, without one.
    """
    return StateEvent.PROMOTED if state is VbucketState.ACTIVE else ORDERED[state]


def prepare(
    bucket: Bucket, heirs: Mapping[int, int], event_of: Callable[[int], StateEvent]
) -> None:
    """Have nodes' copies on disk as what they are to be; ``promote`` follows, or ``undo``.

    That is the vbucket from the last whole snapshot that the copy has; a copy that took over holds
    all that there is. ``event_of`` says what happens to which vbucket's. All are written at once.

    Raises:
        OSError: the disk cannot be written; nothing has changed.
    """
    found = [bucket.copies.at(node, vbucket) for vbucket, node in heirs.items()]
    copies = [copy for copy in found if copy is not None and not copy.is_prepared]
    events = [event_of(copy.vbucket.id) for copy in copies]
    for copy, event in zip(copies, events, strict=True):
        if event is not StateEvent.TAKEN_OVER:
            copy.drop_part()
        copy.vbucket.prepare_to_succeed(bucket.vbuckets[copy.vbucket.id])
    flush_together([copy.vbucket.data for copy in copies])
    try:
        for copy, event in zip(copies, events, strict=True):
            copy.prepare(event)
        save_together([copy.vbucket.data for copy in copies])
    except BaseException:
        _undo(copies)
        raise


def undo(bucket: Bucket, heirs: Mapping[int, int]) -> None:
    """Let nodes' copies be copies again that were prepared, as they are not needed."""
    found = [bucket.copies.at(node, vbucket) for vbucket, node in heirs.items()]
    _undo([copy for copy in found if copy is not None])


def _undo(copies: Iterable[ReplicaCopy]) -> None:
    for copy in copies:
        copy.undo_preparation()


def promote(bucket: Bucket, vbucket: int, node: int, event: StateEvent) -> None:
    """Let a node's copy be the vbucket from now on; see ``prepare``, which it does if need be."""
    prepare(bucket, {vbucket: node}, lambda _: event)
    copy = bucket.copies.take(node, vbucket)
    copy.vbucket.succeed(bucket.vbuckets[vbucket])
    bucket.table.put_in_place(vbucket, copy.vbucket)
    copy.complete_promotion()
    follow_change(bucket, copy.vbucket, node)
    bucket.table.copies_moved.notify_all()


def take_over(bucket: Bucket, vbuckets: Iterable[int], node: int) -> None:
    """Let a node's copies be the active vbuckets, as takeover streams told them, in one saved map.

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
