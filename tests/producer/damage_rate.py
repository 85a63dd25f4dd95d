"""How much damage the harness tells: ``python -m tests.producer.damage_rate [FILE…]``.

Each sample changes one frame of the server in a recording of ``tests/data/captures``, or in the
files named: one field by one bit, or the frame is left out, sent twice, or swapped with the next
one of its stream. A line per kind says how many of the samples were told as a difference.
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Final

from dcp.wire.vocabulary import Opcode
from tests.conformance_formats.case_file import CaseFile
from tests.producer_conformance.producer_transcripts import ProducerTranscripts
from tests.test_conformance import CAPTURES, Line, Spot, answer, of_kind, put, remove

SAMPLES_PER_FILE: Final = 2
_HEADER: Final = 24

mutation = of_kind(Opcode.DCP_MUTATION)
deletion = of_kind(Opcode.DCP_DELETION)
marker = of_kind(Opcode.DCP_SNAPSHOT_MARKER)

Damage = tuple[Callable[[Spot], bool], Callable[[Spot], list[Line]]]


def flip(at: int, bits: int = 1) -> Callable[[Spot], list[Line]]:
    return lambda spot: put(spot, at, bytes([spot.data[at] ^ bits]))


def item(spot: Spot) -> bool:
    return (mutation(spot) or deletion(spot)) and spot.data[0] == 0x80


def plain_marker(spot: Spot) -> bool:
    return marker(spot) and spot.data[0] == 0x80 and spot.data[4] == 20


def from_server(spot: Spot) -> bool:
    return spot.from_server and spot.data[1] != Opcode.DCP_NOOP


def repeat(spot: Spot) -> list[Line]:
    return spot.lines[: spot.at + 1] + spot.lines[spot.at :]


def swap(spot: Spot) -> list[Line]:
    """Swap a frame with the next one on its connection."""
    following = next((one for one in spot.later() if one.from_server), None)
    lines = list(spot.lines)
    if following is not None:
        here, there = lines[spot.at], lines[following.at]
        lines[spot.at] = here | {"hex": there["hex"]}
        lines[following.at] = there | {"hex": here["hex"]}
    return lines


def next_of_stream(spot: Spot) -> bool:
    """Whether the next frame on the connection belongs to the same stream, and is another one."""
    following = next(iter(spot.later()), None)
    if not from_server(spot) or answer(spot) or following is None or not following.from_server:
        return False
    same = following.data[12:16] == spot.data[12:16] and not answer(following)
    return same and following.data != spot.data


DAMAGES: Final[dict[str, Damage]] = {
    "status of an answer": (answer, lambda spot: put(spot, 6, b"\x00\x86")),
    "opaque": (from_server, flip(15)),
    "vbucket of a message": (item, flip(7)),
    "seqno of an item": (item, flip(31)),
    "rev of an item": (item, flip(39)),
    "cas of an item": (item, flip(23)),
    "datatype of an item": (item, flip(5)),
    "key of an item": (item, lambda spot: flip(_key_end(spot) - 1)(spot)),
    "last byte of a value": (
        lambda spot: item(spot) and _key_end(spot) < len(spot.data),
        lambda spot: flip(len(spot.data) - 1)(spot),
    ),
    "start of a snapshot": (plain_marker, flip(31)),
    "end of a snapshot": (plain_marker, flip(39)),
    "disk flag of a snapshot": (plain_marker, flip(43, 0x03)),
    "frame left out": (from_server, remove),
    "item left out": (item, remove),
    "marker left out": (marker, remove),
    "answer left out": (answer, remove),
    "frame sent twice": (from_server, repeat),
    "two frames of a stream swapped": (next_of_stream, swap),
}


def _key_end(spot: Spot) -> int:
    return _HEADER + spot.data[4] + int.from_bytes(spot.data[2:4], "big")


def differs(lines: list[Line]) -> bool:
    """Whether the harness tells of a difference."""
    file = CaseFile(Path("made-up"), lines, is_lines=True)
    return any(result.failures for result in ProducerTranscripts().run(file))


def told(paths: list[Path], kind: str, seed: int) -> tuple[int, int, list[str]]:
    """Return how many samples of a kind were told, of how many, and those that were not."""
    can_have, damage = DAMAGES[kind]
    found, count, missed = 0, 0, []
    for path in paths:
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        spots = [Spot(lines, at) for at, line in enumerate(lines) if "hex" in line]
        spots = [spot for spot in spots if len(spot.data) >= _HEADER and can_have(spot)]
        chosen = Random(f"{seed} {kind} {path.stem}").sample(
            spots, min(SAMPLES_PER_FILE, len(spots))
        )
        for spot in chosen:
            count += 1
            is_told = differs(damage(spot))
            found += is_told
            missed += [] if is_told else [f"{path.stem} line {spot.at + 1}"]
    return found, count, missed


def main() -> None:
    """Print a line per kind."""
    paths = [Path(argument) for argument in sys.argv[1:]] or sorted(CAPTURES.glob("*.jsonl"))
    all_found = all_count = 0
    for kind in DAMAGES:
        found, count, missed = told(paths, kind, seed=1)
        all_found, all_count = all_found + found, all_count + count
        print(f"{kind}: {found} of {count}; not told: {', '.join(missed) or 'none'}", flush=True)
    print(f"all: {all_found} of {all_count}")


if __name__ == "__main__":
    main()
