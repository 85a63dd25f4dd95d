"""What a connection that receives streams has to say, until it is written."""

from dcp.wire import messages as m
from dcp.wire.codec import encode
from dcp.wire.vocabulary import Magic


class Outgoing:
    """Requests and answers, in the order in which they are to be written."""

    def __init__(self) -> None:
        self._frames: list[bytes] = []

    def request(self, body: m.Body, opcode: int, *, vbucket: int = 0, opaque: int = 0) -> None:
        """Ask for something."""
        self._frames.append(encode(body, opcode, vbucket=vbucket, opaque=opaque).to_bytes())

    def answer(self, opcode: int, opaque: int, status: int = 0) -> None:
        """Answer a request of the peer: with success, or with the status that refuses it."""
        body: m.Body = m.Refusal(b"") if status else m.Empty()
        frame = encode(body, opcode, magic=Magic.RESPONSE, opaque=opaque, status=status)
        self._frames.append(frame.to_bytes())

    def take(self) -> bytes:
        """Return what to write; it is said then."""
        data = b"".join(self._frames)
        self._frames.clear()
        return data
