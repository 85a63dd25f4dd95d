"""Further transcripts than the recorded server's: the harness takes them without a change.

Those of ``tests/data/own-transcripts`` are our own producer's (see the note there): each is right
by construction, so what fails is the harness. The recorded server's are also taken with all seqnos
moved up, as those of a vbucket with a long past, and cut off anywhere.
"""

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from dcp.errors import FrameError
from dcp.types import U64_MAX
from dcp.wire.framing import FrameSplitter
from dcp.wire.vocabulary import Opcode, Status
from tests.conformance_formats.case_file import CaseFile, CaseResult
from tests.producer_conformance.producer_transcripts import ProducerTranscripts
from tests.seeds import seeds
from tests.test_conformance import Line, Spot, answer, of_kind, put, remove

DATA = Path(__file__).parents[2] / "data"
CAPTURES, OWN = DATA / "captures", DATA / "own-transcripts"
(SEED,) = seeds(1)
ADD = Opcode.ADD

ANSWER_MAGICS = (0x81, 0x18)
SEQNOS_OF_REQUESTS: dict[int, tuple[int, ...]] = {
    Opcode.DCP_STREAM_REQ: (8, 16, 32, 40),
    Opcode.DCP_MUTATION: (0,),
    Opcode.DCP_DELETION: (0,),
    Opcode.DCP_EXPIRATION: (0,),
    Opcode.DCP_SYSTEM_EVENT: (0,),
    Opcode.DCP_PREPARE: (0,),
    Opcode.DCP_COMMIT: (0, 8),
    Opcode.DCP_ABORT: (0, 8),
    Opcode.DCP_SEQNO_ADVANCED: (0,),
    Opcode.DCP_SNAPSHOT_MARKER: (0, 8),
}
"""Where the extras of a frame hold seqnos."""
SEQNOS_OF_MARKER_V2 = (0, 8, 20, 28)


def read(path: Path) -> list[Line]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def results(lines: list[Any]) -> list[CaseResult]:
    return list(ProducerTranscripts().run(CaseFile(Path("made-up"), lines, is_lines=True)))


def failures(lines: list[Any]) -> list[str]:
    return [text for result in results(lines) for text in result.failures]


def names(folder: Path) -> list[str]:
    return sorted(path.stem for path in folder.glob("*.jsonl"))


NOT_COMPARED = {"marker-versions": 1}
"""A control that an older server would refuse for another reason (``watching.py``)."""


@pytest.mark.parametrize("name", names(OWN))
def test_our_own_transcripts_pass(name: str) -> None:
    lines = read(OWN / f"{name}.jsonl")
    found = results(lines)
    assert [text for result in found for text in result.failures] == []
    said = sum(line.get("dir") == "s2c" for line in lines)
    assert sum(result.tally["compared"] for result in found) == said - NOT_COMPARED.get(name, 0)


# --- a vbucket with a long past


def moved(frame: bytes, by: int) -> bytes:
    """Return a frame with all its seqnos moved up, but 0 and the end of time."""
    opcode, framing = frame[1], frame[2] if frame[0] in (0x08, 0x18) else 0
    first, status = 24 + framing, int.from_bytes(frame[6:8], "big")
    places: list[int] = []
    if frame[0] not in ANSWER_MAGICS:
        places = [first + at for at in SEQNOS_OF_REQUESTS.get(opcode, ())]
        if opcode == Opcode.DCP_SNAPSHOT_MARKER and frame[4] == 1:
            places = [first + 1 + at for at in SEQNOS_OF_MARKER_V2]
        if opcode == Opcode.DCP_STREAM_REQ and frame[4] != 48:
            places = []  # no stream request
    elif opcode == Opcode.DCP_STREAM_REQ and status == Status.ROLLBACK:
        places = [first]
    elif status == Status.SUCCESS:
        failover_logs = (Opcode.DCP_STREAM_REQ, Opcode.DCP_GET_FAILOVER_LOG)
        if opcode in (*failover_logs, Opcode.GET_FAILOVER_LOG):
            places = list(range(first + 8, len(frame), 16))
        elif opcode == Opcode.GET_ALL_VB_SEQNOS:
            places = list(range(first + 2, len(frame), 10))
        elif opcode == Opcode.OBSERVE_SEQNO:
            places = [first + 11, first + 19]
    found = bytearray(frame)
    for at in places:
        seqno = int.from_bytes(frame[at : at + 8], "big")
        if 0 < seqno < U64_MAX // 2:
            found[at : at + 8] = (seqno + by).to_bytes(8, "big")
    return bytes(found)


def moved_line(line: Line, by: int) -> Line:
    if "hex" not in line:
        return line
    data, splitter = bytes.fromhex(line["hex"]), FrameSplitter()
    try:
        block = splitter.feed(data)
    except FrameError:
        return line
    frames = [block.frame(index).to_bytes() for index in range(len(block))]
    if b"".join(frames) != data:
        return line
    return line | {"hex": b"".join(moved(frame, by) for frame in frames).hex()}


