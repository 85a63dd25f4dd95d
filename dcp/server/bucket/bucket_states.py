"""Changes vbucket states, and applies the effects on streams and durable writes.

A change of state has four effects, in this order:

    the vbucket                  branches, settles sync writes, saves (``Vbucket.change``)
    streams                      end
    system events                an active vbucket emits those that it lacks
    clients of durable writes    receive their outcome

Callers hold the bucket's lock.
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
    """Apply an event to a node's vbucket (None: the owner's) and end its streams.

    ``is_first``: a branch that begins now is the first known one.

    Raises:
        LocalProtocolError: the vbucket's state does not allow the event.
    """
    vbucket.change(event, is_first=is_first)
    follow_change(bucket, vbucket, node)


def follow_change(
    bucket: Bucket, vbucket: Vbucket, node: int | None = None, *, spared: ActiveStream | None = None
) -> None:
    """End the streams of a vbucket that changed state or branch, and emit its system events.

    The vbucket is the one at ``node`` (None: the owner's); the stream ``spared`` goes on.
    """
    # Streams must end before the first write to the new branch: no stream may cross a fork.
    bucket.dcp_connections.end_streams(vbucket.id, node, spared=spared)
    try:
        bucket.follow_manifest(vbucket)
    except OSError as error:
        # The change of state stands; the next ``follow_manifest`` emits the events.
        _LOG.warning("vbucket %d: system events cannot be emitted yet: %s", vbucket.id, error)
    bucket.sync_writes.watch(vbucket.id)


def set_state(bucket: Bucket, vbucket: int, state: VbucketState) -> None:
    """Set the state of the owner's vbucket, on an administrator's order.

    Raises:
        ValueError: nobody can order that state, or a rebalance moves the vbucket.
    """
    if state not in ORDERED:
        raise ValueError(
            f"vbucket {vbucket}: found state {state.name}, "
            "expected ACTIVE, REPLICA, PENDING or DEAD"
        )
    bucket.table.require_unmoved("change of state", vbucket)
    if bucket.vbuckets[vbucket].state is not state:
        change_state(bucket, bucket.vbuckets[vbucket], ORDERED[state])


def set_state_of_copy(bucket: Bucket, vbucket: int, node: int, state: VbucketState) -> None:
    """Set the state of a node's copy, on an administrator's order.

    Raises:
        ValueError: the node has no copy, a copy cannot have that state, or a rebalance moves the
            vbucket.
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
    """Make a node's vbucket dead, as the takeover's client becomes active; end its other streams.

    Return False if the vbucket is not active on the node, or if a node asks without a rebalance.
    """
    node, is_move = connection.key[0], connection.is_internal
    vbucket = bucket.table.active(stream.vbucket, node)
    if vbucket is None or not stream.is_of(vbucket.data):
        return False
    # The rebalance may have been cancelled: the vbucket stays.
    if is_move and not bucket.table.is_moving(stream.vbucket):
        return False
    vbucket.hand_over(is_move=is_move)
    follow_change(bucket, vbucket, node, spared=stream)
    return True


def give_back(bucket: Bucket, vbucket: int) -> None:
    """Make a handed-over vbucket active again, because the other node did not take it.

    Raises:
        OSError: the disk cannot be written; the vbucket stays handed over.
    """
    given = bucket.vbuckets[vbucket]
    if given.give_back():
        follow_change(bucket, given)


def leave(bucket: Bucket, copy: ReplicaCopy, node: int) -> None:
    """Revert a copy whose takeover was cancelled."""
    copy.take_over(is_taking_over=False)
    # The copy becomes pending by SET_VBUCKET_STATE; until then it is a replica.
    if copy.vbucket.state is VbucketState.PENDING:
        change_state(bucket, copy.vbucket, StateEvent.LEFT, node)


def set_up(
    bucket: Bucket, vbucket: int, facts: VbucketFacts, versions: Sequence[Version] = ()
) -> None:
    """Replace a vbucket by one with these facts and versions; its streams end.

    Raises:
        ValueError: no such vbucket exists, or a rebalance moves it.
    """
    replaced = bucket.table.numbered(vbucket)
    bucket.table.require_unmoved("replacement", vbucket)
    replaced.set_up(facts, versions)
    bucket.collections.learn(replaced)
    bucket.dcp_connections.end_streams(vbucket)
    bucket.sync_writes.watch(vbucket)
