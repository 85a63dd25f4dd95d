"""Damage to a recording is a difference to our producer: seeded samples of every kind of damage.

What a recording shows once and no rule contradicts is taken for the server's state (a document's
body, say); so the kinds are what a state cannot explain. Damage to what was shown twice (a document
in two streams, a failover log) must be told as well: the two showings contradict each other.
"""

import json
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from dcp.wire.vocabulary import Magic, Opcode
from tests.conformance_formats.case_file import CaseFile
from tests.producer_conformance.producer_transcripts import ProducerTranscripts
from tests.seeds import seeds
from tests.test_conformance import CAPTURES, Line, Spot, answer, of_kind, put, remove

SAMPLES = 4
NAMES = ("01-backfill-then-memory", "02-flow-control", "06-rollback", "08-errors")
(SEED,) = seeds(1)

START_LAST, END_LAST, FLAGS_LAST = 31, 39, 43
LOCK_TIME_LAST, NMETA_LAST = 51, 53
DATATYPE, STATUS, OPAQUE_LAST, CAS_LAST = 5, 6, 15, 23

mutation = of_kind(Opcode.DCP_MUTATION)
marker = of_kind(Opcode.DCP_SNAPSHOT_MARKER)


def spots(*names: str) -> list[Spot]:
    found = []
    for name in names:
        text = (CAPTURES / f"{name}.jsonl").read_text()
        lines = [json.loads(line) for line in text.splitlines()]
        found += [Spot(lines, at) for at, line in enumerate(lines) if "hex" in line]
    return found


def differs(lines: list[Line]) -> bool:
    file = CaseFile(Path("made-up"), lines, is_lines=True)
    return any(result.failures for result in ProducerTranscripts().run(file))


def flip(at: int, bits: int = 1) -> Callable[[Spot], list[Line]]:
    return lambda spot: put(spot, at, bytes([spot.data[at] ^ bits]))


def repeat(spot: Spot) -> list[Line]:
    return spot.lines[: spot.at + 1] + spot.lines[spot.at :]


Damage = tuple[Callable[[Spot], bool], Callable[[Spot], list[Line]]]
DAMAGES: dict[str, Damage] = {
    "another status": (answer, lambda spot: put(spot, STATUS, b"\x00\x86")),
    "another opaque": (lambda spot: spot.from_server and not is_noop(spot), flip(OPAQUE_LAST)),
    "another datatype of an answer": (answer, flip(DATATYPE)),
    "cas in an answer": (answer, flip(CAS_LAST)),
    "marker wants an acknowledgement": (marker, flip(FLAGS_LAST, 0x08)),
    "marker's start": (marker, flip(START_LAST)),
    "marker's end": (marker, flip(END_LAST)),
    "marker removed": (marker, remove),
    "mutation's lock time": (mutation, flip(LOCK_TIME_LAST)),
    "mutation's nmeta": (mutation, flip(NMETA_LAST)),
    "mutation of another vbucket": (mutation, flip(7)),
    "mutation repeated": (mutation, repeat),
    "answer repeated": (answer, repeat),
}


def is_noop(spot: Spot) -> bool:
    return spot.data[:2] == bytes([Magic.REQUEST, Opcode.DCP_NOOP])


@pytest.mark.parametrize("kind", DAMAGES)
def test_damage_is_a_difference(kind: str) -> None:
    can_have, damage = DAMAGES[kind]
    candidates = [spot for spot in spots(*NAMES) if can_have(spot)]
    chosen = random.Random(f"{SEED} {kind}").sample(candidates, SAMPLES)
    missed = [spot.name for spot in chosen if not differs(damage(spot))]
    assert missed == [], f"seed {SEED}"


SHOWN_AGAIN: dict[str, Callable[[Spot], list[Line]]] = {
    "removed": remove,
    "rev": flip(39),
    "flags": flip(43),
    "expiry": flip(47),
    "cas": flip(CAS_LAST),
    "datatype": flip(DATATYPE),
    "key": flip(55),
    "body": lambda spot: flip(len(spot.data) - 1)(spot),
}


@pytest.mark.parametrize("kind", SHOWN_AGAIN)
def test_damage_to_an_item_that_is_shown_again_is_a_difference(kind: str) -> None:
    again = [spot for spot in spots("06-rollback") if mutation(spot) and b"a15" in spot.data]
    assert len(again) == 3  # in streams from 0, from 5, and from 0 after a compaction
    assert all(differs(SHOWN_AGAIN[kind](spot)) for spot in again)


def test_an_item_that_no_later_version_replaced_is_missed() -> None:
    shown = [spot for spot in spots("01-backfill-then-memory") if mutation(spot)]
    chosen = random.Random(SEED).sample(shown, SAMPLES)
    assert all(differs(remove(spot)) for spot in chosen)


def test_what_was_said_after_a_silence_must_be_in_the_recording() -> None:
    """The window was full: a message that the recording lacks may not come."""
    shown = [spot for spot in spots("02-flow-control") if mutation(spot)]
    last_of_a_window = shown[3]
    assert differs(remove(last_of_a_window))
