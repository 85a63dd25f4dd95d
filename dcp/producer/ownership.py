"""What this process does when the map names other owners: one function of the maps and what it has.

    was here   is here   what follows
    no         yes       the copy goes on: as it is where a takeover filled it, else promoted
    yes        yes       the copy is promoted; without copies the vbucket itself, less its lag
    yes        no        the vbucket is let go of
    no         no        nothing

A vbucket that was handed over to a node that moves it (``Bucket.handed_over``) is dead here until
the map has it elsewhere, or the move is over and it is active again. Functions on the bucket, under
its lock; streams end before anything can be written to a new branch.
"""

from collections.abc import Sequence

from dcp.producer.bucket import Bucket
from dcp.producer.promotion import become_active, promote
from dcp.producer.stream_ends import end_streams
from dcp.wire.vocabulary import VbucketState


def follow_owners(bucket: Bucket, before: Sequence[int]) -> None:
    """Let what is here be what the map says; ``before`` are the owners that it named till now."""
    for vbucket, (old, new) in enumerate(zip(before, bucket.map.owners, strict=True)):
        if old == new:
            continue
        if bucket.is_local(old):
            end_streams(bucket, vbucket, old)
            bucket.handed_over.discard(vbucket)
        if bucket.is_local(new):
            _begin(bucket, vbucket, new, was_here=bucket.is_local(old))
        elif bucket.is_local(old):
            bucket.let_go(vbucket)


def _begin(bucket: Bucket, vbucket: int, node: int, *, was_here: bool) -> None:
    copy = bucket.copies.at(node, vbucket)
    end_streams(bucket, vbucket, node)
    if copy is None:
        if bucket.vbuckets[vbucket].state is VbucketState.ACTIVE:
            bucket.vbuckets[vbucket].promote()
    elif copy.has_taken_over:
        become_active(bucket, vbucket, node)
        return
    else:
        if not was_here:
            bucket.vbuckets[vbucket].state = VbucketState.ACTIVE  # as it was at its owner
        promote(bucket, vbucket, bucket.copies.take(node, vbucket))
    bucket.follow_manifest(bucket.vbuckets[vbucket])
    bucket.sync_writes.watch(vbucket)


def settle_moves(bucket: Bucket) -> None:
    """Let vbuckets be as they were whose move is over and which the map has where it had them."""
    for vbucket in sorted(bucket.handed_over - bucket.moving):
        bucket.handed_over.discard(vbucket)
        owner, state = bucket.map.owner(vbucket), bucket.vbuckets[vbucket]
        if owner is not None and bucket.is_local(owner) and state.state is VbucketState.DEAD:
            state.is_moving = False
            state.state = VbucketState.ACTIVE  # nobody else became active
            state.recover_sync_writes()
            bucket.follow_manifest(state)
            bucket.sync_writes.watch(vbucket)
    for vbucket in range(len(bucket.vbuckets)):
        if vbucket in bucket.moving:
            continue
        for _, copy in bucket.copies.of(vbucket):
            if copy.has_taken_over:  # in vain: the map does not say so
                copy.has_taken_over = copy.is_taking_over = False
                copy.vbucket.state = VbucketState.REPLICA
    bucket.copies_moved.notify_all()
