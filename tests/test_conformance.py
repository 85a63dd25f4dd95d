"""Every kind of damage to a transcript is reported: seeded samples of the committed transcripts."""

import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from dcp.wire.vocabulary import Magic, Opcode, Status
from tests.conformance import main
from tests.conformance_formats.case_file import CaseFile
from tests.conformance_formats.transcripts import Transcripts
from tests.seeds import seeds

CAPTURES = Path(__file__).parent / "data" / "captures"
NAMES = (
    "01-backfill-then-memory",
    "02-flow-control",
    "02b-flow-control-close",
    "03-noop",
    "05c-stream-ids",
    "07-failover-log-and-seqnos",
    "08-errors",
    "10-hello-sasl",
    "14b-oso-latest",
    "20-clustermap-and-ephemeral",
)
"""The short ones with all kinds of frames; each is replayed in under 100 ms."""
SAMPLES = 5
(SEED,) = seeds(1)
ERROR = int(Status.EINTERNAL)

Line = dict[str, Any]


@dataclass(frozen=True)
class Spot:
    """A frame of a transcript, with what else is known of its line."""

    lines: list[Line]
    at: int
    is_of_errors: bool = False

    @property
    def data(self) -> bytes:
        return bytes.fromhex(self.lines[self.at]["hex"])

    @property
    def from_server(self) -> bool:
        return bool(self.lines[self.at]["dir"] == "s2c")

    @property
    def is_answer(self) -> bool:
        return self.data[0] in (Magic.RESPONSE, Magic.ALT_RESPONSE)

    @property
    def status(self) -> int:
        return int.from_bytes(self.data[6:8], "big")

    @property
    def name(self) -> str:
        return f"{self.lines[self.at]['conn']} line {self.at + 1}: {self.data[:24].hex()}"

    def with_data(self, data: bytes) -> list[Line]:
        changed = list(self.lines)
        changed[self.at] = self.lines[self.at] | {"hex": data.hex()}
        return changed

    def later(self) -> Iterator["Spot"]:
        """The frames behind this one on its connection (or on a later one of this name)."""
        conn = self.lines[self.at]["conn"]
        for at in range(self.at + 1, len(self.lines)):
            if self.lines[at].get("conn") == conn:
                yield Spot(self.lines, at)

    def answer(self) -> "Spot | None":
        """The answer to this request."""
        wanted = (self.data[1], self.data[12:16])
        for spot in self.later():
            if spot.is_answer and (spot.data[1], spot.data[12:16]) == wanted:
                return spot
        return None


def all_spots() -> list[Spot]:
    found = []
    for name in NAMES:
        lines = [json.loads(line) for line in (CAPTURES / f"{name}.jsonl").read_text().splitlines()]
        is_of_errors = name == "08-errors"
        found += [Spot(lines, at, is_of_errors) for at, line in enumerate(lines) if "hex" in line]
    return found


SPOTS = all_spots()


def failures(lines: list[Line]) -> list[str]:
    file = CaseFile(Path("made-up"), lines, is_lines=True)
    return [text for result in Transcripts().run(file) for text in result.failures]


# --- the kinds of damage: which frames can be damaged so, and how -------------------------------


def put(spot: Spot, start: int, new: bytes) -> list[Line]:
    return spot.with_data(spot.data[:start] + new + spot.data[start + len(new) :])


def from_server(spot: Spot) -> bool:
    return spot.from_server


def answer(spot: Spot) -> bool:
    return spot.from_server and spot.is_answer


def success(spot: Spot) -> bool:
    return answer(spot) and spot.status == Status.SUCCESS


def refusal_with_grounds(spot: Spot) -> bool:
    """A refused DCP_CONTROL or SELECT_BUCKET without a text would be as good accepted."""
    free = (Opcode.DCP_CONTROL, Opcode.SELECT_BUCKET)
    refused = answer(spot) and spot.status not in (Status.SUCCESS, Status.AUTH_CONTINUE)
    return refused and (spot.data[1] not in free or len(spot.data) > 24)


def has_fixed_opaque(spot: Spot) -> bool:
    """A NOOP's opaque is the server's choice; the answer shows it, where there is one."""
    is_noop = spot.data[:2] == bytes([Magic.REQUEST, Opcode.DCP_NOOP])
    return spot.from_server and not (is_noop and spot.answer() is None)


def of_kind(opcode: int) -> Callable[[Spot], bool]:
    return lambda spot: spot.from_server and spot.data[0] < 0x81 and spot.data[1] == opcode


