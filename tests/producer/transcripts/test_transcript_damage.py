"""Damage to a recording is a difference to our producer: seeded samples of every kind of damage.

The scenarios hold the recorded server's state, so any part of a frame that is compared tells.
"""

import json
import random
from collections.abc import Callable

import pytest

from dcp.wire.vocabulary import Opcode
from tests.conformance_formats.case_file import CaseFile
from tests.producer_conformance.producer_transcripts import ProducerTranscripts
from tests.seeds import seeds
from tests.test_conformance import CAPTURES, Line, Spot, answer, of_kind, put, remove, repeat

SAMPLES = 4
NAMES = ("01-backfill-then-memory", "02-flow-control", "06-rollback", "08-errors")
(SEED,) = seeds(1)

mutation = of_kind(Opcode.DCP_MUTATION)
marker = of_kind(Opcode.DCP_SNAPSHOT_MARKER)


def spots(*names: str) -> list[tuple[str, Spot]]:
    found = []
    for name in names:
        text = (CAPTURES / f"{name}.jsonl").read_text()
        lines = [json.loads(line) for line in text.splitlines()]
        found += [(name, Spot(lines, at)) for at, line in enumerate(lines) if "hex" in line]
    return found


def differs(name: str, lines: list[Line]) -> bool:
    file = CaseFile(CAPTURES / f"{name}.jsonl", lines, is_lines=True)
    return any(result.failures for result in ProducerTranscripts().run(file))


def flip(at: int, bits: int = 1) -> Callable[[Spot], list[Line]]:
    return lambda spot: put(spot, at, bytes([spot.data[at] ^ bits]))


def is_noop(spot: Spot) -> bool:
    return spot.data[1] == Opcode.DCP_NOOP and not spot.is_answer


def message(spot: Spot) -> bool:
    return spot.from_server and not is_noop(spot)


Damage = tuple[Callable[[Spot], bool], Callable[[Spot], list[Line]]]
DAMAGES: dict[str, Damage] = {
    "status": (answer, lambda spot: put(spot, 6, b"\x00\x86")),
    "opaque": (message, flip(15)),
    "datatype of an answer": (answer, flip(5)),
    "cas in an answer": (answer, flip(23)),
    "answer repeated": (answer, repeat),
    "answer removed": (answer, remove),
    "marker wants an acknowledgement": (marker, flip(43, 0x08)),
    "marker from disk or memory": (marker, flip(43, 0x03)),
    "marker's start": (marker, flip(31)),
    "marker's end": (marker, flip(39)),
    "marker removed": (marker, remove),
    "vbucket of a mutation": (mutation, flip(7)),
    "datatype of a mutation": (mutation, flip(5)),
    "cas of a mutation": (mutation, flip(23)),
    "seqno of a mutation": (mutation, flip(31)),
    "rev of a mutation": (mutation, flip(39)),
    "flags of a mutation": (mutation, flip(43)),
    "expiry of a mutation": (mutation, flip(47)),
    "lock time of a mutation": (mutation, flip(51)),
    "nmeta of a mutation": (mutation, flip(53)),
    "key of a mutation": (mutation, flip(55)),
    "value of a mutation": (mutation, lambda spot: flip(len(spot.data) - 1)(spot)),
    "mutation repeated": (mutation, repeat),
    "mutation removed": (mutation, remove),
}


@pytest.mark.parametrize("kind", DAMAGES)
def test_damage_is_a_difference(kind: str) -> None:
    can_have, damage = DAMAGES[kind]
    candidates = [(name, spot) for name, spot in spots(*NAMES) if can_have(spot)]
    chosen = random.Random(f"{SEED} {kind}").sample(candidates, SAMPLES)
    missed = [spot.name for name, spot in chosen if not differs(name, damage(spot))]
    assert missed == [], f"seed {SEED}"


def test_what_was_said_after_a_silence_must_be_in_the_recording() -> None:
    """The window was full: a message that the recording lacks may not come."""
    shown = [spot for _, spot in spots("02-flow-control") if mutation(spot)]
    last_of_a_window = shown[3]
    assert differs("02-flow-control", remove(last_of_a_window))
