"""Values as the lake stores them, whole columns at once, against the decoder of one document."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dcp.errors import FrameError
from dcp.lake.receive import document_columns
from dcp.lake.receive.document_columns import stored_documents
from dcp.wire import messages as m
from dcp.wire.codec import encode
from dcp.wire.columns import DataColumns, decode_columns
from dcp.wire.documents import decode_document
from dcp.wire.framing import FrameBlock
from dcp.wire.snappy import deflate
from dcp.wire.vocabulary import Datatype, Opcode
from dcp.wire.xattr import join_xattrs, xattrs_json

Sent = tuple[bytes, int]
"""A value and its datatype."""

NAMES = st.sampled_from(["_sync", "_", "txn", "txn2", "é", 'a"', "fifteen_bytes_n", *"abcdefghij"])
TEXTS = st.sampled_from([b"1", b'{"x": [1.50]}', b' "\xc3\xa9" ', b"NaN"]) | st.binary(max_size=20)
PAIRS = st.dictionaries(NAMES.map(str.encode), TEXTS, max_size=10).map(dict.items)


def is_hidden(name: bytes) -> bool:
    return name[:1] == b"_" or name == b"txn"


@st.composite
def sent_values(draw: st.DrawFn) -> Sent:
    value, datatype = draw(st.binary(max_size=30)), draw(st.integers(0, 1))
    if draw(st.booleans()):
        value = join_xattrs(draw(PAIRS), value)
        datatype |= Datatype.XATTR
    if draw(st.booleans()):
        value, datatype = deflate(value), datatype | Datatype.SNAPPY
    return value, datatype


BROKEN = st.sampled_from([(b"\x05\x00", 2), (b"\xff" * 5, 3), (b"\0\0\0", 4), (b"x", 8), (b"", 9)])


@st.composite
def damaged_values(draw: st.DrawFn) -> Sent:
    """A section of xattrs, or what is compressed, with one octet changed or its end missing."""
    value, datatype = draw(sent_values())
    cut = draw(st.integers(0, len(value)))
    damaged = bytearray(value[:cut] if draw(st.booleans()) else value)
    if damaged:
        damaged[draw(st.integers(0, len(damaged) - 1))] = draw(st.integers(0, 255))
    return bytes(damaged), datatype | draw(st.sampled_from([0, Datatype.XATTR, Datatype.SNAPPY]))


def columns_of(values: list[Sent]) -> DataColumns:
    block = FrameBlock.of(
        encode(
            m.Mutation(b"k%d" % i, value, i + 1, 1),
            Opcode.DCP_MUTATION,
            vbucket=9,
            datatype=datatype,
        ).to_bytes()
        for i, (value, datatype) in enumerate(values)
    )
    return decode_columns(block, np.arange(len(values)), collections=False)


def section(*pairs: bytes) -> bytes:
    """Return a value of such pairs, whatever they are, and a body behind which more is read."""
    lengths = (len(pair).to_bytes(4, "big") + pair for pair in pairs)
    joined = b"".join(lengths)
    return len(joined).to_bytes(4, "big") + joined + b'{"body": "longer than a name"}'


ODD = [
    section(b"a\x001\0", b"a\x002\0"),
    section(b"a\x001\0", b"b\x002\0", b"a\x003\0"),
    section(b"a\x001\0")[:7],
    section(b"a\x001\0")[:11],
    section(b"a\x001x"),
    section(b"a"),
    section(b"a\0"),
    section(b"\x001\0"),
    section(b""),
    section(b"sixteen_bytes_nm\x001\0"),
    section(b'a"\x001\0'),
    section(b"a\n\x001\0"),
    section(b"\xff\x001\0"),
    section("é".encode() + b"\x001\0"),
    section(b"a\x001\x001\0"),
    section(b"a\0\0"),
    section(b"a\0{\0"),
    section(b"a\0NaN\0"),
    section(b"_\0\xff\0", b"a\x001\0"),
    section(*(b"%d\x001\0" % number for number in range(9))),
    section(b"_a\x00[" + b"1," * 600_000 + b"1]\0"),
    section(b"a " + 20 * b"1" + b"\0"),
    b"\0\0\0\x07\0\0\0\x04a\x001\0" + b" " * 20,
    b"\0\0\0\x08\0\0\0\x09a\x001\0" + b" " * 20,  # a pair that is longer than its section
    b"\0\0\0\x0a\0\0\0\x04a\x001\0\0\0" + b" " * 20,  # no room for the second one's length
    b"\0\0\1\0\0\0\0\x04a\x001\0" + b" " * 20,  # a section that is longer than its value
    b"\xff\xff\xff\xff\0\0\0\x04a\x001\0" + b" " * 20,
    b"\0\0\0\x08\xff\xff\xff\xffa\x001\0" + b" " * 20,
]


@pytest.mark.parametrize("system_xattrs", [True, False])
def test_odd_sections_among_good_ones(system_xattrs: bool) -> None:
    good = (join_xattrs([(b"a", b"1"), (b"_b", b"2")], b"{}"), 5)
    values = [each for odd in ODD for each in (good, (odd, 5), (deflate(odd), 7))]
    require_as_decoded([*values, good], system_xattrs)


@pytest.mark.parametrize("odd", ODD)
def test_an_odd_section_alone(odd: bytes) -> None:
    require_as_decoded([(odd, 4)], True)


@given(st.lists(sent_values() | damaged_values() | BROKEN, max_size=8), st.booleans())
def test_columns_are_what_the_decoder_of_one_finds(values: list[Sent], system_xattrs: bool) -> None:
    require_as_decoded(values, system_xattrs)


def require_as_decoded(values: list[Sent], system_xattrs: bool) -> None:
    found = stored_documents(columns_of(values), system_xattrs=system_xattrs)
    assert found.columns.value.type == pa.binary()
    assert found.xattrs.type == found.detail.type == pa.string()
    for row, (value, datatype) in enumerate(values):
        stored = (
            found.columns.value[row].as_py(),
            int(found.columns.datatype[row]),
            found.xattrs[row].as_py(),
        )
        try:
            wanted = decode_document(value, datatype)
        except FrameError as error:
            assert stored == (value, datatype, None)
            assert found.detail[row].as_py() == (
                f"the value is kept as it was sent: document at vbucket 9 seqno {row + 1}: {error}"
            )
        else:
            xattrs = None if wanted.xattrs is None else xattrs_json(wanted.xattrs)
            if wanted.xattrs and not system_xattrs:
                users = tuple(each for each in wanted.xattrs if not is_hidden(each[0]))
                xattrs = xattrs_json(users) if users else None
            assert stored == (wanted.body, wanted.datatype, xattrs)
            assert found.detail[row].as_py() is None


SECTION = [(b"_sync", b'{"rev": "1"}'), (b"user", b"[1]")]
WELL_FORMED = [
    (b"{}", 1),
    (deflate(b'{"a": "aaaaaaaaaaaaaaaaaaaaaaaaaaaa"}'), 3),
    (join_xattrs(SECTION, b"{}"), 5),
    (join_xattrs([], b"raw"), 4),
    (deflate(join_xattrs(SECTION, b'{"b": 2}')), 7),
    (deflate(b""), 2),
    (b"", 7),
    (join_xattrs(SECTION, b"with more than a name's length behind it"), 4),
]


@pytest.mark.parametrize("system_xattrs", [True, False])
def test_well_formed_values_are_not_looked_at_one_by_one(
    monkeypatch: pytest.MonkeyPatch, system_xattrs: bool
) -> None:
    monkeypatch.delattr(document_columns, "decode_document")
    found = stored_documents(columns_of(WELL_FORMED), system_xattrs=system_xattrs)
    bodies = [decode_document(value, datatype).body for value, datatype in WELL_FORMED]
    assert found.columns.value.to_pylist() == bodies
    told = '{"_sync":{"rev": "1"},"user":[1]}' if system_xattrs else '{"user":[1]}'
    assert found.xattrs.to_pylist() == [None, None, told, "{}", told, None, None, told]


def test_values_without_layers_are_not_copied() -> None:
    columns = columns_of([(b"{}", 1), (b"raw", 0)])
    assert stored_documents(columns).columns is columns
