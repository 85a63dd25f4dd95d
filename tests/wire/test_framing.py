"""Frames cut out of bytes that come in pieces of any size, and headers that are refused."""

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dcp.errors import FrameError
from dcp.wire.frame import Frame, parse_frame
from dcp.wire.framing import LARGE_FRAME_BYTES, FrameBlock, FrameSplitter
from dcp.wire.vocabulary import Magic, Opcode
from tests.wire.frames import golden_cases

GOLDEN = [bytes.fromhex(case["hex"]) for case in golden_cases()]


def frames_in(splitter: FrameSplitter, pieces: list[bytes]) -> list[bytes]:
    found = []
    for piece in pieces:
        block = splitter.feed(piece)
        for index in range(len(block)):
            found.append(bytes(block.buffer[block.offsets[index] : block.offsets[index + 1]]))
    return found


def test_frames_fed_whole_byte_by_byte_and_with_a_tail() -> None:
    stream = b"".join(GOLDEN)
    assert frames_in(FrameSplitter(), [stream]) == GOLDEN
    assert frames_in(FrameSplitter(), [stream[i : i + 1] for i in range(len(stream))]) == GOLDEN
    splitter = FrameSplitter()
    assert frames_in(splitter, [stream + GOLDEN[0][:7]]) == GOLDEN
    assert splitter.pending_bytes == 7
    assert frames_in(splitter, [GOLDEN[0][7:]]) == GOLDEN[:1]
    assert splitter.pending_bytes == 0


@settings(max_examples=60, deadline=None)
@given(
    sizes=st.lists(st.sampled_from([0, 5, 5, 5, 100, 3000]), max_size=60),
    repeat=st.integers(1, 40),
    seed=st.integers(0, 2**32),
)
def test_any_frames_in_any_pieces(sizes: list[int], repeat: int, seed: int) -> None:
    rng = random.Random(seed)
    wanted = [
        Frame(Magic.REQUEST, Opcode.DCP_CONTROL, key=b"k", value=rng.randbytes(size)).to_bytes()
        for size in sizes
        for _ in range(repeat)
    ]
    stream, pieces = b"".join(wanted), []
    while stream:
        length = rng.choice([1, 23, 24, 25, 1000, 65536])
        pieces.append(stream[:length])
        stream = stream[length:]
    assert frames_in(FrameSplitter(), pieces) == wanted
    assert frames_read(FrameSplitter(), pieces, buffer_bytes=1000) == wanted
    assert frames_read(FrameSplitter(), pieces, buffer_bytes=2_000_000) == wanted


def frames_read(splitter: FrameSplitter, pieces: list[bytes], buffer_bytes: int) -> list[bytes]:
    """Return the frames as a reader finds them that uses one buffer again and again."""
    found, buffer = [], memoryview(bytearray(buffer_bytes))
    for piece in pieces:
        read = 0
        while read < len(piece):
            begun = splitter.take_back(buffer)
            count = min(len(piece) - read, buffer_bytes - begun)
            assert count > 0
            buffer[begun : begun + count] = piece[read : read + count]
            read += count
            found += frames_in(splitter, [bytes(buffer[: begun + count])])
    return found


def test_what_follows_the_beginning_of_a_frame_in_one_buffer_is_not_copied() -> None:
    splitter, buffer = FrameSplitter(), memoryview(bytearray(4096))
    whole = GOLDEN[0]
    assert len(splitter.feed(whole[:30])) == 0
    assert splitter.take_back(buffer) == 30
    buffer[30 : len(whole)] = whole[30:]
    block = splitter.feed(buffer[: len(whole)])
    assert bytes(block.frame(0).to_bytes()) == whole
    assert np.shares_memory(np.frombuffer(block.buffer, np.uint8), np.frombuffer(buffer, np.uint8))
    assert splitter.take_back(buffer) == 0


def test_a_large_frame_in_small_chunks_is_not_copied_again_and_again() -> None:
    frame = Frame(Magic.REQUEST, Opcode.DCP_CONTROL, key=b"k", value=bytes(21 << 20)).to_bytes()
    splitter = FrameSplitter()
    blocks = [splitter.feed(frame[at : at + 65536]) for at in range(0, len(frame), 65536)]
    assert [len(block) for block in blocks[-2:]] == [0, 1]
    assert parse_frame(blocks[-1].buffer) == parse_frame(frame)


