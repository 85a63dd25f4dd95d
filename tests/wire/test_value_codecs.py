"""The codecs of values: leb128 numbers, frame infos, xattrs, snappy."""

import json

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dcp.errors import FrameError
from dcp.types import U32_MAX
from dcp.wire import messages as m
from dcp.wire.documents import Document, decode_document
from dcp.wire.frame_info import (
    FrameInfo,
    decode_frame_infos,
    encode_frame_infos,
    stream_id_info,
    stream_id_of,
)
from dcp.wire.leb128 import decode_leb128, encode_leb128
from dcp.wire.snappy import (
    MAX_INFLATED_BYTES,
    deflate,
    inflate,
    inflate_column,
    inflated_lengths,
)
from dcp.wire.system_event import (
    CollectionBegun,
    CollectionEnded,
    CollectionFlushed,
    ManifestEvent,
    ScopeCreated,
    ScopeDropped,
    decode_system_event,
    encode_system_event,
)
from dcp.wire.vocabulary import Datatype
from dcp.wire.xattr import join_xattrs, split_xattrs, xattrs_json


@pytest.mark.parametrize(
    ("value", "encoded"),
    [(0, "00"), (0x7F, "7f"), (0x80, "8001"), (0x555, "d50a"), (0x7FFF, "ffff01"),
     (0xBFFF, "ffff02"), (0xCAFEF00, "80debf65"), (0xCAFEF00D, "8de0fbd70c"),
     (U32_MAX, "ffffffff0f")],
)  # fmt: skip
def test_leb128_as_documented(value: int, encoded: str) -> None:
    assert encode_leb128(value).hex() == encoded
    assert decode_leb128(bytes.fromhex(encoded) + b"rest") == (value, len(encoded) // 2)


@pytest.mark.parametrize("broken", ["", "80", "8000", "ffffffff1f", "808080808001", "ffffffff8f00"])
def test_broken_leb128_is_refused(broken: str) -> None:
    with pytest.raises(FrameError, match="LEB128"):
        decode_leb128(bytes.fromhex(broken))


INFOS = st.builds(FrameInfo, st.integers(0, 270), st.binary(max_size=270))


@given(st.lists(INFOS, max_size=4).map(tuple))
def test_frame_infos_round_trip(infos: tuple[FrameInfo, ...]) -> None:
    assert decode_frame_infos(encode_frame_infos(infos)) == infos


def test_frame_infos_by_their_bytes() -> None:
    assert decode_frame_infos(bytes.fromhex("f005") + b"") == (FrameInfo(20),)
    assert decode_frame_infos(bytes.fromhex("4f00") + bytes(15)) == (FrameInfo(4, bytes(15)),)
    assert decode_frame_infos(bytes.fromhex("ff0100") + bytes(15)) == (FrameInfo(16, bytes(15)),)
    assert stream_id_info(71).hex() == "220047"
    assert stream_id_of(bytes.fromhex("50220047")) == 71
    assert stream_id_of(b"") is None
    for broken in ("22", "2200", "f0", "0f", "ff01", "210071"):
        with pytest.raises(FrameError):
            stream_id_of(bytes.fromhex(broken))


NAMES = st.text(st.characters(codec="ascii", min_codepoint=33), min_size=1, max_size=15)
PAIRS = st.dictionaries(NAMES, st.binary(max_size=20), max_size=4)


@given(PAIRS, st.binary(max_size=20))
def test_xattrs_round_trip_and_their_json_parses(pairs: dict[str, bytes], body: bytes) -> None:
    xattrs = tuple((name.encode(), value) for name, value in pairs.items())
    assert split_xattrs(join_xattrs(xattrs, body)) == (xattrs, body)
    assert set(json.loads(xattrs_json(xattrs))) == set(pairs)


def test_xattr_values_stay_verbatim_when_they_are_json() -> None:
    xattrs = ((b"a", b'{"x": 1.50}'), (b"b", b"no json"), (b"c", b"\xff\x00"), (b"d", b"NaN"))
    assert xattrs_json(xattrs) == r'{"a":{"x": 1.50},"b":"no json","c":"\\xff\u0000","d":"NaN"}'
    digits = b"9" * 5000
    assert xattrs_json(((b"n", digits),)) == '{"n":' + digits.decode() + "}"


@pytest.mark.parametrize(
    "broken",
    [
        b"\0\0\0",
        b"\0\0\0\5abc",
        b"\0\0\0\2\0\0",
        b"\0\0\0\6\0\0\0\5a\0",
        b"\0\0\0\7\0\0\0\3abc",
        b"\0\0\0\6\0\0\0\2\0\0",
        b"\0\0\0\x18" + 2 * b"\0\0\0\x08a\x00value\0"[:12],
        b"\0\0\0\x17\0\0\0\x13sixteen_bytes_ab\0\0\0",
        b"\0\0\0\7\0\0\0\3\xff\0\0",
        b"\0\0\0\x00\0\0\0\x00"[:3],
    ],
)
def test_broken_xattr_sections_are_refused(broken: bytes) -> None:
    with pytest.raises(FrameError, match="xattr"):
        split_xattrs(broken)


def test_xattr_limits() -> None:
    largest = (1 << 20) - 4 - 2 - 2
    join_xattrs([(b"_s", bytes(largest))], b"")
    with pytest.raises(ValueError, match="system xattrs: found 1048577 bytes"):
        join_xattrs([(b"_s", bytes(largest + 1))], b"")
    with pytest.raises(ValueError, match="twice"):
        join_xattrs([(b"a", b"1"), (b"a", b"2")], b"")


def test_snappy_limits_and_damage() -> None:
    assert inflate(b"") == b""
    assert inflate(deflate(b"world" * 1000)) == b"world" * 1000
    at_limit = deflate(bytes(MAX_INFLATED_BYTES))
    assert len(inflate(at_limit)) == MAX_INFLATED_BYTES
    with pytest.raises(FrameError, match="expected at most"):
        inflate(deflate(bytes(MAX_INFLATED_BYTES + 1)))
    with pytest.raises(FrameError, match="an inflated length of 4294967295, expected at most"):
        inflate(bytes.fromhex("ffffffff0f00"))
    for broken in ("ffffffffff", "0500", "0510776f726c", "0710776f726c64"):
        with pytest.raises(FrameError, match="snappy block"):
            inflate(bytes.fromhex(broken))


BLOCKS = st.binary(max_size=40).map(deflate) | st.binary(max_size=12)


@given(st.lists(BLOCKS, max_size=6), st.integers(0, 3))
@example([bytes.fromhex("80808010")], 0)  # 32 MiB, in fewer bytes than a length may have
def test_columns_inflate_as_one_block_does(blocks: list[bytes], start: int) -> None:
    column = pa.array(blocks, pa.binary()).slice(start)
    found = inflate_column(column)
    found.validate(full=True)
    lengths = inflated_lengths(column).tolist()
    for block, value, length in zip(blocks[start:], found.to_pylist(), lengths, strict=True):
        try:
            wanted = inflate(block)
        except FrameError as error:
            assert value is None
            assert (length == -1) == ("expected" in str(error)), "else only inflating shows it"
        else:
            assert (value, length) == (wanted, len(wanted))


def test_layers_come_off_in_order() -> None:
    plain = join_xattrs([(b"_sync", b'{"r":"1"}')], b'{"a":1}')
    wanted = Document(Datatype.JSON, ((b"_sync", b'{"r":"1"}'),), b'{"a":1}')
    assert decode_document(plain, 5) == wanted
    assert decode_document(deflate(plain), 7) == wanted
    assert decode_document(b"", 7) == Document(Datatype.JSON, None, b"")
    with pytest.raises(FrameError, match="datatype: found 0x08"):
        decode_document(b"x", 8)


EVENTS = [
    CollectionBegun(2**63, 0, 8, b"c"),
    CollectionBegun(2, 8, 9, b"c", max_ttl_seconds=72000),
    CollectionEnded(3, 0, 8),
    CollectionFlushed(3, 8),
    ScopeCreated(4, 9, b"my_scope"),
    ScopeDropped(5, 9),
]


@pytest.mark.parametrize("event", EVENTS)
def test_system_events_round_trip(event: ManifestEvent) -> None:
    message = encode_system_event(event, by_seqno=7)
    assert decode_system_event(message) == event
    cut = m.SystemEvent(7, message.event, message.version, message.key, message.value[:-1])
    with pytest.raises(FrameError, match=r"system event .* at seqno 7"):
        decode_system_event(cut)


def test_system_events_that_are_newer_than_we_are() -> None:
    assert decode_system_event(m.SystemEvent(7, 0, 2, b"", b"flatbuffer")) is None
    assert decode_system_event(m.SystemEvent(7, 99, 0, b"", b"")) is None
