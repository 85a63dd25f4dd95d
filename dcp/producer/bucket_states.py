"""Changes vbucket states, and applies the effects.

A change of state has four effects, in this order:

    the vbucket      branches, saves (``Vbucket.change``)
    sync writes      start over (``ProducerBucket.follow_change``); clients then get the outcome
    streams          end
    system events    an active vbucket emits those that it lacks

Callers hold the bucket's lock.
"""

from collections.abc import Sequence

from dcp.producer.bucket import ProducerBucket
from dcp.server.model.resume_rules import VbucketFacts
from dcp.server.model.state_changes import ORDERED, StateEvent
from dcp.server.model.versions import Version
from dcp.server.vbucket.replica import Replica
from dcp.server.vbucket.vbucket_states import Vbucket
from dcp.wire.vocabulary import VbucketState


def change_state(
    bucket: ProducerBucket,
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
    bucket.follow_change(vbucket, node)


def set_state(bucket: ProducerBucket, vbucket: int, state: VbucketState) -> None:
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


def set_state_of_replica(
    bucket: ProducerBucket, vbucket: int, node: int, state: VbucketState
) -> None:
    """Set the state of a node's replica, on an administrator's order.

    Raises:
        ValueError: the node has no replica, or it cannot have that state; or a rebalance moves the
            vbucket.
    """
    bucket.table.require_unmoved("change of state", vbucket)
    replica = bucket.replicas.at(node, vbucket)
    if replica is None:
        raise ValueError(f"vbucket {vbucket}: found no replica on {bucket.map.name_of(node)}")
    if state is VbucketState.ACTIVE or state not in ORDERED:
        raise ValueError(
            f"vbucket {vbucket}, its replica: found state {state.name}, "
            "expected REPLICA, PENDING or DEAD"
        )
    if replica.vbucket.state is not state:
        change_state(bucket, replica.vbucket, ORDERED[state], node)


def give_back(bucket: ProducerBucket, vbucket: int) -> None:
    """Make a handed-over vbucket active again, because the other node did not take it.

    Raises:
        OSError: the disk cannot be written; the vbucket stays handed over.
    """
    given = bucket.vbuckets[vbucket]
    if given.give_back():
        bucket.follow_change(given)


def leave(bucket: ProducerBucket, replica: Replica, node: int) -> None:
    """Revert a replica whose takeover was cancelled."""
    replica.take_over(is_taking_over=False)
    # It becomes pending by SET_VBUCKET_STATE; until then its state is REPLICA.
    if replica.vbucket.state is VbucketState.PENDING:
        change_state(bucket, replica.vbucket, StateEvent.LEFT, node)


def set_up(
    bucket: ProducerBucket, vbucket: int, facts: VbucketFacts, versions: Sequence[Version] = ()
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
    bucket.begin_anew(replaced, versions)
