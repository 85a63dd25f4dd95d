"""Transcripts of a data server: every connection is replayed through the client's machines.

One JSON object per line: a frame {"conn", "dir": "c2s"|"s2c", "t", "hex"}, or a mark {"mark", "t"}.
A c2s line may hold several requests, an s2c line is exactly one frame. A mark is free text; these
shapes mean something: "NAME: client closes", "NAME: server closed connection", and statistics of
the server that end in "unacked_bytes N". There is one case per connection and per statistic.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tests.conformance_formats.case_file import CaseFile, CaseResult
from tests.conformance_formats.recorded_requests import is_login, learn_passwords
from tests.conformance_formats.replay import ConnectionReplay

CLOSED = re.compile(
    r"(?P<conn>.+): (client closes|(?P<server>server closed (the )?connection))\b.*"
)
"""The marks that say which side ended a connection."""
_UNACKED = re.compile(r"unacked_bytes[ =](\d+)")
_HELD = re.compile(r"(?:wire bytes|received-acked)[ =](\d+)")
_RECEIVED = re.compile(r"received (\d+) messages of \[([\d, ]*)\] bytes")


@dataclass(frozen=True, slots=True)
class FrameLine:
    """Bytes that one side sent; ``seconds`` since the recording began."""

    number: int
    conn: str
    from_server: bool
    data: bytes
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class MarkLine:
    """A remark of the recorder."""

    number: int
    text: str
    seconds: float = 0.0


def parse_line(number: int, line: Any) -> FrameLine | MarkLine:
    """Read one line of a transcript.

    Raises:
        ValueError: neither a frame nor a mark.
    """
    where = f"line {number}"
    if not isinstance(line, dict) or not isinstance(line.get("t", 0), int | float):
        raise ValueError(f"{where}: found {str(line)[:80]}, expected a frame or a mark")
    seconds = float(line.get("t", 0))
    keys = set(line) - {"t"}
    if keys == {"mark"} and isinstance(line["mark"], str):
        return MarkLine(number, line["mark"], seconds)
    if keys != {"conn", "dir", "hex"} or line["dir"] not in ("c2s", "s2c"):
        raise ValueError(
            f"{where}: found members {sorted(line)} and dir {line.get('dir')!r}, expected conn, "
            "dir (c2s or s2c) and hex, or mark"
        )
    try:
        data = bytes.fromhex(line["hex"])
    except (ValueError, TypeError):
        raise ValueError(f"{where}: found hex {str(line['hex'])[:40]!r}, expected hex") from None
    return FrameLine(number, str(line["conn"]), line["dir"] == "s2c", data, seconds)


class Transcripts:
    """Recorded conversations, one JSON object per line."""

    name = "transcript"

    def recognises(self, file: CaseFile) -> bool:
        """Whether some line is a frame with a direction, or all are marks."""
        lines = _lines(file)
        shapes = [set(line) for line in lines if isinstance(line, dict)]
        return any({"conn", "dir"} <= shape for shape in shapes) or (
            bool(shapes) and all("mark" in shape for shape in shapes)
        )

    def run(self, file: CaseFile) -> Iterator[CaseResult]:
        """Yield one result per connection and per statistic, and one per line that is neither."""
        lines: list[FrameLine | MarkLine] = []
        for number, line in enumerate(_lines(file), 1):
            try:
                lines.append(parse_line(number, line))
            except ValueError as error:
                yield CaseResult(f"line {number}", (str(error),))
        yield from _Replaying(lines).run()


class _Replaying:
    """The connections of one transcript, replayed side by side in the order of its lines."""

    def __init__(self, lines: list[FrameLine | MarkLine]) -> None:
        self._lines = lines
        self._passwords: dict[str, str] = {}
        self._open: dict[str, ConnectionReplay] = {}
        self._last: ConnectionReplay | None = None
        self._sessions: dict[str, int] = {}
        self._results: list[CaseResult] = []

    def run(self) -> Iterator[CaseResult]:
        said: dict[str, bytes] = {}
        for line in self._lines:
            if isinstance(line, FrameLine) and not line.from_server:
                said[line.conn] = line.data
            elif isinstance(line, FrameLine) and is_login(line.data):
                learn_passwords(said.get(line.conn, b""), self._passwords)
        for line in self._lines:
            if isinstance(line, MarkLine):
                self._take_mark(line)
            else:
                self._take_frame(line)
            yield from self._drain()
        for conn in list(self._open):
            self._close(conn)
        yield from self._drain()

    def _drain(self) -> list[CaseResult]:
        results, self._results = self._results, []
        return results

    def _take_frame(self, line: FrameLine) -> None:
        replay = self._open.get(line.conn)
        if replay is None:
            number = self._sessions[line.conn] = self._sessions.get(line.conn, 0) + 1
            name = f"{line.conn} (connection {number} of this name, from line {line.number})"
            replay = self._open[line.conn] = ConnectionReplay(name, self._passwords)
        self._last = replay
        if line.from_server:
            replay.take_from_server(line.data, f"line {line.number}")
        else:
            replay.take_from_client(line.data, f"line {line.number}")

    def _take_mark(self, line: MarkLine) -> None:
        closed = CLOSED.fullmatch(line.text)
        if closed:
            self._close(closed["conn"], closed_by_server=closed["server"] is not None)
            return
        unacked = _UNACKED.search(line.text)
        replay = self._open.get(line.text.partition(":")[0], self._last)
        if unacked is None or replay is None:
            return
        failures = []
        for found, expected, what in self._claims(line.text, replay, int(unacked[1])):
            if found != expected:
                failures.append(f"{what}: found {found}, expected {expected}")
        self._results.append(CaseResult(f"line {line.number}: {line.text[:60]}", tuple(failures)))

    def _claims(
        self, text: str, replay: ConnectionReplay, unacked_bytes: int
    ) -> Iterator[tuple[Any, Any, str]]:
        yield replay.unacked_bytes_at_server, unacked_bytes, "unacked bytes as the server counts"
        held = _HELD.search(text)
        if held:
            yield replay.unacked_bytes, int(held[1]), "bytes charged and not acknowledged"
        received = _RECEIVED.search(text)
        lengths = replay.take_charged_lengths()
        if received:
            listed = [int(part) for part in received[2].split(",") if part.strip()]
            yield lengths, listed, "lengths of the messages charged since the last statistic"

    def _close(self, conn: str, *, closed_by_server: bool = False) -> None:
        replay = self._open.pop(conn, None)
        if replay is None:
            return
        failures = replay.finish(closed_by_server=closed_by_server)
        tally = {
            "accepted": replay.accepted,
            "observed": replay.observed,
            "understood": replay.understood,
        }
        self._results.append(CaseResult(replay.name, tuple(failures), tally))


def _lines(file: CaseFile) -> list[Any]:
    return file.content if isinstance(file.content, list) else [file.content]
