"""All frames of the recorded conversations with a real server, through both decoders."""

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from dcp.errors import FrameError
from dcp.wire.columns import decode_columns
from dcp.wire.frame import Frame
from dcp.wire.framing import FrameBlock, FrameSplitter
from tests.conformance_formats.golden_frames import round_trip
from tests.wire.test_columns import DATA, row_by_objects, rows_of

CAPTURES = sorted((Path(__file__).resolve().parents[1] / "data" / "captures").glob("*.jsonl"))


def blocks_of(path: Path) -> dict[tuple[str, str], FrameBlock]:
    """One block of all frames per connection and direction ("c2s", "s2c").

    Some recorded clients end a connection with garbage on purpose; what precedes it is returned.
    """
    streams: dict[tuple[str, str], list[bytes]] = {}
    for line in path.read_text().splitlines():
        entry = json.loads(line)
        if "hex" in entry:
            streams.setdefault((entry["conn"], entry["dir"]), []).append(
                bytes.fromhex(entry["hex"])
            )
    return {
        stream: FrameBlock.of(whole_frames(pieces, may_break=stream[1] == "c2s"))
        for stream, pieces in streams.items()
    }


def whole_frames(pieces: list[bytes], *, may_break: bool) -> Iterator[bytes]:
    splitter = FrameSplitter()
    for piece in pieces:
        try:
            block = splitter.feed(piece)
        except FrameError:
            assert may_break
            return
        yield from (block.frame(index).to_bytes() for index in range(len(block)))


def frames_of_block(block: FrameBlock | None) -> list[Frame]:
    return [] if block is None else [block.frame(index) for index in range(len(block))]


@pytest.mark.parametrize("path", CAPTURES, ids=lambda path: path.stem)
def test_recorded_frames_round_trip(path: Path) -> None:
    """All that the server said; a request that we refuse must be one that the server refused."""
    blocks = blocks_of(path)
    for (connection, direction), block in blocks.items():
        answers = frames_of_block(blocks.get((connection, "s2c")))
        refused = {frame.opaque for frame in answers if frame.magic.is_response and frame.status}
        for frame in frames_of_block(block):
            if direction == "c2s" and frame.opaque in refused:
                continue
            assert round_trip(frame) == frame.to_bytes()


@pytest.mark.parametrize("path", CAPTURES, ids=lambda path: path.stem)
def test_recorded_data_messages_by_columns(path: Path) -> None:
    for (_, direction), block in blocks_of(path).items():
        if direction == "c2s":
            continue
        rows = np.flatnonzero(np.isin(block.magics, (0x80, 0x08)) & np.isin(block.opcodes, DATA))
        columns = decode_columns(block, rows, collections=False)
        wanted = [row_by_objects(block.frame(row), collections=False) for row in rows.tolist()]
        assert rows_of(columns) == wanted
