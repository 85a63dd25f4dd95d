"""Tracks by opaque the requests that wait for an answer."""

from dataclasses import dataclass

from dcp.errors import LocalProtocolError, RemoteProtocolError
from dcp.wire.frame import Frame
from dcp.wire.vocabulary import Opcode


@dataclass(frozen=True, slots=True)
class PendingRequest:
    opcode: int
    vbucket: int = 0
    stream: int | None = None
    """The opaque of the stream that the request concerns, if any."""


class PendingRequests:
    """The unanswered requests of one connection. A BUFFER_ACK has no answer."""

    def __init__(self) -> None:
        self._waiting: dict[int, PendingRequest] = {}

    def add(self, opaque: int, request: PendingRequest) -> None:
        """Raises LocalProtocolError if another request with this opaque is unanswered."""
        if opaque in self._waiting:
            raise LocalProtocolError(f"request: found opaque {opaque:#x} in use")
        self._waiting[opaque] = request

    def take(self, answer: Frame) -> PendingRequest:
        """Return the request of ``answer``, and stop waiting for it.

        Raises RemoteProtocolError for an answer that no request expects: afterwards nobody could
        match answers to requests.
        """
        request = self._waiting.get(answer.opaque)
        if request is None or request.opcode != answer.opcode:
            expected = opcode_name(request.opcode) if request else "no answer with this opaque"
            raise RemoteProtocolError(
                f"answer with opaque {answer.opaque:#x}: found {opcode_name(answer.opcode)} "
                f"status {answer.status:#04x}, expected {expected}"
            )
        return self._waiting.pop(answer.opaque)

    def has(self, opcode: int, vbucket: int) -> bool:
        waiting = self._waiting.values()
        return any(each.opcode == opcode and each.vbucket == vbucket for each in waiting)

    def describe(self) -> str:
        names = sorted({opcode_name(request.opcode) for request in self._waiting.values()})
        return ", ".join(names) or "nothing"


def opcode_name(opcode: int) -> str:
    try:
        return Opcode(opcode).name
    except ValueError:
        return f"opcode {opcode:#04x}"
