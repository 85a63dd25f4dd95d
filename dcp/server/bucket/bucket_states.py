"""Changes vbucket states in a bucket, with the effects on streams and writes.

    streams                      end: what is streamed is in that state no more
    the vbucket's own            branch, sync writes, what is saved (``Vbucket.change``)
    system events                are emitted that an active vbucket lacks
    clients of durable writes    are told how those ended

Functions on the bucket, under its lock. Streams of a vbucket end before anything can be written to
its new branch: a stream never goes on across a fork.
"""

import logging
from collections.abc import Sequence

from dcp.server.bucket.bucket import Bucket
from dcp.server.bucket.dcp_connection import DcpConnection
from dcp.server.model.resume_rules import VbucketFacts
from dcp.server.model.state_changes import ORDERED, StateEvent
from dcp.server.model.versions import Version
from dcp.server.streams.stream import ActiveStream
from dcp.server.vbucket.replica_copy import ReplicaCopy
from dcp.server.vbucket.vbucket import Vbucket
from dcp.wire.vocabulary import VbucketState

_LOG = logging.getLogger(__name__)


def change_state(
    bucket: Bucket,
    vbucket: Vbucket,
    event: StateEvent,
    node: int | None = None,
    *,
    is_first: bool = False,
) -> None:
    """Let an event happen to what a node (None: the owner) has; all its streams end.

    ``is_first``: if a branch begins, it is the first one that is known.

    Raises:
        LocalProtocolError: that does not happen to a vbucket in its state.
    """
    vbucket.change(event, is_first=is_first)
    follow_change(bucket, vbucket, node)


def follow_change(
    bucket: Bucket, vbucket: Vbucket, node: int | None = None, *, spared: ActiveStream | None = None
) -> None:
    """Let all follow what a node (None: the owner) has on another branch, or in another state.

    System events that the disk refuses are emitted when they are next asked for: the change itself
    has happened.
    """
    bucket.dcp_connections.end_streams(vbucket.id, node, spared=spared)
    try:
        bucket.follow_manifest(vbucket)
    except OSError as error:
        _LOG.warning("vbucket %d: system events cannot be emitted yet: %s", vbucket.id, error)
    bucket.sync_writes.watch(vbucket.id)


def set_state(bucket: Bucket, vbucket: int, state: VbucketState) -> None:
    """Order the owner's vbucket into a state.

    Raises:
        ValueError: not a state that a vbucket can be in, or a rebalance moves it.
    """
    if state not in ORDERED:
        raise ValueError(f"vbucket {vbucket}: found state {state.name}, expected one of its own")
    bucket.table.require_unmoved("change of state", vbucket)
    if bucket.vbuckets[vbucket].state is not state:
        change_state(bucket, bucket.vbuckets[vbucket], ORDERED[state])


def set_state_of_copy(bucket: Bucket, vbucket: int, node: int, state: VbucketState) -> None:
    """Order a node's copy of a vbucket into a state.

    Raises:
        ValueError: no copy there, a state that only the vbucket itself can be in, or a rebalance
            moves the vbucket.
    """
    bucket.table.require_unmoved("change of state", vbucket)
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


def hand_over(bucket: Bucket, connection: DcpConnection, stream: ActiveStream) -> bool:
    """Let a node's vbucket be dead, as the client of a takeover is to be active.

    All its other streams end.

    Returns False where it cannot be: the vbucket is not active there any more, or the client is a
    node, and no rebalance moves the vbucket.
    """
    node, is_move = connection.key[0], connection.is_internal
    vbucket = bucket.table.active(stream.vbucket, node)
    if vbucket is None or not stream.is_of(vbucket.data):
        return False
    if is_move and not bucket.table.is_moving(stream.vbucket):
        return False
    vbucket.hand_over(is_move=is_move)
    follow_change(bucket, vbucket, node, spared=stream)
    return True


def give_back(bucket: Bucket, vbucket: int) -> None:
    """Let a vbucket be active again if it was handed over: the node did not get it.

    Raises:
        OSError: the disk cannot be written; it is handed over as before.
    """
    given = bucket.vbuckets[vbucket]
    if given.give_back():
        follow_change(bucket, given)


def leave(bucket: Bucket, copy: ReplicaCopy, node: int) -> None:
    """Revert a node's copy whose takeover was cancelled."""
    copy.take_over(is_taking_over=False)
    if copy.vbucket.state is VbucketState.PENDING:
        change_state(bucket, copy.vbucket, StateEvent.LEFT, node)


def set_up(
    bucket: Bucket, vbucket: int, facts: VbucketFacts, versions: Sequence[Version] = ()
) -> None:
    """Make a vbucket of which ``facts`` are true, with these versions; its streams end.

    Raises:
        ValueError: there is no such vbucket, or a rebalance moves it.
    """
    replaced = bucket.table.numbered(vbucket)
    bucket.table.require_unmoved("replacement", vbucket)
    replaced.set_up(facts, versions)
    bucket.collections.learn(replaced)
    bucket.dcp_connections.end_streams(vbucket)
    bucket.sync_writes.watch(vbucket)
