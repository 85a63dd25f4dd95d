"""Recorded conversations with a real server replay through the client's machines."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dcp.wire import messages as m
from dcp.wire.codec import decode, encode
from dcp.wire.frame import parse_frame
from dcp.wire.vocabulary import Opcode
from tests.conformance_formats.case_file import CaseFile, CaseResult
from tests.conformance_formats.replay import ConnectionReplay
from tests.conformance_formats.transcripts import Transcripts

CAPTURES = Path(__file__).resolve().parents[1] / "data" / "captures"
FILES = sorted(CAPTURES.glob("*.jsonl"))
Line = dict[str, Any]


def run(lines: list[Line]) -> list[CaseResult]:
    return list(Transcripts().run(CaseFile(Path("made-up"), lines, is_lines=True)))


def failures(lines: list[Line]) -> str:
    return "\n".join(text for result in run(lines) for text in result.failures)


def lines_of(name: str) -> list[Line]:
    return [json.loads(line) for line in (CAPTURES / name).read_text().splitlines()]


def test_there_are_transcripts() -> None:
    assert len(FILES) == 20


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_connection_is_understood(path: Path) -> None:
    file = CaseFile.read(path)
    assert Transcripts().recognises(file)
    results = list(Transcripts().run(file))
    assert results
    assert [result for result in results if result.failures] == []


def test_nearly_all_that_the_recorded_clients_said_is_what_our_machines_say(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    replays: list[ConnectionReplay] = []
    finish = ConnectionReplay.finish

    def keep(replay: ConnectionReplay, *, closed_by_server: bool = False) -> list[str]:
        replays.append(replay)
        return finish(replay, closed_by_server=closed_by_server)

    monkeypatch.setattr(ConnectionReplay, "finish", keep)
    for path in FILES:
        list(Transcripts().run(CaseFile.read(path)))
    assert sum(replay.accepted for replay in replays) >= 1300
    # Requests with impossible bounds or uuids, unknown or malformed ones, and garbage, sent on
    # purpose; SCRAM with a wrong password; commands that a replica does not need; two requests that
    # say they hold nothing of a snapshot, which `Position` does not make.
    assert sum(replay.observed for replay in replays) <= 30
    assert sum(replay.understood for replay in replays) == sum(
        line.get("dir") == "s2c" for path in FILES for line in lines_of(path.name)
    )


def first_of(lines: list[Line], opcode: int, *, nth: int = 0) -> int:
    found = [
        index
        for index, line in enumerate(lines)
        if line.get("dir") == "s2c" and line["hex"][2:4] == f"{opcode:02x}"
    ]
    return found[nth]


def with_frame(line: Line, **changes: Any) -> Line:
    frame = parse_frame(bytes.fromhex(line["hex"]))
    body = decode(frame)
    fields = {name: getattr(body, name) for name in type(body).__dataclass_fields__}
    fields |= {name: value for name, value in changes.items() if name in fields}
    changed = encode(
        type(body)(**fields),
        frame.opcode,
        magic=frame.magic,
        vbucket=changes.get("vbucket", 0 if frame.magic.is_response else frame.vbucket),
        opaque=changes.get("opaque", frame.opaque),
        cas=frame.cas,
        datatype=frame.datatype,
    )
    return line | {"hex": changed.to_bytes().hex()}


BACKFILL = "01-backfill-then-memory.jsonl"


def repeat_seqno(lines: list[Line]) -> None:
    lines[first_of(lines, Opcode.DCP_MUTATION, nth=3)] = lines[first_of(lines, Opcode.DCP_MUTATION)]


def drop_marker(lines: list[Line]) -> None:
    del lines[first_of(lines, Opcode.DCP_SNAPSHOT_MARKER)]


def lower_marker_end(lines: list[Line]) -> None:
    at = first_of(lines, Opcode.DCP_SNAPSHOT_MARKER)
    lines[at] = with_frame(lines[at], end=1)


def change_stream_opaque(lines: list[Line]) -> None:
    at = first_of(lines, Opcode.DCP_MUTATION)
    lines[at] = with_frame(lines[at], opaque=0xBAD)


def change_vbucket(lines: list[Line]) -> None:
    at = first_of(lines, Opcode.DCP_MUTATION)
    lines[at] = with_frame(lines[at], vbucket=99)


def change_answer_opaque(lines: list[Line]) -> None:
    at = first_of(lines, Opcode.SELECT_BUCKET)
    lines[at] = with_frame(lines[at], opaque=0xBAD)


def cut_frame(lines: list[Line]) -> None:
    at = first_of(lines, Opcode.DCP_MUTATION)
    lines[at] = lines[at] | {"hex": lines[at]["hex"][:-2]}


def drop_stream_answer(lines: list[Line]) -> None:
    del lines[first_of(lines, Opcode.DCP_STREAM_REQ)]


def unknown_shape(lines: list[Line]) -> None:
    lines[3] = {"who": "nobody"}


def unknown_direction(lines: list[Line]) -> None:
    lines[3] = lines[3] | {"dir": "up"}


@pytest.mark.parametrize(
    ("spoil", "expected"),
    [
        (repeat_seqno, "seqno repeated"),
        (drop_marker, "item before marker"),
        (lower_marker_end, "item beyond marker"),
        (change_stream_opaque, "expected the opaque of a stream that was asked for"),
        (change_vbucket, "item of another vbucket"),
        (change_answer_opaque, "nothing like it was asked"),
        (cut_frame, "expected"),
        (drop_stream_answer, "found no answer to DCP_STREAM_REQ"),
        (unknown_shape, "expected a frame or a mark"),
        (unknown_direction, "expected"),
    ],
)
def test_a_spoiled_transcript_fails(spoil: Callable[[list[Line]], None], expected: str) -> None:
    lines = lines_of(BACKFILL)
    assert failures(lines) == ""
    spoil(lines)
    if spoil in (unknown_shape,):
        expected = "found members" if "members" in failures(lines) else expected
    assert expected in failures(lines)


def test_a_wrong_server_statistic_fails() -> None:
    lines = lines_of("02-flow-control.jsonl")
    at = next(i for i, line in enumerate(lines) if "unacked_bytes=1084" in line.get("mark", ""))
    lines[at]["mark"] = lines[at]["mark"].replace("unacked_bytes=1084", "unacked_bytes=1085")
    assert "unacked bytes as the server counts: found 1084, expected 1085" in failures(lines)


def test_a_wrong_server_signature_fails_its_login() -> None:
    lines = lines_of("10-hello-sasl.jsonl")
    at = first_of(lines, Opcode.SASL_STEP)
    frame = parse_frame(bytes.fromhex(lines[at]["hex"]))
    body = decode(frame)
    assert isinstance(body, m.SaslAnswer)
    spoiled = body.payload[:3] + b"AAAA" + body.payload[7:]
    lines[at] = with_frame(lines[at], payload=spoiled)
    assert "did not prove" in failures(lines)


def test_free_marks_and_several_requests_in_one_line_are_fine() -> None:
    lines = lines_of(BACKFILL)
    lines.insert(4, {"mark": "it rains: and unacked is a word"})
    requests = [i for i, line in enumerate(lines) if line.get("dir") == "c2s"][:2]
    joined = lines[requests[0]] | {"hex": lines[requests[0]]["hex"] + lines[requests[1]]["hex"]}
    lines[requests[0]] = joined
    del lines[requests[1]]
    assert failures(lines) == ""
