"""What this process does when the map names other owners: one function of the maps and what it has.

    was here   is here   what follows
    no         yes       the copy goes on: as it is where a takeover filled it, else promoted
    yes        yes       the copy, as above; without copies the vbucket itself goes on, less its lag
    yes        no        the vbucket is let go of
    no         no        nothing

A vbucket that was handed over to a node that moves it (``is_handed_over``) is dead here until the
map has it elsewhere, or the move is over and it is active again. Functions on the bucket, under
its lock; streams end before anything can be written to a new branch.
"""

from dcp.producer.bucket import Bucket
from dcp.producer.bucket_states import change_state, give_back
from dcp.producer.promotion import promote
from dcp.producer.replica_copy import ReplicaCopy
from dcp.producer.state_changes import StateEvent
from dcp.producer.stream_ends import end_streams
from dcp.wire.vocabulary import VbucketState


def follow_owners(bucket: Bucket, owners: list[int]) -> None:
    """Let what is here be what the map says; ``owners`` are those that it named till now.

    Each becomes the new one when that is done: where some fail, the next call tries those again.

    Raises:
        OSError: the disk refused something; all others are done.
    """
    failures: list[OSError] = []
    for vbucket, (old, new) in enumerate(zip(tuple(owners), bucket.map.owners, strict=True)):
        if old == new:
            continue
        try:
            _follow_owner(bucket, vbucket, old, new)
        except OSError as error:
            failures.append(error)
        else:
            owners[vbucket] = new
    if failures:
        raise failures[0]


def _follow_owner(bucket: Bucket, vbucket: int, old: int, new: int) -> None:
    state = VbucketState.ACTIVE  # as it is at an owner elsewhere
    if bucket.is_local(old):
        end_streams(bucket, vbucket, old)
        here = bucket.vbuckets[vbucket]
        state = VbucketState.ACTIVE if here.is_handed_over else here.state
    if bucket.is_local(new):
        _begin(bucket, vbucket, new, state)
    elif bucket.is_local(old):
        bucket.let_go(vbucket)


def _begin(bucket: Bucket, vbucket: int, node: int, state: VbucketState) -> None:
    copy = bucket.copies.at(node, vbucket)
    end_streams(bucket, vbucket, node)
    if copy is not None and copy.has_taken_over:
        promote(bucket, vbucket, node, state)
        return
    bucket.replicas.promote(vbucket, node, state)
    in_vain = bucket.copies.at(node, vbucket)
    if in_vain is not None:  # it was being filled, and the vbucket itself goes on there
        leave(bucket, in_vain, node)


def settle_moves(bucket: Bucket) -> None:
    """Let vbuckets be as they were whose move is over and which the map has where it had them."""
    for vbucket in range(len(bucket.vbuckets)):
        if vbucket in bucket.moving:
            continue
        give_back(bucket, vbucket)
        for node, copy in bucket.copies.of(vbucket):
            if copy.has_taken_over:  # in vain: the map does not say so
                leave(bucket, copy, node)
    bucket.copies_moved.notify_all()


def leave(bucket: Bucket, copy: ReplicaCopy, node: int) -> None:
    """Let a node's copy be one as before whose takeover was given up."""
    copy.leave()
    if copy.vbucket.state is VbucketState.PENDING:
        change_state(bucket, copy.vbucket, StateEvent.LEFT, node)


def may_move(bucket: Bucket, vbucket: int, source: int, target: int) -> bool:
    """Whether what a node took over may be its own: nothing else was ordered meanwhile."""
    is_there = bucket.map.is_member(target) and target not in bucket.dead_nodes
    return is_there and bucket.map.owner(vbucket) == source
