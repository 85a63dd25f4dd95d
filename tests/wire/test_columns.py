"""Columns of a block of data messages, against the same messages one by one."""

import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dcp.errors import FrameError
from dcp.types import U32_MAX
from dcp.wire import messages as m
from dcp.wire.codec import decode, encode
from dcp.wire.columns import NO_STREAM_ID, DataColumns, decode_columns
from dcp.wire.frame import Frame
from dcp.wire.frame_info import stream_id_of
from dcp.wire.framing import FrameBlock, FrameSplitter
from dcp.wire.leb128 import encode_leb128, require_key_length, split_collection_key
from dcp.wire.vocabulary import Magic, Opcode
from tests.wire.frames import data_frames, golden_cases

DATA = (Opcode.DCP_MUTATION, Opcode.DCP_DELETION, Opcode.DCP_EXPIRATION)


def row_by_objects(frame: Frame, *, collections: bool) -> dict[str, Any]:
    """What a row of the columns must be, by the object decoder."""
    body: Any = decode(frame)
    collection_id, key = split_collection_key(body.key) if collections else (0, body.key)
    stream_id = stream_id_of(frame.framing_extras)
    return {
        "opcode": frame.opcode,
        "vbucket": frame.vbucket,
        "opaque": frame.opaque,
        "cas": frame.cas,
        "seqno": body.by_seqno,
        "rev": body.rev_seqno,
        "flags": getattr(body, "flags", 0),
        "expiry": getattr(body, "expiry", 0),
        "lock_time": getattr(body, "lock_time", 0),
        "delete_time": getattr(body, "delete_time", 0) or 0,
        "datatype": frame.datatype,
        "collection_id": collection_id,
        "stream_id": NO_STREAM_ID if stream_id is None else stream_id,
        "frame_bytes": len(frame.to_bytes()),
        "key": key,
        "value": body.value,
    }


def rows_of(columns: DataColumns) -> list[dict[str, Any]]:
    names = DataColumns.__dataclass_fields__
    lists = {name: getattr(columns, name).tolist() for name in names}
    return [{name: lists[name][row] for name in names} for row in range(len(columns))]


@pytest.mark.parametrize("collections", [False, True])
@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_columns_are_what_the_object_decoder_finds(collections: bool, data: st.DataObject) -> None:
    noise = st.just(Frame(Magic.REQUEST, Opcode.DCP_NOOP))
    frames = data.draw(st.lists(data_frames(collections=collections) | noise, max_size=12))
    block = FrameSplitter().feed(b"".join(frame.to_bytes() for frame in frames))
    rows = np.flatnonzero(np.isin(block.opcodes, DATA))
    columns = decode_columns(block, rows, collections=collections)
    wanted = [
        row_by_objects(frame, collections=collections) for frame in frames if frame.opcode in DATA
    ]
    assert rows_of(columns) == wanted
    for frame, row in zip([each for each in frames if each.opcode in DATA], wanted, strict=True):
        alone = FrameBlock(
            frame.to_bytes(), np.array([0, len(frame.to_bytes())]), keeps_buffer=True
        )
        assert rows_of(decode_columns(alone, np.array([0]), collections=collections)) == [row]
    if wanted:
        backwards = np.arange(len(wanted))[::-1]
        assert rows_of(columns.take(backwards)) == wanted[::-1]


def test_golden_data_frames_by_columns() -> None:
    frames = [bytes.fromhex(case["hex"]) for case in golden_cases()]
    block = FrameBlock.of(frame for frame in frames if frame[0] in (0x80, 8) and frame[1] in DATA)
    assert len(block) >= 8
    columns = decode_columns(block, np.arange(len(block)), collections=False)
    wanted = [row_by_objects(block.frame(i), collections=False) for i in range(len(block))]
    assert rows_of(columns) == wanted


def mutation(key: bytes) -> bytes:
    return encode(m.Mutation(key, b"v", 1, 1), Opcode.DCP_MUTATION, vbucket=7).to_bytes()


@pytest.mark.parametrize("key", [b"", b"\x80", b"\x80\x00k", b"\xff\xff\xff\xff\xff\x01k",
                                 b"\xff\xff\xff\xff\x1fk", b"\x80\x80\x80\x80\x00k"])  # fmt: skip
