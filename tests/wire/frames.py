"""Frames for the tests of the wire layer: golden ones, and random ones for every codec row."""

import json
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from dcp.types import U32_MAX, U64_MAX
from dcp.wire import messages as m
from dcp.wire.codec import TABLE, CodecRow, encode
from dcp.wire.frame import Frame
from dcp.wire.frame_info import stream_id_info
from dcp.wire.leb128 import encode_leb128
from dcp.wire.vocabulary import Magic, Opcode

CASES = Path(__file__).resolve().parents[1] / "data" / "cases"

ROWS = sorted(TABLE)


def golden_cases() -> list[Any]:
    """All golden frames as their files have them."""
    files = sorted(CASES.glob("*golden-frames.json"))
    return [case for file in files for case in json.loads(file.read_text())["frames"]]


def extras_of(row: CodecRow) -> st.SearchStrategy[bytes]:
    """Any bytes as long as one of the row's forms, a marker's version within what exists."""
    lengths = [form.struct.size for form in row.extras]
    if row.body is m.SnapshotMarker:
        return st.one_of(
            st.sampled_from([b"\0", b"\1", b"\2"]), st.binary(min_size=20, max_size=20)
        )
    return st.sampled_from(lengths).flatmap(lambda size: st.binary(min_size=size, max_size=size))


def value_lengths(row: CodecRow, extras: bytes) -> st.SearchStrategy[bytes]:
    """Any bytes of a length that the row's value layout allows."""
    fixed = {m.GetErrorMap: 2, m.ObserveSeqno: 8, m.RollbackAnswer: 8}
    multiple = {m.Hello: 2, m.HelloAnswer: 2, m.FailoverLogAnswer: 16, m.AllVbSeqnos: 10}
    if row.value is None:
        return st.just(b"")
    if row.body is m.SnapshotMarker:
        size = {b"\0": 36, b"\1": 44, b"\2": 52}.get(extras, 0)
        return st.binary(min_size=size, max_size=size)
    if row.body is m.ObserveSeqnoAnswer:
        zero = st.binary(min_size=26, max_size=26).map(lambda rest: b"\0" + rest)
        return zero | st.binary(min_size=42, max_size=42).map(lambda rest: b"\1" + rest)
    if row.body in fixed:
        return st.binary(min_size=fixed[row.body], max_size=fixed[row.body])
    if row.body in multiple:
        size = multiple[row.body]
        return st.integers(0, 4).flatmap(
            lambda count: st.binary(min_size=size * count, max_size=size * count)
        )
    return st.binary(max_size=40)


@st.composite
def frames_of(draw: st.DrawFn, entry: tuple[Magic, int]) -> Frame:
    """A frame that the row of ``entry`` describes."""
    row = TABLE[entry]
    extras = draw(extras_of(row))
    magic, opcode = entry
    return Frame(
        magic=magic,
        opcode=int(opcode),
        datatype=draw(st.integers(0, 7)),
        vbucket_or_status=0 if magic.is_response else draw(st.integers(0, 1023)),
        opaque=draw(st.integers(0, U32_MAX)),
        cas=draw(st.integers(0, U64_MAX)),
        extras=extras,
        key=draw(st.binary(max_size=30)) if row.key is not None else b"",
        value=draw(value_lengths(row, extras)),
    )


@st.composite
def data_frames(draw: st.DrawFn, *, collections: bool) -> Frame:
    """A mutation, deletion or expiration, perhaps with a stream id."""
    u32, u64 = st.integers(0, U32_MAX), st.integers(0, U64_MAX)
    key = draw(st.binary(min_size=1, max_size=12))
    if collections:
        key = encode_leb128(draw(st.sampled_from([0, 8, 0x7F, 0x80, 0x5555, U32_MAX]) | u32)) + key
    value = draw(st.binary(max_size=24))
    seqnos = {"by_seqno": draw(u64), "rev_seqno": draw(u64)}
    kind = draw(st.integers(0, 3))
    body: m.Body
    if kind == 0:
        opcode = Opcode.DCP_MUTATION
        body = m.Mutation(
            key, value, **seqnos, flags=draw(u32), expiry=draw(u32), lock_time=draw(u32)
        )
    elif kind == 1:
        opcode, body = Opcode.DCP_DELETION, m.Deletion(key, value=value, **seqnos, nmeta=0)
    elif kind == 2:
        opcode = Opcode.DCP_DELETION
        body = m.Deletion(key, value=value, **seqnos, delete_time=draw(u32))
    else:
        opcode = Opcode.DCP_EXPIRATION
        body = m.Expiration(key, **seqnos, delete_time=draw(u32), value=value)
    framing = draw(
        st.sampled_from([b"", stream_id_info(71), b"\x50" + stream_id_info(0xFFFF), b"\x50"])
    )
    alternative = bool(framing) or draw(st.booleans())
    return encode(
        body,
        opcode,
        magic=Magic.ALT_REQUEST if alternative else Magic.REQUEST,
        vbucket=draw(st.integers(0, 0xFFFF)),
        opaque=draw(u32),
        cas=draw(u64),
        datatype=draw(st.integers(0, 7)),
        framing_extras=framing,
    )
