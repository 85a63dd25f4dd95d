"""One connection of a rehearsal: what its client still says, and what ours sent it."""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from dcp.protocol.responses import opcode_name
from dcp.wire.frame import Frame
from dcp.wire.frame_info import stream_id_of
from dcp.wire.vocabulary import Magic, Opcode
from tests.producer_conformance.client_part import ClientPart
from tests.producer_conformance.conversation import Event
from tests.producer_conformance.subject import Line

Channel = tuple[str, int, int | None]


@dataclass(slots=True)
class Said:
    """Bytes of the client that our producer was not given yet."""

    event: Event
    data: bytes
    frame: Frame | None


@dataclass(slots=True)
class PlayedConnection:
    """One connection of the rehearsal."""

    index: int
    name: str
    line: Line
    part: ClientPart
    said: deque[Said] = field(default_factory=deque)
    received: dict[Channel, deque[Frame]] = field(default_factory=dict)
    left_out: set[Channel] = field(default_factory=set)
    out_of_order: set[int] = field(default_factory=set)
    statistics: dict[int, list[Frame]] = field(default_factory=dict)
    unread: list[Frame] = field(default_factory=list)
    unread_fault: str = ""
    has_silent_list: bool = False
    failure: str = ""
    compared: int = 0
    sent: int = 0
    order: dict[int, int] = field(default_factory=dict)

    def keep(self, frames: Iterable[Frame]) -> None:
        """Take what our producer sent, for when the recorded server sent it."""
        for frame in frames:
            self.sent += 1
            self.order[id(frame)] = self.sent
            self.received.setdefault(channel_of(frame), deque()).append(frame)


def channel_of(frame: Frame) -> Channel:
    """Return which order a frame belongs to."""
    if frame.magic.is_response:
        return "answer", 0, None
    if frame.opcode == Opcode.DCP_NOOP or frame.magic is Magic.SERVER_REQUEST:
        return "begun", frame.opcode, None
    return "stream", frame.vbucket, stream_id_of(frame.framing_extras)


def name_of(frame: Frame) -> str:
    if frame.magic.is_response:
        return f"answer to {opcode_name(frame.opcode)} ({frame.status:#04x})"
    if frame.magic is Magic.SERVER_REQUEST:
        return f"server request {frame.opcode:#04x}"
    return f"{opcode_name(frame.opcode)} of vbucket {frame.vbucket}"
