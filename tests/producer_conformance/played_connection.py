"""One connection of a played recording: what ours sent on it, in the order of its channels.

Answers come in the order of the requests; stream messages in order per vbucket (and stream id).
After a silence of the recording everything that was asked before has had its effect. What ours has
sent by then its client must read before the next silence, for a line is written when its client
reads it.
"""

from collections import Counter, deque
from dataclasses import dataclass, field
from typing import Final

from dcp.wire.frame import Frame
from dcp.wire.frame_info import stream_id_of
from dcp.wire.framing import FrameSplitter
from dcp.wire.vocabulary import Magic, Opcode, opcode_name
from tests.conformance_formats.transcripts import FrameLine, MarkLine
from tests.producer_conformance.client_part import ClientPart
from tests.producer_conformance.played_line import Line

QUIET_SECONDS: Final = 0.25
"""After so long without a word the recorded server had said all that it had to say."""
NOOP_SLACK_SECONDS: Final = 1.0
"""The recorded server counts whole seconds: a NOOP may come so much before its interval is over."""
_ITEMS: Final = frozenset({Opcode.DCP_MUTATION, Opcode.DCP_DELETION, Opcode.DCP_EXPIRATION})

Channel = tuple[str, int, int | None]
_NOOPS: Final[Channel] = ("begun", Opcode.DCP_NOOP, None)


@dataclass(slots=True)
class PlayedConnection:
    """What ours sent that was not compared yet, and what was found.

    ``owed`` are frames that were sent before a silence. ``asked`` are the opaques of requests that
    the recorded server did not answer yet. ``left_out`` are channels without items from here on,
    ``out_of_order`` the opaques of streams that had such a snapshot. ``splitter`` is None once the
    client has said what is no frame, ``held`` the beginning of one whose rest is in a later line.
    """

    name: str
    line: Line
    part: ClientPart
    last_seconds: float
    splitter: FrameSplitter | None = field(default_factory=FrameSplitter)
    held: bytes = b""
    sent: dict[Channel, deque[Frame]] = field(default_factory=dict)
    owed: list[Frame] = field(default_factory=list)
    asked: set[int] = field(default_factory=set)
    left_out: set[Channel] = field(default_factory=set)
    out_of_order: set[int] = field(default_factory=set)
    failure: str = ""
    tally: Counter[str] = field(default_factory=Counter)

    @property
    def waiting(self) -> list[Frame]:
        """What ours sent and nobody compared yet."""
        return [frame for frames in self.sent.values() for frame in frames]

    def next(self, channel: Channel, now: float) -> Frame | None:
        """Return our next frame on a channel; None where there is none."""
        waiting = self.sent.setdefault(channel, deque())
        while True:
            while waiting and channel in self.left_out and waiting[0].opcode in _ITEMS:
                waiting.popleft()
            if waiting:
                return waiting.popleft()
            if self.receive(now, channel):
                continue
            due = self.line.due_seconds(now) if channel == _NOOPS else None
            if due is None or due > now + NOOP_SLACK_SECONDS or not self.receive(due, channel):
                return None

    def receive(self, now: float, channel: Channel | None = None) -> bool:
        """Take what our producer sends next, on any channel or up to one; whether it did."""
        kind, vbucket, stream_id = channel or ("any", 0, None)
        if kind == "stream":
            frames = self.line.next_message_of(vbucket, stream_id, now)
        elif kind == "any":
            frames = self.line.next_message(now)
        else:
            frames = self.line.answers(now)
        for frame in frames:
            self.sent.setdefault(channel_of(frame), deque()).append(frame)
        return bool(frames)

    def take_silence(self, line: FrameLine | MarkLine) -> None:
        """Let ours, too, send all that it has to send."""
        self.require_read(line)
        while self.receive(line.seconds):
            pass
        self.owed = [
            frame
            for frame in self.waiting
            if channel_of(frame) != _NOOPS  # a NOOP's time is the server's own
            and not (channel_of(frame) in self.left_out and frame.opcode in _ITEMS)
            # Behind an out-of-order snapshot a 7.0 server forgets the end until the next write.
            and not (frame.opcode == Opcode.DCP_STREAM_END and frame.opaque in self.out_of_order)
        ]

    def require_read(self, line: FrameLine | MarkLine) -> None:
        """Fail if the client has not read what was sent before the last silence."""
        left = {id(frame) for frame in self.waiting}
        found = [name_of(frame) for frame in self.owed if id(frame) in left]
        if found and not self.failure:
            more = f" and {len(found) - 3} more" if len(found) > 3 else ""
            self.failure = (
                f"before line {line.number}: found {', '.join(found[:3])}{more}, expected silence"
            )


def channel_of(frame: Frame) -> Channel:
    """Return which order a frame belongs to."""
    if frame.magic.is_response:
        return "answer", 0, None
    if frame.opcode == Opcode.DCP_NOOP or frame.magic is Magic.SERVER_REQUEST:
        return "begun", frame.opcode, None
    return "stream", frame.vbucket, stream_id_of(frame.framing_extras)


def name_of(frame: Frame) -> str:
    """Return what a frame is called in a finding."""
    if frame.magic.is_response:
        return f"answer to {opcode_name(frame.opcode)} ({frame.status:#04x})"
    if frame.magic is Magic.SERVER_REQUEST:
        return f"server request {frame.opcode:#04x}"
    return f"{opcode_name(frame.opcode)} of vbucket {frame.vbucket}"