def test_broken_collection_ids_are_refused_by_both_decoders(key: bytes) -> None:
    block = FrameBlock.of([mutation(b"\0good"), mutation(key)])
    with pytest.raises(FrameError, match=r"frame 1 of the block .*vbucket 7"):
        decode_columns(block, np.arange(2), collections=True)
    with pytest.raises(FrameError):
        split_collection_key(key)


@pytest.mark.parametrize("opcode", DATA)
@pytest.mark.parametrize("collection_id", [None, 0, 1, 8, 0x7F, 0x80, 0x1F4, U32_MAX])
@pytest.mark.parametrize("key_bytes", [0, 1, 245, 246, 247, 249, 250, 251, 300])
def test_keys_are_as_long_as_a_server_can_have_stored_them(
    opcode: Opcode, collection_id: int | None, key_bytes: int
) -> None:
    """``collection_id`` is None for connections without Collections; the length needs 16 bits."""
    prefix = b"" if collection_id is None else encode_leb128(collection_id)
    key = prefix + b"k" * key_bytes
    body: Any = {
        Opcode.DCP_MUTATION: m.Mutation(key, b"v", 2**63 + 7, 1),
        Opcode.DCP_DELETION: m.Deletion(key, value=b"", by_seqno=2**63 + 7, rev_seqno=1, nmeta=0),
        Opcode.DCP_EXPIRATION: m.Expiration(key, by_seqno=2**63 + 7, rev_seqno=1, delete_time=5),
    }[opcode]
    good = mutation(prefix + b"good")
    block = FrameBlock.of([good, encode(body, opcode, vbucket=7).to_bytes(), good])
    most = 246 if collection_id else 250
    if 1 <= key_bytes <= most:
        found = decode_columns(block, np.arange(3), collections=collection_id is not None)
        assert found.key.to_pylist() == [b"good", b"k" * key_bytes, b"good"]
        require_key_length(b"k" * key_bytes, collection_id or 0)
        return
    expected = f"a key of {key_bytes} bytes, expected 1 to {most}"
    named = rf"vbucket 7\): found at seqno {2**63 + 7} {expected}"
    with pytest.raises(FrameError, match=named):
        decode_columns(block, np.arange(3), collections=collection_id is not None)
    with pytest.raises(FrameError, match=f"key: found {key_bytes} bytes, expected 1 to {most}"):
        require_key_length(b"k" * key_bytes, collection_id or 0)


@pytest.mark.parametrize(
    ("frame", "message"),
    [
        (
            Frame(Magic.REQUEST, Opcode.DCP_MUTATION, extras=bytes(30)),
            "30 bytes of extras, expected 31",
        ),
        (Frame(Magic.REQUEST, Opcode.DCP_DELETION, extras=bytes(20)), "expected 18 or 21"),
        (Frame(Magic.REQUEST, Opcode.DCP_EXPIRATION, extras=bytes(18)), "expected 20"),
        (Frame(Magic.REQUEST, Opcode.DCP_NOOP), "no mutation, deletion or expiration"),
        (Frame(Magic.RESPONSE, Opcode.DCP_MUTATION), "a magic that is no request's"),
        (
            Frame(
                Magic.ALT_REQUEST,
                Opcode.DCP_EXPIRATION,
                extras=bytes(20),
                framing_extras=b"\x22",
                key=b"k",
            ),
            "cut off",
        ),
    ],
)
def test_malformed_messages_are_refused_and_said_where(frame: Frame, message: str) -> None:
    block = FrameBlock.of([mutation(b"k"), frame.to_bytes()])
    with pytest.raises(FrameError, match=message) as caught:
        decode_columns(block, np.arange(2), collections=False)
    assert "frame 1 of the block" in str(caught.value)


def test_parts_beyond_the_frame_are_refused() -> None:
    broken = bytearray(mutation(b"key"))
    struct.pack_into(">H", broken, 2, 900)
    with pytest.raises(FrameError, match="longer than the frame"):
        decode_columns(FrameBlock.of([bytes(broken)]), np.arange(1), collections=False)


def test_rows_must_ascend() -> None:
    block = FrameBlock.of([mutation(b"a"), mutation(b"b")])
    with pytest.raises(ValueError, match="ascending"):
        decode_columns(block, np.array([1, 0]), collections=False)
