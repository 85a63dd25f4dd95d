"""The state machine of vbuckets and their replicas.

    event             from               to         branch
    ORDERED_ACTIVE    all but ACTIVE     ACTIVE     begins
    ORDERED_REPLICA   any                REPLICA    goes on
    ORDERED_PENDING   any                PENDING    goes on
    ORDERED_DEAD      any                DEAD       goes on
    PROMOTED          all but ACTIVE     ACTIVE     begins     (a replica, by a failover)
    TOLD_PENDING      all but ACTIVE     PENDING    goes on    (a replica, by a takeover stream)
    TAKEN_OVER        all but ACTIVE     ACTIVE     goes on    (a replica that has every item)
    HANDED_OVER       ACTIVE             DEAD       goes on    (another node takes it over)
    GIVEN_BACK        DEAD               ACTIVE     goes on    (the other node did not take it)
    LEFT              PENDING            REPLICA    goes on    (a replica, not taken over after all)

Source: kv_engine ``engines/ep/src/kv_bucket.cc``, setVBucketState_UNLOCKED: a branch begins if a
vbucket becomes active without a takeover.
"""

from dataclasses import dataclass
from enum import Enum
from typing import Final

from dcp.errors import LocalProtocolError
from dcp.wire.vocabulary import VbucketState


class StateEvent(Enum):
    """An event that changes the state of a vbucket."""

    ORDERED_ACTIVE = "ordered to be active"
    ORDERED_REPLICA = "ordered to be a replica"
    ORDERED_PENDING = "ordered to be pending"
    ORDERED_DEAD = "ordered to be dead"
    PROMOTED = "promoted"
    TOLD_PENDING = "told to be pending"
    TAKEN_OVER = "taken over"
    HANDED_OVER = "handed over"
    GIVEN_BACK = "given back"
    LEFT = "left alone"


ORDERED: Final = {
    VbucketState.ACTIVE: StateEvent.ORDERED_ACTIVE,
    VbucketState.REPLICA: StateEvent.ORDERED_REPLICA,
    VbucketState.PENDING: StateEvent.ORDERED_PENDING,
    VbucketState.DEAD: StateEvent.ORDERED_DEAD,
}
"""Event that brings a vbucket into a state by order; no vbucket can be ALIVE."""


@dataclass(frozen=True, slots=True)
class _Change:
    before: frozenset[VbucketState]
    after: VbucketState
    begins_branch: bool = False


_INACTIVE: Final = frozenset({VbucketState.REPLICA, VbucketState.PENDING, VbucketState.DEAD})
_ANY: Final = _INACTIVE | {VbucketState.ACTIVE}
_CHANGES: Final = {
    StateEvent.ORDERED_ACTIVE: _Change(_INACTIVE, VbucketState.ACTIVE, begins_branch=True),
    StateEvent.ORDERED_REPLICA: _Change(_ANY, VbucketState.REPLICA),
    StateEvent.ORDERED_PENDING: _Change(_ANY, VbucketState.PENDING),
    StateEvent.ORDERED_DEAD: _Change(_ANY, VbucketState.DEAD),
    StateEvent.PROMOTED: _Change(_INACTIVE, VbucketState.ACTIVE, begins_branch=True),
    StateEvent.TOLD_PENDING: _Change(_INACTIVE, VbucketState.PENDING),
    StateEvent.TAKEN_OVER: _Change(_INACTIVE, VbucketState.ACTIVE),
    StateEvent.HANDED_OVER: _Change(frozenset({VbucketState.ACTIVE}), VbucketState.DEAD),
    StateEvent.GIVEN_BACK: _Change(frozenset({VbucketState.DEAD}), VbucketState.ACTIVE),
    StateEvent.LEFT: _Change(frozenset({VbucketState.PENDING}), VbucketState.REPLICA),
}


def next_state(state: VbucketState, event: StateEvent) -> tuple[VbucketState, bool]:
    """Return the state after an event, and True if a branch begins.

    Raises:
        LocalProtocolError: the state does not allow the event.
    """
    change = _CHANGES[event]
    if state not in change.before:
        expected = ", ".join(sorted(each.name for each in change.before))
        raise LocalProtocolError(
            f"{event.value}: found a vbucket {state.name}, expected {expected}"
        )
    return change.after, change.begins_branch
