"""Changes of state in a bucket, with all that follows from them for its streams and writes.

    streams                      end: what is streamed is in that state no more
    the vbucket's own            branch, sync writes, what is saved (``Vbucket.change``)
    system events                are emitted that an active vbucket lacks
    clients of durable writes    are told how those ended

Functions on the bucket, under its lock. Streams of a vbucket end before anything can be written to
its new branch: a stream never goes on across a fork.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from dcp.producer.bucket.stream_ends import end_streams
from dcp.producer.model.state_changes import ORDERED, StateEvent
from dcp.producer.vbucket.vbucket import Vbucket
from dcp.wire.vocabulary import VbucketState

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dcp.producer.bucket.bucket import Bucket
    from dcp.producer.model.resume_rules import VbucketFacts
    from dcp.producer.model.versions import Version
    from dcp.producer.streams.stream import ActiveStream
    from dcp.producer.vbucket.replica_copy import ReplicaCopy

_LOG = logging.getLogger(__name__)


def change_state(
    bucket: Bucket,
    vbucket: Vbucket,
    event: StateEvent,
    node: int | None = None,
    *,
    spared: ActiveStream | None = None,
    is_first: bool = False,
) -> None:
    """Let an event happen to what a node (None: the owner) has; all streams but one end.

    ``is_first``: if a branch begins, it is the first one that is known.

    Raises:
        LocalProtocolError: that does not happen to a vbucket in its state.
    """
    vbucket.change(event, is_first=is_first)
    follow_change(bucket, vbucket, node, spared=spared)


def follow_change(
    bucket: Bucket, vbucket: Vbucket, node: int | None = None, *, spared: ActiveStream | None = None
) -> None:
    """Let all follow what a node (None: the owner) has on another branch, or in another state.

    System events that the disk refuses are emitted when they are next asked for: the change itself
    has happened.
    """
    bucket.replicas.branched(vbucket.id)
    end_streams(bucket, vbucket.id, node, spared=spared)
    try:
        bucket.collections.follow(vbucket)
    except OSError as error:
        _LOG.warning("vbucket %d: system events cannot be emitted yet: %s", vbucket.id, error)
    bucket.sync_writes.watch(vbucket.id)


def require_unmoved(bucket: Bucket, what: str, vbucket: int) -> None:
    """Raise ValueError where a rebalance moves a vbucket: what is ordered would be lost, or undone.

    It may be dead here for an instant, with all that it has on its way to another node.
    """
    if vbucket in bucket.moving or bucket.vbuckets[vbucket].is_handed_over:
        raise ValueError(
            f"{what} of vbucket {vbucket}: found one that a rebalance moves now; order it when "
            "that is over"
        )


def set_state(bucket: Bucket, vbucket: int, state: VbucketState) -> None:
    """Order the owner's vbucket into a state.

    Raises:
        ValueError: not a state that a vbucket can be in, or a rebalance moves it.
    """
    if state not in ORDERED:
        raise ValueError(f"vbucket {vbucket}: found state {state.name}, expected one of its own")
    require_unmoved(bucket, "change of state", vbucket)
    if bucket.vbuckets[vbucket].state is not state:
        change_state(bucket, bucket.vbuckets[vbucket], ORDERED[state])


def set_state_of_copy(bucket: Bucket, vbucket: int, node: int, state: VbucketState) -> None:
    """Order a node's copy of a vbucket into a state.

    Raises:
        ValueError: no copy there, a state that only the vbucket itself can be in, or a rebalance
            moves the vbucket.
    """
    require_unmoved(bucket, "change of state", vbucket)
    copy = bucket.copies.at(node, vbucket)
    if copy is None:
        raise ValueError(f"vbucket {vbucket}: found no copy on {bucket.map.name_of(node)}")
    if state is VbucketState.ACTIVE or state not in ORDERED:
        raise ValueError(
            f"vbucket {vbucket}, its copy: found state {state.name}, "
            "expected REPLICA, PENDING or DEAD"
        )
    if copy.vbucket.state is not state:
        change_state(bucket, copy.vbucket, ORDERED[state], node)


def hand_over(
    bucket: Bucket, vbucket: Vbucket, node: int, *, spared: ActiveStream, is_move: bool
) -> None:
    """Let a node's active vbucket be dead; its streams end but for the one that takes it over.

    ``is_move``: the client is a node, and a rebalance will say where the vbucket is.
    """
    vbucket.is_handed_over = is_move
    change_state(bucket, vbucket, StateEvent.HANDED_OVER, node, spared=spared)


def give_back(bucket: Bucket, vbucket: int) -> None:
    """Let a vbucket be active again if it was handed over: the node did not get it.

    Raises:
        OSError: the disk cannot be written; it is handed over as before.
    """
    given = bucket.vbuckets[vbucket]
    was_handed_over, given.is_handed_over = given.is_handed_over, False
    if was_handed_over and given.state is VbucketState.DEAD:
        try:
            change_state(bucket, given, StateEvent.GIVEN_BACK)
        except BaseException:
            given.is_handed_over = True
            raise


def leave(bucket: Bucket, copy: ReplicaCopy, node: int) -> None:
    """Let a node's copy be one as before whose takeover was given up."""
    copy.is_taking_over = False
    if copy.vbucket.state is VbucketState.PENDING:
        change_state(bucket, copy.vbucket, StateEvent.LEFT, node)


def set_up(
    bucket: Bucket, vbucket: int, facts: VbucketFacts, versions: Sequence[Version] = ()
) -> None:
    """Make a vbucket of which ``facts`` are true, with these versions; its streams end.

    Raises:
        ValueError: there is no such vbucket, or a rebalance moves it.
    """
    bucket.held.numbered(vbucket)
    require_unmoved(bucket, "replacement", vbucket)
    bucket.held.numbered(vbucket).set_up(facts, versions)
    bucket.replicas.forget(vbucket)
    bucket.collections.learn(bucket.vbuckets[vbucket])
    end_streams(bucket, vbucket)
    bucket.sync_writes.watch(vbucket)
