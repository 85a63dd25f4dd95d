"""One connection of a recording, as far as it has been read."""

from collections import defaultdict, deque
from dataclasses import dataclass, field
from typing import Final

from dcp.wire.frame import Frame
from dcp.wire.vocabulary import HelloFeature, Opcode, OpenFlag
from tests.producer_conformance.merged_views import Quality
from tests.producer_conformance.watched_stream import WatchedStream

_NO_VALUE: Final = OpenFlag.NO_VALUE | OpenFlag.NO_VALUE_WITH_UNDERLYING_DATATYPE


@dataclass(slots=True)
class WatchedConnection:
    """What a client negotiated, asked for, and has open."""

    features: frozenset[int] = frozenset()
    open_flags: int = 0
    controls: set[bytes] = field(default_factory=set)
    asked: dict[int, deque[tuple[int, Frame]]] = field(default_factory=lambda: defaultdict(deque))
    streams: dict[tuple[int, int, int | None], WatchedStream] = field(default_factory=dict)
    statistics: dict[bytes, bytes] = field(default_factory=dict)
    silences: list[int] = field(default_factory=list)
    noop_unanswered: bool = False
    heard_seconds: float = 0.0
    longest_silence_seconds: float = 0.0
    user: bytes = b""
    login_line: int = 0
    has_bucket: bool = False

    @property
    def quality(self) -> Quality:
        """How much of an item this connection is shown."""
        return Quality(
            value=not self.open_flags & _NO_VALUE,
            xattrs=bool(self.open_flags & OpenFlag.INCLUDE_XATTRS),
            deleted_user_xattrs=bool(self.open_flags & OpenFlag.INCLUDE_DELETED_USER_XATTRS),
            json=HelloFeature.JSON in self.features,
            as_stored=b"force_value_compression" not in self.controls,
            snappy=HelloFeature.SNAPPY in self.features,
            expiry_opcode=b"enable_expiry_opcode" in self.controls,
        )

    def sent_by(self, line: int, vbucket: int) -> int:
        """Return the line by which the server had sent what a client reads now.

        It reads this before the answer to what it asked: that was sent later. And after a silence
        of the client's all was answered that it had asked before, whenever it reads that. A stream
        that was closed sends no more.
        """
        asked = [
            (asked_line, frame)
            for waiting in self.asked.values()
            for asked_line, frame in waiting
            if frame.opcode != Opcode.DCP_BUFFER_ACK
        ]
        since = min((asked_line for asked_line, _ in asked), default=line)
        closed = [
            asked_line
            for asked_line, frame in asked
            if frame.opcode == Opcode.DCP_CLOSE_STREAM and frame.vbucket == vbucket
        ]
        silent = next((each for each in self.silences if each > since), line)
        return min([silent, *closed])
