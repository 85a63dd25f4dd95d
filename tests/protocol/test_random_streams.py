"""Seeded random conversations against a naive model, cut into blocks in any way.

The generator plays a producer with a history per vbucket: snapshots with gaps, markers that extend,
SEQNO_ADVANCED in the place of an end, disconnects in the middle of snapshots with a resume from the
connection's own position. The model is a list of what was sent.
"""

from dataclasses import dataclass, field
from itertools import pairwise
from random import Random

import pytest

from dcp.protocol import events as e
from dcp.protocol.connection import ConsumerConnection
from dcp.protocol.position import Position
from dcp.wire import messages as m
from dcp.wire.codec import decode, encode
from dcp.wire.frame import Frame
from dcp.wire.framing import FrameSplitter
from dcp.wire.vocabulary import Opcode
from tests.protocol.scripted import (
    UUID,
    advanced,
    block_of,
    marker,
    mutation,
    open_stream,
    ready_connection,
)
from tests.protocol.streaming import position_of
from tests.seeds import seeds

VBUCKETS = (7, 8, 1023)


@dataclass
class Model:
    """What one vbucket's consumer must have seen, as a list and two numbers."""

    rows: list[int] = field(default_factory=list)
    seqno: int = 0
    complete: int = 0
    ends: list[int] = field(default_factory=list)


def snapshot(random: Random, model: Model, opaque: int, vbucket: int) -> list[Frame]:
    """One well-formed snapshot after the model's seqno, perhaps cut off before its end."""
    first = model.seqno + random.randint(1, 5)
    end = first + random.randint(0, 40)
    start = random.choice([first, model.seqno + 1, 0])
    frames = [marker(opaque, start, end, vbucket=vbucket)]
    picked = sorted(random.sample(range(first, end + 1), random.randint(0, end - first + 1)))
    for seqno in picked:
        if random.random() < 0.15:
            body = m.Deletion(b"\0gone", seqno, 2, delete_time=1)
            frame = encode(body, Opcode.DCP_DELETION, opaque=opaque, vbucket=vbucket)
        else:
            frame = mutation(opaque, seqno, vbucket)
        frames.append(frame)
    if picked and random.random() < 0.3:  # as where all versions follow on the newest ones
        again = marker(opaque, start, end, vbucket=vbucket)
        frames.insert(random.randint(1, len(frames) - 1), again)
    if not picked or picked[-1] != end:
        frames.append(advanced(opaque, end, vbucket))
    return frames


def play(model: Model, frame: Frame, end: int) -> int:
    """Let the model see a frame; return the end of the marker in force."""
    body = decode(frame)
    if isinstance(body, m.SnapshotMarker):
        return body.end
    if isinstance(body, m.SeqnoAdvanced):
        model.seqno = body.seqno
    elif isinstance(body, m.Mutation | m.Deletion):
        model.rows.append(body.by_seqno)
        model.seqno = body.by_seqno
    if model.seqno == end:
        model.complete = end
        model.ends.append(end)
    return end


def cut(random: Random, frames: list[Frame]) -> list[list[Frame]]:
    blocks = []
    while frames:
        size = random.choice([1, 2, 3, 7, len(frames)])
        blocks.append(frames[:size])
        frames = frames[size:]
    return blocks


def interleave(random: Random, queues: list[list[Frame]]) -> list[Frame]:
    mixed = []
    while any(queues):
        queue = random.choice([one for one in queues if one])
        mixed.append(queue.pop(0))
    return mixed


