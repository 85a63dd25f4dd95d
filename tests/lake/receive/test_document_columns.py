"""Values as the lake stores them, whole columns at once, against the decoder of one document."""

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from dcp.errors import FrameError
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

NAMES = st.sampled_from(["_sync", "txn", "txn2", "a", "é"])
XATTRS = st.dictionaries(NAMES, st.binary(max_size=20))


@st.composite
def sent_values(draw: st.DrawFn) -> Sent:
    value, datatype = draw(st.binary(max_size=30)), draw(st.integers(0, 1))
    if draw(st.booleans()):
        pairs = draw(XATTRS)
        value = join_xattrs([(name.encode(), text) for name, text in pairs.items()], value)
        datatype |= Datatype.XATTR
    if draw(st.booleans()):
        value, datatype = deflate(value), datatype | Datatype.SNAPPY
    return value, datatype


BROKEN = st.sampled_from([(b"\x05\x00", 2), (b"\xff" * 5, 3), (b"\0\0\0", 4), (b"x", 8), (b"", 9)])


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


@given(st.lists(sent_values() | BROKEN, max_size=8), st.booleans())
def test_columns_are_what_the_decoder_of_one_finds(values: list[Sent], system_xattrs: bool) -> None:
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
                users = tuple(each for each in wanted.xattrs if each[0] not in (b"_sync", b"txn"))
                xattrs = xattrs_json(users) if users else None
            assert stored == (wanted.body, wanted.datatype, xattrs)
            assert found.detail[row].as_py() is None


def test_values_without_layers_are_not_copied() -> None:
    columns = columns_of([(b"{}", 1), (b"raw", 0)])
    assert stored_documents(columns).columns is columns
