"""Tracks the requests that wait for their answer, by opaque.

An answer that nobody waits for, or one of another opcode, breaks the protocol: from then on we
could not tell which answer belongs to which request. BUFFER_ACK is never answered.
"""

from dataclasses import dataclass

from dcp.errors import LocalProtocolError, RemoteProtocolError
from dcp.wire.frame import Frame
from dcp.wire.vocabulary import Opcode


@dataclass(frozen=True, slots=True)
class PendingRequest:
    """A request that was sent; ``stream`` is the opaque of the stream that it is about, if any."""

    opcode: int
    vbucket: int = 0
    stream: int | None = None


class PendingRequests:
    """The requests under way on one connection."""

    def __init__(self) -> None:
        """Begin with none."""
        self._waiting: dict[int, PendingRequest] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, opaque: int, request: PendingRequest) -> None:
        """Wait for the answer to ``request``.

        Raises:
            LocalProtocolError: another request with this opaque is under way.
        """
        if opaque in self._waiting:
            raise LocalProtocolError(f"request: found opaque {opaque:#x} in use")
        self._waiting[opaque] = request

    def take(self, answer: Frame) -> PendingRequest:
        """Return the request that ``answer`` belongs to, and wait for it no longer.

        Raises:
            RemoteProtocolError: an answer to something that we did not ask.
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
        """Return whether a request of this kind, about this vbucket, is under way."""
        waiting = self._waiting.values()
        return any(each.opcode == opcode and each.vbucket == vbucket for each in waiting)

    def describe(self) -> str:
        """Name what is waited for, for a message to people."""
        names = sorted({opcode_name(request.opcode) for request in self._waiting.values()})
        return ", ".join(names) or "nothing"


def opcode_name(opcode: int) -> str:
    """Return the opcode's name, or its number where we have no name for it."""
    try:
        return Opcode(opcode).name
    except ValueError:
        return f"opcode {opcode:#04x}"