def answered_request(spot: Spot) -> bool:
    """A request that succeeded and in whose last byte there is no choice, or a client's answer.

    BUFFER_ACK may name any number; one that resumes a stream may name any end of the snapshot, one
    for seqnos any collection.
    """
    if spot.from_server:
        return False
    free = (Opcode.DCP_BUFFER_ACK, Opcode.GET_ERROR_MAP)
    resumes = (
        spot.data[1] == Opcode.DCP_STREAM_REQ and len(spot.data) == 72 and any(spot.data[32:40])
    )
    of_collection = spot.data[1] == Opcode.GET_ALL_VB_SEQNOS and len(spot.data) == 32
    got = spot.answer()
    if spot.data[1] in free or resumes or of_collection:
        return False
    return spot.is_answer or (got is not None and got.status == Status.SUCCESS)


def remove(spot: Spot) -> list[Line]:
    return spot.lines[: spot.at] + spot.lines[spot.at + 1 :]


def repeat(spot: Spot) -> list[Line]:
    return spot.lines[: spot.at + 1] + spot.lines[spot.at :]


def flip_last(spot: Spot) -> list[Line]:
    return put(spot, len(spot.data) - 1, bytes([spot.data[-1] ^ 0xFF]))


Damage = tuple[Callable[[Spot], bool], Callable[[Spot], list[Line]]]
DAMAGES: dict[str, Damage] = {
    "unknown status": (answer, lambda spot: put(spot, 6, b"\x7f\x77")),
    "success becomes an error": (success, lambda spot: put(spot, 6, ERROR.to_bytes(2, "big"))),
    "error becomes a success": (refusal_with_grounds, lambda spot: put(spot, 6, bytes(2))),
    "unknown opcode": (from_server, lambda spot: put(spot, 1, b"\xee")),
    "unknown opcode and opaque": (
        from_server,
        lambda spot: put(Spot(put(spot, 1, b"\xee"), spot.at), 12, b"\xba\xdb\xad\x00"),
    ),
    "unknown opaque": (has_fixed_opaque, lambda spot: put(spot, 12, b"\xba\xdb\xad\x00")),
    "undefined datatype": (from_server, lambda spot: put(spot, 5, bytes([spot.data[5] | 0x80]))),
    "no answer": (answer, remove),
    "answer repeated": (answer, repeat),
    "marker repeated": (of_kind(Opcode.DCP_SNAPSHOT_MARKER), repeat),
    "stream end repeated": (of_kind(Opcode.DCP_STREAM_END), repeat),
    "NOOP repeated": (of_kind(Opcode.DCP_NOOP), repeat),
    "cut": (from_server, lambda spot: spot.with_data(spot.data[:-1])),
    "longer": (from_server, lambda spot: spot.with_data(spot.data + b"\0")),
    "client's last byte": (answered_request, flip_last),
    "client's frame cut": (
        lambda spot: not spot.from_server,
        lambda spot: spot.with_data(spot.data[:-1]),
    ),
    "client's opcode": (
        lambda spot: not spot.from_server and spot.data[1] != Opcode.DCP_BUFFER_ACK,
        lambda spot: put(spot, 1, b"\xee"),
    ),
}


NOT_OF_ERRORS = {"no answer", "client's last byte", "client's opcode"}
"""In the transcript of errors a server closes instead of answering: no answer is missing there."""


@pytest.mark.parametrize("kind", DAMAGES)
def test_damage_is_reported(kind: str) -> None:
    can_have, damage = DAMAGES[kind]
    spots = [spot for spot in SPOTS if kind not in NOT_OF_ERRORS or not spot.is_of_errors]
    candidates = [spot for spot in spots if can_have(spot)]
    assert candidates
    chosen = random.Random(f"{SEED} {kind}").sample(candidates, min(SAMPLES, len(candidates)))
    missed = [spot.name for spot in chosen if not failures(damage(spot))]
    assert missed == [], f"seed {SEED}: {len(missed)} of {len(chosen)} pass"


def test_a_damaged_file_fails_with_found_and_expected(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spot = next(spot for spot in SPOTS if success(spot))
    path = tmp_path / "damaged.jsonl"
    path.write_text("\n".join(json.dumps(line) for line in put(spot, 6, b"\x7f\x77")))
    assert main([str(path)]) == 1
    said = capsys.readouterr().out
    assert "with status 0x7f77, expected a status of the vocabulary" in said


def test_the_frames_of_a_whole_file_are_counted(capsys: pytest.CaptureFixture[str]) -> None:
    path = CAPTURES / f"{NAMES[0]}.jsonl"
    assert main([str(path)]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[0] == f"{path}: 9 accepted, 0 observed, 64 understood"
    assert said[-1] == "1 passed, 0 failed"
