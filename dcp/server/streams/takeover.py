"""The handover of a vbucket to the client of a takeover stream, once all items are sent.

    phase             all sent, all markers answered     SET_VBUCKET_STATE answered
    SENDING           pending; WAITING_PENDING
    WAITING_PENDING                                      the vbucket is dead here; SENDING_REST
    SENDING_REST      active; WAITING_ACTIVE
    WAITING_ACTIVE                                       DONE: the stream ends

The vbucket is dead before the last of its items go out, so that none comes after them. Source:
kv_engine ``engines/ep/src/dcp/active_stream.cc`` (takeoverSendPhase, setVBucketStateAckRecieved).
"""

from enum import Enum
from typing import Final

from dcp.wire.vocabulary import VbucketState


class TakeoverPhase(Enum):
    """The phase of a takeover."""

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
    """The state machine of one takeover; ``unanswered_markers`` await the client's answer."""

    def __init__(self) -> None:
        self.phase = TakeoverPhase.SENDING
        self.unanswered_markers = 0

    def marker_sent(self) -> None:
        """Count a marker that the client must answer."""
        self.unanswered_markers += 1

    def marker_answered(self) -> None:
        """Count an answer to a marker; more answers than markers mean nothing."""
        self.unanswered_markers = max(0, self.unanswered_markers - 1)

    def all_sent(self) -> VbucketState | None:
        """Return the state to tell the client, now that there is no item; None to wait."""
        if self.unanswered_markers or self.phase not in _TOLD:
            return None
        state, self.phase = _TOLD[self.phase]
        return state

    def state_answered(self) -> TakeoverPhase:
        """Take the answer to a state, if one was told; return the phase that begins."""
        self.phase = _ANSWERED.get(self.phase, self.phase)
        return self.phase
