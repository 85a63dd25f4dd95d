"""A transcript as what happened, in the order of its lines, on connections that begin and end.

A connection is a name until that name's client or server closes; the name may come again for
another one. All that a mark means is which side closed; the wording of others is nobody's business.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, Final

from dcp.errors import FrameError
from dcp.wire.frame import Frame
from dcp.wire.framing import FrameSplitter
from dcp.wire.vocabulary import Opcode, Status
from tests.conformance_formats.transcripts import CLOSED, FrameLine, MarkLine, parse_line

QUIET_SECONDS: Final = 0.25
"""After so long without a word the recorded server had said all that it had to say."""


class Kind(Enum):
    """What a line tells of."""

    CLIENT = "the client sent"
    SERVER = "the server sent"
    CLOSED_BY_CLIENT = "the client closed"
    CLOSED_BY_SERVER = "the server closed"
    MARK = "something else happened"


@dataclass(frozen=True, slots=True)
class Event:
    """One line. ``frames`` are those in ``data``; none where the client's bytes are no frames.

    A frame of the client that is in several lines is in the last of them.

    ``connection`` is None for a mark. ``after_silence``: nothing was said on this connection for
    ``QUIET_SECONDS`` before.
    """

    line: int
    seconds: float
    kind: Kind
    connection: int | None = None
    data: bytes = b""
    frames: tuple[Frame, ...] = ()
    after_silence: bool = False


@dataclass(slots=True)
class _Open:
    """A connection that goes on."""

    index: int
    last_seconds: float
    splitter: FrameSplitter = field(default_factory=FrameSplitter)
    held: bytes = b""
    """The beginning of a frame of the client, whose rest is in a later line."""
    is_broken: bool = False


@dataclass(frozen=True, slots=True)
class Conversation:
    """All lines, and the connections' names with the line on which each begins."""

    events: tuple[Event, ...]
    names: tuple[str, ...]

    @classmethod
    def read(cls, content: Sequence[Any]) -> "Conversation":
        """Read the lines of a transcript.

        Raises:
            ValueError: a line that is neither a frame nor a mark, or a server's line that is not
                exactly one frame.
        """
        names: list[str] = []
        live: dict[str, _Open] = {}
        events = list(_events(content, names, live))
        end = events[-1].seconds if events else 0.0
        for one in live.values():  # the recording ends, and with it whatever goes on
            silent = end - one.last_seconds >= QUIET_SECONDS
            line = len(events) + 1
            events.append(Event(line, end, Kind.CLOSED_BY_CLIENT, one.index, after_silence=silent))
        return cls(tuple(events), tuple(names))

    def by_bucket(self) -> list["Conversation"]:
        """Return a conversation per bucket that was selected; who selected none is in the first."""
        chosen = {index: _bucket_of(self.events, index) for index in range(len(self.names))}
        named = dict.fromkeys(name for name in chosen.values() if name is not None)
        buckets: list[bytes | None] = [*named] or [None]
        first = buckets[0]
        return [
            Conversation(
                tuple(
                    event
                    for event in self.events
                    if event.connection is None or (chosen[event.connection] or first) == bucket
                ),
                self.names,
            )
            for bucket in buckets
        ]


def _bucket_of(events: Iterable[Event], connection: int) -> bytes | None:
    """Return the last bucket that a connection selected."""
    asked: dict[int, bytes] = {}
    found = None
    for event in events:
        if event.connection != connection:
            continue
        for frame in event.frames:
            if frame.opcode != Opcode.SELECT_BUCKET:
                continue
            if not frame.magic.is_response:
                asked[frame.opaque] = frame.key
            elif frame.status == Status.SUCCESS:
                found = asked.get(frame.opaque, found)
    return found


def _events(content: Sequence[Any], names: list[str], live: dict[str, _Open]) -> Iterator[Event]:
    for number, raw in enumerate(content, 1):
        line = parse_line(number, raw)
        if isinstance(line, MarkLine):
            yield from _mark(line, live)
            continue
        one = live.get(line.conn)
        if one is None:
            one = live[line.conn] = _Open(len(names), line.seconds)
            names.append(f"{line.conn} (from line {number})")
        yield _said(line, one)


def _mark(line: MarkLine, live: dict[str, _Open]) -> Iterator[Event]:
    event = Event(line.number, line.seconds, Kind.MARK)
    closed = CLOSED.fullmatch(line.text)
    one = live.pop(closed["conn"], None) if closed else None
    if closed is None or one is None:
        yield event
        return
    if one.held:  # what never became a frame
        yield replace(event, kind=Kind.CLIENT, connection=one.index, data=one.held)
    kind = Kind.CLOSED_BY_SERVER if closed["server"] else Kind.CLOSED_BY_CLIENT
    silent = line.seconds - one.last_seconds >= QUIET_SECONDS
    yield replace(event, kind=kind, connection=one.index, after_silence=silent)


def _said(line: FrameLine, one: _Open) -> Event:
    silent = line.seconds - one.last_seconds >= QUIET_SECONDS
    one.last_seconds = line.seconds
    kind = Kind.SERVER if line.from_server else Kind.CLIENT
    splitter = FrameSplitter() if line.from_server else one.splitter
    data = line.data if line.from_server else one.held + line.data
    frames: tuple[Frame, ...] = ()
    if line.from_server or not one.is_broken:
        try:
            block = splitter.feed(line.data)
            frames = tuple(block.frame(index) for index in range(len(block)))
        except FrameError as error:
            if line.from_server:
                raise ValueError(f"line {line.number}: {error}") from error
            one.is_broken = True
    if not line.from_server:
        whole = len(data) if one.is_broken else len(data) - splitter.pending_bytes
        data, one.held = data[:whole], data[whole:]
    if line.from_server and (len(frames) != 1 or splitter.pending_bytes):
        raise ValueError(f"line {line.number}: found {len(frames)} frames, expected exactly one")
    return Event(line.number, line.seconds, kind, one.index, data, frames, silent)
