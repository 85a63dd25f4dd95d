"""A recording played to our producer, which must be the server.

Before each line the scenario's steps are carried out. What the client said is handed over at its
line; where the recorded server sent a frame, ours is asked for its next one. So ours acts in the
recorded order, however fast it is. Each connection is compared until its first difference.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Final

from dcp.errors import AuthenticationError, FrameError, LocalProtocolError
from dcp.wire.frame import Frame, parse_frame
from dcp.wire.vocabulary import Magic, Opcode, Status
from tests.conformance_formats.case_file import CaseResult
from tests.conformance_formats.transcripts import CLOSED, FrameLine, MarkLine
from tests.producer.all_commands import COMMANDS
from tests.producer_conformance.client_part import ClientPart
from tests.producer_conformance.comparison import differences
from tests.producer_conformance.played_connection import (
    QUIET_SECONDS,
    PlayedConnection,
    channel_of,
    name_of,
)
from tests.producer_conformance.played_producer import PlayedProducer
from tests.producer_conformance.scenario import Scenario

NOT_PLAYED: Final[dict[int, str]] = {
    Opcode.STAT: "statistics",
    Opcode.SET: "writes of documents",
    Opcode.ADD: "writes of documents",
    Opcode.REPLACE: "writes of documents",
    Opcode.DELETE: "writes of documents",
    Opcode.TOUCH: "writes of documents",
}
"""What ours is not asked: its statistics are its own; what was written is in the scenario."""


class Player:
    """One bucket's part of a recording, with one producer."""

    def __init__(self, lines: Sequence[FrameLine | MarkLine], scenario: Scenario) -> None:
        names = scenario.connections
        self._lines = [
            line
            for line in lines
            if isinstance(line, MarkLine) or names is None or line.conn in names
        ]
        self._scenario = scenario
        self._steps = deque(sorted(scenario.steps, key=lambda step: step.before))
        self._producer = PlayedProducer(scenario)
        self._open: dict[str, PlayedConnection] = {}
        self._all: list[PlayedConnection] = []

    def run(self) -> Iterator[CaseResult]:
        """Play all lines; yield one result per connection: its first difference, if any."""
        said = 0.0
        for line in self._lines:
            self._carry_out_before(line)
            if isinstance(line, MarkLine):
                self._take_mark(line)
                continue
            said = line.seconds if line.from_server else said
            played = self._open.get(line.conn) or self._connect(line)
            if played.failure:
                played.tally["not compared (after a difference)"] += line.from_server
            elif line.from_server:
                self._take_server(played, line)
            else:
                self._take_client(played, line)
            played.last_seconds = line.seconds
        for played in self._open.values():  # what was sent last may have been on its way
            _close(played, self._lines[-1], max(said, played.last_seconds))
        for played in self._all:
            failures = (played.failure,) if played.failure else ()
            yield CaseResult(played.name, failures, played.tally)

    def _connect(self, line: FrameLine) -> PlayedConnection:
        name, part = f"{line.conn} (from line {line.number})", ClientPart(self._scenario)
        played = PlayedConnection(name, self._producer.connect(), part, line.seconds)
        self._open[line.conn] = played
        self._all.append(played)
        return played

    def _carry_out_before(self, line: FrameLine | MarkLine) -> None:
        while self._steps and self._steps[0].before <= line.number:
            step = self._steps.popleft()
            try:
                self._producer.carry_out(step.vbucket, step.action)
            except LocalProtocolError as error:
                for played in self._open.values():
                    played.failure = played.failure or f"before line {line.number}: {error}"

    def _take_mark(self, line: MarkLine) -> None:
        closed = CLOSED.fullmatch(line.text)
        played = self._open.pop(closed["conn"], None) if closed else None
        if closed is None or played is None:
            return
        if closed["server"] and not played.failure:
            self._expect_close(played, line)
        _close(played, line, played.last_seconds)

    def _expect_close(self, played: PlayedConnection, line: MarkLine) -> None:
        """Ours must close, too, if it was for what the client said or did not say."""
        while played.receive(line.seconds):
            pass
        owes = played.part.noops and self._scenario.idle_timeout_seconds is not None
        if not played.line.is_closed and (played.asked or owes):
            played.failure = f"line {line.number}: found an open connection, expected it closed"

    def _take_client(self, played: PlayedConnection, line: FrameLine) -> None:
        if line.seconds - played.last_seconds >= QUIET_SECONDS:
            played.take_silence(line)
        if line.number in self._scenario.unplayed:
            return
        for frame in _frames_said(played, line):
            if frame.opcode in NOT_PLAYED:
                continue
            if not frame.magic.is_response and frame.opcode != Opcode.DCP_BUFFER_ACK:
                played.asked.add(frame.opaque)
            said = played.part.adapted(line.number, frame)
            played.line.send(said.to_bytes(), line.seconds)
            self._producer.spread()
            is_stream = frame.opcode == Opcode.DCP_STREAM_REQ
            if is_stream and line.number in self._scenario.streams_from_disk:
                played.line.send_to_disk(frame)

    def _take_server(self, played: PlayedConnection, line: FrameLine) -> None:
        try:
            recorded = parse_frame(line.data)
        except FrameError as error:
            played.failure = f"line {line.number}: {error}"
            return
        if recorded.magic.is_response:
            played.asked.discard(recorded.opaque)
        reason = self._not_compared(line, recorded)
        if reason:
            played.tally[f"not compared ({reason})"] += 1
            return
        if recorded.magic is Magic.SERVER_REQUEST:
            self._producer.new_map(played.line)
        ours = played.next(channel_of(recorded), line.seconds)
        where = f"line {line.number}: {name_of(recorded)}"
        if ours is None:
            closed = "the connection closed" if played.line.is_closed else "nothing"
            others = ", ".join(name_of(frame) for frame in played.waiting[:3])
            played.failure = f"{where}: found {others or closed}, expected it"
        elif unlike := _incomparable(ours, recorded):
            played.tally[f"not compared ({unlike})"] += 1
        else:
            played.failure = self._difference(played, line, ours, recorded)
            played.tally["compared"] += not played.failure

    def _difference(
        self, played: PlayedConnection, line: FrameLine, ours: Frame, recorded: Frame
    ) -> str:
        """Return what is wrong with our frame; go on from it where nothing is."""
        channel, where = channel_of(recorded), f"line {line.number}: {name_of(recorded)}"
        faults = list(differences(ours, recorded))
        if channel[0] == "stream" and any(
            frame.magic.is_response and frame.opaque == ours.opaque for frame in played.waiting
        ):
            faults.append("found it before the answer to its stream's request")
        if faults:
            what = "" if name_of(ours) == name_of(recorded) else f" (found {name_of(ours)})"
            return f"{where}{what}: {'; '.join(faults)}"
        if line.number in self._scenario.items_left_out_from:
            played.left_out.add(channel)
        if recorded.opcode == Opcode.DCP_OSO_SNAPSHOT and not recorded.magic.is_response:
            played.out_of_order.add(recorded.opaque)
        try:
            played.part.learn(ours, recorded)
        except AuthenticationError as error:
            return f"{where}: {error}"
        return ""

    def _not_compared(self, line: FrameLine, recorded: Frame) -> str:
        """Return why ours was not asked for this; nothing where it was."""
        if line.number in self._scenario.unplayed:
            return "as the scenario says"
        return NOT_PLAYED.get(recorded.opcode, "") if recorded.magic.is_response else ""