@pytest.mark.parametrize("seed", seeds(25))
def test_random_conversations_with_resumes_agree_with_the_model(seed: int) -> None:
    random = Random(seed)
    models = {vbucket: Model() for vbucket in VBUCKETS}
    positions = dict.fromkeys(VBUCKETS, Position.beginning())
    seen: dict[int, list[int]] = {vbucket: [] for vbucket in VBUCKETS}
    ends: dict[int, list[int]] = {vbucket: [] for vbucket in VBUCKETS}
    for _ in range(4):  # connections, each cut off somewhere
        connection, server = ready_connection()
        opaques = {v: open_stream(connection, server, v, positions[v]) for v in VBUCKETS}
        queues = []
        for vbucket in VBUCKETS:
            future = Model(seqno=models[vbucket].seqno)
            queue: list[Frame] = []
            end = resumed_end = positions[vbucket].snap_end
            if not positions[vbucket].is_complete:
                queue.append(marker(opaques[vbucket], 0, resumed_end + 3, vbucket=vbucket))
                queue.append(advanced(opaques[vbucket], resumed_end + 3, vbucket))
                future.seqno = resumed_end + 3
            for _ in range(random.randint(1, 4)):
                for frame in snapshot(random, future, opaques[vbucket], vbucket):
                    end = play(future, frame, end)
                    queue.append(frame)
            queues.append(queue)
        wire = interleave(random, queues)
        wire = wire[: random.randint(0, len(wire))]
        marker_ends = dict.fromkeys(VBUCKETS, -1)
        for block in cut(random, wire):
            for event in connection.receive(block_of(*block), 1.0):
                record(event, seen, ends)
            for frame in block:
                vbucket = frame.vbucket
                marker_ends[vbucket] = play(models[vbucket], frame, marker_ends[vbucket])
        for vbucket, model in models.items():
            position = position_of(connection, vbucket)
            assert seen[vbucket] == model.rows
            assert ends[vbucket] == model.ends
            assert (position.seqno, position.complete_seqno) == (model.seqno, model.complete)
            assert position.vb_uuid == (UUID if model.seqno else 0)
            positions[vbucket] = position


def record(event: e.Event, seen: dict[int, list[int]], ends: dict[int, list[int]]) -> None:
    if isinstance(event, e.Items):
        pairs = zip(event.columns.vbucket.tolist(), event.columns.seqno.tolist(), strict=True)
        for vbucket, seqno in pairs:
            seen[vbucket].append(seqno)
    elif isinstance(event, e.SnapshotCompleted):
        ends[event.vbucket].append(event.seqno)


def conversation(random: Random, opaque: int) -> list[Frame]:
    model, frames, end = Model(), [], -1
    for _ in range(4):
        for frame in snapshot(random, model, opaque, 7):
            end = play(model, frame, end)
            frames.append(frame)
    return frames


def told(connection: ConsumerConnection, pieces: list[bytes]) -> tuple[list[int], list[e.Event]]:
    """All rows and all other events, however they were cut into blocks."""
    splitter, rows, others = FrameSplitter(), [], []
    for piece in pieces:
        for event in connection.receive(splitter.feed(piece), 1.0):
            if isinstance(event, e.Items):
                rows += event.columns.seqno.tolist()
            else:
                others.append(event)
    return rows, others


@pytest.mark.parametrize("seed", range(8))
def test_how_bytes_are_cut_does_not_matter(seed: int) -> None:
    """Whole, byte by byte, in random pieces, and with a tail: the same rows, events, position."""
    outcomes = []
    for way in ("whole", "bytes", "pieces", "tail"):
        connection, server = ready_connection()
        opaque = open_stream(connection, server)
        data = b"".join(frame.to_bytes() for frame in conversation(Random(seed), opaque))
        match way:
            case "whole":
                pieces = [data]
            case "bytes":
                pieces = [data[at : at + 1] for at in range(len(data))]
            case "pieces":
                random = Random(seed + 1)
                bounds = sorted(random.sample(range(len(data)), 20))
                edges = [0, *bounds, len(data)]
                pieces = [data[a:b] for a, b in pairwise(edges)]
            case _:
                pieces = [data + mutation(opaque, 9999).to_bytes()[:30]]
        rows, others = told(connection, pieces)
        received = connection.flow.connection.received
        outcomes.append((rows, others, position_of(connection, 7), received))
    assert outcomes[0][0], "the conversation holds rows"
    assert all(outcome == outcomes[0] for outcome in outcomes)
