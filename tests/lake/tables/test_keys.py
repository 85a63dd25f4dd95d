"""Keys as strings: injective, exact, and the vectorised form equal to the plain one."""

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dcp.lake.receive.keys import key_columns, key_string

KEYS = st.one_of(
    st.binary(max_size=250),
    st.text(max_size=60).map(str.encode),
    st.binary(max_size=20).map(lambda tail: b"\\x" + tail),
)


def key_of(text: str) -> bytes:
    """The rule read backwards, as a reader of the tables would."""
    return bytes.fromhex(text[2:]) if text.startswith("\\x") else text.encode()


@pytest.mark.parametrize(
    ("key", "text"),
    [
        (b"", ""),
        (b"\0", "\0"),
        (b"airport_EDDB", "airport_EDDB"),
        ("Ä".encode(), "Ä"),
        (b"\xff\x00", "\\xff00"),
        (b"\\xff00", "\\x5c7866663030"),
        (b"\\x", "\\x5c78"),
        (b"\xed\xa0\x80", "\\xeda080"),  # a surrogate is not UTF-8
        (b"\xc0\x80", "\\xc080"),  # nor is an overlong NUL
    ],
)
def test_known_keys(key: bytes, text: str) -> None:
    assert key_string(key) == text
    assert key_of(text) == key


@given(st.lists(KEYS, max_size=20, unique=True))
@example([b"k" * 250, b"\xff" * 250])
def test_every_key_comes_back_and_no_two_share_a_string(keys: list[bytes]) -> None:
    strings, raw = key_columns(pa.array(keys, pa.binary()))
    assert strings.type == pa.string()
    assert raw.type == pa.binary()
    texts = strings.to_pylist()
    assert texts == [key_string(key) for key in keys]
    assert len(set(texts)) == len(keys)
    for key, text, kept in zip(keys, texts, raw.to_pylist(), strict=True):
        assert key_of(text) == key
        assert (kept if kept is not None else text.encode()) == key
        assert (kept is not None) == text.startswith("\\x")


def test_a_slice_of_an_array_is_read_by_its_own_rows() -> None:
    keys = pa.array([b"a", b"\xff", b"b"], pa.binary())
    assert key_columns(keys.slice(1, 1))[0].to_pylist() == ["\\xff"]
    assert key_columns(keys.slice(2))[0].to_pylist() == ["b"]