def _frames_said(played: PlayedConnection, line: FrameLine) -> list[Frame]:
    """Return the client's frames that end in a line; from what is none on, hand over the bytes."""
    played.held += line.data
    if played.splitter is not None:
        try:
            block = played.splitter.feed(line.data)
        except FrameError:
            played.splitter = None
        else:
            played.held = played.held[len(played.held) - played.splitter.pending_bytes :]
            return [block.frame(index) for index in range(len(block))]
    played.asked.add(-1)
    played.line.send(played.held, line.seconds)
    played.held = b""
    return []


def _close(played: PlayedConnection, line: FrameLine | MarkLine, quiet_since: float) -> None:
    """End a connection; all that it was sent must have been read, if it had the time."""
    if line.seconds - quiet_since >= QUIET_SECONDS:
        played.take_silence(line)
    played.require_read(line)
    played.line.close()


def _incomparable(ours: Frame, recorded: Frame) -> str:
    """Return why two answers to one request cannot be compared; nothing where they can."""
    if not recorded.magic.is_response or recorded.status == Status.UNKNOWN_COMMAND:
        return ""
    if recorded.opcode not in COMMANDS:
        return "commands that ours does not have"
    is_missing = ours.status == Status.KEY_ENOENT and recorded.status == Status.SUCCESS
    return "documents of no scenario" if recorded.opcode == Opcode.GET and is_missing else ""
