"""Hands a vbucket over to the client of a takeover stream, after all items were sent.

    phase             all sent and all markers answered   SET_VBUCKET_STATE answered
    SENDING           sends PENDING; WAITING_PENDING
    WAITING_PENDING                                       vbucket dies here; SENDING_REST
    SENDING_REST      sends ACTIVE; WAITING_ACTIVE
    WAITING_ACTIVE                                        DONE: the stream ends

The vbucket is dead before its last items are sent, so no write can follow them. Source: kv_engine
``engines/ep/src/dcp/active_stream.cc`` (takeoverSendPhase, setVBucketStateAckRecieved).
"""

from enum import Enum
from typing import Final

from dcp.wire.vocabulary import VbucketState


class TakeoverPhase(Enum):
    SENDING = "sending"
    WAITING_PENDING = "waiting until the client is pending"
    SENDING_REST = "sending the rest"
    WAITING_ACTIVE = "waiting until the client is active"
    DONE = "done"


_TOLD: Final = {
    TakeoverPhase.SENDING: (VbucketState.PENDING, TakeoverPhase.WAITING_PENDING),
    TakeoverPhase.SENDING_REST: (VbucketState.ACTIVE, TakeoverPhase.WAITING_ACTIVE),
}
_ANSWERED: Final = {
    TakeoverPhase.WAITING_PENDING: TakeoverPhase.SENDING_REST,
    TakeoverPhase.WAITING_ACTIVE: TakeoverPhase.DONE,
}


class Takeover:
    """The state machine of one takeover."""

    def __init__(self) -> None:
        self.phase = TakeoverPhase.SENDING
        self.unanswered_markers = 0
        """Markers that the client must still answer."""

    def marker_sent(self) -> None:
        self.unanswered_markers += 1

    def marker_answered(self) -> None:
        """Count an answer to a marker; surplus answers are ignored."""
        self.unanswered_markers = max(0, self.unanswered_markers - 1)

    def all_sent(self) -> VbucketState | None:
        """Return the state to send to the client; None to wait. Call it when no item is left."""
        if self.unanswered_markers or self.phase not in _TOLD:
            return None
        state, self.phase = _TOLD[self.phase]
        return state

    def state_answered(self) -> TakeoverPhase:
        """Take the client's answer to SET_VBUCKET_STATE; return the new phase."""
        self.phase = _ANSWERED.get(self.phase, self.phase)
        return self.phase
