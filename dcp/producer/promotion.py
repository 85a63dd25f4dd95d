"""A copy becomes the vbucket: by a failover on a new branch, by a takeover on the one that is.

Functions on the bucket, under its lock. What the copy holds is what the vbucket holds from then on;
the record of branches and the floor of CAS values are handed over.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from dcp.producer.bucket_states import follow_change
from dcp.producer.replica_copy import ReplicaCopy
from dcp.producer.state_changes import ORDERED, StateEvent
from dcp.wire.vocabulary import VbucketState

if TYPE_CHECKING:
    from dcp.producer.bucket import Bucket


def heirs_of(bucket: Bucket, node: int) -> dict[int, int]:
    """Return the node whose copy goes on for each of a node's vbuckets: the next that lives.

    Raises:
        ValueError: no copy of one of them lives.
    """
    found: dict[int, int] = {}
    for vbucket in bucket.map.vbuckets_of(node):
        living = [each for each in bucket.map.replicas(vbucket) if each not in bucket.dead_nodes]
        if not living:
            raise ValueError(
                f"failover of {bucket.map.name_of(node)}: found no living node with a copy of "
                f"vbucket {vbucket}; restore one, or rebalance"
            )
        found[vbucket] = living[0]
    return found


def living_copies(bucket: Bucket, vbucket: int) -> Iterator[tuple[int, ReplicaCopy]]:
    """Yield nodes that live and hold a copy, with the copies, the first to be promoted first."""
    for node in bucket.map.replicas(vbucket):
        copy = bucket.copies.at(node, vbucket)
        if copy is not None and node not in bucket.dead_nodes:
            yield node, copy


def promote(bucket: Bucket, vbucket: int, node: int, state: VbucketState) -> None:
    """Let a node's copy go on as the vbucket, from its last whole snapshot, on its own branch.

    ``state`` is what the vbucket was in; but for an active one it stays that, and no branch begins.
    """
    copy = bucket.copies.take(node, vbucket)
    copy.drop_part()
    event = StateEvent.PROMOTED if state is VbucketState.ACTIVE else ORDERED[state]
    _put_in_place(bucket, copy, event, node)


def take_over(bucket: Bucket, vbucket: int, node: int) -> None:
    """Let a node's copy be the active vbucket, as a takeover stream told it to, in a new map.

    No branch begins: the copy holds all that there is, and the last owner is dead already.
    """
    bucket.map.move(vbucket, node)
    become_active(bucket, vbucket, node)
    bucket.save()


def become_active(bucket: Bucket, vbucket: int, node: int) -> None:
    """Let a copy that took over be the vbucket that the map says is its node's."""
    copy = bucket.copies.take(node, vbucket)
    bucket.handed_over.discard(vbucket)
    _put_in_place(bucket, copy, StateEvent.TAKEN_OVER, node)
    bucket.copies_moved.notify_all()


def _put_in_place(bucket: Bucket, copy: ReplicaCopy, event: StateEvent, node: int) -> None:
    """Let a copy be the vbucket, and an event happen to it before: so it is saved as that."""
    vbucket = copy.vbucket
    vbucket.succeed(bucket.vbuckets[vbucket.id])
    vbucket.change(event, is_first=not copy.has_history)
    bucket.put_in_place(vbucket.id, vbucket)
    follow_change(bucket, vbucket, node)