def test_the_rest_of_a_large_frame_goes_into_its_own_room() -> None:
    small = Frame(Magic.REQUEST, Opcode.DCP_NOOP).to_bytes()
    value = random.Random(1).randbytes(3 * LARGE_FRAME_BYTES)
    frame = Frame(Magic.REQUEST, Opcode.DCP_CONTROL, vbucket_or_status=700, key=b"k", value=value)
    large = frame.to_bytes()
    splitter = FrameSplitter()
    assert splitter.room() is None
    assert len(splitter.feed(small + large[:20])) == 1
    assert splitter.room() is None, "its length is not known yet"
    splitter.feed(large[20:100])
    assert splitter.unfinished_vbucket == 700
    done, blocks = 100, []
    while (room := splitter.room()) is not None:
        count = min(len(room), 100_000)
        assert len(room) == len(large) - done, "just the rest of the frame, nothing of the next"
        room[:count] = large[done : done + count]
        done += count
        blocks.append(splitter.fill(count))
        assert splitter.pending_bytes == done % len(large)
        assert splitter.unfinished_vbucket == (700 if done < len(large) else None)
    assert [len(block) for block in blocks[-2:]] == [0, 1]
    assert bytes(blocks[-1].buffer) == large
    assert blocks[-1].keeps_buffer
    assert frames_in(splitter, [small]) == [small]


@pytest.mark.parametrize(("magic", "count"), [(Magic.REQUEST, 23), (Magic.RESPONSE, 43)])
def test_an_unfinished_answer_or_header_is_of_no_vbucket(magic: Magic, count: int) -> None:
    """Where a request has its vbucket an answer has its status."""
    splitter = FrameSplitter()
    splitter.feed(Frame(magic, Opcode.GET_ALL_VB_SEQNOS, value=bytes(20)).to_bytes()[:count])
    assert splitter.pending_bytes == count
    assert splitter.unfinished_vbucket is None


@pytest.mark.parametrize("filled", [0, 1, 100_000])
def test_a_large_frame_may_be_fed_after_it_was_given_room(filled: int) -> None:
    large = Frame(Magic.REQUEST, Opcode.DCP_CONTROL, value=bytes(LARGE_FRAME_BYTES)).to_bytes()
    splitter = FrameSplitter()
    splitter.feed(large[:50])
    room = splitter.room()
    assert room is not None
    room[:filled] = large[50 : 50 + filled]
    assert len(splitter.fill(filled)) == 0
    assert len(splitter.feed(b"")) == 0
    assert frames_in(splitter, [large[50 + filled :], GOLDEN[0]]) == [large, GOLDEN[0]]
    with pytest.raises(ValueError, match="at most what room"):
        splitter.fill(0)


def test_a_block_tells_opcodes_magics_and_lengths() -> None:
    block = FrameSplitter().feed(b"".join(GOLDEN))
    assert block.magics.tolist() == [frame[0] for frame in GOLDEN]
    assert block.opcodes.tolist() == [frame[1] for frame in GOLDEN]
    assert block.frame_lengths.tolist() == [len(frame) for frame in GOLDEN]
    assert block.frame_bytes == sum(map(len, GOLDEN))
    assert [block.frame(i).to_bytes() for i in range(len(block))] == GOLDEN
    with pytest.raises(IndexError):
        block.frame(len(block))


def test_a_frame_beyond_the_limit_is_refused_by_its_header() -> None:
    frame = Frame(Magic.REQUEST, Opcode.DCP_CONTROL, key=b"k", value=bytes(977)).to_bytes()
    assert len(FrameSplitter(len(frame)).feed(frame)) == 1
    splitter = FrameSplitter(len(frame) - 1)
    with pytest.raises(FrameError, match="found a frame of 1002 bytes, expected at most 1001"):
        splitter.feed(GOLDEN[0] + frame[:24])
    with pytest.raises(FrameError):
        splitter.feed(GOLDEN[0])


@pytest.mark.parametrize(
    ("garbage", "message"),
    [
        (b"\x99", "at byte 24 of the connection: frame header: found magic 0x99"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "found magic 0x48"),
        (
            bytes.fromhex("8050ffff0000000000000001") + bytes(12),
            "key 65535 bytes, expected at most",
        ),
        (
            bytes.fromhex("8050ffff0000000000000001") + bytes(13),
            "key 65535 bytes, expected at most",
        ),
        (
            bytes.fromhex("085002020100000000000004") + bytes(16),
            "framing extras 2 . extras 1 . key 2",
        ),
    ],
)
def test_garbage_is_refused_and_said_where(garbage: bytes, message: str) -> None:
    good = Frame(Magic.REQUEST, Opcode.DCP_NOOP).to_bytes()
    with pytest.raises(FrameError, match=message):
        FrameSplitter().feed(good + garbage)


def test_offsets_must_fit_the_buffer() -> None:
    with pytest.raises(ValueError, match="frame block"):
        FrameBlock(b"", np.array([0, 24]))
