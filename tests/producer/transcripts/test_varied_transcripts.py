"""The recorded conversations in other words: what a recording chose at random may be anything.

Names, uuids, CAS values, times, and where the client's bytes were cut into lines; and a recording
may end anywhere.
"""

import re
from collections.abc import Callable
from random import Random

import pytest

from dcp.wire.vocabulary import Magic, Opcode
from tests.producer.transcripts.test_further_transcripts import CAPTURES, failures, names, read
from tests.seeds import seeds
from tests.test_conformance import Line

(SEED,) = seeds(1)
_LOGS = (Opcode.DCP_STREAM_REQ, Opcode.DCP_GET_FAILOVER_LOG, Opcode.GET_FAILOVER_LOG)
_USER, _OTHER_USER = b"Administrator".hex(), b"Somebody_else".hex()
_BUCKET, _OTHER_BUCKET = b"default".hex(), b"another".hex()
_MOST_CAS_SHIFT = 1 << 40


def data_of(line: Line) -> bytes:
    return bytes.fromhex(line["hex"])


def with_other_names(lines: list[Line], _: Random) -> list[Line]:
    """Connections, the user, and the bucket."""
    conns = {line["conn"] for line in lines if "conn" in line}
    found = []
    for line in lines:
        if "mark" in line:
            conn, colon, rest = line["mark"].partition(":")
            new = f"x-{conn}{colon}{rest}" if conn in conns else line["mark"]
            found.append(line | {"mark": new})
            continue
        text = line["hex"].replace(_USER, _OTHER_USER)
        if line["dir"] == "c2s" and text[2:4] == f"{Opcode.SELECT_BUCKET:02x}":
            text = text.replace(_BUCKET, _OTHER_BUCKET)
        if text[:2] == f"{Magic.SERVER_REQUEST:02x}":  # its key is the bucket
            text = text[:48] + text[48:].replace(_BUCKET, _OTHER_BUCKET, 1)
        found.append(line | {"conn": f"x-{line['conn']}", "hex": text})
    return found


def with_other_uuids(lines: list[Line], random: Random) -> list[Line]:
    uuids: set[bytes] = set()
    for line in lines:
        data = data_of(line) if line.get("dir") == "s2c" else b""
        is_log = data[:1] == b"\x81" and data[1] in _LOGS and data[6:8] == b"\0\0"
        uuids |= {data[at : at + 8] for at in range(24, len(data), 16)} if is_log else set()
    new = {uuid: random.randrange(1, 2**47).to_bytes(8, "big") for uuid in sorted(uuids)}
    texts = {uuid.hex(): other.hex() for uuid, other in new.items()}
    for uuid, other in new.items():  # in statistics, as decimal text of the same length
        old = str(int.from_bytes(uuid, "big"))
        texts[old.encode().hex()] = str(int.from_bytes(other, "big")).zfill(len(old)).encode().hex()
    pattern = re.compile("|".join(map(re.escape, texts)) or "$^")
    return [
        line
        if "hex" not in line
        else line | {"hex": pattern.sub(lambda found: texts[found[0]], line["hex"])}
        for line in lines
    ]


def with_other_cas(lines: list[Line], random: Random) -> list[Line]:
    """All moved by as much; those of requests too."""
    by = random.randrange(_MOST_CAS_SHIFT) << 16
    found = []
    for line in lines:
        if "hex" not in line:
            found.append(line)
            continue
        data = data_of(line)
        cas = int.from_bytes(data[16:24], "big")
        if len(data) >= 24 and cas > 1 << 56:
            data = data[:16] + (cas + by).to_bytes(8, "big") + data[24:]
        found.append(line | {"hex": data.hex()})
    return found


def with_other_times(lines: list[Line], random: Random) -> list[Line]:
    """From another beginning, by a clock that runs a little slower."""
    begin, rate = random.uniform(0, 1e6), random.uniform(1.0, 1.02)
    return [line | {"t": round(begin + line["t"] * rate, 6)} for line in lines]


def cut_elsewhere(lines: list[Line], random: Random) -> list[Line]:
    """The client's bytes, which a line may hold any number of."""
    found = []
    for line in lines:
        data = data_of(line) if line.get("dir") == "c2s" else b""
        at = random.randrange(len(data)) if data else 0
        if not at:
            found.append(line)
            continue
        found += [line | {"hex": data[:at].hex()}, line | {"hex": data[at:].hex()}]
    return found


def joined(lines: list[Line], _: Random) -> list[Line]:
    """What a client says without hearing anything in between, in one line."""
    found: list[Line] = []
    for line in lines:
        before = found[-1] if found else {}
        same = line.get("dir") == before.get("dir") == "c2s" and line["conn"] == before["conn"]
        if same and line["t"] - before["t"] < 0.1:
            found[-1] = before | {"hex": before["hex"] + line["hex"]}
        else:
            found.append(line)
    return found


VARIATIONS: dict[str, Callable[[list[Line], Random], list[Line]]] = {
    "other names": with_other_names,
    "other uuids": with_other_uuids,
    "other CAS values": with_other_cas,
    "other times": with_other_times,
    "client's bytes cut elsewhere": cut_elsewhere,
    "client's bytes joined": joined,
}


@pytest.mark.parametrize("variation", VARIATIONS)
@pytest.mark.parametrize("name", names(CAPTURES))
def test_a_varied_conversation_passes(name: str, variation: str) -> None:
    lines = read(CAPTURES / f"{name}.jsonl")
    assert failures(VARIATIONS[variation](lines, Random(f"{SEED} {name}"))) == []


def test_conversations_are_varied() -> None:
    lines = read(CAPTURES / "06-rollback.jsonl")
    for variation, vary in VARIATIONS.items():
        if variation != "client's bytes joined":  # this client waited for every answer
            assert vary(lines, Random(SEED)) != lines, variation


# --- cut short

CAN_BE_CUT = [name for name in names(CAPTURES) if not name.startswith("04-data-kinds")]
"""In the others the connections are shown other parts of the same documents: all are needed."""


def is_marker(line: Line) -> bool:
    return line.get("dir") == "s2c" and data_of(line)[1] == Opcode.DCP_SNAPSHOT_MARKER


@pytest.mark.parametrize("name", CAN_BE_CUT)
def test_a_conversation_may_end_anywhere(name: str) -> None:
    """But right behind a marker: nobody knows what its snapshot would have shown."""
    lines = read(CAPTURES / f"{name}.jsonl")
    whole = [end for end in range(1, len(lines)) if not is_marker(lines[end - 1])]
    chosen = Random(f"{SEED} {name}").sample(whole, min(6, len(whole)))
    assert [end for end in chosen if failures(lines[:end])] == []


@pytest.mark.parametrize(
    ("name", "end"),
    [
        ("05b-collections-live", 93),  # within a snapshot of a scope that is dropped
        ("05b-collections-live", 126),  # the default collection's end was shown to nobody yet
        ("07-failover-log-and-seqnos", 47),  # what is newest is of a collection that is not named
        ("20-clustermap-and-ephemeral", 54),  # what was left out was replaced in the rest
    ],
)
def test_a_conversation_may_end_where_the_rest_decides(name: str, end: int) -> None:
    assert failures(read(CAPTURES / f"{name}.jsonl")[:end]) == []