@pytest.mark.parametrize("by", [7, 1000, 10**12])
@pytest.mark.parametrize("name", names(CAPTURES))
def test_seqnos_may_begin_anywhere(name: str, by: int) -> None:
    lines = [moved_line(line, by) for line in read(CAPTURES / f"{name}.jsonl")]
    assert failures(lines) == []


def test_seqnos_are_moved() -> None:
    lines = read(CAPTURES / "01-backfill-then-memory.jsonl")
    assert sum(moved_line(line, 7) != line for line in lines) > len(lines) // 2


# --- cut off

# The connections of these are shown other parts of the same documents: all are needed.
CAN_BE_CUT = [name for name in names(CAPTURES) if not name.startswith("04-data-kinds")]


@pytest.mark.parametrize("name", CAN_BE_CUT)
def test_a_transcript_may_end_at_any_of_its_marks(name: str) -> None:
    """Inside a snapshot nobody knows what it would have shown."""
    lines = read(CAPTURES / f"{name}.jsonl")
    marks = [index for index, line in enumerate(lines) if "mark" in line]
    chosen = Random(f"{SEED} {name}").sample(marks, min(3, len(marks)))
    assert [end for end in chosen if failures(lines[:end])] == []


# --- damage


def written(spot: Spot) -> bool:
    return answer(spot) and spot.data[1] == Opcode.SET


def statistic(spot: Spot) -> bool:
    return answer(spot) and spot.data[1] == Opcode.STAT


def own_spots(name: str) -> list[Spot]:
    lines = read(OWN / f"{name}.jsonl")
    return [Spot(lines, at) for at, line in enumerate(lines) if "hex" in line]


def spots_of(name: str, fits: Callable[[Spot], bool]) -> list[Spot]:
    """The spots of a transcript that fit: one at least, else nothing would be looked at."""
    return some(spot for spot in own_spots(name) if fits(spot))


def some(spots: Iterable[Spot]) -> list[Spot]:
    found = list(spots)
    assert found
    return found


def flip(spot: Spot, at: int) -> list[Line]:
    return put(spot, at, bytes([spot.data[at] ^ 1]))


def test_a_write_is_held_to_its_cas() -> None:
    first = next(spot for spot in own_spots("documents-written") if written(spot))
    assert failures(flip(first, 23))


def test_a_write_is_held_to_its_status() -> None:
    told = spots_of("documents-written", lambda s: written(s) or (answer(s) and s.data[1] == ADD))
    assert {spot.data[1] for spot in told} == {Opcode.SET, ADD}
    assert all(failures(put(spot, 6, b"\0\x85")) for spot in told)


def test_what_a_write_stored_is_what_streams_show() -> None:
    shown = spots_of("documents-written", of_kind(Opcode.DCP_MUTATION))
    assert all(failures(flip(spot, len(spot.data) - 1)) for spot in shown)
    assert all(failures(flip(spot, 31)) for spot in shown)  # the seqno


def test_a_statistic_is_held_to_its_shape_and_meaning() -> None:
    told = spots_of("statistics", statistic)
    assert all(failures(put(spot, 6, b"\0\x85")) for spot in told)
    state = next(spot for spot in told if spot.data.endswith(b"active"))
    assert failures(put(state, len(state.data) - 6, b"strang"))
    last = next(spot for spot in told if len(spot.data) == 24)
    assert failures(remove(last))


SYNC_WRITES = [name for name in names(OWN) if name.startswith("sync-writes-")]
"""Prepares, commits and aborts from memory; no connection that wrote them was recorded."""


def sync_write_spots(kind: Opcode) -> list[Spot]:
    return some(s for name in SYNC_WRITES for s in own_spots(name) if of_kind(kind)(s))


def test_a_commit_is_held_to_its_seqnos_and_key() -> None:
    for spot in sync_write_spots(Opcode.DCP_COMMIT):
        assert failures(flip(spot, 31))  # the prepare's seqno
        assert failures(flip(spot, 39))
        assert failures(flip(spot, len(spot.data) - 1))


def test_an_abort_is_held_to_its_seqno_and_key() -> None:
    for spot in sync_write_spots(Opcode.DCP_ABORT):
        assert failures(flip(spot, 39))
        assert failures(flip(spot, len(spot.data) - 1))


def test_a_commit_is_not_left_out() -> None:
    """Where several connections were shown it."""
    commits = spots_of("sync-writes-from-memory", of_kind(Opcode.DCP_COMMIT))
    assert all(failures(remove(spot)) for spot in commits)


def committed(spot: Spot) -> bool:
    """Whether a plain client was shown what another one was shown as a commit."""
    commits = {
        each.data[32:40] for each in sync_write_spots(Opcode.DCP_COMMIT) if each.lines == spot.lines
    }
    return of_kind(Opcode.DCP_MUTATION)(spot) and spot.data[24:32] in commits


def test_a_commit_is_the_document_of_its_prepare() -> None:
    shown = some(spot for name in SYNC_WRITES for spot in own_spots(name) if committed(spot))
    for spot in shown:
        assert failures(flip(spot, 23))  # the CAS
        assert failures(flip(spot, 39))  # the revision
        assert failures(flip(spot, 43))  # the flags
        assert failures(flip(spot, len(spot.data) - 1))
