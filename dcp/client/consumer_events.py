"""The consumer's own event beside the protocol's: a vbucket that will not go on."""

from dataclasses import dataclass
from enum import StrEnum

from dcp.protocol.events import Event


class StopReason(StrEnum):
    """The reason why a consumer ended a vbucket. Tables and logs show the text."""

    FINISHED = "finished"
    """The producer reached the requested end."""
    CLOSED = "closed"
    """The application asked for it (``Consumer.stop_stream``)."""
    NODE_UNAVAILABLE = "node unavailable"
    """Its node cannot be reached, dies again and again, or does not answer."""
    NOT_MY_VBUCKET = "not my vbucket"
    """No node in the cluster map serves it."""
    REFUSED = "refused"
    """The node refused the stream, for good or until the deadline."""
    STREAM_ENDED = "stream ended"
    """The node keeps ending the stream."""
    PROTOCOL_ERROR = "protocol error"
    """The node keeps breaking the protocol."""


@dataclass(frozen=True, slots=True)
class VbucketStopped(Event):
    """A vbucket ended, and nothing more of it will be delivered. ``detail`` is for people."""

    vbucket: int
    reason: StopReason
    detail: str
